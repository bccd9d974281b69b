"""Weights that are not those of a softmax over what the row sees."""

from __future__ import annotations

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.pipeline import Array, Pipeline, State

__all__: list[str] = []


@fault(kind="harness", sentinel=True)
class UniformWeights(Pipeline):
    """Every key that a row sees has the same weight, whatever the queries."""

    def hidden(self, s: Array, visible: Array) -> Array:
        return super().hidden(np.zeros_like(s), visible)


@fault(kind="harness", spoils=("out", "dq", "dk", "dbias", "dsinks"))
class MiddleRowZero(Pipeline):
    """One row of each head is zero."""

    def normalised(self, sums: Array, total: Array) -> Array:
        out = super().normalised(sums, total)
        return np.where(self.row_index() == self.rows // 2, 0, out).astype(out.dtype)


@fault(kind="harness")
class LargestWeightsAlone(Pipeline):
    """A row keeps its 16 largest weights of each tile."""

    def hidden(self, s: Array, visible: Array) -> Array:
        found = super().hidden(s, visible)
        if found.shape[-1] <= 16:
            return found
        least = np.sort(found, axis=-1)[..., -16:-15]
        return np.where(found < least, -np.inf, found).astype(found.dtype)


@fault(kind="harness")
class WeightsAreSigmoids(Pipeline):
    """Weights are sigmoids of the scores, divided by their sum."""

    def step(self, state: State, keys: slice) -> State:
        _, total, sums = state
        s, _ = self.scores(keys)
        p = (1 / (1 + np.exp(-s))).astype(self.real)
        one, none = np.ones_like(total), np.zeros_like(total)
        return none, self.added(total, p, one), self.collected(sums, p, keys, one)


@fault(kind="harness")
class TemperatureOfTheTile(Pipeline):
    """Scores are divided by the length of the tile over that of a full tile."""

    def scaled(self, s: Array) -> Array:
        return np.asarray(super().scaled(s) * (self.tile / max(1, s.shape[-1])), s.dtype)


@fault(kind="wrong-scale")
class QueriesOfUnitLength(Pipeline):
    """Queries and keys are normalised to the root of the head size, as under QK-norm."""

    def read(self, name: str, x: Array) -> Array:
        found = super().read(name, x)
        if name not in ("q", "k"):
            return found
        size = np.sqrt(np.mean(found**2, axis=-1, keepdims=True))
        return (found / np.where(size == 0, 1, size)).astype(self.real)


@fault(kind="wrong-scale")
class ScoresAreMinusDistances(Pipeline):
    """Scores are -|q - k|² / 2, which leaves |k|² in."""

    def dot(self, keys: slice) -> Array:
        k = self.key_tile(keys)
        return np.asarray(super().dot(keys) - (k * k).sum(-1)[..., None, :] / 2)
