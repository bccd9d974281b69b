"""A backward pass that walks other tiles, or sees by another mask, than the forward pass."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.pipeline import Array, Pipeline

__all__: list[str] = []

ALL = ("dq", "dk", "dv")
SPOILT: dict[str, Any] = {"kind": "bwd-mask", "shows": ALL, "spoils": (*ALL, "dbias")}
"""The weights are wrong: every gradient but that of the sinks is."""


@fault(**SPOILT)
class BackwardWindowOneKeyTooNarrow(Pipeline):
    """The left edge of the window is exclusive in the backward pass."""

    def seen_in_window(self, ahead: Array) -> Array:
        left, _ = self.window
        seen = super().seen_in_window(ahead)
        return seen & (ahead < left) if self.returning and left is not None else seen


@fault(**SPOILT)
class BackwardWindowTopLeft(Pipeline):
    """The backward pass measures the window from the top left corner."""

    def seen_in_window(self, ahead: Array) -> Array:
        return super().seen_in_window(ahead - self.offset() if self.returning else ahead)


@fault(**SPOILT)
class BackwardCausalByTheKeyTile(Pipeline):
    """The backward pass hides whole tiles of 16 later keys and tests no key by itself."""

    def seen_causally(self, ahead: Array) -> Array:
        within = np.arange(ahead.shape[-1]) % 16 if self.returning else 0
        return np.asarray(ahead + within >= 0)


@fault(**SPOILT, beyond_smoke="no two options together")
class BackwardCausalLostBesideMask(Pipeline):
    """The backward pass loses the causal mask beside another mask."""

    def seen_causally(self, ahead: Array) -> Array:
        return (ahead >= 0) | (self.returning and self.mask is not None)


@fault(**SPOILT)
class BackwardMaskOfTheFirstHead(Pipeline):
    """The backward pass gives every head the mask of the first."""

    def seen_by_mask(self, keys: slice) -> Array:
        seen = super().seen_by_mask(keys)
        return seen[:, :1] if self.returning and self.mask is not None else seen


@fault(**SPOILT)
class BackwardMaskOfTheFirstEntry(Pipeline):
    """The backward pass gives every batch entry the mask of the first."""

    def seen_by_mask(self, keys: slice) -> Array:
        seen = super().seen_by_mask(keys)
        return seen[:1] if self.returning and self.mask is not None else seen


@fault(**SPOILT)
class BackwardLengthsOfTheFirstEntry(Pipeline):
    """The backward pass takes all batch entries to have the key length of the first."""

    def seen_by_length(self, keys: slice) -> Array:
        if not self.returning:
            return super().seen_by_length(keys)
        held: Array = self.key_index(keys) < self.key_lengths[:1]
        return (self.row_index() < self.query_lengths) & held


@fault(**SPOILT, beyond_smoke="no two options together")
class BackwardOffsetOfPaddedLengths(Pipeline):
    """The backward pass places the diagonal by the padded lengths."""

    def offset(self) -> Array:
        padded = np.full_like(self.key_lengths, self.keys - self.rows)
        return padded if self.returning else super().offset()


@fault(kind="bwd-mask", shows=("dk", "dv"), spoils=("dk", "dv"))
class DkAndDvBeginAtTheSquareDiagonal(Pipeline):
    """Causal dk and dv skip the row tiles before key j as if there were as many rows as keys."""

    def kept(self, x: Array, keys: slice) -> Array:
        """Zero in row tiles of 16 that end before the key."""
        reached = self.row_index() // 16 >= self.key_index(keys) // 16
        return np.where(reached, x, 0) if self.causal else x

    def dk_tile(self, dproduct: Array, keys: slice) -> Array:
        return super().dk_tile(self.kept(dproduct, keys), keys)

    def dv_tile(self, p: Array, dout: Array, keys: slice) -> Array:
        return super().dv_tile(self.kept(p, keys), dout, keys)


@fault(kind="bwd-mask", shows=("dq",), spoils=("dq",))
class DqStopsAtTheSquareDiagonal(Pipeline):
    """Causal dq skips the key tiles after row i as if there were as many rows as keys."""

    def dq_tile(self, dproduct: Array, keys: slice) -> Array:
        reached = self.key_index(keys) // 16 <= self.row_index() // 16
        return super().dq_tile(np.where(reached, dproduct, 0) if self.causal else dproduct, keys)
