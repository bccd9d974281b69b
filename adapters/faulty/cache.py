"""Where new rows stand after the keys of a cache: offsets that are wrong or ignored."""

from __future__ import annotations

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.pipeline import Array, Pipeline

__all__: list[str] = []


@fault(kind="kv-offset", reports=("onnx/onnx#7297",))
class CacheOffsetIgnored(Pipeline):
    """The keys before the new tokens are not counted: rows stand at 0, 1, 2 …"""

    def offset(self) -> Array:
        return np.zeros_like(self.key_lengths)


@fault(kind="kv-offset")
class CacheOffsetIgnoredForOneQuery(Pipeline):
    """A single query row, as in decoding, stands at 0."""

    def offset(self) -> Array:
        return np.zeros_like(self.key_lengths) if self.rows == 1 else super().offset()


@fault(kind="kv-offset")
class CacheOffsetFromPaddedKeys(Pipeline):
    """The offset is that of all slots of the cache, not of each entry's keys."""

    def offset(self) -> Array:
        return self.keys - self.query_lengths


@fault(kind="kv-offset", beyond_smoke="no two options together")
class CacheOffsetFromPaddedQueries(Pipeline):
    """The offset leaves out that some rows are padding."""

    def offset(self) -> Array:
        return self.key_lengths - self.rows


@fault(kind="kv-offset", beyond_smoke="no two options together")
class CacheOffsetOfTheFirstEntry(Pipeline):
    """All batch entries have the offset of entry 0."""

    def offset(self) -> Array:
        return np.broadcast_to(super().offset()[:1], self.key_lengths.shape)


@fault(kind="kv-offset", beyond_smoke="no two options together")
class CacheOffsetOfTheLongestEntry(Pipeline):
    """All batch entries have the offset of the longest."""

    def offset(self) -> Array:
        return np.broadcast_to(super().offset().max(), self.key_lengths.shape)


@fault(kind="kv-offset")
class CacheOffsetNeverNegative(Pipeline):
    """With more rows than keys the offset is 0 instead of negative."""

    def offset(self) -> Array:
        return np.maximum(super().offset(), 0)


@fault(kind="kv-offset")
class CacheOffsetOneTooMany(Pipeline):
    """The offset is one too large where the keys come with their lengths."""

    def offset(self) -> Array:
        return super().offset() + (self.raw["key_lengths"] is not None)


@fault(kind="kv-offset")
class CacheOffsetInWholePages(Pipeline):
    """The offset is rounded down to a multiple of 8, a page of the cache."""

    def offset(self) -> Array:
        return np.asarray(super().offset() // 8 * 8)


@fault(kind="kv-offset")
class CacheOffsetLostBesideMask(Pipeline):
    """Beside a mask, rows stand at 0, 1, 2 …"""

    def offset(self) -> Array:
        return super().offset() if self.mask is None else np.zeros_like(self.key_lengths)


@fault(kind="kv-offset", beyond_smoke="no options beyond the first tiles")
class RowsStartAgainInEachTile(Pipeline):
    """Rows are counted from 0 again in each tile of 64."""

    def ahead(self, keys: slice) -> Array:
        return np.asarray(self.row_index() % 64 + self.offset() - self.key_index(keys))


@fault(kind="kv-offset", beyond_smoke="no options beyond the first tiles")
class KeysStartAgainInEachTile(Pipeline):
    """Keys are counted from 0 again in each tile of 64, where the diagonal is looked for."""

    def ahead(self, keys: slice) -> Array:
        return np.asarray(self.row_index() + self.offset() - self.key_index(keys) % 64)
