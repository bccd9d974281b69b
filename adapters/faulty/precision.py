"""Scores and exp in fewer bits than declared."""

from __future__ import annotations

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.pipeline import Array, Pipeline, rounded

__all__ = ["tensor_float32"]


def tensor_float32(x: Array) -> Array:
    """float32 rounded to the 11 significant bits of TF32, half away from zero."""
    bits = x.astype(np.float32).view(np.uint32)
    found = ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(x), found, x).astype(x.dtype)


# -- the scores ------------------------------------------------------------------------------------


@fault(kind="acc-precision", dtypes=("bfloat16",))
class ScoresSummedInBfloat16(Pipeline):
    """q·k is accumulated in bfloat16, 16 channels at a time."""

    kept = "bfloat16"

    def dot(self, keys: slice) -> Array:
        k, total = self.key_tile(keys).swapaxes(-1, -2), np.zeros(1, self.real)
        for start in range(0, self.size, 16):
            channels = slice(start, start + 16)
            total = rounded(total + self.q[..., channels] @ k[..., channels, :], self.kept)
        return total


@fault(kind="acc-precision", dtypes=("float16",))
class ScoresSummedInHalf(ScoresSummedInBfloat16):
    """q·k is accumulated in float16, 16 channels at a time."""

    kept = "float16"


@fault(kind="acc-precision", dtypes=("bfloat16",))
class ScoresInBfloat16(Pipeline):
    """Scores are rounded to bfloat16."""

    def scaled(self, s: Array) -> Array:
        return rounded(super().scaled(s), "bfloat16")


@fault(kind="acc-precision", dtypes=("float16",))
class ScoresInHalf(Pipeline):
    """Scores are rounded to float16."""

    def scaled(self, s: Array) -> Array:
        return rounded(super().scaled(s), "float16")


@fault(kind="acc-precision", dtypes=("float16",), reports=("pytorch/pytorch#128922",))
class EveryStepInHalf(Pipeline):
    """Scores, weights and sums are stored in float16, as one framework operation a step does."""

    def scaled(self, s: Array) -> Array:
        return rounded(super().scaled(rounded(s, "float16")), "float16")

    def exp(self, x: Array) -> Array:
        return rounded(np.exp(x), "float16")

    def added(self, total: Array, p: Array, fade: Array) -> Array:
        return rounded(super().added(total, p, fade), "float16")


@fault(kind="acc-precision")
class ProductsInTensorFloat32(Pipeline):
    """Both products round their operands to TF32."""

    def key_tile(self, keys: slice) -> Array:
        return tensor_float32(super().key_tile(keys))

    def value_tile(self, keys: slice) -> Array:
        return tensor_float32(super().value_tile(keys))

    def dot(self, keys: slice) -> Array:
        return tensor_float32(self.q) @ self.key_tile(keys).swapaxes(-1, -2)

    def probabilities(self, p: Array) -> Array:
        return tensor_float32(p)


@fault(kind="acc-precision", spoils=("out", "dq", "dk", "dbias", "dsinks"))
class ValuesInTensorFloat32(Pipeline):
    """The second product rounds the values to TF32."""

    def value_tile(self, keys: slice) -> Array:
        return tensor_float32(super().value_tile(keys))


@fault(kind="acc-precision")
class InputsInHalf(Pipeline):
    """float32 inputs are computed with in float16."""

    def read(self, name: str, x: Array) -> Array:
        return rounded(super().read(name, x), "float16")


@fault(kind="acc-precision")
class InputsInBfloat16(Pipeline):
    """float32 inputs are computed with in bfloat16."""

    def read(self, name: str, x: Array) -> Array:
        return rounded(super().read(name, x), "bfloat16")


@fault(kind="acc-precision", dtypes=("float64",))
class Float64ReadAsFloat32(Pipeline):
    """float64 inputs are computed with in float32."""

    def read(self, name: str, x: Array) -> Array:
        return rounded(super().read(name, x), "float32")


@fault(kind="acc-precision", dtypes=("float64",))
class Float64ExpInFloat32(Pipeline):
    """For float64 inputs, exp is that of float32."""

    def exp(self, x: Array) -> Array:
        return np.exp(x.astype(np.float32)).astype(x.dtype)


# -- exp -------------------------------------------------------------------------------------------


class WrongExp(Pipeline):
    """exp errs by `error`, and is exact at 0."""

    error = 0.0

    def exp(self, x: Array) -> Array:
        wave = np.sin(37 * np.where(np.isfinite(x), x, 0))
        return np.asarray((np.exp(x) * (1 + self.error * wave)).astype(x.dtype))


@fault(kind="acc-precision", dtypes=("float16",))
class ExpToEightBits(WrongExp):
    """exp has a relative error of up to 2^-8."""

    error = 2.0**-8


@fault(kind="acc-precision")
class ExpToElevenBits(WrongExp):
    """exp has a relative error of up to 2^-11."""

    error = 2.0**-11


@fault(kind="acc-precision", dtypes=("float32", "float16"))
class ExpOfSchraudolph(Pipeline):
    """exp is read off the bits of a float: right at powers of two, 6 % too large between them."""

    def exp(self, x: Array) -> Array:
        y = x * np.log2(np.e)
        whole = np.floor(np.where(np.isfinite(y), y, -200))
        found = np.where(np.isfinite(y), np.exp2(whole) * (1 + y - whole), np.exp(x))
        return found.astype(x.dtype)


@fault(kind="acc-precision")
class ExpByCubic(Pipeline):
    """2^x between integers is a polynomial of degree 3, good to 1e-4."""

    def exp(self, x: Array) -> Array:
        y = x * np.log2(np.e)
        whole = np.floor(np.where(np.isfinite(y), y, -200))
        f = np.where(np.isfinite(y), y - whole, 0)
        cubic = 1 + f * (0.69520309 + f * (0.22643256 + f * 0.07836436))
        return np.where(np.isfinite(y), np.exp2(whole) * cubic, np.exp(x)).astype(x.dtype)


@fault(kind="acc-precision")
class ExpOfScoresInHalf(Pipeline):
    """The difference from the row maximum is rounded to float16 before exp."""

    def exp(self, x: Array) -> Array:
        return np.exp(rounded(x, "float16"))


@fault(kind="acc-precision")
class SmallWeightsDropped(Pipeline):
    """Weights below a thousandth of the row's largest are taken as zero."""

    def exp(self, x: Array) -> Array:
        p = np.exp(x)
        return np.where(p < 1e-3, 0, p).astype(x.dtype)


@fault(kind="acc-precision")
class HalfScoresInLargeHeads(Pipeline):
    """At head sizes from 128 on, scores are rounded to float16."""

    def scaled(self, s: Array) -> Array:
        s = super().scaled(s)
        return rounded(s, "float16") if self.size >= 128 else s


@fault(kind="acc-precision")
class ExpZeroBelowMinusSixteen(Pipeline):
    """exp of what lies 16 or more below the row maximum is zero."""

    def exp(self, x: Array) -> Array:
        return np.where(x < -16, 0, np.exp(x)).astype(x.dtype)
