"""The online softmax: earlier sums and the running maximum from tile to tile."""

from __future__ import annotations

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.conforming.summation import RightToLeft
from attnspec.adapters.pipeline import Array, Pipeline, State, rounded

__all__: list[str] = []


@fault(kind="missing-rescale", spoils=("out", "lse", "dq", "dk", "dv", "dbias", "dsinks"))
class SumNotRescaled(Pipeline):
    """The sum of the weights is not rescaled when the maximum moves."""

    def added(self, total: Array, p: Array, fade: Array) -> Array:
        return super().added(total, p, np.ones_like(fade))


@fault(kind="missing-rescale", spoils=("out", "dq", "dk", "dbias", "dsinks"))
class OutputNotRescaled(Pipeline):
    """The output so far is not rescaled when the maximum moves."""

    def collected(self, sums: Array, p: Array, keys: slice, fade: Array) -> Array:
        return super().collected(sums, p, keys, np.ones_like(fade))


@fault(kind="missing-rescale")
class NothingRescaled(Pipeline):
    """Neither sum nor output is rescaled when the maximum moves."""

    def fade(self, before: Array, after: Array) -> Array:
        return np.ones_like(before)


@fault(kind="missing-rescale", spoils=("out", "dq", "dk", "dbias", "dsinks"))
class OutputNotRescaledInTheSecondTile(Pipeline):
    """The output of the first tile is not rescaled in the second."""

    def collected(self, sums: Array, p: Array, keys: slice, fade: Array) -> Array:
        kept = np.ones_like(fade) if keys.start == self.tile else fade
        return super().collected(sums, p, keys, kept)


@fault(kind="missing-rescale")
class RescaledOnlyBeyondThreshold(Pipeline):
    """Earlier sums are rescaled only where the maximum grows by more than 1."""

    def fade(self, before: Array, after: Array) -> Array:
        return np.where(after - before > 1, super().fade(before, after), 1).astype(self.real)


@fault(kind="missing-rescale")
class RescaleOfTheGroupsFirstRow(Pipeline):
    """Sixteen rows are rescaled by the factor of their first."""

    def fade(self, before: Array, after: Array) -> Array:
        return super().fade(before, after)[..., np.arange(self.rows) // 16 * 16, :]


@fault(kind="missing-rescale")
class RescaledTheWrongWay(Pipeline):
    """Earlier sums grow where they should fade."""

    def fade(self, before: Array, after: Array) -> Array:
        grown = np.exp(np.minimum(after - before, 80))
        return np.where(np.isneginf(before), 0, grown).astype(self.real)


@fault(kind="missing-rescale", spoils=("out", "dq", "dk", "dbias", "dsinks"))
class OutputRescaledTwice(Pipeline):
    """The output so far is rescaled twice when the maximum moves."""

    def collected(self, sums: Array, p: Array, keys: slice, fade: Array) -> Array:
        return super().collected(sums, p, keys, fade * fade)


@fault(kind="missing-rescale")
class MaximumOfTheTileAlone(Pipeline):
    """The maximum starts anew in each tile: rescaling overflows where scores fall far."""

    def largest(self, before: Array, s: Array) -> Array:
        of_tile = s.max(axis=-1, keepdims=True)
        return np.where(np.isneginf(of_tile), before, of_tile)


@fault(kind="missing-rescale")
class MaximumMovesOnWithoutFade(Pipeline):
    """The maximum starts anew in each tile, and earlier sums only ever fade."""

    def largest(self, before: Array, s: Array) -> Array:
        of_tile = s.max(axis=-1, keepdims=True)
        return np.where(np.isneginf(of_tile), before, of_tile)

    def fade(self, before: Array, after: Array) -> Array:
        return np.minimum(super().fade(before, after), 1)


@fault(kind="missing-rescale", reports=("Dao-AILab/flash-attention#2082",))
class MaximumZeroAfterHiddenTile(RightToLeft):
    """After a tile that a row does not see, its maximum is at least 0: lower scores vanish."""

    def largest(self, before: Array, s: Array) -> Array:
        after = super().largest(before, s)
        return np.where(np.isneginf(after), 0, after).astype(self.real)


@fault(kind="missing-rescale")
class MaximumLagsOneTile(Pipeline):
    """Weights of a tile are taken against the maximum of the tiles before it."""

    def step(self, state: State, keys: slice) -> State:
        before, total, sums = state
        s, _ = self.scores(keys)
        after = self.largest(before, s)
        used = np.where(np.isneginf(before), after, before)
        p = self.exp(s - np.where(np.isneginf(used), 0, used))
        fade = self.fade(before, after)
        return after, self.added(total, p, fade), self.collected(sums, p, keys, fade)


@fault(kind="acc-precision")
class MaximumInHalfForTheWeights(Pipeline):
    """Weights subtract the row maximum rounded to float16, earlier sums the exact one."""

    def step(self, state: State, keys: slice) -> State:
        before, total, sums = state
        s, _ = self.scores(keys)
        after = self.largest(before, s)
        p = self.exp(s - rounded(np.where(np.isneginf(after), 0, after), "float16"))
        fade = self.fade(before, after)
        return after, self.added(total, p, fade), self.collected(sums, p, keys, fade)


@fault(kind="missing-rescale", beyond_smoke="no maximum that moves beyond a thousand keys")
class RescaleStopsAfterThousandKeys(Pipeline):
    """Beyond 1,024 keys, earlier sums are no longer rescaled."""

    def step(self, state: State, keys: slice) -> State:
        self.late = keys.start >= 1024
        return super().step(state, keys)

    def fade(self, before: Array, after: Array) -> Array:
        found = super().fade(before, after)
        return np.ones_like(found) if self.late else found


@fault(kind="missing-rescale")
class LastTileNotRescaled(Pipeline):
    """A last tile that is not full is added to sums that are not rescaled."""

    def step(self, state: State, keys: slice) -> State:
        self.ragged = keys.stop - keys.start < self.tile
        return super().step(state, keys)

    def fade(self, before: Array, after: Array) -> Array:
        found = super().fade(before, after)
        return np.ones_like(found) if self.ragged else found


@fault(kind="missing-rescale", spoils=("out", "dq", "dk", "dbias", "dsinks"))
class LateOutputColumnsNotRescaled(Pipeline):
    """Output columns from the 65th on are not rescaled when the maximum moves."""

    def collected(self, sums: Array, p: Array, keys: slice, fade: Array) -> Array:
        low = np.arange(self.value_size) < 64
        return super().collected(sums, p, keys, np.where(low, fade, 1).astype(self.real))
