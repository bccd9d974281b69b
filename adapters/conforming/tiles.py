"""Sizes of tiles, and splits over the keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from attnspec.adapters.catalogue import variant
from attnspec.adapters.pipeline import Array, Pipeline, shift

__all__ = ["SplitOverKeys"]

BOTH = ("float32", "bfloat16")


@variant(dtypes=BOTH)
class TilesOfOneKey(Pipeline):
    """The online softmax moves on key by key."""

    tile = 1


@variant()
class TilesOfSixteenKeys(Pipeline):
    """Sixteen keys a tile."""

    tile = 16


@variant()
class TilesOfSixtyFourKeys(Pipeline):
    """Sixty-four keys a tile."""

    tile = 64


@variant(dtypes=BOTH)
class TilesOfHundredTwentyEightKeys(Pipeline):
    """128 keys a tile."""

    tile = 128


@variant(dtypes=BOTH)
class GrowingTiles(Pipeline):
    """The first tile has 16 keys, each next one twice as many."""

    tile = 16

    def tiles(self) -> Iterable[slice]:
        start, size = 0, self.tile
        while start < self.keys:
            yield slice(start, min(start + size, self.keys))
            start, size = start + size, 2 * size


@variant(dtypes=BOTH)
class SplitOverKeys(Pipeline):
    """The keys are split in three, and the parts merged by their lse."""

    declares: ClassVar = {"merged": True}
    tile = 16
    parts = 3

    def attend_to(self, tiles: list[slice], *, sinks: bool) -> tuple[Array, Array]:
        """The normalised output and the lse over some tiles, with the sinks or without."""
        kept = self.sinks
        self.sinks = kept if sinks else None
        state = self.start()
        self.sinks = kept
        for keys in tiles:
            state = self.step(state, keys)
        largest, total, sums = state
        return self.normalised(sums, total), self.log_sum_exp(largest, total)

    def forward(self) -> tuple[Array, Array]:
        """out and lse, merged."""
        parts = enumerate(self.shared(list(self.tiles())))
        found = [self.attend_to(part, sinks=i == 0) for i, part in parts]
        return self.merged(np.stack([out for out, _ in found]), np.stack([lse for _, lse in found]))

    def shared(self, tiles: list[slice]) -> list[list[slice]]:
        """The tiles of each part, as many for each but the last; the last parts may have none."""
        size = -(-len(tiles) // self.parts) or 1
        return [tiles[i * size : (i + 1) * size] for i in range(self.parts)]

    def merged(self, outs: Array, lses: Array) -> tuple[Array, Array]:
        """Of the parts, stacked in front: out and lse."""
        largest = lses.max(axis=0)
        weights = self.exp(lses - shift(largest))
        total = weights.sum(axis=0)
        out = self.normalised((weights * outs).sum(axis=0), total)
        return out, self.log_sum_exp(largest, total)


@variant(dtypes=BOTH)
class SplitMergedByTheWholeLse(SplitOverKeys):
    """The parts of a split are weighed by exp(lse of the part - lse of the row)."""

    def merged(self, outs: Array, lses: Array) -> tuple[Array, Array]:
        largest = lses.max(axis=0)
        lse = self.log_sum_exp(largest, self.exp(lses - shift(largest)).sum(axis=0))
        return (self.exp(lses - shift(lse)) * outs).sum(axis=0), lse
