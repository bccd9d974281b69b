"""Scores and exponentials in other forms, of the precision that is declared."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from attnspec.adapters.catalogue import variant
from attnspec.adapters.faulty.precision import tensor_float32
from attnspec.adapters.pipeline import Array, Pipeline, State, finite, rounded

__all__: list[str] = []

BOTH = ("float32", "bfloat16")
HALVES = ("float16", "bfloat16")


@variant(dtypes=BOTH)
class ExponentsToBaseTwo(Pipeline):
    """Scores are multiplied by log2 e, and every exponential is a power of two."""

    def to_base_two(self, x: Array) -> Array:
        """x log2 e, in the type that is computed in."""
        return (x * np.asarray(np.log2(np.e), self.real)).astype(self.real)

    def scores(self, keys: slice) -> tuple[Array, Array | float]:
        s, slope = super().scores(keys)
        return self.to_base_two(s), slope

    def start(self) -> State:
        largest, total, sums = super().start()
        return self.to_base_two(largest), total, sums

    def exp(self, x: Array) -> Array:
        return np.exp2(x)

    def log_sum_exp(self, largest: Array, total: Array) -> Array:
        return super().log_sum_exp(largest * np.asarray(np.log(2), self.real), total)

    def weights(self, s: Array, lse: Array) -> Array:
        return super().weights(s, self.to_base_two(lse))

    def dsinks(self, lse: Array, inner: Array) -> Array:
        weight = np.exp(self.sinks - lse)
        return -(weight * inner).sum(axis=(0, 2, 3))


@variant(dtypes=BOTH)
class ScaleFoldedIntoQueries(Pipeline):
    """The queries are multiplied by the scale, in float32, before the product."""

    def dot(self, keys: slice) -> Array:
        return (self.q * self.scale).astype(self.real) @ self.key_tile(keys).swapaxes(-1, -2)

    def scaled(self, s: Array) -> Array:
        return s


@variant(dtypes=BOTH)
class ScaleFoldedIntoKeys(Pipeline):
    """The keys are multiplied by the scale, in float32, before the product."""

    def dot(self, keys: slice) -> Array:
        return self.q @ (self.key_tile(keys) * self.scale).astype(self.real).swapaxes(-1, -2)

    def scaled(self, s: Array) -> Array:
        return s


@variant(dtypes=BOTH)
class RootOfTheScaleInBoth(Pipeline):
    """Queries and keys are each multiplied by the root of the scale, the queries by its sign."""

    def dot(self, keys: slice) -> Array:
        root = np.asarray(np.sqrt(abs(self.scale)), self.real)
        q, k = self.q * root * np.sign(self.scale), self.key_tile(keys) * root
        return q.astype(self.real) @ k.swapaxes(-1, -2)

    def scaled(self, s: Array) -> Array:
        return s


@variant(dtypes=HALVES)
class ScoresRoundedOnce(Pipeline):
    """Scores are rounded to the storage type, after scaling."""

    declares: ClassVar = {"scores": "storage", "score_roundings": 1}

    def scaled(self, s: Array) -> Array:
        return rounded(super().scaled(s), self.dtype.name)


@variant(dtypes=HALVES)
class ScoresRoundedTwice(Pipeline):
    """Scores are rounded to the storage type before scaling, and after it."""

    declares: ClassVar = {"scores": "storage", "score_roundings": 2}

    def scaled(self, s: Array) -> Array:
        return rounded(super().scaled(rounded(s, self.dtype.name)), self.dtype.name)


@variant()
class ProductsOfTensorFloat32(Pipeline):
    """Every matrix product, also of the gradients, rounds its operands to TF32."""

    declares: ClassVar = {"operands": "tfloat32"}

    def dot(self, keys: slice) -> Array:
        return tensor_float32(self.q) @ tensor_float32(self.key_tile(keys)).swapaxes(-1, -2)

    def probabilities(self, p: Array) -> Array:
        return tensor_float32(p)

    def value_tile(self, keys: slice) -> Array:
        return tensor_float32(super().value_tile(keys))

    def dweights(self, dout: Array, keys: slice) -> Array:
        return super().dweights(tensor_float32(dout), keys)

    def dq_tile(self, dproduct: Array, keys: slice) -> Array:
        return tensor_float32(dproduct) @ tensor_float32(finite(self.key_tile(keys)))

    def dk_tile(self, dproduct: Array, keys: slice) -> Array:
        return tensor_float32(dproduct).swapaxes(-1, -2) @ tensor_float32(finite(self.q))

    def dv_tile(self, p: Array, dout: Array, keys: slice) -> Array:
        return super().dv_tile(tensor_float32(p), tensor_float32(dout), keys)


@variant(dtypes=BOTH)
class ExpGoodToThirteenBits(Pipeline):
    """exp errs by up to 2^-13, like an even random number of its argument, and is exact at 0."""

    declares: ClassVar = {"exp_error": 2.0**-13}

    def exp(self, x: Array) -> Array:
        phase = np.where(np.isfinite(x), x, 0).astype(np.float64) * 4099.7
        share = 2 * (phase - np.rint(phase))  # even in [-1, 1]
        return (np.exp(x) * (1 + 2.0**-13 * (1 - 2.0**-10) * share)).astype(self.real)
