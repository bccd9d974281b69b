"""Writes and reads where nobody should: around the inputs, in other entries, in freed memory."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.lib.stride_tricks import as_strided

from attnspec.adapters.catalogue import GRADIENTS, fault
from attnspec.adapters.pipeline import Array, Pipeline

__all__: list[str] = []


@fault(kind="input-mutation", shows=("inputs-unchanged",), spoils=())
class WritesBehindTheKeys(Pipeline):
    """One number is written behind the end of k."""

    def answer(self) -> Any:
        k = self.raw["k"]
        if k.size and k.flags.c_contiguous:
            as_strided(k.reshape(-1)[-1:], (2,), (k.itemsize,))[1] = 0
        return super().answer()


@fault(kind="tail-tile", shows=("out", "lse", "dq"))
class ReadsOneKeyBehindTheEnd(Pipeline):
    """The last score is taken with what lies behind the last key in memory."""

    def dot(self, keys: slice) -> Array:
        s = super().dot(keys)
        k = self.raw["k"]
        if keys.stop == self.keys and k.flags.c_contiguous:
            behind = as_strided(k.reshape(-1)[-1:], (2,), (k.itemsize,))[1:].astype(self.real)
            s[-1, -1, :, -1:] += self.q[-1, -1, :, -1:] * behind
        return s


@fault(kind="uninit", shows=("freed-memory",), spoils=("out",))
class RowsThatSeeNothingStayUnwritten(Pipeline):
    """The output of rows that see no key is never written: whatever memory held stays there."""

    place: Array | None = None

    def answer(self) -> Any:
        self.place = np.empty((*self.raw["q"].shape[:3], self.value_size), self.dtype)
        return super().answer()

    def forward(self) -> tuple[Array, Array]:
        out, lse = super().forward()
        self.empty = np.isneginf(lse)
        return out, lse

    def stored(self, x: Array, like: Array) -> Array:
        found = super().stored(x, like)
        if self.place is None:  # a gradient
            return found
        np.copyto(self.place, found, where=~self.empty)
        return self.place


@fault(kind="uninit", shows=("dq", "degenerate-sizes"), spoils=("dq",))
class GradientOfEmptyRowsStaysUnwritten(Pipeline):
    """dq of rows that see no key is never written."""

    def backward(self) -> dict[str, Array]:
        found = super().backward()
        empty = np.ones((*found["dq"].shape[:3], 1), np.bool_)
        for keys in self.tiles():
            empty &= ~self.visible(keys).any(axis=-1, keepdims=True)
        if empty.any():
            found["dq"] = np.where(empty, np.empty_like(found["dq"]), found["dq"])
        return found


class _OfOtherEntries(Pipeline):
    """Other batch entries times 0 are added."""

    def others(self, x: Array) -> Array:
        return 0 * x.sum(axis=0, keepdims=True) if self.batch > 2 else 0 * x


@fault(kind="nan-leak", shows=("batch-position",), spoils=())
class EntriesAddedWithWeightZero(_OfOtherEntries):
    """The values of all batch entries are added with a weight of 0: NaN spreads."""

    def normalised(self, sums: Array, total: Array) -> Array:
        return super().normalised(sums + self.others(sums), total)


@fault(kind="bwd-batch", shows=("batch-position-gradients",), spoils=())
class GradientsOfEntriesAddedWithWeightZero(_OfOtherEntries):
    """The gradients of all batch entries are added with a weight of 0: NaN spreads."""

    def dk_tile(self, dproduct: Array, keys: slice) -> Array:
        found = super().dk_tile(dproduct, keys)
        return found + self.others(found)


@fault(kind="nan-leak", shows=("hidden-nan-gradients",), spoils=())
class HiddenKeysTimesZeroInBackward(Pipeline):
    """dq adds hidden keys with a weight of 0: NaN leaks in the backward pass alone."""

    def dq_tile(self, dproduct: Array, keys: slice) -> Array:
        return dproduct @ self.key_tile(keys)


@fault(kind="varlen-leak", shows=("padding-is-not-read-gradients",), spoils=("dv",))
class PaddedCotangentsCount(Pipeline):
    """dv adds the cotangents of rows beyond the query length."""

    def dv_tile(self, p: Array, dout: Array, keys: slice) -> Array:
        beyond = self.row_index() >= self.query_lengths
        return super().dv_tile(np.where(beyond, 1e-3, p).astype(p.dtype), dout, keys)


@fault(kind="mask-neginf", shows=("hidden-bias",))
class HugeBiasOutweighsTheMask(Pipeline):
    """A mask adds -1e9 to scores: a larger bias in a hidden slot wins over it."""

    def hidden(self, s: Array, visible: Array) -> Array:
        huge = np.abs(s) > 1e4
        return np.where(visible | (huge & (s > 0)), s, np.asarray(-np.inf, s.dtype))


@fault(kind="stale-cache", shows=("other-options-between",))
class BiasStaysWithoutOne(Pipeline):
    """A call without a bias uses the one of the call before, where it fits."""

    def __init__(self, *operands: Array, bias: Array | None = None, **options: Any) -> None:
        shape = (*operands[0].shape[:3], operands[1].shape[2])
        if bias is None:
            super().__init__(*operands, bias=self.state.get(shape), **options)
            return
        self.state[shape] = bias.copy()
        super().__init__(*operands, bias=bias, **options)


@fault(kind="stale-cache", shows=("forward-after-backward",), spoils=("out", "lse"))
class BackwardLeavesItsScale(Pipeline):
    """A backward pass leaves its scale, doubled, to the next forward pass."""

    def answer(self) -> Any:
        self.scale *= self.state.pop("factor", 1)
        return super().answer()

    def gradients(self) -> dict[str, Array]:
        found = super().gradients()
        self.state["factor"] = 2
        return found


@fault(kind="bwd-scale", shows=("one-hot-cotangent",), spoils=())
class SparseCotangentsTakenAsNone(Pipeline):
    """dv is 0 for the columns of a cotangent whose first row is 0."""

    def dv_tile(self, p: Array, dout: Array, keys: slice) -> Array:
        return super().dv_tile(p, np.where(dout[:, :, :1] == 0, 0, dout), keys)


@fault(kind="bwd-scale", shows=("cotangent-scales",), spoils=())
class SmallCotangentsUnderflow(Pipeline):
    """A cotangent whose largest number is below 1 is taken as 0."""

    def read(self, name: str, x: Array) -> Array:
        found = super().read(name, x)
        small = name == "dout" and np.abs(found).max(initial=0) < 1
        return 0 * found if small else found


class _InTheOrderOfMemory(Pipeline):
    """Operands that are read in the order of memory, whatever their strides, in backward alone."""

    names: ClassVar[tuple[str, ...]] = ()

    def straight(self, name: str, x: Array) -> Array:
        if name not in self.names or self.raw["dout"] is None:
            return x
        return x.ravel(order="K").reshape(x.shape)

    def read(self, name: str, x: Array) -> Array:
        return super().read(name, self.straight(name, x))

    def spread(self, name: str, x: Array) -> Array:
        return super().spread(name, self.straight(name, x))


@fault(
    kind="stride-ignored",
    shows=("layout-k-gradients", "layout-v-gradients", "layout-packed-gradients"),
    spoils=("dq", "dk", "dv"),
)
class BackwardReadsKeysAndValuesInTheOrderOfMemory(_InTheOrderOfMemory):
    """The backward pass alone reads k and v in the order of memory, whatever their strides."""

    names = ("k", "v")


@fault(kind="stride-ignored", shows=("layout-mask-gradients", "layout-bias-gradients"), spoils=())
class BackwardReadsTheMaskInTheOrderOfMemory(_InTheOrderOfMemory):
    """The backward pass alone reads mask and bias in the order of memory."""

    names = ("mask", "bias")


@fault(kind="nan-leak", shows=("hidden-extremes-gradients",), spoils=())
class UnseenValuesReachGradients(Pipeline):
    """A trace of every value, seen or not, enters dP."""

    def dweights(self, dout: Array, keys: slice) -> Array:
        trace = self.value_tile(keys).sum(axis=(-2, -1), keepdims=True)
        return super().dweights(dout, keys) + 1e-15 * np.where(np.isfinite(trace), trace, 0)


@fault(kind="bwd-mask", shows=("hidden-bias-gradients",), spoils=("dbias",))
class HiddenBiasHasGradient(Pipeline):
    """A trace of the bias itself is added to dbias, in hidden slots too."""

    def gathered(self, x: Array, shape: tuple[int, ...]) -> Array:
        assert self.bias is not None, "there is a dbias"
        trace = np.where(np.isfinite(self.bias), self.bias, 0)
        return super().gathered((x + 1e-36 * trace).astype(self.real), shape)


@fault(kind="varlen-leak", shows=("padding-is-not-read",), spoils=("out",))
class PaddedValuesLeaveTraces(Pipeline):
    """Values beyond the length of their entry are added with a weight of 1e-15."""

    def collected(self, sums: Array, p: Array, keys: slice, fade: Array) -> Array:
        beyond = (self.key_index(keys) >= self.key_lengths)[..., None, :].swapaxes(-1, -2)[:, 0]
        trace = np.where(beyond, self.value_tile(keys), 0).sum(axis=-2, keepdims=True)
        leak = 1e-15 * np.where(np.isfinite(trace), trace, 0).astype(self.real)
        return super().collected(sums, p, keys, fade) + leak


@fault(kind="stale-cache", shows=("other-values-between",))
class SinksKeptByShape(Pipeline):
    """Sinks are kept from the first call on and found again by their shape alone."""

    def per_head(self, x: Array) -> Array:
        if x is self.raw["sinks"]:
            x = self.state.setdefault(x.shape, x.copy())
        return super().per_head(x)


@fault(kind="stale-cache", shows=("other-shapes-between",), spoils=("out",))
class LastRowOfLongerCalls(Pipeline):
    """A shorter call after a longer one returns the longer one's last row as its own."""

    def stored(self, x: Array, like: Array) -> Array:
        found = super().stored(x, like)
        if like is self.raw["q"] and self.raw["dout"] is None and self.rows:
            rows, last = self.state.get(found.shape[-1], (0, None))
            if rows > self.rows:
                found = found.copy()
                found[0, 0, -1] = last
            else:
                self.state[found.shape[-1]] = self.rows, found[0, 0, -1].copy()
        return found


@fault(kind="tail-tile", shows=("degenerate-sizes",), spoils=("out", "dsinks"))
class NanWithoutKeys(Pipeline):
    """Without any key the output is NaN, as 0/0 is."""

    def normalised(self, sums: Array, total: Array) -> Array:
        out = super().normalised(sums, total)
        return out if self.keys else np.full_like(out, np.nan)


@fault(kind="stride-ignored", shows=("layout-mask",), spoils=())
class MaskReadAsItLies(Pipeline):
    """The forward pass reads the mask in the order of memory, whatever its strides."""

    def spread(self, name: str, x: Array) -> Array:
        lies = name == "mask" and self.raw["dout"] is None
        return super().spread(name, x.ravel(order="K").reshape(x.shape) if lies else x)


@fault(kind="nondeterminism", shows=("same-bits-again-lse",), spoils=())
class LseOfAnotherLastBit(Pipeline):
    """The last bit of lse changes from call to call."""

    def log_sum_exp(self, largest: Array, total: Array) -> Array:
        lse = super().log_sum_exp(largest, total)
        self.state["calls"] = self.state.get("calls", 0) + 1
        return lse if self.state["calls"] // 2 % 2 else np.nextafter(lse, lse + 1)


@fault(kind="harness", shows=("equal-operands",), spoils=())
class EqualOperandsLeaveOutTheDiagonal(Pipeline):
    """Where q and k hold the same numbers no row sees its own key."""

    def visible(self, keys: slice) -> Array:
        seen = super().visible(keys)
        if self.q.shape != self.k.shape or not np.array_equal(self.q, self.k):
            return seen
        return seen & (self.row_index() != self.key_index(keys))


@fault(kind="input-mutation", shows=("inputs-unchanged",), spoils=GRADIENTS)
class WritesIntoKeysWhereAxesAreAlike(Pipeline):
    """k is transposed in place where there are as many keys as channels."""

    def answer(self) -> Any:
        found = super().answer()
        if self.keys == self.size:
            self.raw["k"][...] = self.raw["k"].swapaxes(-1, -2).copy()
        return found
