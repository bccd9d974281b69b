"""Gradients summed wrongly: over the heads of a group, the axes of a bias, the rows of a sink."""

from __future__ import annotations

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.pipeline import Array, Pipeline, shift

__all__: list[str] = []


# -- groups of heads -------------------------------------------------------------------------------


@fault(kind="gqa-map", shows=("dv",), spoils=("dv",))
class DvOfOneHeadOfTheGroup(Pipeline):
    """dv has the part of the first query head of each group alone."""

    def per_key_head(self, name: str, x: Array) -> Array:
        first = x[:, :: self.heads // self.kv_heads]
        return first if name == "dv" else super().per_key_head(name, x)


@fault(kind="gqa-map", shows=("dk",), spoils=("dk",))
class DkOfTheLastHeadOfTheGroup(Pipeline):
    """dk is overwritten by each query head of its group, not added to."""

    def per_key_head(self, name: str, x: Array) -> Array:
        group = self.heads // self.kv_heads
        return x[:, group - 1 :: group] if name == "dk" else super().per_key_head(name, x)


@fault(kind="gqa-map", shows=("dk", "dv"), spoils=("dk", "dv"))
class GroupGradientsAveraged(Pipeline):
    """dk and dv are the means over the query heads of a group, not the sums."""

    def per_key_head(self, name: str, x: Array) -> Array:
        return super().per_key_head(name, x) / (self.heads // self.kv_heads)


@fault(kind="gqa-map", shows=("dk", "dv"), spoils=("dk", "dv"))
class GroupGradientsOfTiledHeads(Pipeline):
    """dk and dv are summed as if the query heads of a group did not stand side by side."""

    def per_key_head(self, name: str, x: Array) -> Array:
        group = self.heads // self.kv_heads
        total: Array = x.reshape(self.batch, group, self.kv_heads, *x.shape[2:]).sum(axis=1)
        return total


# -- bias and sinks --------------------------------------------------------------------------------


@fault(
    kind="broadcast",
    shows=("dbias",),
    spoils=("dbias",),
    reports=("NVIDIA/TransformerEngine#2537",),
)
class DbiasOfTheFirstSlice(Pipeline):
    """dbias is not summed over the axes along which the bias is broadcast."""

    def gathered(self, x: Array, shape: tuple[int, ...]) -> Array:
        full = (1,) * (x.ndim - len(shape)) + shape
        return x[tuple(slice(0, n) for n in full)].reshape(shape)


@fault(kind="broadcast", shows=("dbias",), spoils=("dbias",))
class DbiasAveraged(Pipeline):
    """dbias is the mean over the axes along which the bias is broadcast."""

    def gathered(self, x: Array, shape: tuple[int, ...]) -> Array:
        repeats = x.size // max(1, int(np.prod(shape)))
        return super().gathered(x, shape) / max(1, repeats)


@fault(kind="broadcast", shows=("dbias",), spoils=("dbias",))
class DbiasOfEachHeadAlike(Pipeline):
    """dbias of a bias by heads is summed over the heads as well."""

    def gathered(self, x: Array, shape: tuple[int, ...]) -> Array:
        if len(shape) < 4 or shape[1] == 1:
            return super().gathered(x, shape)
        return super().gathered(np.broadcast_to(x.sum(axis=1, keepdims=True), x.shape), shape)


@fault(kind="bwd-scale", shows=("dbias",), spoils=("dbias",))
class DbiasScaled(Pipeline):
    """dbias has the scale, which the bias comes after."""

    def dbias_tile(self, ds: Array, keys: slice) -> Array:
        return ds * self.scale


@fault(kind="bwd-null", shows=("dbias",), spoils=("dbias",))
class DbiasZero(Pipeline):
    """dbias is zero."""

    def dbias_tile(self, ds: Array, keys: slice) -> Array:
        return np.zeros_like(ds)


@fault(kind="bwd-mask", shows=("dbias",), spoils=("dbias",))
class DbiasOfHiddenSlots(Pipeline):
    """dbias is not zero where a row does not see the key."""

    def weights(self, s: Array, lse: Array) -> Array:
        self.lse = lse
        return super().weights(s, lse)

    def dbias_tile(self, ds: Array, keys: slice) -> Array:
        s, _ = self.capped(self.scaled(self.dot(keys)))
        hidden = ~self.visible(keys) & np.isfinite(self.lse)
        return np.where(hidden, self.exp(np.minimum(s - shift(self.lse), 0)), ds)


@fault(
    kind="sink",
    shows=("dsinks",),
    spoils=("dsinks",),
    reports=("NVIDIA/TransformerEngine#3551",),
)
class DsinksZero(Pipeline):
    """The gradient of the sinks is zero."""

    def dsinks(self, lse: Array, inner: Array) -> Array:
        return np.zeros_like(super().dsinks(lse, inner))


@fault(kind="sink", shows=("dsinks",), spoils=("dsinks",))
class DsinksOfTheWrongSign(Pipeline):
    """The gradient of the sinks has the wrong sign."""

    def dsinks(self, lse: Array, inner: Array) -> Array:
        return -super().dsinks(lse, inner)


@fault(kind="bwd-batch", shows=("dsinks",), spoils=("dsinks",))
class DsinksOfTheFirstEntry(Pipeline):
    """The gradient of the sinks has the part of the first batch entry alone."""

    def dsinks(self, lse: Array, inner: Array) -> Array:
        return super().dsinks(lse[:1], inner[:1])


@fault(kind="sink", shows=("dsinks",), spoils=("dsinks",))
class DsinksOfTheUnweightedRows(Pipeline):
    """The gradient of the sinks is summed over the rows without the sinks' weights."""

    def dsinks(self, lse: Array, inner: Array) -> Array:
        total: Array = -inner.sum(axis=(0, 2, 3))
        return total
