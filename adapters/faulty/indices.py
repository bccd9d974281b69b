"""Addresses with too few bits, as small as the suite's problems are.

A real kernel's 32 bits hold 2 G numbers. Here an address has as few bits as make the same fault
show among some hundred keys.
"""

from __future__ import annotations

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.pipeline import Array, Pipeline

__all__: list[str] = []


class Addressed(Pipeline):
    """Keys and values are read by an index, here the right one."""

    def key_tile(self, keys: slice) -> Array:
        return self.k[..., self.index(self.key_index(keys)), :]

    def value_tile(self, keys: slice) -> Array:
        return self.v[..., self.index(self.key_index(keys)), :]

    def index(self, key: Array) -> Array:
        """The index that the kernel makes of a key's: it must lie within 0 … Nk - 1."""
        return key


@fault(kind="index-overflow")
class KeyIndexWraps(Addressed):
    """The index of a key wraps at 128."""

    def index(self, key: Array) -> Array:
        return key % 128


@fault(kind="index-overflow")
class KeyIndexTurnsNegative(Addressed):
    """The index of a key is negative from 256 on and reads from the end."""

    def index(self, key: Array) -> Array:
        signed = (key + 256) % 512 - 256
        return signed % max(1, self.keys)


@fault(kind="index-overflow")
class KeyIndexSaturates(Addressed):
    """Every key from 255 on is read as key 255."""

    def index(self, key: Array) -> Array:
        return np.minimum(key, 255)


@fault(kind="index-overflow", beyond_smoke="no more than 4,096 numbers of keys in a head")
class KeyAddressWraps(Addressed):
    """The product of a key's index and its stride wraps at 4,096."""

    def index(self, key: Array) -> Array:
        return key * self.size % 4096 // max(1, self.size) % max(1, self.keys)


@fault(kind="index-overflow", beyond_smoke="no more than 64 rows")
class QueryIndexWraps(Pipeline):
    """The index of a query row wraps at 64."""

    def read(self, name: str, x: Array) -> Array:
        found = super().read(name, x)
        return found[..., np.arange(x.shape[2]) % 64, :] if name == "q" else found


@fault(kind="index-overflow", shows=("out",), spoils=("out", "dq", "dk", "dbias", "dsinks"))
class ColumnIndexWraps(Pipeline):
    """The index of a column of the values wraps at 64."""

    def collected(self, sums: Array, p: Array, keys: slice, fade: Array) -> Array:
        return super().collected(sums, p, keys, fade)[..., np.arange(self.value_size) % 64]


@fault(kind="index-overflow")
class HeadNumberWraps(Pipeline):
    """The number of a head in the batch, entry · heads + head, wraps at 4."""

    def read(self, name: str, x: Array) -> Array:
        found = super().read(name, x)
        flat = found.reshape(-1, *found.shape[2:])
        return flat[np.arange(len(flat)) % 4].reshape(found.shape)


@fault(kind="index-overflow", spoils=("out", "lse", "dq", "dk", "dv", "dbias", "dsinks"))
class HeadsBeyondTheGridNotComputed(Pipeline):
    """Of all heads in the batch only the first eight are computed; the others are zero."""

    def normalised(self, sums: Array, total: Array) -> Array:
        found = super().normalised(sums, total)
        number = np.arange(self.batch * self.heads).reshape(self.batch, self.heads, 1, 1)
        return np.where(number < 8, found, 0).astype(found.dtype)


@fault(kind="index-overflow")
class MaskAddressWraps(Pipeline):
    """The address of a number of the mask, row · keys + key, wraps at 512."""

    def spread(self, name: str, x: Array) -> Array:
        found = super().spread(name, x)
        if name != "mask" or 0 in found.shape:
            return found
        flat = found.reshape(*found.shape[:2], -1)
        address = np.arange(flat.shape[-1]) % 512
        return flat[..., address].reshape(found.shape)


@fault(kind="index-overflow", reports=("fla-org/flash-linear-attention#1080",))
class BatchOffsetOverflows(Pipeline):
    """The offset of a batch entry in the values overflows and reads the first entry instead."""

    def read(self, name: str, x: Array) -> Array:
        found = super().read(name, x)
        if name != "v":
            return found
        offset = np.arange(len(x)) * int(np.prod(x.shape[1:]))
        return found[np.where(offset < 4096, np.arange(len(x)), 0)]


@fault(kind="index-overflow", shows=("dk", "dv"), spoils=("dk", "dv"))
class GradientIndexWraps(Pipeline):
    """The index of a key in dk and dv wraps at 128, so that later keys overwrite earlier ones."""

    def per_key_head(self, name: str, x: Array) -> Array:
        found = super().per_key_head(name, x)
        for start in range(128, self.keys, 128):
            part = found[:, :, start : start + 128].copy()
            found[:, :, start : start + 128] = 0
            found[:, :, : part.shape[2]] = part
        return found


@fault(kind="index-overflow", shows=("dq",), spoils=("dq",), beyond_smoke="no more than 64 rows")
class DqIndexSaturates(Pipeline):
    """Rows of dq from 127 on are all written to row 127."""

    def dq_added(self, dq: Array, part: Array) -> Array:
        found = super().dq_added(dq, part)
        found[..., 128:, :] = 0
        return found
