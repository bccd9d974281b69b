"""A backward pass that sees other keys, or other scores, than the forward pass."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.pipeline import Array, Pipeline, finite, shift

__all__: list[str] = []

ALL = ("dq", "dk", "dv")
EVERY = (*ALL, "dbias", "dsinks")


# -- who sees whom ---------------------------------------------------------------------------------


@fault(kind="bwd-mask", shows=ALL, spoils=EVERY, reports=("xlite-dev/ffpa-attn#300",))
class BackwardCausalTopLeft(Pipeline):
    """The backward pass aligns the causal mask top-left, the forward pass bottom-right."""

    def seen_causally(self, ahead: Array) -> Array:
        return super().seen_causally(ahead - self.offset() if self.returning else ahead)


@fault(kind="bwd-mask", shows=("dk",), spoils=("dk",))
class DkWithoutCausalMask(Pipeline):
    """dk is taken with weights on keys that the causal mask hides."""

    def dweights(self, dout: Array, keys: slice) -> Array:
        self.dp = super().dweights(dout, keys)
        return self.dp

    def dscores(self, p: Array, dp: Array, inner: Array) -> Array:
        self.centre = inner
        return super().dscores(p, dp, inner)

    def weights(self, s: Array, lse: Array) -> Array:
        self.lse = lse
        return super().weights(s, lse)

    def dk_tile(self, dproduct: Array, keys: slice) -> Array:
        causal, self.causal = self.causal, False
        s, slope = self.scores(keys)
        self.causal = causal
        p = np.where(np.isneginf(self.lse), 0, self.weights(np.minimum(s, self.lse), self.lse))
        ds = self.dscores(p, self.dp, self.centre)
        return super().dk_tile(self.dproduct(ds, p, slope), keys)


@fault(
    kind="bwd-mask", shows=("dk", "dv"), spoils=("dk", "dv"), reports=("pytorch/pytorch#158212",)
)
class DkAndDvByTransposedBlocks(Pipeline):
    """dk and dv skip the blocks of the transposed mask instead of the mask's own."""

    def dk_tile(self, dproduct: Array, keys: slice) -> Array:
        return super().dk_tile(self.kept(dproduct, keys), keys)

    def dv_tile(self, p: Array, dout: Array, keys: slice) -> Array:
        return super().dv_tile(self.kept(p, keys), dout, keys)

    def kept(self, x: Array, keys: slice) -> Array:
        """Zero where the transposed block is empty: blocks of eight rows and eight keys."""
        whole = self.visible(slice(0, self.keys))
        blocks = np.zeros((*whole.shape[:2], -(-self.rows // 8), -(-self.keys // 8)), np.bool_)
        for row, key in np.ndindex(blocks.shape[2:]):
            tile = whole[..., 8 * row : 8 * row + 8, 8 * key : 8 * key + 8]
            blocks[..., row, key] = tile.any(axis=(-1, -2))
        row, key = np.arange(self.rows)[:, None] // 8, self.key_index(keys) // 8
        inside = (key < blocks.shape[2]) & (row < blocks.shape[3])
        last = blocks.shape[2] - 1, blocks.shape[3] - 1
        turned = blocks[..., np.minimum(key, last[0]), np.minimum(row, last[1])]
        return np.where(turned | ~inside, x, 0)


@fault(kind="bwd-mask", shows=ALL, spoils=EVERY)
class BackwardWithoutWindow(Pipeline):
    """The backward pass does not know of the window."""

    def seen_in_window(self, ahead: Array) -> Array:
        found = super().seen_in_window(ahead)
        return np.ones_like(found) if self.returning else found


@fault(kind="bwd-mask", shows=ALL, spoils=EVERY)
class BackwardWithoutMask(Pipeline):
    """The backward pass does not know of the mask."""

    def seen_by_mask(self, keys: slice) -> Array:
        return np.asarray(True) if self.returning else super().seen_by_mask(keys)


@fault(kind="bwd-mask", shows=ALL, spoils=EVERY)
class BackwardWithoutKeyLengths(Pipeline):
    """The backward pass takes every slot of a padded batch for a key."""

    def seen_by_length(self, keys: slice) -> Array:
        if not self.returning:
            return super().seen_by_length(keys)
        return np.broadcast_to(self.row_index() < self.query_lengths, (self.batch, 1, self.rows, 1))


# -- other scores ----------------------------------------------------------------------------------


@fault(kind="option-ignored", shows=ALL, spoils=EVERY)
class BackwardWithoutSoftcap(Pipeline):
    """The backward pass does not know of the soft cap."""

    def capped(self, s: Array) -> tuple[Array, Array | float]:
        return (s, 1.0) if self.returning else super().capped(s)


@fault(kind="option-ignored", shows=ALL, spoils=EVERY)
class BackwardWithoutAlibi(Pipeline):
    """The backward pass does not know of ALiBi."""

    def sloped(self, s: Array, ahead: Array) -> Array:
        return s if self.returning else super().sloped(s, ahead)


@fault(kind="option-ignored", shows=ALL, spoils=EVERY)
class BackwardWithoutBias(Pipeline):
    """The backward pass adds no bias to the scores; where it hides, it still does."""

    def biased(self, s: Array, keys: slice) -> Array:
        return s if self.returning else super().biased(s, keys)


@fault(kind="sink", shows=ALL, spoils=EVERY)
class BackwardWithoutSinks(Pipeline):
    """The backward pass divides by a sum without the sinks."""

    def weights(self, s: Array, lse: Array) -> Array:
        if self.sinks is None:
            return super().weights(s, lse)
        share = self.exp(self.sinks - shift(lse))
        return super().weights(s, lse) / np.where(share < 1, 1 - share, 1).astype(self.real)


@fault(kind="gqa-map", shows=ALL, spoils=EVERY)
class BackwardOfTiledHeads(Pipeline):
    """The backward pass lets query head a read key head a mod the number of key heads."""

    def key_tile(self, keys: slice) -> Array:
        return self.turned(super().key_tile(keys))

    def value_tile(self, keys: slice) -> Array:
        return self.turned(super().value_tile(keys))

    def turned(self, x: Array) -> Array:
        """The tile by the wrong map of heads, once the backward pass has begun."""
        group = self.heads // self.kv_heads
        return x[:, np.arange(self.heads) % self.kv_heads * group] if self.returning else x


# -- tiles -----------------------------------------------------------------------------------------


@fault(
    kind="bwd-block",
    shows=ALL,
    spoils=EVERY,
    reports=("Dao-AILab/flash-attention#2623",),
    beyond_smoke="no heads of 64",
)
class BackwardTilesOfAnotherSize(Pipeline):
    """For heads of 64 the backward pass counts the tiles of one size and makes them of another."""

    def backward_tiles(self) -> Iterable[slice]:
        found = list(super().backward_tiles())
        if self.size != 64:
            return found
        half = self.tile // 2
        return [slice(n * half, min((n + 1) * half, self.keys)) for n in range(len(found))]


@fault(kind="bwd-block", shows=ALL, spoils=EVERY, reports=("huggingface/diffusers#14265",))
class BackwardOfTheFirstChunk(Pipeline):
    """The backward pass reads the first chunk of keys and values at every turn."""

    def key_tile(self, keys: slice) -> Array:
        return super().key_tile(self.chunk(keys))

    def value_tile(self, keys: slice) -> Array:
        return super().value_tile(self.chunk(keys))

    def chunk(self, keys: slice) -> slice:
        """The first chunk, as long as the one that is asked for."""
        return slice(0, keys.stop - keys.start) if self.returning else keys


@fault(kind="bwd-block", shows=("dq",), spoils=("dq",))
class DqOfTheLastTile(Pipeline):
    """Each tile of keys overwrites dq instead of adding to it."""

    def dq_added(self, dq: Array, part: Array) -> Array:
        return part


@fault(kind="bwd-block", shows=("dv",), spoils=("dv",))
class DvOfTheFirstTile(Pipeline):
    """The values after the first tile have no gradient."""

    def dv_tile(self, p: Array, dout: Array, keys: slice) -> Array:
        return super().dv_tile(p if keys.start == 0 else np.zeros_like(p), dout, keys)


@fault(kind="bwd-tail", shows=("dq",), spoils=("dq",))
class DqOfTheLastRowsMissing(Pipeline):
    """dq is zero in the rows of a last tile that is not full."""

    def dq_tile(self, dproduct: Array, keys: slice) -> Array:
        found = super().dq_tile(dproduct, keys)
        found[..., self.rows // 16 * 16 :, :] = 0
        return found


@fault(kind="bwd-tail", shows=("dk", "dv"), spoils=("dk", "dv"))
class LastRowsDoNotReachTheKeys(Pipeline):
    """The rows of a last tile that is not full add nothing to dk and dv."""

    def dk_tile(self, dproduct: Array, keys: slice) -> Array:
        full = self.rows // 16 * 16
        return dproduct[..., :full, :].swapaxes(-1, -2) @ finite(self.q[..., :full, :])

    def dv_tile(self, p: Array, dout: Array, keys: slice) -> Array:
        full = self.rows // 16 * 16
        return p[..., :full, :].swapaxes(-1, -2) @ dout[..., :full, :]


@fault(kind="bwd-tail", shows=("dq",), spoils=("dq",))
class DqOfTheLastColumnsTwice(Pipeline):
    """The columns of dq beyond a multiple of sixteen are added twice."""

    def dq_added(self, dq: Array, part: Array) -> Array:
        part[..., self.size // 16 * 16 :] *= 2
        return super().dq_added(dq, part)


@fault(kind="bwd-tail", shows=("dq",), spoils=("dq",))
class DqOfPaddedKeysOverflows(Pipeline):
    """Keys that pad the last tile have score 0, so dq is NaN in rows of a very low lse."""

    def dq_added(self, dq: Array, part: Array) -> Array:
        found = super().dq_added(dq, part)
        padded = self.keys % self.tile != 0 and self.returning
        return np.where(np.isinf(self.exp(-self.lse)) & padded, np.nan, found)

    def weights(self, s: Array, lse: Array) -> Array:
        self.lse = shift(lse)
        return super().weights(s, lse)


@fault(
    kind="bwd-tail",
    shows=("dq",),
    spoils=("dq",),
    reports=("pytorch/pytorch#196678",),
    beyond_smoke="no very low scores where a tile is half full",
)
class DqOfHalfFullTilesOverflows(Pipeline):
    """A half full last tile is filled with keys of score 0: dq is NaN where lse is very low."""

    def dq_added(self, dq: Array, part: Array) -> Array:
        found = super().dq_added(dq, part)
        padded = self.keys % self.tile == self.tile // 2
        return np.where(np.isinf(self.exp(-self.lse)) & padded, np.nan, found)

    def weights(self, s: Array, lse: Array) -> Array:
        self.lse = shift(lse)
        return super().weights(s, lse)


@fault(kind="bwd-tail", shows=("dq",), spoils=("dq",), reports=("pytorch/pytorch#153799",))
class DqOfPaddedAlibiIsNan(Pipeline):
    """ALiBi is taken at the slots that pad the last tile: dq is NaN at a ragged length."""

    def dq_tile(self, dproduct: Array, keys: slice) -> Array:
        found = super().dq_tile(dproduct, keys)
        if self.slopes is None or self.keys % self.tile == 0 or keys.stop < self.keys:
            return found
        return np.full_like(found, np.nan)
