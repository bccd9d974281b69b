"""Tier `double-double`: what to compute of a problem, and where it goes."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from attnspec.oracle import assumptions
from attnspec.oracle.double_double.forward import Bounded, forward, log_sum_exp
from attnspec.oracle.double_double.gradients import Gradients, Part
from attnspec.oracle.double_double.pairs import Pair
from attnspec.oracle.double_double.reading import ROWS, Tile, groups
from attnspec.oracle.double_double.scratch import Scratch
from attnspec.oracle.double_double.softmax import softmax
from attnspec.oracle.double_double.totals import Total
from attnspec.oracle.enclosure import Reference
from attnspec.oracle.formats import Float64Array
from attnspec.oracle.problem import Problem

__all__ = ["enclose"]

FORWARD = {"out", "lse"}


def enclose(problem: Problem, *, want: Collection[str] = ("out", "lse")) -> Reference:
    """Enclose the outputs named in `want` (of `OUTPUTS`), each in its shape of `Problem.shape_of`.

    Bounds are about 2^-70 of the magnitudes that are added up, where scores are moderate. A bound
    of inf means that this tier does not reach: scores beyond 2^33 ticks (1.4 million), a result
    that overflows, NaN or infinity among the visible numbers. Raises `AssumptionFailed`.
    """
    assumptions.check()
    totals = {name: Total(_total_shape(problem, name)) for name in want}
    work = Scratch()
    with np.errstate(all="ignore"):
        for group in groups(problem):
            buffer = _buffer(problem, len(group.batch))
            for tile in group.tiles():
                for part in _parts(tile, want, buffer, work):
                    _add(tile, part, totals[part.output])
        enclosures = {n: total.enclosure(problem.shape_of(n)) for n, total in totals.items()}
    return Reference("double-double", enclosures)


def _buffer(problem: Problem, heads: int) -> Float64Array:
    """Room for the exponentials of a tile, and for the slope of a soft-cap."""
    numbers = 2 if problem.softcap is None else 4
    return np.empty(numbers * heads * min(ROWS, problem.query_count) * problem.key_count)


def _parts(
    tile: Tile, want: Collection[str], buffer: Float64Array, work: Scratch
) -> Iterator[Part]:
    """What a tile adds to every output of `want`."""
    result = forward(tile, softmax(tile, buffer, work=work), work=work)
    empty = ~tile.sees
    zero = np.zeros(1, np.int64)
    if "out" in want:
        around = np.where(empty[..., None], 0.0, result.out.error)
        yield Part("out", Bounded(result.out.pair, around), tile.group.value.exponent[..., :-1])
    if "lse" in want:
        lse = log_sum_exp(result)
        if result.softmax.sink is None:
            high, low = np.where(empty, -np.inf, lse.pair.high), np.where(empty, 0.0, lse.pair.low)
            lse = Bounded(Pair(high, low), np.where(empty, 0.0, lse.error))
        yield Part("lse", lse, zero[:, None])
    if not set(want) <= FORWARD:
        yield from Gradients(tile, result, want, work).parts()


def _total_shape(problem: Problem, output: str) -> tuple[int, ...]:
    """The shape that heads add into: the output's, with dbias's missing leading axes."""
    shape = problem.shape_of(output)
    return (1,) * (4 - len(shape)) + shape if output == "dbias" else shape


def _add(tile: Tile, part: Part, total: Total) -> None:
    """Add each head's part at its place."""
    group = tile.group
    for h, (batch, head, kv) in enumerate(
        zip(group.batch.tolist(), group.index.tolist(), group.kv_index.tolist(), strict=True)
    ):
        place: tuple[int | slice, ...] = (batch, head, tile.rows)
        if part.output in ("dk", "dv"):
            place = (batch, kv, part.keys or slice(None))
        elif part.output == "dsinks":
            place = (slice(head, head + 1),)
        elif part.output == "dbias":
            place = _bias_place(total.value.shape, batch, head, tile.rows, part.keys)
        pair, error = part.bounded.pair, part.bounded.error
        bounded = Bounded(Pair(pair.high[h], pair.low[h]), error[h])
        exponent = np.broadcast_to(part.exponent, (len(pair.high), *part.exponent.shape[1:]))[h]
        total.add(place, bounded, exponent)


def _bias_place(
    shape: tuple[int, ...], batch: int, head: int, rows: slice, keys: slice | None
) -> tuple[int | slice, ...]:
    whole = slice(None)
    return (
        batch if shape[0] > 1 else 0,
        head if shape[1] > 1 else 0,
        rows if shape[2] > 1 else whole,
        keys or whole if shape[3] > 1 else whole,
    )
