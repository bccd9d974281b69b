"""Causal masks in the wrong place."""

from __future__ import annotations

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.pipeline import Array, Pipeline

__all__: list[str] = []


@fault(kind="causal-alignment", reports=("microsoft/onnxruntime#29020",))
class CausalTopLeft(Pipeline):
    """The causal mask is aligned top-left."""

    def seen_causally(self, ahead: Array) -> Array:
        return ahead - self.offset() >= 0


@fault(kind="causality")
class CausalSeesTheNextToken(Pipeline):
    """A causal row sees one token of its future."""

    def seen_causally(self, ahead: Array) -> Array:
        return ahead >= -1


@fault(kind="causality", reports=("pytorch/pytorch#195910",))
class CausalByGroupsOfFourRows(Pipeline):
    """Four rows share the causal mask of their last."""

    def seen_causally(self, ahead: Array) -> Array:
        return ahead + (3 - np.arange(self.rows)[:, None] % 4) >= 0
