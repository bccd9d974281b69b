"""Weights, sums and results in fewer bits than declared."""

from __future__ import annotations

from typing import ClassVar

import ml_dtypes
import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.pipeline import Array, Pipeline, product, rounded

__all__ = ["float8"]


def float8(x: Array) -> Array:
    """Rounded to float8 e4m3."""
    return x.astype(ml_dtypes.float8_e4m3fn).astype(x.dtype)


@fault(kind="acc-precision", dtypes=("bfloat16",))
class WeightsInFloat8(Pipeline):
    """Weights enter the second product in float8 e4m3."""

    declares: ClassVar = {"probabilities": "storage"}

    def added(self, total: Array, p: Array, fade: Array) -> Array:
        return super().added(total, float8(p), fade)

    def probabilities(self, p: Array) -> Array:
        return float8(p)


@fault(
    kind="acc-precision",
    reports=("ROCm/FlyDSL#1020",),
    dtypes=("bfloat16",),
    shows=("out", "weights-sum-to-one"),
    spoils=("out", "dq", "dk", "dbias", "dsinks"),
)
class SumBeforeTheCast(Pipeline):
    """Weights are summed first and then rounded to float8, where small ones vanish."""

    declares: ClassVar = {"probabilities": "storage"}

    def probabilities(self, p: Array) -> Array:
        return float8(p)


@fault(
    kind="acc-precision",
    dtypes=("float32", "float16"),
    spoils=("out", "dq", "dk", "dbias", "dsinks"),
)
class WeightsInBfloat16(Pipeline):
    """Weights enter the second product in bfloat16."""

    def probabilities(self, p: Array) -> Array:
        return rounded(p, "bfloat16")


@fault(kind="acc-precision", dtypes=("bfloat16",), spoils=("out", "dq", "dk", "dbias", "dsinks"))
class WeightsTruncated(Pipeline):
    """Weights are cut to bfloat16, not rounded."""

    declares: ClassVar = {"probabilities": "storage"}

    def probabilities(self, p: Array) -> Array:
        bits = p.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
        return bits.view(np.float32).astype(p.dtype)


@fault(kind="acc-precision", dtypes=("bfloat16",))
class SumInBfloat16(Pipeline):
    """The sum of the weights is accumulated in bfloat16."""

    def added(self, total: Array, p: Array, fade: Array) -> Array:
        return rounded(super().added(total, p, fade), "bfloat16")


@fault(kind="acc-precision", dtypes=("float16",))
class SumInHalf(Pipeline):
    """The sum of the weights is accumulated in float16."""

    def added(self, total: Array, p: Array, fade: Array) -> Array:
        return rounded(super().added(total, p, fade), "float16")


@fault(kind="acc-precision", dtypes=("bfloat16",), spoils=("out", "dq", "dk", "dbias", "dsinks"))
class OutputSummedInBfloat16(Pipeline):
    """The output is accumulated in bfloat16, tile by tile."""

    kept = "bfloat16"

    def collected(self, sums: Array, p: Array, keys: slice, fade: Array) -> Array:
        return rounded(super().collected(sums, p, keys, fade), self.kept)


@fault(kind="acc-precision", dtypes=("float16",), spoils=("out", "dq", "dk", "dbias", "dsinks"))
class OutputSummedInHalf(OutputSummedInBfloat16):
    """The output is accumulated in float16, tile by tile."""

    kept = "float16"


@fault(kind="acc-precision", dtypes=("float16",))
class RescaleInBfloat16(Pipeline):
    """The factor that rescales earlier sums is rounded to bfloat16."""

    def fade(self, before: Array, after: Array) -> Array:
        return rounded(super().fade(before, after), "bfloat16")


@fault(kind="acc-precision", spoils=("out", "dq", "dk", "dbias", "dsinks"))
class ReciprocalToTwelveBits(Pipeline):
    """The output is multiplied by a reciprocal of the sum that is good to 12 bits."""

    def normalised(self, sums: Array, total: Array) -> Array:
        return np.asarray(
            sums * rounded(1 / np.where(total == 0, 1, total), "float16").astype(total.dtype)
        )


@fault(kind="acc-precision", spoils=("out", "dq", "dk", "dbias", "dsinks"))
class EpsilonInTheSum(Pipeline):
    """1e-6 is added to the sum that the output is divided by."""

    def normalised(self, sums: Array, total: Array) -> Array:
        return np.asarray(sums / (total + np.asarray(1e-6, total.dtype)))


@fault(
    kind="acc-precision",
    dtypes=("bfloat16", "float16"),
    shows=("out", "dq", "dk", "dv"),
    spoils=("out", "dq", "dk", "dv", "dbias"),
)
class ResultsTruncated(Pipeline):
    """Results are cut to their type, not rounded."""

    def stored(self, x: Array, like: Array) -> Array:
        near = super().stored(x, like)
        if near.dtype.itemsize > 2:
            return near
        beyond = np.abs(near.astype(x.dtype)) > np.abs(x)
        bits = near.view(np.uint16)
        return np.where(beyond, bits - np.uint16(1), bits).astype(np.uint16).view(near.dtype)


@fault(
    kind="acc-precision",
    dtypes=("float32", "float16"),
    shows=("out", "dq", "dk", "dv"),
    spoils=("out", "dq", "dk", "dv", "dbias", "dsinks"),
)
class ResultsThroughBfloat16(Pipeline):
    """Results are rounded to bfloat16 on their way to a wider type."""

    def stored(self, x: Array, like: Array) -> Array:
        return super().stored(rounded(x, "bfloat16"), like)


@fault(kind="acc-precision", dtypes=("float16",))
class SubnormalsFlushed(Pipeline):
    """float16 inputs below 2^-14 are read as zero."""

    def read(self, name: str, x: Array) -> Array:
        found = super().read(name, x)
        return np.where(np.abs(found) < 2.0**-14, 0, found).astype(self.real)


@fault(
    kind="acc-precision",
    dtypes=("float16",),
    spoils=("out", "dq", "dk", "dv", "dbias"),
)
class SubnormalResultsFlushed(Pipeline):
    """float16 results below 2^-14 become zero."""

    def stored(self, x: Array, like: Array) -> Array:
        small = np.abs(x) < 2.0**-14
        return super().stored(np.where(small & (like.dtype == self.dtype), 0, x), like)


@fault(kind="acc-precision", spoils=("out", "dq", "dk", "dbias", "dsinks"))
class LastRowOfWeightsInHalf(Pipeline):
    """The weights of the last query row alone are rounded to float16."""

    def collected(self, sums: Array, p: Array, keys: slice, fade: Array) -> Array:
        last = np.where(self.row_index() == self.rows - 1, rounded(p, "float16"), p)
        values = product(last.astype(p.dtype), self.value_tile(keys), lambda: self.visible(keys))
        return sums * fade + values
