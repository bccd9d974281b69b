"""Numbers that outgrow their type, and stand-ins for infinities."""

from __future__ import annotations

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.pipeline import Array, Pipeline, State, rounded

__all__: list[str] = []


@fault(
    kind="overflow",
    dtypes=("float16",),
    reports=("tinygrad/tinygrad#4985", "pytorch/pytorch#176559"),
)
class ScoresOverflowInHalf(Pipeline):
    """q·k beyond 65504 becomes infinite before it is scaled."""

    def dot(self, keys: slice) -> Array:
        s = super().dot(keys)
        return np.where(np.abs(s) > 65504, np.copysign(np.inf, s), s).astype(s.dtype)


@fault(kind="overflow", dtypes=("float16",))
class ScoresSaturateInHalf(Pipeline):
    """q·k is cut at ±65504 before it is scaled."""

    def dot(self, keys: slice) -> Array:
        return np.clip(super().dot(keys), -65504, 65504)


@fault(kind="overflow")
class ScoresClamped(Pipeline):
    """Scores are cut at ±1000, so that larger ones are tied."""

    def scaled(self, s: Array) -> Array:
        return np.clip(super().scaled(s), -1000, 1000)


@fault(kind="overflow")
class NoMaximum(Pipeline):
    """exp is taken of the scores themselves: no maximum is subtracted."""

    def largest(self, before: Array, s: Array) -> Array:
        return np.zeros_like(before)


@fault(kind="overflow")
class MaximumFromZero(Pipeline):
    """The running maximum starts at 0: scores far below it all vanish."""

    def start(self) -> State:
        largest, total, sums = super().start()
        return np.where(np.isneginf(largest), 0, largest).astype(self.real), total, sums


@fault(kind="overflow")
class MaximumFromMinusTenThousand(Pipeline):
    """The running maximum starts at -10,000: scores below it vanish."""

    def start(self) -> State:
        largest, total, sums = super().start()
        return np.maximum(largest, np.asarray(-1e4, self.real)), total, sums


@fault(kind="overflow")
class MaximumAtMostThousand(Pipeline):
    """The row maximum is cut at 1,000: exp of larger scores is infinite."""

    def largest(self, before: Array, s: Array) -> Array:
        return np.minimum(super().largest(before, s), np.asarray(1e3, self.real))


@fault(kind="overflow")
class MaximumOfAllRows(Pipeline):
    """All query rows of a head share one maximum: rows far below it vanish."""

    def largest(self, before: Array, s: Array) -> Array:
        of_head = s.max(axis=(-2, -1), keepdims=True, initial=-np.inf)
        return np.asarray(np.maximum(before, np.broadcast_to(of_head, before.shape)))


@fault(kind="overflow")
class MaximumOfTheFirstTile(Pipeline):
    """The maximum of the first tile that a row sees is kept for all others."""

    def largest(self, before: Array, s: Array) -> Array:
        return np.where(np.isneginf(before), super().largest(before, s), before)


@fault(kind="overflow")
class MaximumOfHiddenScores(Pipeline):
    """The row maximum is taken before the mask: hidden keys far above make a row vanish."""

    def hidden(self, s: Array, visible: Array) -> Array:
        self.unmasked = s
        return super().hidden(s, visible)

    def largest(self, before: Array, s: Array) -> Array:
        return super().largest(before, np.where(np.isfinite(self.unmasked), self.unmasked, s))


@fault(kind="overflow", dtypes=("float16",))
class WeightedSumOverflowsInHalf(Pipeline):
    """The sum of unnormalised weighted values is infinite beyond 65504."""

    def collected(self, sums: Array, p: Array, keys: slice, fade: Array) -> Array:
        out = super().collected(sums, p, keys, fade)
        return np.where(np.abs(out) > 65504, np.copysign(np.inf, out), out).astype(out.dtype)


@fault(kind="overflow", dtypes=("bfloat16",))
class OutputThroughHalf(Pipeline):
    """bfloat16 results pass through float16 on their way out."""

    def stored(self, x: Array, like: Array) -> Array:
        return super().stored(rounded(x, "float16"), like)
