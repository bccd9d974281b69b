"""Gradients by other formulas, and added up in other orders."""

from __future__ import annotations

import numpy as np

from attnspec.adapters.catalogue import variant
from attnspec.adapters.pipeline import Array, Pipeline, finite

__all__: list[str] = []

BOTH = ("float32", "bfloat16")


@variant(dtypes=BOTH)
class InnerFromWeights(Pipeline):
    """The row's part of dS is the sum of P dP over the keys, not <dout, out>."""

    def inner(self, dout: Array, out: Array) -> Array:
        _, lse = self.forward()
        total = np.zeros((self.batch, self.heads, self.rows, 1), self.real)
        for keys in self.tiles():
            p = self.weights(self.scores(keys)[0], lse)
            terms = np.where(p == 0, 0, p * self.dweights(dout, keys))
            total = total + terms.sum(axis=-1, keepdims=True)
        dlse = self.raw["dlse"]
        return total if dlse is None else total - dlse.astype(self.real)[..., None]


@variant(dtypes=BOTH)
class InnerFromTheStoredOutput(Pipeline):
    """<dout, out> is taken of the output as it is stored."""

    def inner(self, dout: Array, out: Array) -> Array:
        return super().inner(dout, self.stored(out, self.raw["q"]).astype(self.real))


@variant(dtypes=BOTH)
class GradientsByTilesOfRows(Pipeline):
    """dk and dv are added up by tiles of eight rows, the last rows first."""

    def by_rows(self, weights: Array, x: Array) -> Array:
        """weightsᵀ x."""
        total = np.zeros((*weights.shape[:2], weights.shape[3], x.shape[3]), self.real)
        for start in reversed(range(0, self.rows, 8)):
            rows = slice(start, start + 8)
            total = total + weights[..., rows, :].swapaxes(-1, -2) @ x[..., rows, :]
        return total

    def dk_tile(self, dproduct: Array, keys: slice) -> Array:
        return self.by_rows(dproduct, finite(self.q))

    def dv_tile(self, p: Array, dout: Array, keys: slice) -> Array:
        return self.by_rows(p, dout)


@variant(dtypes=BOTH)
class ScaleAfterTheGradients(Pipeline):
    """dq and dk are multiplied by the scale once they are added up by the tile."""

    def dproduct(self, ds: Array, p: Array, slope: Array | float) -> Array:
        return np.where(p == 0, 0, ds * slope).astype(self.real)

    def dq_tile(self, dproduct: Array, keys: slice) -> Array:
        return super().dq_tile(dproduct, keys) * self.scale

    def dk_tile(self, dproduct: Array, keys: slice) -> Array:
        return super().dk_tile(dproduct, keys) * self.scale
