"""Tier `double-double`: what to compute of a problem, and where it goes."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from attnspec.oracle import assumptions
from attnspec.oracle.double_double.forward import Bounded, Forward, forward, log_sum_exp
from attnspec.oracle.double_double.gradients import Gradients, Part
from attnspec.oracle.double_double.pairs import Pair
from attnspec.oracle.double_double.reading import ROWS, Tile, groups
from attnspec.oracle.double_double.scratch import Scratch
from attnspec.oracle.double_double.softmax import softmax
from attnspec.oracle.double_double.totals import Total
from attnspec.oracle.double_double.workers import in_order
from attnspec.oracle.enclosure import Reference
from attnspec.oracle.formats import Float64Array
from attnspec.oracle.problem import Problem

__all__ = ["enclose"]


def enclose(problem: Problem, *, want: Collection[str] = ("out", "lse")) -> Reference:
    """Enclose the outputs named in `want` (of `OUTPUTS`), each in its shape of `Problem.shape_of`.

    Bounds are about 2^-70 of the magnitudes that are added up, where scores are moderate. A bound
    of inf means that this tier does not reach: scores beyond 2^33 ticks (1.4 million), a result
    that overflows, NaN or infinity among the visible numbers. Raises `AssumptionFailed`.
    """
    assumptions.check()
    totals = {name: Total(_total_shape(problem, name)) for name in want}
    tiles = [tile for group in groups(problem) for tile in group.tiles()]
    local = threading.local()

    def parts_of(tile: Tile) -> Iterator[Part]:
        return _parts(tile, want, _workspace(local, tile))

    with np.errstate(all="ignore"):
        for tile, parts in in_order(tiles, parts_of):
            for part in parts:
                _add(tile, part, totals[part.output])
        enclosures = {n: total.enclosure(problem.shape_of(n)) for n, total in totals.items()}
    return Reference("double-double", enclosures)


@dataclass(frozen=True)
class _Workspace:
    """What a thread works in: room for the exponentials of a tile, and passing arrays."""

    buffer: Float64Array
    scratch: Scratch


def _workspace(local: threading.local, tile: Tile) -> _Workspace:
    """This thread's, large enough for the tile: a soft-cap's slope takes as much again."""
    problem, heads = tile.group.problem, len(tile.group.batch)
    numbers = 2 if problem.softcap is None else 4
    size = numbers * heads * min(ROWS, problem.query_count) * problem.key_count
    have: _Workspace | None = getattr(local, "workspace", None)
    if have is None or have.buffer.size < size:
        have = local.workspace = _Workspace(np.empty(size), Scratch())
    return have


def _parts(tile: Tile, want: Collection[str], work: _Workspace) -> Iterator[Part]:
    """What a tile adds to every output of `want`."""
    assumptions.check()  # of this thread
    with np.errstate(all="ignore"):
        weights = softmax(tile, work.buffer, work=work.scratch)
        result = forward(tile, weights, work=work.scratch)
        yield from _of_rows(tile, result, want)
        if not set(want) <= {"out", "lse"}:
            yield from Gradients(tile, result, want, work.scratch).parts()


def _of_rows(tile: Tile, result: Forward, want: Collection[str]) -> Iterator[Part]:
    """out and lse: exactly 0 and -inf where a row sees nothing (and has no sink)."""
    empty = ~tile.sees
    if "out" in want:
        around = np.where(empty[..., None], 0.0, result.out.error)
        yield Part("out", Bounded(result.out.pair, around), tile.group.value.exponent[..., :-1])
    if "lse" in want:
        lse = log_sum_exp(result)
        if result.softmax.sink is None:
            high, low = np.where(empty, -np.inf, lse.pair.high), np.where(empty, 0.0, lse.pair.low)
            lse = Bounded(Pair(high, low), np.where(empty, 0.0, lse.error))
        yield Part("lse", lse, np.zeros((1, 1), np.int64))


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
