"""How the engine reads a problem: some heads, a tile of their rows, and blocks of keys.

Nothing here has the size of all scores, and of long contexts not even all keys are held in
float64: blocks are converted when they are read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from attnspec.oracle.double_double.pairs import scale
from attnspec.oracle.double_double.scratch import Scratch
from attnspec.oracle.double_double.slices import Wide, wide
from attnspec.oracle.formats import Float64Array
from attnspec.oracle.problem import BoolArray, IntArray, Problem

__all__ = ["BLOCK", "CHUNK", "LONGEST", "Group", "Operand", "Tile", "groups"]

CHUNK = 256
"""Keys that one product sums over: few, for exact slices, and enough for a fast product."""
BLOCK = 2**15
"""Scores that are worked on together: arrays of them fit the cache."""
LONGEST = 2**13
"""Keys of a block at most, however few the rows: what `key_gradients` gives at a time."""
ROWS = 256
"""Query rows of a tile."""
KEPT = 2**22
"""Numbers of an operand that are kept in slices; longer ones are sliced as they are read."""


@dataclass(frozen=True)
class Group:
    """Query heads side by side: (batch entry, query head) of each, H in all."""

    problem: Problem
    batch: IntArray  # (H,)
    index: IntArray  # (H,)

    @property
    def kv_index(self) -> IntArray:
        """Which key head each query head reads: (H,)."""
        return self.index // (self.problem.query_heads // self.problem.kv_heads)

    @cached_property
    def used(self) -> BoolArray:
        """Which keys any row sees: (H, Nk)."""
        pairs = zip(self.batch.tolist(), self.index.tolist(), strict=True)
        return np.stack([self.problem.used(b, h) for b, h in pairs])

    @cached_property
    def key(self) -> Operand:
        """The keys (H, Nk, D)."""
        return Operand(self.problem.k, self)

    @cached_property
    def value(self) -> Operand:
        """The values, and a column of ones: (H, Nk, Dv + 1)."""
        return Operand(self.problem.v, self, ones=True)

    def tiles(self) -> Iterator[Tile]:
        """Tiles of query rows, in order."""
        count = self.problem.query_count
        for start in range(0, count, ROWS):
            yield Tile(self, slice(start, min(start + ROWS, count)))


def groups(problem: Problem) -> Iterator[Group]:
    """All heads in order: as many at a time as have BLOCK scores together, at least one."""
    heads = [(b, h) for b in range(problem.batch) for h in range(problem.query_heads)]
    scores = min(problem.query_count, ROWS) * problem.key_count
    count = max(1, BLOCK // max(1, scores))
    for start in range(0, len(heads), count):
        batch, index = np.array(heads[start : start + count], np.int64).T
        yield Group(problem, batch, index)


class Operand:
    """Keys or values of a group, in slices: each column scaled by a power of two to |.| <= 1.

    `exponent` (H, 1, n): what is here times 2^exponent is the operand's own. Keys that no row
    sees are 0. Scaling is exact, but for what becomes subnormal: below 2^-1020 of its column.
    """

    def __init__(self, array: npt.NDArray[Any], group: Group, *, ones: bool = False) -> None:
        self._array = array
        self._group = group
        self._unused = ~group.used if not group.used.all() else None
        self._width = array.shape[3]
        self.shape = (len(group.batch), array.shape[2], array.shape[3] + ones)
        self._kept: dict[int, Wide] | None = {} if math.prod(self.shape) <= KEPT else None
        exponent = np.frexp(self._largest())[1].astype(np.int64)
        self.exponent: IntArray = np.pad(exponent, ((0, 0), (0, ones)), constant_values=1)[:, None]

    def blocks(self, keys: slice, *, work: Scratch) -> Iterator[tuple[slice, Wide]]:
        """Slices (H, m, n) of these keys, in blocks that fit the cache: multiples of CHUNK, but
        for the last. Each is there until the next one is asked for."""
        step = max(1, BLOCK * 2 // (self.shape[0] * self.shape[2] * CHUNK)) * CHUNK
        for start in range(keys.start, keys.stop, step):
            part = slice(start, min(start + step, keys.stop))
            shape = (self.shape[0], part.stop - start, self.shape[2])
            if self._kept is None:
                with work.arrays(shape, 4) as (whole, *into):
                    yield part, wide(self._read(part, whole), into=into)
                continue
            kept = self._kept.get(start)  # which another thread's tile may replace by a longer one
            if kept is None or kept.whole.shape != shape:
                kept = self._kept[start] = wide(self._read(part, np.empty(shape)))
            yield part, kept

    def _read(self, keys: slice, out: Float64Array) -> Float64Array:
        """These keys, scaled: (H, m, n), with the column of ones."""
        width = self._width
        for h, part in enumerate(self._raw(keys)):
            scale(part, -self.exponent[h, :, :width], out=out[h, :, :width])
            if self._unused is not None:
                out[h, self._unused[h, keys]] = 0
        out[..., width:] = 0.5
        return out

    def _raw(self, keys: slice) -> Iterator[npt.NDArray[Any]]:
        group = self._group
        for batch, kv in zip(group.batch.tolist(), group.kv_index.tolist(), strict=True):
            yield self._array[batch, kv, keys]

    def _largest(self) -> Float64Array:
        """The largest finite magnitude of each column: (H, n)."""
        largest = np.zeros((self.shape[0], self._width))
        step = max(1, 2**18 // self._width)
        for start in range(0, self.shape[1], step):
            keys = slice(start, start + step)
            for h, part in enumerate(self._raw(keys)):
                used = part if self._unused is None else part[~self._unused[h, keys]]
                if len(used):
                    ends = used.max(0).astype(np.float64), -used.min(0).astype(np.float64)
                    most = np.maximum(*ends)
                    if not np.isfinite(most).all():
                        sizes = np.abs(used.astype(np.float64))
                        most = np.where(np.isfinite(sizes), sizes, 0.0).max(0)
                    np.maximum(largest[h], most, out=largest[h])
        return largest


@dataclass(frozen=True)
class Tile:
    """Some query rows of a group: R of them."""

    group: Group
    rows: slice

    @cached_property
    def spans(self) -> IntArray:
        """The keys [first, stop) that causal, window and lengths leave each row: (2, H, R)."""
        batch = self.group.batch.tolist()
        spans = {b: self.group.problem.spans(b)[:, self.rows] for b in set(batch)}
        return np.stack([spans[b] for b in batch], axis=1)

    def blocks(self) -> Iterator[slice]:
        """Blocks of keys, from the first that a row sees to the last.

        They begin and end at multiples of CHUNK (but for the last keys of all), and never cross a
        multiple of LONGEST.
        """
        first, stop = self.spans
        seen = stop > first
        if not seen.any():
            return
        start = int(first[seen].min()) // CHUNK * CHUNK
        end = min(-(-int(stop[seen].max()) // CHUNK) * CHUNK, self.group.problem.key_count)
        step = min(LONGEST, CHUNK << max(0, (BLOCK // (CHUNK * first.size)).bit_length() - 1))
        whole = start + (end - start) // CHUNK * CHUNK
        while start < whole:
            stop_here = min((start // step + 1) * step, whole)
            yield slice(start, stop_here)
            start = stop_here
        if whole < end:
            yield slice(whole, end)

    def hidden(self, keys: slice) -> BoolArray | None:
        """Which of these keys each row does not see: (H, R, m); None where all see all."""
        problem, (first, stop) = self.group.problem, self.spans
        if problem.mask is None and problem.bias is None:
            if first.max() <= keys.start and stop.min() >= keys.stop:
                return None
            key = np.arange(keys.start, keys.stop)
            outside: BoolArray = (key < first[..., None]) | (key >= stop[..., None])
            return outside
        heads = zip(self.group.batch.tolist(), self.group.index.tolist(), strict=True)
        return ~np.stack([problem.visible(b, h, self.rows, keys) for b, h in heads])

    @cached_property
    def sees(self) -> BoolArray:
        """Which rows see a key: (H, R)."""
        first, stop = self.spans
        seen: BoolArray = stop > first
        if self.group.problem.mask is None and self.group.problem.bias is None:
            return seen
        seen = np.zeros_like(seen)
        for keys in self.blocks():
            hidden = self.hidden(keys)
            seen |= True if hidden is None else ~hidden.all(axis=-1)
        return seen

    def rows_of(self, array: npt.NDArray[Any]) -> Float64Array:
        """These rows of q, dout or dlse: (H, R, …)."""
        return array[self.group.batch, self.group.index, self.rows].astype(np.float64)

    @cached_property
    def query(self) -> Float64Array:
        """The queries (H, R, D): 0 where a row sees nothing, which may be padding."""
        part = self.rows_of(self.group.problem.q)
        part[~self.sees] = 0
        return part

    def bias(self, keys: slice) -> Float64Array | None:
        """The bias of these keys: (H, R, m), 0 where hidden."""
        problem = self.group.problem
        if problem.bias is None:
            return None
        heads = zip(self.group.batch.tolist(), self.group.index.tolist(), strict=True)
        parts = [problem.scores_of(problem.bias, b, h)[self.rows, keys] for b, h in heads]
        bias = np.stack(parts).astype(np.float64)
        return np.where(np.isneginf(bias), 0.0, bias)  # hidden

    def distance(self, keys: slice) -> Float64Array:
        """|i + offset - j|: (H, R, m); NaN beyond 2^53, where float64 does not hold it."""
        problem = self.group.problem
        diagonal = np.stack([problem.diagonals(b)[self.rows] for b in self.group.batch.tolist()])
        key = np.arange(keys.start, keys.stop, dtype=np.int64)
        distance = np.abs(diagonal[..., None] - key)
        if distance.max(initial=0) > 2**53:
            return np.where(distance > 2**53, np.nan, distance.astype(np.float64))
        return distance.astype(np.float64)
