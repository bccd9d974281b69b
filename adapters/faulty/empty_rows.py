"""Finite numbers in place of minus infinity, and rows that see no key."""

from __future__ import annotations

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.pipeline import Array, Pipeline, shift

__all__: list[str] = []

ZERO = "row-without-keys-returns-zero"
LSE = "row-without-keys-has-lse-minus-infinity"


class _FiniteStandIn(Pipeline):
    """Hidden scores are a finite number."""

    stand_in = -1e4

    def hidden(self, s: Array, visible: Array) -> Array:
        return np.where(visible, s, np.asarray(self.stand_in, s.dtype))


@fault(kind="mask-neginf", shows=("out", "lse", ZERO, LSE))
class HiddenScoresAreMinusTenThousand(_FiniteStandIn):
    """Hidden scores are -1e4."""


@fault(
    kind="mask-neginf", shows=("out", "lse", ZERO, LSE), reports=("flashinfer-ai/flashinfer#4452",)
)
class HiddenScoresAreMinusFiftyThousand(_FiniteStandIn):
    """Hidden scores are -5e4."""

    stand_in = -5e4


@fault(kind="mask-neginf", shows=("out", "lse", ZERO, LSE))
class HiddenScoresAreHugeNegatives(_FiniteStandIn):
    """Hidden scores are -1e30: a row that sees nothing is the mean of all values."""

    stand_in = -1e30


@fault(kind="mask-neginf", shows=("out", "lse", ZERO, LSE))
class HiddenScoresAreTheSmallestNumber(Pipeline):
    """Hidden scores are the most negative number: a row that sees nothing is the mean."""

    def hidden(self, s: Array, visible: Array) -> Array:
        return np.where(visible, s, np.finfo(s.dtype).min)


@fault(kind="mask-neginf", shows=("out", "lse", ZERO), reports=("microsoft/onnxruntime#14363",))
class HiddenScoresStackTenThousands(Pipeline):
    """Causality, mask and lengths each add -1e4 to the score that they hide."""

    def scores(self, keys: slice) -> tuple[Array, Array | float]:
        s, slope = self.capped(self.scaled(self.dot(keys)))
        ahead = self.ahead(keys)
        s = self.sloped(self.biased(s, keys), ahead)
        hides = [~self.seen_by_length(keys), ~self.seen_by_mask(keys)]
        hides += [~self.seen_causally(ahead)] if self.causal else []
        hides += [~self.seen_in_window(ahead)] if self.window != (None, None) else []
        for hidden in hides:
            s = s - np.float32(1e4) * hidden
        return s.astype(self.real), slope

    def visible(self, keys: slice) -> Array:
        return np.ones((self.batch, self.heads, self.rows, self.key_index(keys).size), np.bool_)


@fault(kind="mask-neginf", shows=("out", ZERO))
class HiddenScoresFiniteInVisitedTiles(Pipeline):
    """Tiles that no row sees are skipped, but in the others hidden scores are -1e30."""

    def hidden(self, s: Array, visible: Array) -> Array:
        visited = visible.any(axis=(-1, -2), keepdims=True)
        return np.where(visible, s, np.where(visited, -1e30, -np.inf)).astype(s.dtype)


@fault(kind="mask-neginf", shows=("out", ZERO))
class BiasOfMinusInfinityIsClamped(Pipeline):
    """A bias of -inf is clamped to -1e4 and hides nothing."""

    def seen_by_bias(self, keys: slice) -> Array:
        return np.asarray(True)

    def biased(self, s: Array, keys: slice) -> Array:
        return s if self.bias is None else s + np.maximum(self.bias[..., keys], -1e4)


@fault(kind="mask-neginf", beyond_smoke="no variant of an option but the first")
class BiasBelowMinusTenThousandHides(Pipeline):
    """A finite bias below -1e4 hides its key, as if it were -inf."""

    def seen_by_bias(self, keys: slice) -> Array:
        return np.asarray(True if self.bias is None else self.bias[..., keys] > -1e4)


@fault(
    kind="mask-neginf",
    reports=("pytorch/pytorch#110213",),
    beyond_smoke="no variant of an option but the first",
)
class FiniteBiasOverflowsInHalf(Pipeline):
    """A bias is multiplied by log2(e) in float16: a very negative finite one becomes -inf."""

    def seen_by_bias(self, keys: slice) -> Array:
        if self.bias is None:
            return np.asarray(True)
        return ~np.isneginf((self.bias[..., keys] * np.log2(np.e)).astype(np.float16))


@fault(
    kind="mask-neginf",
    shows=("out", ZERO),
    spoils=("out",),
    reports=("pytorch/pytorch#190486", "ml-explore/mlx#2608"),
)
class EmptyRowIsNan(Pipeline):
    """A row that sees no key is 0/0: NaN."""

    def normalised(self, sums: Array, total: Array) -> Array:
        return sums / total


@fault(
    kind="mask-neginf",
    shows=("out", ZERO),
    spoils=("out",),
    beyond_smoke="no variant of an option but the first",
)
class RowThatItsBiasHidesIsNan(Pipeline):
    """A row whose bias is -inf at every key is NaN, though other empty rows are 0."""

    def answer(self) -> Array | tuple[Array, Array]:
        found = super().answer()
        out = found[0] if isinstance(found, tuple) else found
        if self.bias is not None and self.sinks is None:
            hidden = np.isneginf(self.bias).all(axis=-1, keepdims=True)
            out = np.where(hidden, np.asarray(np.nan, out.dtype), out)
        return (out, found[1]) if isinstance(found, tuple) else out


@fault(kind="mask-neginf", shows=("out", "lse", ZERO, LSE))
class EmptyRowSubtractsInfinities(Pipeline):
    """A row that sees no key subtracts -inf from -inf."""

    def attend(self) -> tuple[Array, Array, Array]:
        largest, total, sums = super().attend()
        return largest, np.where(np.isneginf(largest), np.nan, total).astype(self.real), sums


@fault(kind="mask-neginf", shows=("out", ZERO), spoils=("out",))
class EmptyRowIsMeanOfValues(Pipeline):
    """A row that sees no key is the mean of all values."""

    def answer(self) -> Array | tuple[Array, Array]:
        found = super().answer()
        out = found[0] if isinstance(found, tuple) else found
        empty = ~self.visible(slice(None)).any(axis=-1, keepdims=True)
        if self.sinks is None and self.keys:
            mean = self.stored(self.v.mean(axis=2, keepdims=True), out)
            out = np.where(empty, mean, out)
        return (out, found[1]) if isinstance(found, tuple) else out


@fault(kind="mask-neginf", shows=("out", ZERO), spoils=("out",))
class EmptyRowIsTheFirstValue(Pipeline):
    """A row that sees no key is the value of key 0."""

    def answer(self) -> Array | tuple[Array, Array]:
        found = super().answer()
        out = found[0] if isinstance(found, tuple) else found
        empty = ~self.visible(slice(None)).any(axis=-1, keepdims=True)
        if self.sinks is None and self.keys:
            out = np.where(empty, self.stored(self.v[:, :, :1], out), out)
        return (out, found[1]) if isinstance(found, tuple) else out


@fault(kind="mask-neginf", shows=("lse", LSE), spoils=("lse",))
class EmptyRowHasLseZero(Pipeline):
    """The log-sum-exp of a row that sees no key is 0."""

    def log_sum_exp(self, largest: Array, total: Array) -> Array:
        return np.where(total == 0, 0, super().log_sum_exp(largest, total)).astype(self.real)


@fault(kind="mask-neginf", shows=("lse", LSE), spoils=("lse",))
class EmptyRowHasLsePlusInfinity(Pipeline):
    """The log-sum-exp of a row that sees no key is +inf."""

    def log_sum_exp(self, largest: Array, total: Array) -> Array:
        return np.where(total == 0, np.inf, super().log_sum_exp(largest, total)).astype(self.real)


@fault(kind="mask-neginf", shows=("lse", LSE), spoils=("lse",))
class EmptyRowHasFiniteLse(Pipeline):
    """The log-sum-exp of a row that sees no key is the most negative number."""

    def log_sum_exp(self, largest: Array, total: Array) -> Array:
        lse = super().log_sum_exp(largest, total)
        return np.maximum(lse, np.finfo(lse.dtype).min)


@fault(
    kind="mask-neginf",
    shows=("lse", LSE),
    spoils=("lse",),
    beyond_smoke="no two options together",
)
class EmptyRowForgetsItsSinkInLse(Pipeline):
    """The log-sum-exp of a row that sees only a sink is -inf."""

    def answer(self) -> Array | tuple[Array, Array]:
        found = super().answer()
        if not isinstance(found, tuple):
            return found
        empty = ~self.visible(slice(None)).any(axis=-1)
        return found[0], np.where(empty, -np.inf, found[1]).astype(found[1].dtype)


@fault(kind="mask-neginf", shows=("dv",), spoils=("dv",))
class EmptyRowHasUniformGradient(Pipeline):
    """A row that sees no key spreads its cotangent evenly over dv."""

    def dv_tile(self, p: Array, dout: Array, keys: slice) -> Array:
        empty = ~self.visible(slice(None)).any(axis=-1, keepdims=True)
        return super().dv_tile(np.where(empty, 1 / self.keys, p).astype(p.dtype), dout, keys)


@fault(kind="mask-neginf", spoils=("dq", "dk", "dv", "dbias"), shows=("dq", "dk", "dv"))
class EmptyRowGradientAtLseZero(Pipeline):
    """The backward pass hides scores with -1e30, and takes 0 as the lse of a row without keys."""

    def weights(self, s: Array, lse: Array) -> Array:
        empty = ~self.visible(slice(None)).any(axis=-1, keepdims=True)
        return np.where(empty, 1, self.exp(s - shift(lse))).astype(s.dtype)
