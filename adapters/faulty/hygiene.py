"""Writes and reads where nobody should: around the inputs, in other entries, in freed memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from attnspec.adapters.catalogue import fault
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


@fault(kind="tail-tile", spoils=("out", "lse"), shows=("out", "lse"))
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

    def answer(self) -> Any:
        self.place = np.empty((*self.raw["q"].shape[:3], self.value_size), self.dtype)
        return super().answer()

    def forward(self) -> tuple[Array, Array]:
        out, lse = super().forward()
        self.empty = np.isneginf(lse)
        return out, lse

    def stored(self, x: Array, like: Array) -> Array:
        np.copyto(self.place, super().stored(x, like), where=~self.empty)
        return self.place


@fault(kind="uninit", shows=("freed-memory-gradients",), spoils=("dq",))
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


@fault(kind="nan-leak", shows=("padding-is-not-read-gradients",), spoils=())
class PaddedCotangentsCount(Pipeline):
    """dv adds the cotangents of rows beyond the query length."""

    def dv_tile(self, p: Array, dout: Array, keys: slice) -> Array:
        beyond = self.row_index() >= self.query_lengths
        return super().dv_tile(np.where(beyond, 1e-3, p).astype(p.dtype), dout, keys)


@fault(kind="mask-neginf", shows=("hidden-bias",), spoils=())
class HugeBiasOutweighsTheMask(Pipeline):
    """A mask adds -1e9 to scores: a larger bias in a hidden slot wins over it."""

    def hidden(self, s: Array, visible: Array) -> Array:
        huge = np.abs(s) > 1e4
        return np.where(visible | (huge & (s > 0)), s, np.asarray(-np.inf, s.dtype))


@fault(kind="stale-cache", shows=("other-options-between",), spoils=())
class BiasStaysWithoutOne(Pipeline):
    """A call without a bias uses the one of the call before, where it fits."""

    def __init__(self, *operands: Array, bias: Array | None = None, **options: Any) -> None:
        shape = (*operands[0].shape[:3], operands[1].shape[2])
        if bias is None:
            super().__init__(*operands, bias=self.state.get(shape), **options)
            return
        self.state[shape] = bias.copy()
        super().__init__(*operands, bias=bias, **options)


@fault(kind="stale-cache", shows=("forward-after-backward",), spoils=())
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
