"""The soft cap: in the wrong place among the steps, or no tanh."""

from __future__ import annotations

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.pipeline import Array, Pipeline, State, rounded, shift

__all__: list[str] = []


@fault(
    kind="softcap-order", reports=("onnx/onnx#7865",), shows=("out", "hidden-keys-may-be-left-out")
)
class SoftcapAfterMask(Pipeline):
    """The soft cap follows the mask: hidden keys score -cap instead of -inf."""

    def scores(self, keys: slice) -> tuple[Array, Array | float]:
        s = self.sloped(self.biased(self.scaled(self.dot(keys)), keys), self.ahead(keys))
        s, slope = self.capped(self.hidden(s, self.visible(keys)))
        return s.astype(self.real), slope


@fault(kind="softcap-order", beyond_smoke="no soft cap beside a bias")
class SoftcapAfterBias(Pipeline):
    """The soft cap is applied to score and bias together."""

    def scores(self, keys: slice) -> tuple[Array, Array | float]:
        s, slope = self.capped(self.biased(self.scaled(self.dot(keys)), keys))
        s = self.sloped(s, self.ahead(keys))
        return self.hidden(s, self.visible(keys)).astype(self.real), slope


@fault(kind="softcap-order", beyond_smoke="no soft cap beside ALiBi")
class SoftcapAfterAlibi(Pipeline):
    """The soft cap is applied to score and ALiBi together."""

    def scores(self, keys: slice) -> tuple[Array, Array | float]:
        s, slope = self.capped(self.sloped(self.scaled(self.dot(keys)), self.ahead(keys)))
        s = self.biased(s, keys)
        return self.hidden(s, self.visible(keys)).astype(self.real), slope


@fault(kind="softcap-order")
class SoftcapBeforeScale(Pipeline):
    """The scale follows the soft cap."""

    def scaled(self, s: Array) -> Array:
        return s if self.softcap else s * self.scale

    def capped(self, s: Array) -> tuple[Array, Array | float]:
        s, slope = super().capped(s)
        return (s * self.scale if self.softcap else s), slope


@fault(kind="softcap-order", reports=("ggml-org/llama.cpp#29034",))
class SoftcapRevivesPadding(Pipeline):
    """Without a mask, the padding of the last tile of 64 keys scores -cap and is counted."""

    def attend(self) -> State:
        largest, total, sums = super().attend()
        if self.softcap and self.mask is None and self.keys:
            lost = -self.keys % 64 * self.exp(-self.softcap - shift(largest))
            total = np.where(total == 0, 0, total + lost).astype(self.real)
        return largest, total, sums


@fault(kind="softcap-order", beyond_smoke="no soft cap beside sinks")
class SoftcapOfSinks(Pipeline):
    """The soft cap is applied to sinks, too."""

    def start(self) -> State:
        largest, total, sums = super().start()
        capped = largest if self.sinks is None else self.capped(largest)[0]
        return np.asarray(capped, self.real), total, sums


@fault(kind="acc-precision")
class TanhInHalf(Pipeline):
    """The soft cap's tanh is computed in float16."""

    def capped(self, s: Array) -> tuple[Array, Array | float]:
        if self.softcap is None:
            return s, 1.0
        bent = rounded(np.tanh(s / self.softcap), "float16")
        return self.softcap * bent, 1 - bent * bent


@fault(kind="acc-precision")
class TanhByFraction(Pipeline):
    """tanh is x (27 + x²) / (27 + 9 x²), cut at ±1."""

    def capped(self, s: Array) -> tuple[Array, Array | float]:
        if self.softcap is None:
            return s, 1.0
        x = np.clip(s / self.softcap, -3, 3)
        bent = x * (27 + x * x) / (27 + 9 * x * x)
        return self.softcap * bent, 1 - bent * bent


@fault(kind="overflow", beyond_smoke="no large scores under a soft cap")
class TanhByExpOverflows(Pipeline):
    """tanh is (e^2x - 1) / (e^2x + 1), NaN from x = 44 on."""

    def capped(self, s: Array) -> tuple[Array, Array | float]:
        if self.softcap is None:
            return s, 1.0
        grown = np.exp(2 * s / self.softcap)
        bent = np.where(np.abs(s) < 0.1, np.tanh(s / self.softcap), (grown - 1) / (grown + 1))
        return self.softcap * bent, 1 - bent * bent


@fault(kind="softcap-order")
class SoftcapClips(Pipeline):
    """Scores are cut at ±cap, not bent."""

    def capped(self, s: Array) -> tuple[Array, Array | float]:
        if self.softcap is None:
            return s, 1.0
        return np.clip(s, -self.softcap, self.softcap), np.abs(s) < self.softcap


@fault(kind="softcap-order")
class SoftcapWithoutFactor(Pipeline):
    """tanh(score / cap) is not multiplied by the cap."""

    def capped(self, s: Array) -> tuple[Array, Array | float]:
        s, slope = super().capped(s)
        return (s, slope) if self.softcap is None else (s / self.softcap, slope / self.softcap)


@fault(kind="softcap-order")
class SoftcapTimesScale(Pipeline):
    """The cap is multiplied by the scale, as where both are folded into one constant."""

    def capped(self, s: Array) -> tuple[Array, Array | float]:
        if self.softcap is None or self.scale == 0:
            return super().capped(s)
        given, self.softcap = self.softcap, self.softcap * abs(self.scale)
        found = super().capped(s)
        self.softcap = given
        return found


@fault(kind="option-ignored")
class SoftcapLostWhenDecoding(Pipeline):
    """With one query row, the soft cap is not applied."""

    def capped(self, s: Array) -> tuple[Array, Array | float]:
        return (s, 1.0) if self.rows == 1 else super().capped(s)


@fault(kind="option-ignored", beyond_smoke="no soft cap under a causal mask")
class SoftcapLostWithCausal(Pipeline):
    """Under a causal mask, the soft cap is not applied."""

    def capped(self, s: Array) -> tuple[Array, Array | float]:
        return (s, 1.0) if self.causal else super().capped(s)


@fault(kind="softcap-order")
class SoftcapBeyondTheFirstTileLost(Pipeline):
    """The soft cap is applied in the first tile of keys alone."""

    def scores(self, keys: slice) -> tuple[Array, Array | float]:
        given = self.softcap
        self.softcap = given if keys.start == 0 else None
        found = super().scores(keys)
        self.softcap = given
        return found
