"""The returned log-sum-exp: another base, another maximum, another row. The output is right."""

from __future__ import annotations

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.pipeline import Array, Pipeline, rounded, shift

__all__: list[str] = []

LSE = ("lse",)


class Parts(Pipeline):
    """lse is found again from the maximum and the sum of the weights."""

    def forward(self) -> tuple[Array, Array]:
        self.top, self.total, sums = self.attend()
        lse = self.log_sum_exp(self.top, self.total)
        return self.normalised(sums, self.total), lse


@fault(kind="lse", shows=LSE, spoils=LSE)
class LseInBaseTwo(Pipeline):
    """lse is in base 2."""

    def reported(self, lse: Array) -> Array:
        return np.asarray((lse * np.log2(np.e)).astype(lse.dtype))


@fault(kind="lse", shows=LSE, spoils=LSE, reports=("pytorch/pytorch#181645",))
class LseTimesLogTwo(Pipeline):
    """lse is converted from base 2, in which it is not."""

    def reported(self, lse: Array) -> Array:
        return np.asarray((lse * np.log(2)).astype(lse.dtype))


@fault(kind="lse", shows=LSE, spoils=LSE, reports=("HKUSTDial/flash-sparse-attention#106",))
class LseMaximumScaledTwice(Parts):
    """lse is scale · maximum + log of the sum, of a maximum that is scaled already."""

    def reported(self, lse: Array) -> Array:
        return (lse + (self.scale - 1) * shift(self.top)).astype(lse.dtype)


@fault(kind="lse", shows=LSE, spoils=LSE)
class LseMaximumUnscaled(Parts):
    """lse is maximum / scale + log of the sum."""

    def reported(self, lse: Array) -> Array:
        scale = self.scale or 1.0
        return (lse + (1 / scale - 1) * shift(self.top)).astype(lse.dtype)


@fault(kind="lse", shows=LSE, spoils=LSE)
class LseWithoutMaximum(Parts):
    """lse is the log of the sum, without the maximum that was subtracted."""

    def reported(self, lse: Array) -> Array:
        return np.log(self.total)


@fault(kind="lse", shows=LSE, spoils=LSE)
class LseIsTheMaximum(Parts):
    """lse is the row maximum alone."""

    def reported(self, lse: Array) -> Array:
        return self.top


@fault(kind="lse", shows=LSE, spoils=LSE)
class LseIsTheSum(Parts):
    """The sum of the weights is returned for lse."""

    def reported(self, lse: Array) -> Array:
        return self.total


@fault(kind="lse", shows=LSE, spoils=LSE)
class LseNegated(Pipeline):
    """lse has the wrong sign."""

    def reported(self, lse: Array) -> Array:
        return -lse


@fault(kind="lse", shows=LSE, spoils=LSE)
class LseOfTheMean(Pipeline):
    """lse is the log of the mean instead of the sum."""

    def reported(self, lse: Array) -> Array:
        return np.asarray(lse - np.log(np.asarray(max(1, self.keys), lse.dtype)))


@fault(kind="lse", shows=LSE, spoils=LSE, dtypes=("bfloat16",))
class LseRoundedToBfloat16(Pipeline):
    """lse is returned in float32, but passes through bfloat16."""

    def reported(self, lse: Array) -> Array:
        return rounded(lse, "bfloat16")


@fault(kind="lse", shows=LSE, spoils=LSE)
class LseRoundedToHalf(Pipeline):
    """lse passes through float16."""

    def reported(self, lse: Array) -> Array:
        return rounded(lse, "float16")


@fault(
    kind="lse",
    shows=("lse", "row-without-keys-has-lse-minus-infinity"),
    spoils=LSE,
    reports=("flashinfer-ai/flashinfer#4452",),
)
class LseFiniteForEmptyRows(Pipeline):
    """lse of a row that sees nothing is about -50,000."""

    def reported(self, lse: Array) -> Array:
        return np.where(np.isneginf(lse), -49993.98, lse).astype(lse.dtype)


@fault(kind="lse", shows=("lse", "row-without-keys-has-lse-minus-infinity"), spoils=LSE)
class LseNanForEmptyRows(Pipeline):
    """lse of a row that sees nothing is NaN."""

    def reported(self, lse: Array) -> Array:
        return np.where(np.isneginf(lse), np.nan, lse).astype(lse.dtype)


@fault(kind="lse", shows=("lse", "row-without-keys-has-lse-minus-infinity"), spoils=LSE)
class LseWithEpsilon(Parts):
    """lse is the log of the sum and 1e-20: a row that sees nothing has -46."""

    def reported(self, lse: Array) -> Array:
        return np.asarray(shift(self.top) + np.log(self.total + np.asarray(1e-20, lse.dtype)))


@fault(kind="lse", shows=LSE, spoils=LSE)
class LseWithoutSink(Pipeline):
    """lse leaves the sink out."""

    def reported(self, lse: Array) -> Array:
        if self.sinks is None:
            return lse
        return np.asarray(lse + np.log1p(-np.exp(np.minimum(self.sinks - lse, 0))))


@fault(kind="lse", shows=LSE, spoils=LSE)
class LseWithSinkTwice(Pipeline):
    """lse counts the sink twice."""

    def reported(self, lse: Array) -> Array:
        return lse if self.sinks is None else np.logaddexp(lse, self.sinks).astype(lse.dtype)


@fault(kind="lse", shows=LSE, spoils=LSE)
class LseOfAnotherHead(Pipeline):
    """lse of the heads is in the reverse order."""

    def reported(self, lse: Array) -> Array:
        return lse[:, ::-1]


@fault(kind="lse", shows=LSE, spoils=LSE)
class LseOfTheKeyHead(Pipeline):
    """With grouped heads, every query head returns lse of its group's first."""

    def reported(self, lse: Array) -> Array:
        group = self.heads // self.kv_heads
        return lse[:, np.arange(self.heads) // group * group]


@fault(kind="lse", shows=LSE, spoils=LSE)
class LseOfTheLastRowsZero(Pipeline):
    """lse of rows beyond the last full tile of 16 is never written."""

    def reported(self, lse: Array) -> Array:
        return np.where(self.row_index() < self.rows // 16 * 16, lse, 0).astype(lse.dtype)


@fault(kind="lse", shows=LSE, spoils=LSE)
class LseWithoutSoftcap(Parts):
    """lse is that of the scores without the soft cap."""

    def reported(self, lse: Array) -> Array:
        if self.softcap is None:
            return lse
        given, self.softcap = self.softcap, None
        largest, total, _ = self.attend()
        self.softcap = given
        return self.log_sum_exp(largest, total)


@fault(kind="lse", shows=LSE, spoils=LSE)
class LseWithoutBias(Parts):
    """lse is that of the scores without the bias."""

    def reported(self, lse: Array) -> Array:
        if self.bias is None:
            return lse
        given = self.bias
        self.bias = np.where(np.isneginf(given), given, 0).astype(given.dtype)
        largest, total, _ = self.attend()
        self.bias = given
        return self.log_sum_exp(largest, total)


@fault(kind="lse", shows=LSE, spoils=LSE, reports=("tinygrad/tinygrad#2425",))
class CausalMaskAddsOne(Pipeline):
    """The causal mask adds 1 to every score it leaves, which lse alone shows."""

    def reported(self, lse: Array) -> Array:
        return np.asarray(lse + np.asarray(1 if self.causal else 0, lse.dtype))


@fault(kind="lse", shows=LSE, spoils=LSE)
class LseOfTheFirstTile(Parts):
    """lse is that of the first tile of keys."""

    def reported(self, lse: Array) -> Array:
        state = self.start()
        for keys in list(self.tiles())[:1]:
            state = self.step(state, keys)
        return self.log_sum_exp(*state[:2])


@fault(kind="lse", shows=LSE, spoils=LSE)
class LseFromTheRoundedOutput(Parts):
    """lse is computed from a sum of the weights in bfloat16."""

    def reported(self, lse: Array) -> Array:
        return shift(self.top) + np.log(rounded(self.total, "bfloat16"))
