"""Products with the keys or values of a tile, with their magnitudes and with their squares.

Those of all keys are found once and shared by the tiles; where there are many keys, they are
found for some keys at a time, and nothing as large as a copy of them in float64 is held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np

from attnspec.oracle.formats import Float64Array
from attnspec.oracle.heads import KEPT, transposed

__all__ = ["Moment", "Moments", "Source"]

Moment = Literal["plain", "magnitude", "square"]
CHUNK = 2**14
"""Keys that are worked on together where there are many."""


class Source:
    """The rows of a matrix (H, N, size) by their moment. NaN and infinity count as 0."""

    def __init__(self, rows: Callable[[slice], Float64Array], heads: int, count: int, size: int):
        self._rows, self.heads, self.count, self.size = rows, heads, count, size
        self._kept: dict[Moment, Float64Array] = {}
        self.chunk = max(1, count) if heads * count * size <= KEPT else CHUNK

    def rows(self, moment: Moment, part: slice) -> Float64Array:
        """These rows: (H, m, size)."""
        if self.chunk < self.count:
            return self._found(moment, part)
        if moment not in self._kept:
            self._kept[moment] = self._found(moment, slice(0, self.count))
        return self._kept[moment][:, part]

    def _found(self, moment: Moment, part: slice) -> Float64Array:
        if moment != "plain":
            plain = self.rows("plain", part)
            return np.abs(plain) if moment == "magnitude" else plain * plain
        rows = self._rows(part)
        return rows if np.all(np.isfinite(rows)) else np.where(np.isfinite(rows), rows, 0.0)


class Moments:
    """The part of a source that a tile with these M keys needs."""

    def __init__(self, source: Source, keys: slice) -> None:
        self._source, self._keys = source, keys

    def product(self, weights: Float64Array, moment: Moment = "plain") -> Float64Array:
        """weights (H, R, M, or with a sink M + 1) times the rows: (H, R, size)."""
        found = np.zeros((*weights.shape[:2], self._source.size))
        for part, rows in self._parts(moment):
            found += weights[..., part] @ rows
        return found

    def scores(self, rows: Float64Array, moment: Moment = "plain") -> Float64Array:
        """rows (H, R, size) times each key's: (H, R, M)."""
        found = np.empty((*rows.shape[:2], self._keys.stop - self._keys.start))
        for part, keys in self._parts(moment):
            np.matmul(rows, transposed(keys), out=found[..., part])
        return found

    def sums(self) -> Float64Array:
        """The sum of each key's magnitudes: (H, 1, M)."""
        found = [rows.sum(axis=-1)[:, None] for _, rows in self._parts("magnitude")]
        return np.concatenate([np.zeros((self._source.heads, 1, 0)), *found], axis=-1)

    def largest(self) -> Float64Array:
        """The largest magnitude of each channel: (H, 1, size)."""
        found = np.zeros((self._source.heads, 1, self._source.size))
        for _, rows in self._parts("magnitude"):
            np.maximum(found, rows.max(axis=-2, keepdims=True), out=found)
        return found

    def extremes(self) -> tuple[Float64Array, Float64Array]:
        """The least and the largest number of each channel, at least one key: (H, size)."""
        found = [(rows.min(-2), rows.max(-2)) for _, rows in self._parts("plain")]
        least, most = zip(*found, strict=True)
        return np.min(least, axis=0), np.max(most, axis=0)

    def of(self, head: int, some: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Float64Array:
        """Some keys of one head: (m, size)."""
        return np.concatenate(
            [np.zeros((0, self._source.size))]
            + [rows[head, some[part]] for part, rows in self._parts("plain")]
        )

    def parts(self) -> Iterator[slice]:
        """The M keys, as many as are worked on together."""
        count = self._keys.stop - self._keys.start
        for start in range(0, count, self._source.chunk):
            yield slice(start, min(start + self._source.chunk, count))

    def _parts(self, moment: Moment) -> Iterator[tuple[slice, Float64Array]]:
        for part in self.parts():
            first = self._keys.start
            rows = slice(first + part.start, first + part.stop)
            yield part, self._source.rows(moment, rows)
