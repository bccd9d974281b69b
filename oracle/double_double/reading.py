"""How the engine reads a problem: some heads, a tile of their rows, and blocks of keys.

Nothing here has the size of all scores, and of long contexts not even all keys are held in
float64: blocks are converted when they are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from attnspec.oracle.double_double.slices import Wide, wide
from attnspec.oracle.formats import Float64Array
from attnspec.oracle.problem import BoolArray, IntArray, Problem

__all__ = ["CHUNK", "ROWS", "Group", "Operand", "Tile", "groups"]

CHUNK = 256
"""Keys that one product sums over: few, for exact slices, and enough for a fast product."""
BLOCK = 2**14
"""Scores that are worked on together: arrays of them fit the cache."""
ROWS = 64
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
        self._ones = ones
        self._group = group
        self._unused = ~group.used if not group.used.all() else None
        self._blocks: dict[tuple[int, int], Wide] = {}
        self._keep = len(group.batch) * array.shape[2] * array.shape[3] <= KEPT
        self.exponent: IntArray = np.frexp(self._largest())[1].astype(np.int64)[:, None, :]

    def block(self, keys: slice) -> Wide:
        """Slices of these keys: (H, m, n)."""
        place = (keys.start, keys.stop)
        if place in self._blocks:
            return self._blocks[place]
        block = wide(np.ldexp(self._read(keys), -self.exponent))
        if self._keep:
            self._blocks[place] = block
        return block

    def _read(self, keys: slice) -> Float64Array:
        group = self._group
        part = self._array[group.batch, group.kv_index, keys].astype(np.float64)
        if self._unused is not None:
            part[self._unused[:, keys]] = 0
        if self._ones:
            part = np.concatenate([part, np.ones((*part.shape[:2], 1))], axis=-1)
        return part

    def _largest(self) -> Float64Array:
        """The largest magnitude of each column: (H, n)."""
        heads, keys = len(self._group.batch), self._array.shape[2]
        size = self._array.shape[3] + self._ones
        largest = np.zeros((heads, size))
        step = max(1, BLOCK // size)
        for start in range(0, keys, step):
            part = self._read(slice(start, min(start + step, keys)))
            np.maximum(largest, np.maximum(part.max(1), -part.min(1)), out=largest)
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
        """Blocks of keys, from the first that a row sees to the last, to whole multiples of CHUNK
        (but for the last keys of all)."""
        first, stop = self.spans
        seen = stop > first
        if not seen.any():
            return
        start = int(first[seen].min()) // CHUNK * CHUNK
        end = min(-(-int(stop[seen].max()) // CHUNK) * CHUNK, self.group.problem.key_count)
        chunks = max(1, BLOCK // (CHUNK * first.size))
        whole = start + (end - start) // CHUNK * CHUNK
        for begin in range(start, whole, chunks * CHUNK):
            yield slice(begin, min(begin + chunks * CHUNK, whole))
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
        """These rows of q, dout or dlse: (H, R, …), 0 where the row sees nothing."""
        part = array[self.group.batch, self.group.index, self.rows].astype(np.float64)
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
        """|i + offset - j|: (H, R, m)."""
        problem = self.group.problem
        diagonal = np.stack([problem.diagonals(b)[self.rows] for b in self.group.batch.tolist()])
        key = np.arange(keys.start, keys.stop, dtype=np.int64)
        return np.abs(diagonal[..., None] - key).astype(np.float64)
