"""The softmax scale: another number, another place, or none."""

from __future__ import annotations

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.pipeline import Array, Pipeline, rounded

__all__: list[str] = []


@fault(kind="wrong-scale")
class ScaleByHeadSize(Pipeline):
    """Scores are divided by the head size instead of its square root."""

    def ready(self) -> None:
        self.scale = self.scale / self.size**0.5


@fault(kind="wrong-scale")
class ScaleMissing(Pipeline):
    """Scores are not scaled."""

    def ready(self) -> None:
        self.scale = 1.0


@fault(kind="wrong-scale", reports=("HKUSTDial/flash-sparse-attention#58",))
class ScaleTwiceWithBias(Pipeline):
    """With a bias, the scale is applied twice."""

    def ready(self) -> None:
        self.scale = self.scale if self.bias is None else self.scale**2


@fault(kind="wrong-scale")
class ScaleFixed(Pipeline):
    """The caller's scale is ignored for 1/sqrt(head size)."""

    def ready(self) -> None:
        self.scale = self.size**-0.5


@fault(
    kind="wrong-scale", reports=("pytorch/pytorch#174049",), beyond_smoke="no scale beside a mask"
)
class ScaleFixedWithMask(Pipeline):
    """With a mask, the caller's scale is ignored for 1/sqrt(head size)."""

    def ready(self) -> None:
        self.scale = self.scale if self.mask is None else self.size**-0.5


@fault(kind="wrong-scale", shows=("out", "scale-of-any-sign"))
class ScaleZeroMeansUnset(Pipeline):
    """A scale of 0 is taken for none given."""

    def ready(self) -> None:
        self.scale = self.scale or self.size**-0.5


@fault(kind="wrong-scale")
class ScaleOnePercentOff(Pipeline):
    """The scale is 1 % too large."""

    def ready(self) -> None:
        self.scale = self.scale * 1.01


@fault(kind="wrong-scale", dtypes=("float16",))
class ScaleTenthPercentOff(Pipeline):
    """The scale is 0.1 % too large."""

    def ready(self) -> None:
        self.scale = self.scale * 1.001


@fault(kind="wrong-scale")
class ScaleDoubled(Pipeline):
    """The scale is twice what it should be."""

    def ready(self) -> None:
        self.scale = self.scale * 2


@fault(kind="wrong-scale")
class ScaleOfValueSize(Pipeline):
    """The scale is that of the value size, not of the head size."""

    def ready(self) -> None:
        self.scale = self.scale * (self.size / self.value_size) ** 0.5


@fault(kind="wrong-scale")
class ScaleOfPaddedHeadSize(Pipeline):
    """1/sqrt(head size) is taken of the head size padded to a multiple of 16."""

    def ready(self) -> None:
        self.scale = self.scale * (self.size / (-(-self.size // 16) * 16)) ** 0.5


@fault(kind="wrong-scale", shows=("out", "scale-of-any-sign"))
class ScaleWithoutSign(Pipeline):
    """A negative scale is used without its sign."""

    def ready(self) -> None:
        self.scale = abs(self.scale)


@fault(kind="wrong-scale")
class ScaleInBfloat16(Pipeline):
    """The scale is rounded to bfloat16."""

    def ready(self) -> None:
        self.scale = float(rounded(np.asarray(self.scale), "bfloat16"))


@fault(kind="wrong-scale")
class ScaleInHalf(Pipeline):
    """The scale is rounded to float16."""

    def ready(self) -> None:
        self.scale = float(rounded(np.asarray(self.scale), "float16"))


@fault(kind="acc-precision", dtypes=("bfloat16",))
class QueriesScaledInStorage(Pipeline):
    """Queries are multiplied by the scale in their own 16-bit type."""

    def dot(self, keys: slice) -> Array:
        q = rounded(self.q * self.scale, self.dtype.name)
        return q @ self.key_tile(keys).swapaxes(-1, -2)

    def scaled(self, s: Array) -> Array:
        return s


@fault(kind="acc-precision", dtypes=("float16",))
class RootOfScaleInStorage(Pipeline):
    """Queries and keys are each multiplied by the root of the scale, in their own 16-bit type."""

    def dot(self, keys: slice) -> Array:
        root = abs(self.scale) ** 0.5
        q, k = (rounded(x * root, self.dtype.name) for x in (self.q, self.key_tile(keys)))
        return np.asarray(np.sign(self.scale) * (q @ k.swapaxes(-1, -2)))

    def scaled(self, s: Array) -> Array:
        return s


@fault(kind="wrong-scale", shows=("out", "scale-of-any-sign"))
class RootOfNegativeScale(Pipeline):
    """Queries and keys are each multiplied by the root of the scale, NaN where that is negative."""

    def dot(self, keys: slice) -> Array:
        root = np.sqrt(np.float32(self.scale)).astype(self.real)
        return np.asarray((root * self.q) @ (root * self.key_tile(keys)).swapaxes(-1, -2))

    def scaled(self, s: Array) -> Array:
        return s


@fault(kind="wrong-scale")
class ScaleAfterBias(Pipeline):
    """The bias is scaled with the scores."""

    def biased(self, s: Array, keys: slice) -> Array:
        return s if self.bias is None else s + self.scale * self.bias[..., keys]


@fault(kind="wrong-scale")
class ScaleAlsoOnAlibi(Pipeline):
    """ALiBi's slopes are scaled with the scores."""

    def sloped(self, s: Array, ahead: Array) -> Array:
        return s if self.slopes is None else s + self.scale * (super().sloped(s, ahead) - s)


@fault(kind="wrong-scale")
class ScaleInFirstTileOnly(Pipeline):
    """Scores beyond the first tile of keys are scaled by 1/sqrt(head size), not by the caller's."""

    def scores(self, keys: slice) -> tuple[Array, Array | float]:
        given = self.scale
        self.scale = given if keys.start == 0 else self.size**-0.5
        found = super().scores(keys)
        self.scale = given
        return found


@fault(kind="overflow", beyond_smoke="no large scores under a negative scale")
class MaximumBeforeNegativeScale(Pipeline):
    """The row maximum is taken before scaling: under a negative scale it is the minimum."""

    def largest(self, before: Array, s: Array) -> Array:
        if self.scale >= 0:
            return super().largest(before, s)
        lowest = np.where(np.isneginf(s), np.inf, s).min(axis=-1, keepdims=True)
        lowest = np.where(np.isposinf(lowest), before, lowest).astype(self.real)
        return np.where(np.isneginf(before), lowest, np.minimum(before, lowest))


@fault(kind="acc-precision")
class BaseTwoFactorInFiveDigits(Pipeline):
    """exp(x) is 2^(1.4427 x): log2(e) has five digits."""

    def exp(self, x: Array) -> Array:
        return np.asarray(np.exp2(np.asarray(x * np.float32(1.4427), x.dtype)))


@fault(kind="wrong-scale")
class ScaleByKeyLength(Pipeline):
    """Entries with fewer keys than the batch's longest have a smaller scale."""

    def scaled(self, s: Array) -> Array:
        temperature = np.log1p(self.key_lengths / self.keys) / np.log(2.0)
        return np.asarray((s * self.scale * temperature).astype(self.real))
