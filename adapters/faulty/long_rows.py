"""What is right up to `limit` keys and wrong beyond: 65,536 is what an index of 16 bits holds."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.pipeline import Array, Pipeline, State

__all__ = ["Long"]


class Long(Pipeline):
    """Without a fault, whatever the length."""

    tile = 64
    limit: ClassVar[int] = 2**16

    @property
    def beyond(self) -> bool:
        """Whether the fault is there."""
        return self.keys > self.limit


@fault(kind="index-overflow", level="full", shows=("out", "lse", "dq", "dk", "dv"))
class LongIndexWraps(Long):
    """The index of a key has too few bits for a long row and starts again."""

    def key_tile(self, keys: slice) -> Array:
        return self.k[..., self.key_index(keys) % self.limit, :]

    def value_tile(self, keys: slice) -> Array:
        return self.v[..., self.key_index(keys) % self.limit, :]


@fault(kind="tail-tile", level="full", shows=("out", "lse"))
class LongLastTileDropped(Long):
    """The last tile of a long row is left out."""

    def tiles(self) -> list[slice]:
        found = list(super().tiles())
        return found[:-1] if self.beyond else found


@fault(kind="acc-precision", level="full", dtypes=("bfloat16",))
class LongSumInStorage(Long):
    """The sum of the weights of a long row is kept in the input's type."""

    def added(self, total: Array, p: Array, fade: Array) -> Array:
        found = super().added(total, p, fade)
        return found.astype(self.dtype).astype(self.real) if self.beyond else found


@fault(kind="missing-rescale", level="full", shows=("out", "lse"))
class LongMaximumStops(Long):
    """The running maximum of a long row is no longer updated after its first keys."""

    def step(self, state: State, keys: slice) -> State:
        self.stopped = self.beyond and keys.start >= self.limit
        return super().step(state, keys)

    def largest(self, before: Array, s: Array) -> Array:
        return before if self.stopped else super().largest(before, s)


@fault(kind="missing-rescale", level="full", shows=("out", "lse"))
class LongRescaleStops(Long):
    """Earlier sums of a long row are no longer rescaled after its first keys."""

    def step(self, state: State, keys: slice) -> State:
        self.stopped = self.beyond and keys.start >= self.limit
        return super().step(state, keys)

    def fade(self, before: Array, after: Array) -> Array:
        found = super().fade(before, after)
        return np.ones_like(found) if self.stopped else found


@fault(kind="kv-offset", level="full")
class LongCausalOffsetSaturates(Long):
    """The place of the diagonal in a long row is the largest number of its type."""

    def seen_causally(self, ahead: Array) -> Array:
        lost = self.offset() - np.minimum(self.offset(), self.limit)
        return super().seen_causally(ahead - lost)


@fault(kind="index-overflow", level="full", shows=("out", "lse"))
class LongKeyLengthSaturates(Long):
    """The number of keys of a long row is the largest number of its type."""

    def lengths(self, given: Array | None, most: int) -> Array:
        found = super().lengths(given, most)
        return found if given is None else np.minimum(found, self.limit)


@fault(kind="index-overflow", level="full")
class LongMaskWraps(Long):
    """The mask of a long row starts again after its first keys."""

    def seen_by_mask(self, keys: slice) -> Array:
        if self.mask is None:
            return super().seen_by_mask(keys)
        return np.asarray(self.mask[..., self.key_index(keys) % self.limit])


@fault(kind="window", level="full")
class LongWindowIsLost(Long):
    """The window of a long row is ignored."""

    def seen_in_window(self, ahead: Array) -> Array:
        return np.ones_like(ahead, np.bool_) if self.beyond else super().seen_in_window(ahead)


@fault(kind="bwd-block", level="full", shows=("dv",), spoils=("dk", "dv"))
class LongDkAndDvStop(Long):
    """The keys of a long row after its first have no gradients."""

    def per_key_head(self, name: str, x: Array) -> Array:
        found = super().per_key_head(name, x)
        found[:, :, self.limit :] = 0
        return found


@fault(kind="bwd-block", level="full", shows=("dq",), spoils=("dq",))
class LongDqStops(Long):
    """The gradient of a query in a long row has the part of the first keys alone."""

    def dq_tile(self, dproduct: Array, keys: slice) -> Array:
        found = super().dq_tile(dproduct, keys)
        return np.zeros_like(found) if keys.start >= self.limit else found
