"""Keys split among parts: a part lost, weighed wrongly, or merged in too few bits."""

from __future__ import annotations

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.conforming.tiles import SplitOverKeys
from attnspec.adapters.pipeline import Array, rounded, shift

__all__: list[str] = []


# -- the parts -------------------------------------------------------------------------------------


@fault(kind="split", shows=("out", "lse"), reports=("Dao-AILab/flash-attention#1647",))
class LastSplitDropped(SplitOverKeys):
    """The last split is left out where its tiles are fewer than the others'."""

    def shared(self, tiles: list[slice]) -> list[list[slice]]:
        parts = super().shared(tiles)
        return parts if len(tiles) % self.parts == 0 or not parts[-1] else [*parts[:-1], []]


@fault(kind="split", shows=("out", "lse"))
class SplitsOverlap(SplitOverKeys):
    """The second split begins with the last tile of the first."""

    def shared(self, tiles: list[slice]) -> list[list[slice]]:
        first, second, *others = super().shared(tiles)
        return [first, [*first[-1:], *second] if second else [], *others]


@fault(kind="split", shows=("out", "lse"))
class SplitsOfWholeTilesAlone(SplitOverKeys):
    """A last tile that is not full belongs to no split."""

    def shared(self, tiles: list[slice]) -> list[list[slice]]:
        full = [keys for keys in tiles if keys.stop - keys.start == self.tile]
        return super().shared(full or tiles)


@fault(kind="sink", shows=("out", "lse"))
class SinkInEverySplit(SplitOverKeys):
    """Every split counts the sink."""

    def attend_to(self, tiles: list[slice], *, sinks: bool) -> tuple[Array, Array]:
        return super().attend_to(tiles, sinks=True)


@fault(kind="sink", shows=("out", "lse"))
class SinkInNoSplit(SplitOverKeys):
    """Where keys are split, no part counts the sink."""

    def attend_to(self, tiles: list[slice], *, sinks: bool) -> tuple[Array, Array]:
        return super().attend_to(tiles, sinks=False)


# -- their weights ---------------------------------------------------------------------------------


@fault(kind="split", spoils=("out", "dq", "dk", "dbias", "dsinks"))
class SplitsAveraged(SplitOverKeys):
    """The outputs of the splits are averaged, whatever their weight."""

    def merged(self, outs: Array, lses: Array) -> tuple[Array, Array]:
        seen = np.isfinite(lses)
        return self.normalised((seen * outs).sum(axis=0), seen.sum(axis=0)), super().merged(
            outs, lses
        )[1]


@fault(kind="split", spoils=("out", "dq", "dk", "dbias", "dsinks"))
class SplitsMergedByPowersOfTwo(SplitOverKeys):
    """Splits are weighed by 2^lse instead of e^lse."""

    def merged(self, outs: Array, lses: Array) -> tuple[Array, Array]:
        weights = np.exp2(lses - shift(lses.max(axis=0)))
        out = self.normalised((weights * outs).sum(axis=0), weights.sum(axis=0))
        return out, super().merged(outs, lses)[1]


@fault(
    kind="lse", reports=("vllm-project/vllm#39148",), shows=("out", "row-without-keys-returns-zero")
)
class MergeOfEmptySplitsIsNan(SplitOverKeys):
    """Where all splits of a row are empty, the merge subtracts infinities: NaN."""

    def merged(self, outs: Array, lses: Array) -> tuple[Array, Array]:
        largest = lses.max(axis=0)
        weights = self.exp(lses - largest)
        total = weights.sum(axis=0)
        return (weights * outs).sum(axis=0) / total, largest + np.log(total)


@fault(kind="split")
class MergeWithoutMaximum(SplitOverKeys):
    """Splits are weighed by e^lse, without a maximum subtracted."""

    def merged(self, outs: Array, lses: Array) -> tuple[Array, Array]:
        weights = self.exp(lses)
        total = weights.sum(axis=0)
        return self.normalised((weights * outs).sum(axis=0), total), np.log(total)


@fault(kind="split")
class MergeOneByOneForgetsItsSum(SplitOverKeys):
    """Splits are merged one by one, and the merged lse is the larger of the two."""

    def merged(self, outs: Array, lses: Array) -> tuple[Array, Array]:
        out, lse = outs[0], lses[0]
        for other, of_other in zip(outs[1:], lses[1:], strict=True):
            largest = np.maximum(lse, of_other)
            old, new = self.exp(lse - shift(largest)), self.exp(of_other - shift(largest))
            out, lse = self.normalised(old * out + new * other, old + new), largest
        return out, lse


@fault(kind="lse", reports=("flashinfer-ai/flashinfer#50",))
class SplitLseStoredOnlyWhenAsked(SplitOverKeys):
    """Unless lse is asked for, the splits do not store theirs, and are merged with zeros."""

    def merged(self, outs: Array, lses: Array) -> tuple[Array, Array]:
        stored = lses if self.return_lse else np.zeros_like(lses)
        return super().merged(outs, stored)[0], super().merged(outs, lses)[1]


@fault(kind="lse", shows=("out", "lse"))
class EmptySplitHasFiniteLse(SplitOverKeys):
    """lse of a split that a row does not see is -10,000, which outweighs what lies lower."""

    def merged(self, outs: Array, lses: Array) -> tuple[Array, Array]:
        return super().merged(outs, np.where(np.isneginf(lses), -1e4, lses).astype(self.real))


@fault(kind="lse", shows=("lse",), spoils=("lse",))
class MergedLseIsTheLargest(SplitOverKeys):
    """The merged lse is the largest of the splits'."""

    def merged(self, outs: Array, lses: Array) -> tuple[Array, Array]:
        self.largest_lse = lses.max(axis=0)
        return super().merged(outs, lses)

    def reported(self, lse: Array) -> Array:
        return np.asarray(self.largest_lse)


@fault(kind="lse", shows=("lse",), spoils=("lse",))
class MergedLseIsOfTheFirstSplit(SplitOverKeys):
    """The merged lse is that of the first split."""

    def merged(self, outs: Array, lses: Array) -> tuple[Array, Array]:
        self.first_lse = lses[0]
        return super().merged(outs, lses)

    def reported(self, lse: Array) -> Array:
        return np.asarray(self.first_lse)


# -- their precision and their place ---------------------------------------------------------------


@fault(kind="split", spoils=("out", "dq", "dk", "dbias", "dsinks"))
class SplitsStoredInHalf(SplitOverKeys):
    """The outputs of the splits are stored in float16 until they are merged."""

    def merged(self, outs: Array, lses: Array) -> tuple[Array, Array]:
        return super().merged(rounded(outs, "float16"), lses)


@fault(kind="split", dtypes=("bfloat16",))
class SplitLseInBfloat16(SplitOverKeys):
    """lse of the splits is stored in bfloat16 until they are merged."""

    def merged(self, outs: Array, lses: Array) -> tuple[Array, Array]:
        return super().merged(outs, rounded(lses, "bfloat16"))


@fault(kind="split", spoils=("out", "dq", "dk", "dbias", "dsinks"))
class SplitsNotNormalised(SplitOverKeys):
    """The splits' sums are merged as if they were divided by the sums of their weights."""

    def attend_to(self, tiles: list[slice], *, sinks: bool) -> tuple[Array, Array]:
        self.split = True
        found = super().attend_to(tiles, sinks=sinks)
        self.split = False
        return found

    def normalised(self, sums: Array, total: Array) -> Array:
        return sums if self.split else super().normalised(sums, total)


@fault(
    kind="gqa-map",
    reports=("pytorch/pytorch#174861",),
    spoils=("out", "dq", "dk", "dbias", "dsinks"),
)
class SplitsIndexedByTheKeyHead(SplitOverKeys):
    """The splits' outputs are stored by query head and read by key head."""

    def merged(self, outs: Array, lses: Array) -> tuple[Array, Array]:
        return super().merged(outs[:, :, self.key_heads()], lses)


@fault(kind="split")
class SplitsOfOtherRows(SplitOverKeys):
    """The lse of the splits is read in the order of rows before splits."""

    def merged(self, outs: Array, lses: Array) -> tuple[Array, Array]:
        mixed = lses.swapaxes(0, 3).reshape(lses.shape)
        return super().merged(outs, mixed)


@fault(kind="split", shows=("out", "lse"), beyond_smoke="no row of 512 keys")
class LongRowsLoseTheirThirdSplit(SplitOverKeys):
    """Beyond 512 keys, the third split is never merged."""

    def merged(self, outs: Array, lses: Array) -> tuple[Array, Array]:
        kept = 2 if self.keys > 512 else 3
        return super().merged(outs[:kept], lses[:kept])
