"""Several query heads side by side, for code whose NumPy calls cost more than their arithmetic.

What a head is, `Problem.heads` decides; here heads only get a common leading axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from attnspec.oracle.formats import Float64Array
from attnspec.oracle.problem import BoolArray, IntArray, Problem

__all__ = ["SCORES", "Heads", "IntArray", "Operands", "disjoint", "stacked", "transposed"]

SCORES = 2**14
"""Scores that are worked on together: enough to hide the cost of a call, and few enough that an
array of them fits the caches and malloc need not ask the system for it. A head with more stands
alone."""
Item = TypeVar("Item")
KEPT = 2**24
"""How many numbers of keys, or of values, are kept in float64: 128 MiB."""


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
    operands: Operands
    query: Float64Array  # (H, R, D)
    visible: BoolArray  # (H, R, M)
    diagonal: IntArray  # (H, R): the key that each row meets on the diagonal
    bias: Float64Array | None  # (H, R, M)
    slope: Float64Array | None  # (H, 1, 1)
    sink: Float64Array | None  # (H, 1, 1)
    dout: Float64Array | None  # (H, R, Dv)
    dlse: Float64Array | None  # (H, R)

    @property
    def key(self) -> Float64Array:
        """(H, M, D)."""
        return self.operands.key(self.keys)

    @property
    def value(self) -> Float64Array:
        """(H, M, Dv)."""
        return self.operands.value(self.keys)

    @property
    def ahead(self) -> IntArray:
        """i + offset - j: (H, R, M)."""
        return self.ahead_of(slice(0, self.keys.stop - self.keys.start))

    def key_of(self, part: slice) -> Float64Array:
        """Some of these M keys."""
        return self.operands.key(self._absolute(part))

    def value_of(self, part: slice) -> Float64Array:
        """The values of some of these M keys."""
        return self.operands.value(self._absolute(part))

    def ahead_of(self, part: slice) -> IntArray:
        """i + offset - j, for some of these M keys."""
        some = self._absolute(part)
        return self.diagonal[..., None] - np.arange(some.start, some.stop, dtype=np.int64)

    def tiles(self, count: int) -> Iterator[Heads]:
        """These rows, at most `count` at a time."""
        for start in range(0, max(1, self.rows.stop - self.rows.start), count):
            first, some = self.rows.start + start, slice(start, start + count)
            yield replace(
                self,
                rows=slice(first, min(first + count, self.rows.stop)),
                query=self.query[:, some],
                visible=self.visible[:, some],
                diagonal=self.diagonal[:, some],
                bias=None if self.bias is None else self.bias[:, some],
                dout=None if self.dout is None else self.dout[:, some],
                dlse=None if self.dlse is None else self.dlse[:, some],
            )

    def _absolute(self, part: slice) -> slice:
        return slice(self.keys.start + part.start, self.keys.start + part.stop)


def stacked(problem: Problem, *, scores: int = SCORES, rows: int | None = None) -> Iterator[Heads]:
    """All heads in order, as many at a time as have `scores` scores together, at least one.

    With `rows`, those heads come in tiles of at most so many rows, one after the other, each with
    the keys from the first that it sees to the last.
    """
    numbers = [(b, h) for b in range(problem.batch) for h in range(problem.query_heads)]
    count = max(1, scores // max(1, problem.query_count * problem.key_count))
    for some in _batches(numbers, count):
        operands = Operands(problem, some)
        step = problem.query_count if rows is None else rows
        for start in range(0, max(1, problem.query_count), max(1, step)):
            part = slice(start, min(start + step, problem.query_count))
            yield _tile(problem, some, operands, part, narrow=rows is not None)


Numbers = tuple[tuple[int, int], ...]
"""Batch entry and query head of some heads."""


def _batches(numbers: list[tuple[int, int]], count: int) -> Iterator[Numbers]:
    for start in range(0, len(numbers), count):
        yield tuple(numbers[start : start + count])


class Operands:
    """All keys and values of some heads, in float64 and 0 where no row sees them.

    They are converted once where they are few, and whenever some are asked for where a copy would
    take more than `KEPT` numbers.
    """

    def __init__(self, problem: Problem, heads: Numbers) -> None:
        self._problem, self._heads = problem, heads

    def key(self, part: slice) -> Float64Array:
        """These keys: (H, M, D)."""
        k = self._problem.k
        return self._key[:, part] if self._few(k) else self._converted(k, part)

    def value(self, part: slice) -> Float64Array:
        """Their values: (H, M, Dv)."""
        v = self._problem.v
        return self._value[:, part] if self._few(v) else self._converted(v, part)

    def _few(self, array: npt.NDArray[Any]) -> bool:
        return bool(len(self._heads) * array.shape[2] * array.shape[3] <= KEPT)

    @cached_property
    def _key(self) -> Float64Array:
        return self._converted(self._problem.k, slice(None))

    @cached_property
    def _value(self) -> Float64Array:
        return self._converted(self._problem.v, slice(None))

    @cached_property
    def _unused(self) -> list[BoolArray]:
        problem = self._problem
        if problem.mask is None and problem.bias is None:  # the same for all heads
            return _by_batch(self._heads, lambda b: ~problem.used(b, 0))
        return [~problem.used(b, h) for b, h in self._heads]

    def _converted(self, array: npt.NDArray[Any], part: slice) -> Float64Array:
        group = self._problem.query_heads // self._problem.kv_heads
        batch, head = np.array(self._heads).T
        result: Float64Array = array[batch, head // group, part].astype(np.float64)
        for one, unused in zip(result, self._unused, strict=True):
            if unused[part].any():
                one[unused[part]] = 0
        return result


def _tile(
    problem: Problem,
    heads: Numbers,
    operands: Operands,
    rows: slice,
    *,
    narrow: bool,
) -> Heads:
    batch, index = np.array(heads, np.int64).T
    keys = _span(problem, heads, rows) if narrow else slice(0, problem.key_count)
    visible = _visible(problem, heads, rows, keys)
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
        operands=operands,
        query=restricted(problem.q),
        visible=visible,
        diagonal=np.stack(_by_batch(heads, lambda b: problem.diagonals(b)[rows])),
        bias=bias,
        slope=column(problem.alibi),
        sink=column(problem.sinks),
        dout=restricted(problem.dout),
        dlse=restricted(problem.dlse),
    )


def _by_batch(heads: Numbers, of: Callable[[int], Item]) -> list[Item]:
    """What the batch entry of each head has, found once an entry."""
    found = {b: of(b) for b in sorted({b for b, _ in heads})}
    return [found[b] for b, _ in heads]


def _span(problem: Problem, heads: Numbers, rows: slice) -> slice:
    """The keys from the first that one of these rows sees to the last; mask and bias apart."""
    spans = np.stack([problem.spans(b)[:, rows] for b in sorted({b for b, _ in heads})])
    first, stop = spans[:, 0], spans[:, 1]
    seen = stop > first
    if not seen.any():
        return slice(0, 0)
    return slice(int(first[seen].min()), int(stop[seen].max()))


def _visible(problem: Problem, heads: Numbers, rows: slice, keys: slice) -> BoolArray:
    """Which keys each row sees: (H, R, M). Of spans alone, only their ends are worth a look."""
    if problem.mask is not None or problem.bias is not None:
        return np.stack([problem.visible(b, h, rows, keys) for b, h in heads])
    first, stop = np.stack(_by_batch(heads, problem.spans))[..., rows].swapaxes(0, 1) - keys.start
    size = keys.stop - keys.start
    visible = np.ones((*first.shape, size), np.bool_)
    begun, ended = max(0, first.max(initial=0)), min(size, stop.min(initial=size))
    column = np.arange(size)
    if begun > 0:
        visible[..., :begun] = column[:begun] >= first[..., None]
    if ended < size:
        ended = max(0, ended)
        visible[..., ended:] &= column[ended:] < stop[..., None]
    return visible


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
