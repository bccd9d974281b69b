"""Orders and ways of summation."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import ClassVar

import numpy as np

from attnspec.adapters.catalogue import variant
from attnspec.adapters.pipeline import Array, Pipeline, finite, product

__all__: list[str] = []

BOTH = ("float32", "bfloat16")
ALL = ("float32", "float16", "bfloat16")


@variant()
class RightToLeft(Pipeline):
    """The tiles of keys are taken from the last to the first."""

    def tiles(self) -> Iterable[slice]:
        return reversed(list(super().tiles()))


@variant(dtypes=BOTH)
class TilesInRandomOrder(Pipeline):
    """The tiles of keys are taken in a random order, the same for the same number of keys."""

    tile = 16
    declares: ClassVar = {"tile": 16}

    def tiles(self) -> Iterable[slice]:
        tiles = list(super().tiles())
        order = np.random.default_rng(self.keys).permutation(len(tiles))
        return [tiles[place] for place in order]


@variant(dtypes=ALL)
class SequentialSums(Pipeline):
    """Every sum adds one term after the other in float32: channels, keys and rows."""

    def dot(self, keys: slice) -> Array:
        k, total = self.key_tile(keys), np.zeros(1, self.real)
        for channel in range(self.size):
            total = total + self.q[..., channel, None] * k[..., None, :, channel]
        return total

    def added(self, total: Array, p: Array, fade: Array) -> Array:
        return np.add.accumulate(np.concatenate([total * fade, p], -1), axis=-1)[..., -1:]

    def collected(self, sums: Array, p: Array, keys: slice, fade: Array) -> Array:
        sums, value, visible = sums * fade, self.value_tile(keys), self.visible(keys)
        for key in range(p.shape[-1]):
            one = slice(key, key + 1)
            seen = partial(np.take, visible, [key], -1)
            sums = sums + product(p[..., one], value[..., one, :], seen)
        return sums

    def dk_tile(self, dproduct: Array, keys: slice) -> Array:
        return self.by_rows(dproduct, finite(self.q))

    def dv_tile(self, p: Array, dout: Array, keys: slice) -> Array:
        return self.by_rows(p, dout)

    def by_rows(self, weights: Array, x: Array) -> Array:
        """weightsᵀ x, one row after the other."""
        total = np.zeros((*weights.shape[:2], weights.shape[3], x.shape[3]), self.real)
        for row in range(self.rows):
            total = total + weights[..., row, :, None] * x[..., row, None, :]
        return total


@variant(dtypes=BOTH)
class PairwiseSums(Pipeline):
    """Products are summed in pairs, then pairs of pairs, in float32."""

    tile = 16
    declares: ClassVar = {"tile": 16}

    def dot(self, keys: slice) -> Array:
        return in_pairs(self.q[..., :, None, :] * self.key_tile(keys)[..., None, :, :])

    def added(self, total: Array, p: Array, fade: Array) -> Array:
        return total * fade + in_pairs(p)[..., None]

    def collected(self, sums: Array, p: Array, keys: slice, fade: Array) -> Array:
        value = self.value_tile(keys)
        nan = np.isnan(product(p, value, lambda: self.visible(keys)))
        terms = p[..., None, :] * finite(value).swapaxes(-1, -2)[..., None, :, :]
        return sums * fade + np.where(nan, np.nan, in_pairs(terms)).astype(self.real)


def in_pairs(terms: Array) -> Array:
    """The sum over the last axis."""
    while terms.shape[-1] > 1:
        if terms.shape[-1] % 2:
            terms = np.concatenate([terms, np.zeros_like(terms[..., :1])], -1)
        terms = terms[..., ::2] + terms[..., 1::2]
    return terms[..., 0]


@variant(dtypes=ALL)
class Float64Inside(Pipeline):
    """Everything is computed in float64, and each result rounded to its type once."""

    def ready(self) -> None:
        self.real = np.dtype(np.float64)
        for name in ("q", "k", "v", "bias", "sinks", "slopes"):
            x = getattr(self, name)
            setattr(self, name, None if x is None else x.astype(self.real))

    def reported(self, lse: Array) -> Array:
        return lse if self.dtype == self.real else lse.astype(np.float32)


@variant(dtypes=BOTH)
class DotProductsInFloat64(Pipeline):
    """Both products are accumulated in float64 and then rounded to float32."""

    def dot(self, keys: slice) -> Array:
        k = self.key_tile(keys).swapaxes(-1, -2).astype(np.float64)
        return (self.q.astype(np.float64) @ k).astype(self.real)

    def collected(self, sums: Array, p: Array, keys: slice, fade: Array) -> Array:
        wide = product(p.astype(np.float64), self.value_tile(keys), lambda: self.visible(keys))
        return (sums.astype(np.float64) * fade + wide).astype(self.real)


@variant(dtypes=BOTH)
class HeadByHead(Pipeline):
    """One head after the other, each product a two-dimensional one on a copy of its own."""

    def dot(self, keys: slice) -> Array:
        return by_head(self.q, np.ascontiguousarray(self.key_tile(keys).swapaxes(-1, -2)))

    def dq_tile(self, dproduct: Array, keys: slice) -> Array:
        return by_head(dproduct, finite(self.key_tile(keys)))


def by_head(a: Array, b: Array) -> Array:
    """a @ b."""
    found = np.empty((*a.shape[:3], b.shape[3]), a.dtype)
    for place in np.ndindex(a.shape[:2]):
        found[place] = a[place] @ b[place]
    return found
