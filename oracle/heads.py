"""Several query heads side by side, for code whose NumPy calls cost more than their arithmetic.

What a head is, `Problem.heads` decides; here heads only get a common leading axis.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attnspec.oracle.formats import Float64Array
from attnspec.oracle.problem import BoolArray, IntArray, Problem

__all__ = ["SCORES", "Heads", "IntArray", "disjoint", "stacked", "transposed"]

SCORES = 2**14
"""Scores that are worked on together: enough to hide the cost of a call, and few enough that an
array of them fits the caches and malloc need not ask the system for it. A head with more stands
alone."""


@dataclass(frozen=True, eq=False)
class Heads:
    """H query heads and R = len(rows) of their rows, with the M = len(keys) keys in between.

    Each field is as in `Head` behind an axis of H; scale and soft-cap are common. `rows` and
    `keys` say which rows and keys of the problem are here; the others do not matter to these.
    """

    batch: IntArray  # (H,)
    index: IntArray  # (H,)
    kv_index: IntArray  # (H,)
    rows: slice
    keys: slice
    scale: float
    softcap: float | None
    query: Float64Array  # (H, R, D)
    key: Float64Array  # (H, M, D)
    value: Float64Array  # (H, M, Dv)
    visible: BoolArray  # (H, R, M)
    diagonal: IntArray  # (H, R): the key that each row meets on the diagonal
    bias: Float64Array | None  # (H, R, M)
    slope: Float64Array | None  # (H, 1, 1)
    sink: Float64Array | None  # (H, 1, 1)
    dout: Float64Array | None  # (H, R, Dv)
    dlse: Float64Array | None  # (H, R)

    @property
    def ahead(self) -> IntArray:
        """i + offset - j: (H, R, M)."""
        columns: IntArray = np.arange(self.keys.start, self.keys.stop, dtype=np.int64)
        return self.diagonal[..., None] - columns


def stacked(problem: Problem, *, scores: int = SCORES, rows: int | None = None) -> Iterator[Heads]:
    """All heads in order, as many at a time as have `scores` scores together, at least one.

    With `rows`, those heads come in tiles of at most so many rows, one after the other, each with
    the keys from the first that it sees to the last.
    """
    numbers = [(b, h) for b in range(problem.batch) for h in range(problem.query_heads)]
    count = max(1, scores // max(1, problem.query_count * problem.key_count))
    for some in _batches(numbers, count):
        operands = _operands(problem, some)
        step = problem.query_count if rows is None else rows
        for start in range(0, max(1, problem.query_count), max(1, step)):
            part = slice(start, min(start + step, problem.query_count))
            yield _tile(problem, some, operands, part, narrow=rows is not None)


Numbers = tuple[tuple[int, int], ...]
"""Batch entry and query head of some heads."""


def _batches(numbers: list[tuple[int, int]], count: int) -> Iterator[Numbers]:
    for start in range(0, len(numbers), count):
        yield tuple(numbers[start : start + count])


def _operands(problem: Problem, heads: Numbers) -> tuple[Float64Array, Float64Array]:
    """Keys (H, Nk, D) and values (H, Nk, Dv), 0 where no row sees them."""
    group = problem.query_heads // problem.kv_heads
    key = np.stack([problem.k[b, h // group] for b, h in heads]).astype(np.float64)
    value = np.stack([problem.v[b, h // group] for b, h in heads]).astype(np.float64)
    for i, (b, h) in enumerate(heads):
        hidden = ~problem.used(b, h)
        key[i, hidden] = 0
        value[i, hidden] = 0
    return key, value


def _tile(
    problem: Problem,
    heads: Numbers,
    operands: tuple[Float64Array, Float64Array],
    rows: slice,
    *,
    narrow: bool,
) -> Heads:
    batch, index = np.array(heads, np.int64).T
    keys = _span(problem, heads, rows) if narrow else slice(0, problem.key_count)
    visible = np.stack([problem.visible(b, h, rows, keys) for b, h in heads])
    bias = None
    if problem.bias is not None:
        each = [problem.scores_of(problem.bias, b, h)[rows, keys] for b, h in heads]
        bias = np.where(visible, np.stack(each).astype(np.float64), 0.0)

    def restricted(array: npt.NDArray[Any] | None) -> Any:
        return None if array is None else array[batch, index, rows].astype(np.float64)

    def column(numbers: npt.NDArray[Any] | None) -> Any:
        return None if numbers is None else numbers.astype(np.float64)[index, None, None]

    return Heads(
        batch=batch,
        index=index,
        kv_index=index // (problem.query_heads // problem.kv_heads),
        rows=rows,
        keys=keys,
        scale=float(problem.scale),
        softcap=None if problem.softcap is None else float(problem.softcap),
        query=restricted(problem.q),
        key=operands[0][:, keys],
        value=operands[1][:, keys],
        visible=visible,
        diagonal=np.stack([problem.diagonals(b)[rows] for b, _ in heads]),
        bias=bias,
        slope=column(problem.alibi),
        sink=column(problem.sinks),
        dout=restricted(problem.dout),
        dlse=restricted(problem.dlse),
    )


def _span(problem: Problem, heads: Numbers, rows: slice) -> slice:
    """The keys from the first that one of these rows sees to the last; mask and bias apart."""
    spans = np.stack([problem.spans(b)[:, rows] for b in sorted({b for b, _ in heads})])
    first, stop = spans[:, 0], spans[:, 1]
    seen = stop > first
    if not seen.any():
        return slice(0, 0)
    return slice(int(first[seen].min()), int(stop[seen].max()))


def transposed(matrices: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Each head's matrix transposed, as a view."""
    return np.swapaxes(matrices, -1, -2)


def disjoint(*places: IntArray) -> Iterator[IntArray]:
    """Positions of heads in groups within which no two heads share a place, in order.

    `places` are the coordinates, (H,) each, of what each head is added to: `total[place] += x`
    adds only one head where several are at the same place.
    """
    rounds: list[list[int]] = []
    seen: dict[tuple[int, ...], int] = {}
    for head, place in enumerate(zip(*(place.tolist() for place in places), strict=True)):
        earlier = seen.get(place, 0)
        seen[place] = earlier + 1
        if earlier == len(rounds):
            rounds.append([])
        rounds[earlier].append(head)
    for members in rounds:
        yield np.array(members)
