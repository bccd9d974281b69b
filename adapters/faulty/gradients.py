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
