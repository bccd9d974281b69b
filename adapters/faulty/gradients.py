"""Gradients by a wrong formula, under a forward pass that is right."""

from __future__ import annotations

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.pipeline import Array, Pipeline, finite, shift

__all__: list[str] = []

ALL = ("dq", "dk", "dv")
BESIDE = ("dbias", "dsinks")
EVERY = (*ALL, *BESIDE)


# -- scale -----------------------------------------------------------------------------------------


@fault(kind="bwd-scale", shows=("dq",), spoils=("dq",))
class DqWithoutScale(Pipeline):
    """dq lacks the scale."""

    def dq_tile(self, dproduct: Array, keys: slice) -> Array:
        return super().dq_tile(dproduct, keys) / (self.scale or 1)


@fault(kind="bwd-scale", shows=("dk",), spoils=("dk",))
class DkWithoutScale(Pipeline):
    """dk is taken with the queries before they are scaled."""

    def dk_tile(self, dproduct: Array, keys: slice) -> Array:
        return super().dk_tile(dproduct, keys) / (self.scale or 1)


@fault(kind="bwd-scale", shows=("dq",), spoils=("dq",))
class DqScaledTwice(Pipeline):
    """dq has the scale twice."""

    def dq_tile(self, dproduct: Array, keys: slice) -> Array:
        return super().dq_tile(dproduct, keys) * self.scale


@fault(kind="bwd-scale", shows=("dk",), spoils=("dk",))
class DkScaledTwice(Pipeline):
    """dk has the scale twice."""

    def dk_tile(self, dproduct: Array, keys: slice) -> Array:
        return super().dk_tile(dproduct, keys) * self.scale


@fault(kind="bwd-scale", shows=("dk",), spoils=("dk",))
class DkOnePercentTooLarge(Pipeline):
    """dk is 1 % too large."""

    def dk_tile(self, dproduct: Array, keys: slice) -> Array:
        return super().dk_tile(dproduct, keys) * np.float32(1.01)


@fault(kind="bwd-batch", shows=ALL, spoils=EVERY)
class GradientsDividedByBatch(Pipeline):
    """The gradients are divided by the number of batch entries."""

    def backward(self) -> dict[str, Array]:
        return {name: x / self.batch for name, x in super().backward().items()}


# -- the softmax -----------------------------------------------------------------------------------


@fault(kind="bwd-null", shows=("dq", "dk"), spoils=("dq", "dk", *BESIDE))
class NoCentring(Pipeline):
    """The inner product of dout and out is not subtracted, as if weights need not sum to 1."""

    def inner(self, dout: Array, out: Array) -> Array:
        return super().inner(dout, np.zeros_like(out))


@fault(kind="bwd-null", shows=("dq", "dk"), spoils=("dq", "dk", *BESIDE))
class CentredByTheMeanOfTheRow(Pipeline):
    """dP is centred by its plain mean instead of its mean under the weights."""

    def dscores(self, p: Array, dp: Array, inner: Array) -> Array:
        return super().dscores(p, dp, dp.mean(axis=-1, keepdims=True))


@fault(kind="lse", shows=("dq", "dk"), spoils=("dq", "dk", *BESIDE))
class LseCotangentIgnored(Pipeline):
    """The gradient that comes in through lse is ignored."""

    def inner(self, dout: Array, out: Array) -> Array:
        self.raw["dlse"] = None
        return super().inner(dout, out)


@fault(kind="lse", shows=("dq", "dk"), spoils=("dq", "dk", *BESIDE))
class LseCotangentOfTheWrongSign(Pipeline):
    """The gradient that comes in through lse has the wrong sign."""

    def inner(self, dout: Array, out: Array) -> Array:
        dlse = self.raw["dlse"]
        found = super().inner(dout, out)
        return found if dlse is None else found + 2 * dlse.astype(self.real)[..., None]


@fault(kind="softcap-order", shows=("dq", "dk"), spoils=("dq", "dk"))
class SoftcapNotDifferentiated(Pipeline):
    """The derivative of the soft cap is missing."""

    def dproduct(self, ds: Array, p: Array, slope: Array | float) -> Array:
        return super().dproduct(ds, p, 1.0)


@fault(kind="missing-rescale", shows=("dv",), spoils=("dv",))
class DvOfUnnormalisedWeights(Pipeline):
    """dv is taken with weights that are not divided by their sum."""

    def weights(self, s: Array, lse: Array) -> Array:
        self.unnormalised = self.exp(s - shift(s.max(axis=-1, keepdims=True)))
        return super().weights(s, lse)

    def dv_tile(self, p: Array, dout: Array, keys: slice) -> Array:
        return super().dv_tile(self.unnormalised, dout, keys)


@fault(kind="mask-neginf", shows=ALL, spoils=EVERY)
class GradientsOfEmptyRowsAreNan(Pipeline):
    """A row that sees no key spoils the gradients: -inf - (-inf) is NaN."""

    def weights(self, s: Array, lse: Array) -> Array:
        return self.exp(s - lse)


# -- the products ----------------------------------------------------------------------------------


@fault(kind="bwd-null", shows=("dq", "dk"), spoils=("dq", "dk"), sentinel=True)
class DqAndDkZero(Pipeline):
    """dq and dk are zero."""

    def dproduct(self, ds: Array, p: Array, slope: Array | float) -> Array:
        return np.zeros_like(ds)


@fault(kind="bwd-null", shows=ALL, spoils=EVERY, sentinel=True)
class GradientsZero(Pipeline):
    """Every gradient is zero."""

    def backward(self) -> dict[str, Array]:
        return {name: np.zeros_like(x) for name, x in super().backward().items()}


@fault(kind="bwd-null", shows=("dv",), spoils=("dv",))
class DvNegated(Pipeline):
    """dv has the wrong sign."""

    def dv_tile(self, p: Array, dout: Array, keys: slice) -> Array:
        return -super().dv_tile(p, dout, keys)


@fault(kind="layout-mixup", shows=("dq",), spoils=("dq",))
class DqRowsReversed(Pipeline):
    """The rows of dq are in reverse order."""

    def dq_tile(self, dproduct: Array, keys: slice) -> Array:
        return super().dq_tile(dproduct, keys)[..., ::-1, :]


@fault(kind="harness", shows=ALL, spoils=EVERY)
class GradientsOfTheSumOfOutputs(Pipeline):
    """The cotangent is taken to be all ones."""

    def read(self, name: str, x: Array) -> Array:
        return np.ones(x.shape, self.real) if name == "dout" else super().read(name, x)


@fault(kind="harness", shows=ALL, spoils=EVERY)
class CotangentSummedOverTheBatch(Pipeline):
    """Every batch entry has the cotangent of the first."""

    def read(self, name: str, x: Array) -> Array:
        found = super().read(name, x)
        return np.broadcast_to(found[:1], found.shape) if name == "dout" else found


@fault(kind="bwd-batch", shows=("dk", "dv"), spoils=("dk", "dv"))
class KeysOfLaterEntriesHaveNoGradient(Pipeline):
    """dk and dv are zero in all batch entries but the first."""

    def per_key_head(self, name: str, x: Array) -> Array:
        found = super().per_key_head(name, x)
        found[1:] = 0
        return found


@fault(kind="bwd-batch", shows=("dk", "dv"), spoils=("dk", "dv"))
class KeyGradientsSharedByTheBatch(Pipeline):
    """dk and dv are summed over the batch, as if its entries shared their keys."""

    def per_key_head(self, name: str, x: Array) -> Array:
        found = super().per_key_head(name, x)
        return np.broadcast_to(found.sum(axis=0, keepdims=True), found.shape)


@fault(kind="bwd-scale", shows=("dq",), spoils=("dq",), reports=("NVIDIA/TransformerEngine#3216",))
class DqFiveTimesTooLargeOnCorrelatedKeys(Pipeline):
    """dq is five times too large in batches whose keys have a mean far from zero."""

    def dq_tile(self, dproduct: Array, keys: slice) -> Array:
        found = super().dq_tile(dproduct, keys)
        mean = np.abs(finite(self.k).mean(axis=2)).mean() if self.keys else 0
        return 5 * found if self.batch > 1 and mean > 1 else found


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
