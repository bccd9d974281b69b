"""Tier `double-double`: what to compute of a problem, and where it goes."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator

import numpy as np

from attnspec.oracle.double_double import assumptions
from attnspec.oracle.double_double.forward import Bounded, Forward, forward, log_sum_exp
from attnspec.oracle.double_double.gradients import Gradients, Part
from attnspec.oracle.double_double.pairs import Pair
from attnspec.oracle.double_double.reading import Tile, groups
from attnspec.oracle.double_double.scratch import Workspace, workspace
from attnspec.oracle.double_double.softmax import softmax
from attnspec.oracle.double_double.totals import Total
from attnspec.oracle.enclosure import Reference
from attnspec.oracle.problem import Problem
from attnspec.oracle.workers import in_order

__all__ = ["add_part", "enclose", "room", "tile_forward"]


def enclose(problem: Problem, *, want: Collection[str] = ("out", "lse")) -> Reference:
    """Enclose the outputs named in `want` (of `OUTPUTS`), each in its shape of `Problem.shape_of`.

    Bounds are 2^-65 to 2^-75 of the magnitudes that are added up, where scores are moderate. A
    bound of inf means that this tier does not reach: scores beyond 2^33 ticks (1.4 million), a
    result that overflows, NaN or infinity among the visible numbers. Raises `AssumptionFailed`.
    """
    assumptions.check()
    totals = {name: Total(_total_shape(problem, name)) for name in want}
    tiles = [tile for group in groups(problem) for tile in group.tiles()]

    caller = threading.get_ident()

    def parts_of(tile: Tile) -> Iterable[Part]:
        parts = _parts(tile, want)
        return parts if threading.get_ident() == caller else [part.copy() for part in parts]

    with np.errstate(all="ignore"):
        answers = in_order(parts_of, tiles, scores=_scores(problem))
        for tile, parts in zip(tiles, answers, strict=True):
            for part in parts:
                add_part(tile, part, totals[part.output])
        enclosures = {n: total.enclosure(problem.shape_of(n)) for n, total in totals.items()}
    return Reference("double-double", enclosures)


def _parts(tile: Tile, want: Collection[str]) -> Iterator[Part]:
    """What a tile adds to every output of `want`."""
    assumptions.check()  # of this thread
    with workspace(room(tile)) as work, np.errstate(all="ignore"):
        result = tile_forward(tile, work)
        yield from _of_rows(tile, result, want)
        if not set(want) <= {"out", "lse"}:
            yield from Gradients(tile, result, want, work.scratch).parts()


def _scores(problem: Problem) -> int:
    """How many scores there are: what its cost grows with."""
    return problem.batch * problem.query_heads * problem.query_count * problem.key_count


def room(tile: Tile) -> int:
    """Numbers that the exponentials of a tile take: two a score, and two for a soft-cap's slope."""
    numbers = 2 if tile.group.problem.softcap is None else 4
    heads, rows = len(tile.group.batch), tile.rows.stop - tile.rows.start
    return int(numbers * heads * rows * tile.group.problem.key_count)


def tile_forward(tile: Tile, work: Workspace) -> Forward:
    """The outputs of a tile, with its exponentials in the workspace's buffer."""
    return forward(tile, softmax(tile, work.buffer, work=work.scratch), work=work.scratch)


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


def add_part(tile: Tile, part: Part, total: Total, *, origin: int = 0) -> None:
    """Add each head's part at its place; the total's keys begin at the key `origin`."""
    group = tile.group
    for h, (batch, head, kv) in enumerate(
        zip(group.batch.tolist(), group.index.tolist(), group.kv_index.tolist(), strict=True)
    ):
        place: tuple[int | slice, ...] = (batch, head, tile.rows)
        if part.output in ("dk", "dv"):
            keys = part.keys or slice(None)
            place = (batch, kv, slice(keys.start - origin, keys.stop - origin))
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
