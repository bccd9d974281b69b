"""Intermediate results kept in the storage type, where that is declared."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from attnspec.adapters.catalogue import variant
from attnspec.adapters.pipeline import Array, Pipeline, finite, product, rounded, shift

__all__ = ["TwoPasses"]

BOTH = ("float32", "bfloat16")
HALVES = ("float16", "bfloat16")


@variant(dtypes=("float64", "float32", "float16", "bfloat16"), reports=("pytorch/pytorch#163588",))
class NothingStored(Pipeline):
    """The pipeline itself: float32 inside, and each result rounded once."""


@variant(dtypes=HALVES, reports=("pytorch/pytorch#163588",))
class ProbabilitiesStored(Pipeline):
    """Weights, and dS, are rounded to the storage type as they enter their products."""

    declares: ClassVar = {"probabilities": "storage"}

    def probabilities(self, p: Array) -> Array:
        return rounded(p, self.dtype.name)

    def dv_tile(self, p: Array, dout: Array, keys: slice) -> Array:
        return super().dv_tile(rounded(p, self.dtype.name), dout, keys)

    def dproduct(self, ds: Array, p: Array, slope: Array | float) -> Array:
        return rounded(super().dproduct(ds, p, slope), self.dtype.name)


@variant(dtypes=BOTH)
class TwoPasses(Pipeline):
    """All scores first, then a softmax of the whole row: nothing is rescaled."""

    def forward(self) -> tuple[Array, Array]:
        """out and lse."""
        every = slice(0, self.keys)
        s, _ = self.scores(every)
        largest = self.top(s)
        p = self.exp(s - shift(largest))
        total = p.sum(axis=-1, keepdims=True)
        if self.sinks is not None:
            total = total + self.exp(self.sinks - shift(largest))
        p = self.probabilities(self.normalised(p, total))
        out = product(p, self.value_tile(every), lambda: self.visible(every))
        return out, self.log_sum_exp(largest, total)

    def top(self, s: Array) -> Array:
        """The largest score of each row, the sink's included: (B, H, Nq, 1)."""
        sink = np.asarray(-np.inf if self.sinks is None else self.sinks, self.real)
        least = np.broadcast_to(sink, (*s.shape[:3], 1))
        return np.concatenate([s, least], -1).max(axis=-1, keepdims=True)


@variant(dtypes=HALVES)
class NormalisedProbabilitiesStored(ProbabilitiesStored, TwoPasses):
    """Weights are divided by their sum, and then rounded to the storage type."""

    declares: ClassVar = {"probabilities": "storage", "normalised": True}


@variant(dtypes=HALVES)
class EveryStepStored(NormalisedProbabilitiesStored):
    """Each step stores its result, as one framework operation a step does."""

    declares: ClassVar = {
        "scores": "storage",
        "score_roundings": 2,
        "probabilities": "storage",
        "normalised": True,
        "lse": "storage",
    }

    def kept(self, x: Array) -> Array:
        """Stored, and read again."""
        return rounded(x, self.dtype.name)

    def dot(self, keys: slice) -> Array:
        return self.kept(super().dot(keys))

    def scaled(self, s: Array) -> Array:
        return self.kept(super().scaled(s))

    def capped(self, s: Array) -> tuple[Array, Array | float]:
        if self.softcap is None:
            return s, 1.0
        bent = self.kept(np.tanh(s / self.softcap))
        return self.kept(self.softcap * bent), 1 - bent * bent

    def biased(self, s: Array, keys: slice) -> Array:
        return s if self.bias is None else self.kept(super().biased(s, keys))

    def reported(self, lse: Array) -> Array:
        return self.stored(lse, self.raw["q"])

    def dweights(self, dout: Array, keys: slice) -> Array:
        return self.kept(super().dweights(dout, keys))

    def dscores(self, p: Array, dp: Array, inner: Array) -> Array:
        return self.kept(super().dscores(p, dp, inner))


@variant(dtypes=HALVES)
class LseStored(Pipeline):
    """lse is returned, and read by the backward pass, in the storage type."""

    declares: ClassVar = {"lse": "storage"}

    def reported(self, lse: Array) -> Array:
        return self.stored(lse, self.raw["q"])

    def weights(self, s: Array, lse: Array) -> Array:
        return super().weights(s, rounded(lse, self.dtype.name))


@variant(dtypes=HALVES)
class GradientsStored(ProbabilitiesStored):
    """dq is added up tile by tile of keys, dk and dv by tiles of rows, in the storage type."""

    declares: ClassVar = {"probabilities": "storage", "gradients": "storage"}
    row_tile = 16

    def dq_added(self, dq: Array, part: Array) -> Array:
        return rounded(dq + part, self.dtype.name)

    def row_tiles(self) -> Iterable[slice]:
        """The tiles of rows."""
        return [slice(i, i + self.row_tile) for i in range(0, self.rows, self.row_tile)]

    def dk_tile(self, dproduct: Array, keys: slice) -> Array:
        total = np.zeros_like(self.key_tile(keys))
        for rows in self.row_tiles():
            part = dproduct[..., rows, :].swapaxes(-1, -2) @ finite(self.q)[..., rows, :]
            total = rounded(total + part, self.dtype.name)
        return total

    def dv_tile(self, p: Array, dout: Array, keys: slice) -> Array:
        p, total = rounded(p, self.dtype.name), np.zeros_like(self.value_tile(keys))
        for rows in self.row_tiles():
            part = p[..., rows, :].swapaxes(-1, -2) @ dout[..., rows, :]
            total = rounded(total + part, self.dtype.name)
        return total
