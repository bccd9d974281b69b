"""A backward pass with a step in too few bits, under a forward pass that keeps them."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.pipeline import Array, Pipeline, rounded

__all__: list[str] = []

ALL = ("dq", "dk", "dv")
SCORES = ("dq", "dk")
BESIDE = ("dbias", "dsinks")


@fault(kind="acc-precision", shows=ALL, spoils=(*ALL, *BESIDE))
class BackwardLseInBfloat16(Pipeline):
    """The backward pass reads an lse that was stored in bfloat16."""

    def weights(self, s: Array, lse: Array) -> Array:
        return super().weights(s, rounded(lse, "bfloat16"))


@fault(kind="acc-precision", shows=ALL, spoils=(*ALL, *BESIDE))
class BackwardLseInHalf(Pipeline):
    """The backward pass reads an lse that was stored in float16."""

    def weights(self, s: Array, lse: Array) -> Array:
        return super().weights(s, rounded(lse, "float16"))


@fault(kind="acc-precision", shows=SCORES, spoils=(*SCORES, *BESIDE))
class CentringInBfloat16(Pipeline):
    """The inner product of dout and out is stored in bfloat16."""

    def inner(self, dout: Array, out: Array) -> Array:
        return rounded(super().inner(dout, out), "bfloat16")


@fault(kind="acc-precision", shows=SCORES, spoils=(*SCORES, *BESIDE))
class CentringInHalf(Pipeline):
    """The inner product of dout and out is stored in float16."""

    def inner(self, dout: Array, out: Array) -> Array:
        return rounded(super().inner(dout, out), "float16")


@fault(kind="acc-precision", shows=("dv",), spoils=("dv",))
class BackwardWeightsInBfloat16(Pipeline):
    """The weights enter the product for dv in bfloat16."""

    def dv_tile(self, p: Array, dout: Array, keys: slice) -> Array:
        return super().dv_tile(rounded(p, "bfloat16"), dout, keys)


@fault(kind="acc-precision", shows=SCORES, spoils=(*SCORES, *BESIDE))
class WeightGradientsInBfloat16(Pipeline):
    """dP is stored in bfloat16."""

    def dweights(self, dout: Array, keys: slice) -> Array:
        return rounded(super().dweights(dout, keys), "bfloat16")


@fault(kind="acc-precision", shows=SCORES, spoils=(*SCORES, *BESIDE))
class ScoreGradientsInBfloat16(Pipeline):
    """dS is stored in bfloat16."""

    def dscores(self, p: Array, dp: Array, inner: Array) -> Array:
        return rounded(super().dscores(p, dp, inner), "bfloat16")


@fault(kind="acc-precision", shows=SCORES, spoils=(*SCORES, *BESIDE))
class ScoreGradientsInFloat8(Pipeline):
    """dS is stored in 8 bits."""

    def dscores(self, p: Array, dp: Array, inner: Array) -> Array:
        found = super().dscores(p, dp, inner)
        return found.astype(ml_dtypes.float8_e4m3fn).astype(found.dtype)


@fault(kind="acc-precision", shows=("dq",), spoils=("dq",))
class DqSummedInBfloat16(Pipeline):
    """dq is summed over the tiles of keys in bfloat16."""

    def dq_added(self, dq: Array, part: Array) -> Array:
        return rounded(super().dq_added(dq, part), "bfloat16")


@fault(kind="acc-precision", shows=("dk", "dv"), spoils=("dk", "dv"))
class DkAndDvSummedInBfloat16(Pipeline):
    """dk and dv are summed over the tiles of rows in bfloat16."""

    def dk_tile(self, dproduct: Array, keys: slice) -> Array:
        return self.by_rows(dproduct, self.q)

    def dv_tile(self, p: Array, dout: Array, keys: slice) -> Array:
        return self.by_rows(p, dout)

    def by_rows(self, weights: Array, x: Array) -> Array:
        """weightsᵀ x, eight rows at a time."""
        total = weights.swapaxes(-1, -2)[..., :0] @ x[..., :0, :]
        for start in range(0, self.rows, 8):
            rows = slice(start, start + 8)
            part = weights[..., rows, :].swapaxes(-1, -2) @ x[..., rows, :]
            total = rounded(total + part, "bfloat16")
        return total


@fault(kind="acc-precision", shows=("dk", "dv"), spoils=("dk", "dv"))
class GroupSummedInHalf(Pipeline):
    """dk and dv are summed over the query heads of a group in float16."""

    def per_key_head(self, name: str, x: Array) -> Array:
        group = self.heads // self.kv_heads
        each = x.reshape(self.batch, self.kv_heads, group, *x.shape[2:])
        total = rounded(each[:, :, 0], "float16")
        for head in range(1, group):
            total = rounded(total + each[:, :, head], "float16")
        return total


@fault(kind="bwd-scale", shows=SCORES, spoils=SCORES)
class BackwardScaleInHalf(Pipeline):
    """The backward pass multiplies by the scale rounded to float16."""

    def dproduct(self, ds: Array, p: Array, slope: Array | float) -> Array:
        scale, self.scale = self.scale, float(ds.dtype.type(self.scale).astype("float16"))
        found = super().dproduct(ds, p, slope)
        self.scale = scale
        return found


# -- in the type of the inputs, though float32 is declared -----------------------------------------


class InStorage(Pipeline):
    """Steps can be rounded to the type of the inputs."""

    def as_stored(self, x: Array) -> Array:
        """Rounded to the type of the inputs."""
        return x.astype(self.dtype).astype(x.dtype)


@fault(kind="acc-precision", shows=ALL, spoils=(*ALL, *BESIDE), dtypes=("float16", "bfloat16"))
class BackwardLseInStorage(InStorage):
    """The backward pass reads an lse that was stored in the type of half precision inputs."""

    def weights(self, s: Array, lse: Array) -> Array:
        return super().weights(s, self.as_stored(lse))


@fault(kind="acc-precision", shows=("dv",), spoils=("dv",), dtypes=("float16", "bfloat16"))
class BackwardWeightsInStorage(InStorage):
    """The weights enter the product for dv in the type of half precision inputs."""

    def dv_tile(self, p: Array, dout: Array, keys: slice) -> Array:
        return super().dv_tile(self.as_stored(p), dout, keys)


@fault(
    kind="acc-precision",
    shows=SCORES,
    spoils=(*SCORES, *BESIDE),
    dtypes=("float16", "bfloat16"),
)
class ScoreGradientsInStorage(InStorage):
    """dS is stored in the type of half precision inputs."""

    def dscores(self, p: Array, dp: Array, inner: Array) -> Array:
        return self.as_stored(super().dscores(p, dp, inner))


@fault(kind="acc-precision", shows=("dq",), spoils=("dq",), dtypes=("float16", "bfloat16"))
class DqSummedInStorage(InStorage):
    """dq is summed over the tiles of keys in the type of half precision inputs."""

    def dq_added(self, dq: Array, part: Array) -> Array:
        return self.as_stored(super().dq_added(dq, part))


@fault(kind="bwd-scale", shows=("dk",), spoils=("dk",), dtypes=("bfloat16",))
class DkOnePercentTooLargeInBfloat16(InStorage):
    """dk of bfloat16 inputs is 1 % too large."""

    def dk_tile(self, dproduct: Array, keys: slice) -> Array:
        return super().dk_tile(dproduct, keys) * np.float32(1.01)
