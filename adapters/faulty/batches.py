"""Batch entries that get what belongs to another, or another route than when they come alone."""

from __future__ import annotations

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.pipeline import Array, Pipeline, rounded

__all__: list[str] = []


# -- what belongs to another -----------------------------------------------------------------------


@fault(kind="batch-dependence", reports=("ggml-org/llama.cpp#7903",))
class MaskOfTheFirstEntry(Pipeline):
    """Every batch entry has the mask of the first."""

    def seen_by_mask(self, keys: slice) -> Array:
        return super().seen_by_mask(keys)[:1] if self.mask is not None else np.asarray(True)


@fault(kind="batch-dependence", shows=("out", "lse"))
class LengthOfTheFirstEntry(Pipeline):
    """Every batch entry has the key length of the first."""

    def lengths(self, given: Array | None, most: int) -> Array:
        found = super().lengths(given, most)
        return np.broadcast_to(found[:1], found.shape) if most == self.keys else found


@fault(kind="batch-dependence", shows=("out", "lse"))
class LengthOfTheLongestEntry(Pipeline):
    """Every batch entry is taken to be as long as the longest."""

    def lengths(self, given: Array | None, most: int) -> Array:
        found = super().lengths(given, most)
        return np.full_like(found, found.max(initial=0)) if most == self.keys else found


@fault(kind="broadcast", reports=("microsoft/onnxruntime#24017",))
class BiasAtTheWrongBatchOffset(Pipeline):
    """A bias of the shape (B, 1, Nq, Nk) is read as if it had a slice for each head."""

    def spread(self, name: str, x: Array) -> Array:
        if name != "bias" or x.ndim < 4 or x.shape[1] != 1:
            return super().spread(name, x)
        number = np.arange(self.batch * self.heads).reshape(self.batch, self.heads)
        return super().spread(name, x[:, 0][number % x.shape[0]])


@fault(kind="broadcast", reports=("openvinotoolkit/openvino#21217",))
class MaskOfTheFirstHead(Pipeline):
    """Every head has the mask of the first."""

    def spread(self, name: str, x: Array) -> Array:
        cut = name == "mask" and x.ndim == 4
        return super().spread(name, x[:, :1] if cut else x)


@fault(kind="batch-dependence", shows=("out", "lse"))
class EntriesReadEachOthersKeys(Pipeline):
    """Keys belong to the batch entry before."""

    def read(self, name: str, x: Array) -> Array:
        found = super().read(name, x)
        return np.roll(found, 1, axis=0) if name == "k" else found


@fault(kind="quant-leak")
class ScaleOfTheWholeBatch(Pipeline):
    """Values are stored in 8 bits with one scale for the whole batch."""

    def read(self, name: str, x: Array) -> Array:
        found = super().read(name, x)
        if name != "v" or not found.size:
            return found
        step = np.abs(np.where(np.isfinite(found), found, 0)).max() / np.float32(127)
        return np.where(step > 0, np.round(found / step) * step, found).astype(self.real)


# -- other routes ----------------------------------------------------------------------------------


@fault(kind="batch-dependence")
class HalfSumsInLargeBatches(Pipeline):
    """Sums of weighted values are kept in float16 in batches of three entries and more."""

    def collected(self, sums: Array, p: Array, keys: slice, fade: Array) -> Array:
        found = super().collected(sums, p, keys, fade)
        return rounded(found, "float16") if self.batch > 2 else found


@fault(kind="batch-dependence", shows=("out",), reports=("vllm-project/vllm#53257",))
class SplitsOfTheBatchMergedInHalf(Pipeline):
    """Keys are split by the size of the batch, and the parts merged in float16."""

    def collected(self, sums: Array, p: Array, keys: slice, fade: Array) -> Array:
        found = super().collected(sums, p, keys, fade)
        tiles = max(1, 8 // self.batch)
        return rounded(found, "float16") if keys.start // self.tile % tiles == 0 else found


@fault(kind="batch-dependence", reports=("ml-explore/mlx#3573",))
class AnotherRouteBeyondEightRows(Pipeline):
    """More than eight query rows take a route with scores in bfloat16."""

    def scaled(self, s: Array) -> Array:
        found = super().scaled(s)
        return rounded(found, "bfloat16") if self.rows > 8 else found


@fault(kind="batch-dependence")
class AnotherRouteForOneRow(Pipeline):
    """A single query row takes a route with weights in bfloat16."""

    def probabilities(self, p: Array) -> Array:
        return rounded(p, "bfloat16") if self.rows == 1 else p


@fault(kind="batch-dependence", shows=("out", "lse"))
class LargeBatchesLoseTheLastKeys(Pipeline):
    """In batches of three entries and more the tile of keys that is not full is left out."""

    def seen_by_length(self, keys: slice) -> Array:
        found = super().seen_by_length(keys)
        full = self.keys // 32 * 32 if self.batch > 2 else self.keys
        return found & (self.key_index(keys) < full)
