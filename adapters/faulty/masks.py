"""Masks read with the wrong meaning, at the wrong place, or by the block."""

from __future__ import annotations

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.pipeline import Array, Pipeline

__all__: list[str] = []

ROWS, KEYS = 8, 16
"""Rows and keys of a block of a block mask."""


@fault(kind="option-ignored")
class MaskIgnored(Pipeline):
    """The mask is ignored."""

    def ready(self) -> None:
        self.mask = None


@fault(kind="mask-polarity")
class MaskInverted(Pipeline):
    """True in the mask hides a key, where it should show it."""

    def seen_by_mask(self, keys: slice) -> Array:
        return np.asarray(True if self.mask is None else ~self.mask[..., keys])


@fault(kind="mask-polarity", reports=("openvinotoolkit/openvino#31630",))
class MaskAddedAsZeroAndOne(Pipeline):
    """The boolean mask is added to the scores as 0 and 1."""

    def seen_by_mask(self, keys: slice) -> Array:
        return np.asarray(True)

    def biased(self, s: Array, keys: slice) -> Array:
        s = super().biased(s, keys)
        return s if self.mask is None else s + self.mask[..., keys].astype(s.dtype)


@fault(kind="mask-polarity")
class MaskMultipliesScores(Pipeline):
    """The boolean mask multiplies the scores: a hidden key has score 0."""

    def seen_by_mask(self, keys: slice) -> Array:
        return np.asarray(True)

    def biased(self, s: Array, keys: slice) -> Array:
        s = super().biased(s, keys)
        return s if self.mask is None else s * self.mask[..., keys].astype(s.dtype)


@fault(kind="mask-polarity")
class MaskZeroesWeightsAfterTheSoftmax(Pipeline):
    """Masked weights are set to 0 only after the softmax has counted them in its sum."""

    def seen_by_mask(self, keys: slice) -> Array:
        return np.asarray(True)

    def collected(self, sums: Array, p: Array, keys: slice, fade: Array) -> Array:
        seen = super().seen_by_mask(keys)
        return super().collected(sums, np.where(seen, p, 0), keys, fade)


@fault(kind="tail-tile")
class MaskStartsAgainEverySixtyFourKeys(Pipeline):
    """Key j reads the mask of key j mod 64."""

    def seen_by_mask(self, keys: slice) -> Array:
        if self.mask is None:
            return np.asarray(True)
        return np.asarray(self.mask[..., self.key_index(keys) % 64])


@fault(kind="tail-tile", beyond_smoke="no options beyond the first tiles")
class MaskRowsStartAgain(Pipeline):
    """Row i reads the mask of row i mod 128."""

    def ready(self) -> None:
        if self.mask is not None:
            self.mask = self.mask[:, :, np.arange(self.rows) % 128]


@fault(kind="tail-tile")
class MaskLostInTheLastKeys(Pipeline):
    """The keys after the last full vector of 16 are not masked."""

    def seen_by_mask(self, keys: slice) -> Array:
        tail = self.key_index(keys) >= self.keys // 16 * 16
        return np.asarray(super().seen_by_mask(keys) | tail)


@fault(kind="tail-tile")
class MaskLostInTheLastRows(Pipeline):
    """The rows after the last full tile of 16 are not masked."""

    def seen_by_mask(self, keys: slice) -> Array:
        tail = self.row_index() >= self.rows // 16 * 16
        return np.asarray(super().seen_by_mask(keys) | tail)


@fault(kind="block-mask")
class MaskSharedByFourRows(Pipeline):
    """Four rows share the mask of their first."""

    def seen_by_mask(self, keys: slice) -> Array:
        if self.mask is None:
            return np.asarray(True)
        return np.asarray(self.mask[:, :, np.arange(self.rows) // 4 * 4, keys])


class _ByTheBlock(Pipeline):
    """The mask, and what of it is known for each block of rows and keys."""

    def blocks(self, mask: Array) -> Array:
        """Whether a block holds a True: (B, H, row blocks, key blocks)."""
        rows, keys = -self.rows % ROWS, -self.keys % KEYS
        full = np.pad(mask, ((0, 0), (0, 0), (0, rows), (0, keys)))
        shape = (*full.shape[:2], full.shape[2] // ROWS, ROWS, full.shape[3] // KEYS, KEYS)
        return np.asarray(full.reshape(shape).any(axis=(3, 5)))

    def at_each_score(self, blocks: Array) -> Array:
        """The blocks at every score: (B, H, Nq, Nk)."""
        rows, keys = np.arange(self.rows) // ROWS, np.arange(self.keys) // KEYS
        found: Array = blocks[:, :, rows[:, None], keys]
        return found


@fault(kind="block-mask")
class PartialBlocksTakenAsFull(_ByTheBlock):
    """A block of the mask that shows one of its keys shows them all."""

    def ready(self) -> None:
        if self.mask is not None:
            self.mask = self.at_each_score(self.blocks(self.mask))


@fault(kind="block-mask")
class LastBlockOfTheListDropped(_ByTheBlock):
    """Each row block leaves out the last key block of its list."""

    def ready(self) -> None:
        if self.mask is not None:
            some = self.blocks(self.mask)
            later = np.cumsum(some[..., ::-1], axis=-1)[..., ::-1]  # blocks from here on
            self.mask = np.logical_and(self.mask, self.at_each_score(some & (later > 1)))


@fault(kind="block-mask", beyond_smoke="no variant of an option but the first")
class BlockListOfTheFirstHead(_ByTheBlock):
    """Every head visits the mask's blocks that head 0 has."""

    def ready(self) -> None:
        if self.mask is not None:
            first = self.blocks(self.mask)[:, :1]
            every = np.broadcast_to(first, (self.batch, self.heads, *first.shape[2:]))
            self.mask = np.logical_and(self.mask, self.at_each_score(every))


@fault(kind="block-mask", beyond_smoke="no variant of an option but the first")
class BlockListOfTheFirstEntry(_ByTheBlock):
    """Every batch entry visits the mask's blocks that entry 0 has."""

    def ready(self) -> None:
        if self.mask is not None:
            first = self.blocks(self.mask)[:1]
            every = np.broadcast_to(first, (self.batch, *first.shape[1:]))
            self.mask = np.logical_and(self.mask, self.at_each_score(every))


@fault(kind="block-mask")
class BlockListOfTheFirstRows(_ByTheBlock):
    """Every row block visits the mask's key blocks that the first has."""

    def ready(self) -> None:
        if self.mask is not None:
            blocks = self.blocks(self.mask)
            every = np.broadcast_to(blocks[:, :, :1], blocks.shape)
            self.mask = np.logical_and(self.mask, self.at_each_score(every))


@fault(kind="option-ignored", beyond_smoke="no two options together")
class MaskLostBesideCausal(Pipeline):
    """The mask is lost beside a causal mask."""

    def ready(self) -> None:
        self.mask = None if self.causal else self.mask


@fault(kind="option-ignored")
class MaskLostBesideBias(Pipeline):
    """The mask is lost beside a bias."""

    def ready(self) -> None:
        self.mask = self.mask if self.bias is None else None


@fault(kind="option-ignored", beyond_smoke="no two options together")
class MaskLostBesideLengths(Pipeline):
    """The mask is lost where the keys come with their lengths."""

    def ready(self) -> None:
        self.mask = self.mask if self.raw["key_lengths"] is None else None


@fault(kind="option-ignored", beyond_smoke="no options for a single row")
class MaskLostForOneQuery(Pipeline):
    """The mask is lost for a single query row, as in decoding."""

    def ready(self) -> None:
        self.mask = None if self.rows == 1 else self.mask


@fault(
    kind="layout-mixup",
    shows=(
        "out",
        "chunked-prefill-equals-prefill",
    ),
)
class MaskTransposedWhereSquare(Pipeline):
    """A mask of as many rows as keys is read transposed."""

    def ready(self) -> None:
        if self.mask is not None and self.rows == self.keys:
            self.mask = self.mask.swapaxes(2, 3)


@fault(kind="batch-dependence", beyond_smoke="no more than three batch entries")
class MaskOfFourEntries(Pipeline):
    """Batch entry b has the mask of entry b mod 4."""

    def ready(self) -> None:
        if self.mask is not None:
            self.mask = self.mask[np.arange(self.batch) % 4]


@fault(kind="tail-tile", beyond_smoke="no lengths that fill their tiles")
class MaskLostWhereKeysFillTheirTiles(Pipeline):
    """Where the keys fill tiles of 64, no tile is tested for bounds, nor for the mask."""

    def ready(self) -> None:
        self.mask = self.mask if self.keys % 64 else None
