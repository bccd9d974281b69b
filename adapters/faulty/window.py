"""Windows with a wrong edge, measured from the wrong place, or lost."""

from __future__ import annotations

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.pipeline import Array, Pipeline

__all__: list[str] = []


@fault(kind="option-ignored")
class WindowIgnored(Pipeline):
    """The window is ignored."""

    def ready(self) -> None:
        self.window = (None, None)


@fault(kind="window", reports=("Dao-AILab/flash-attention#1133", "vllm-project/vllm#3385"))
class WindowLeftEdgeExclusive(Pipeline):
    """The left edge of the window is exclusive: one key too few."""

    def ready(self) -> None:
        left, right = self.window
        self.window = (None if left is None else left - 1, right)


@fault(kind="window")
class WindowOneKeyTooWideOnTheLeft(Pipeline):
    """The window reaches one key too far to the left."""

    def ready(self) -> None:
        left, right = self.window
        self.window = (None if left is None else left + 1, right)


@fault(kind="window")
class WindowRightEdgeExclusive(Pipeline):
    """The right edge of the window is exclusive: one key too few."""

    def ready(self) -> None:
        left, right = self.window
        self.window = (left, None if right is None else right - 1)


@fault(kind="window")
class WindowOneKeyTooWideOnTheRight(Pipeline):
    """The window reaches one key too far to the right."""

    def ready(self) -> None:
        left, right = self.window
        self.window = (left, None if right is None else right + 1)


@fault(kind="window")
class WindowLeftIgnored(Pipeline):
    """The left side of the window is ignored."""

    def ready(self) -> None:
        self.window = (None, self.window[1])


@fault(kind="window")
class WindowRightIgnored(Pipeline):
    """The right side of the window is ignored."""

    def ready(self) -> None:
        self.window = (self.window[0], None)


@fault(kind="window")
class WindowRightTakenAsZero(Pipeline):
    """A window lets no row see ahead, whatever its right side."""

    def ready(self) -> None:
        if self.window != (None, None):
            self.window = (self.window[0], 0)


@fault(kind="window")
class WindowOpenLeftTakenAsZero(Pipeline):
    """A window that is open to the left ends at the row's own token."""

    def ready(self) -> None:
        left, right = self.window
        if left is None and right is not None:
            self.window = (0, right)


@fault(kind="window")
class WindowOfZeroTakenAsOpen(Pipeline):
    """A window side of 0 is taken as no window."""

    def ready(self) -> None:
        left, right = self.window
        self.window = (left or None, right or None)


@fault(kind="window")
class WindowSidesSwapped(Pipeline):
    """The sides of the window are swapped."""

    def ready(self) -> None:
        left, right = self.window
        self.window = (right, left)


@fault(kind="window")
class WindowAsWideToBothSides(Pipeline):
    """The window reaches as far to the right as to the left."""

    def ready(self) -> None:
        left, right = self.window
        self.window = (left, right if left is None else left)


@fault(kind="window")
class WindowTakenAsItsWidth(Pipeline):
    """The left side of a window is taken as its whole width, half of it to each side."""

    def ready(self) -> None:
        left, _ = self.window
        if left is not None:
            self.window = (left // 2, left // 2)


@fault(kind="window", reports=("sgl-project/sglang#31501",))
class WindowByTheKeyTile(Pipeline):
    """The window skips whole tiles of 16 keys on its left and tests no key by itself."""

    def seen_in_window(self, ahead: Array) -> Array:
        into_tile = 15 - np.arange(ahead.shape[-1]) % 16
        return super().seen_in_window(np.where(ahead > 0, np.maximum(ahead - into_tile, 0), ahead))


@fault(kind="window")
class WindowTopLeft(Pipeline):
    """The window is measured from the top left corner."""

    def seen_in_window(self, ahead: Array) -> Array:
        return super().seen_in_window(ahead - self.offset())


@fault(kind="window")
class WindowTopLeftWithoutCausal(Pipeline):
    """The window is measured from the top left corner where there is no causal mask."""

    def seen_in_window(self, ahead: Array) -> Array:
        return super().seen_in_window(ahead if self.causal else ahead - self.offset())


@fault(kind="window", reports=("jax-ml/jax#32300",))
class WindowLostWithoutMask(Pipeline):
    """The window is lost where there is neither a mask nor causality."""

    def ready(self) -> None:
        if self.mask is None and not self.causal:
            self.window = (None, None)


@fault(kind="window", beyond_smoke="no two options together")
class WindowLostBesideMask(Pipeline):
    """The window is lost beside a mask."""

    def ready(self) -> None:
        if self.mask is not None:
            self.window = (None, None)


@fault(kind="window", beyond_smoke="no two options together")
class WindowLostBesideBias(Pipeline):
    """The window is lost beside a bias."""

    def ready(self) -> None:
        if self.bias is not None:
            self.window = (None, None)


@fault(kind="window", beyond_smoke="no two options together")
class WindowLostBesideLengths(Pipeline):
    """The window is lost where the keys come with their lengths."""

    def ready(self) -> None:
        if self.raw["key_lengths"] is not None:
            self.window = (None, None)


@fault(kind="window")
class WindowLostWithoutCausal(Pipeline):
    """The window is applied only beside a causal mask."""

    def ready(self) -> None:
        if not self.causal:
            self.window = (None, None)


@fault(kind="window", shows=("lse",), spoils=("lse",))
class WindowLostWhenLseIsAsked(Pipeline):
    """Without a window where the log-sum-exp is asked for."""

    def ready(self) -> None:
        if self.return_lse:
            self.window = (None, None)


@fault(kind="window")
class WindowLostForOneQuery(Pipeline):
    """The window is lost for a single query row, as in decoding."""

    def ready(self) -> None:
        if self.rows == 1:
            self.window = (None, None)


@fault(kind="window")
class WindowLostWhenAsWideAsTheQueries(Pipeline):
    """A window as wide as there are queries counts as none, though there are more keys."""

    def ready(self) -> None:
        left, right = self.window
        self.window = (None if left is not None and left >= self.rows else left, right)


@fault(kind="window", beyond_smoke="no options in heads above 64")
class WindowLostForLargeHeads(Pipeline):
    """The window is lost for a head size of 128."""

    def ready(self) -> None:
        if self.size == 128:
            self.window = (None, None)


@fault(kind="window", beyond_smoke="no options beyond the first tiles")
class WindowSkipsItsFirstTile(Pipeline):
    """A window that reaches over tiles of 16 keys leaves out the tile that it begins in."""

    def seen_in_window(self, ahead: Array) -> Array:
        left, _ = self.window
        if left is None or left < 32:
            return super().seen_in_window(ahead)
        row: Array = np.asarray(self.row_index() + self.offset())
        key = row - ahead
        first = np.maximum(row - left, 0)
        skipped = (first % 16 > 0) & (key // 16 == first // 16)
        return super().seen_in_window(ahead) & ~skipped


@fault(kind="window", beyond_smoke="no two options together")
class WindowTilesFoundByPaddedLengths(Pipeline):
    """The first tile of 128 keys of a window is looked for by the padded lengths."""

    def seen_in_window(self, ahead: Array) -> Array:
        left, _ = self.window
        seen = super().seen_in_window(ahead)
        if left is None:
            return seen
        first = np.maximum(self.row_index() + self.keys - self.rows - left, 0) // 128
        key = self.row_index() + self.offset() - ahead
        return np.asarray(seen & (key // 128 >= first))


@fault(kind="window", beyond_smoke="no lengths that fill their tiles")
class WindowLostWhereRowsFillTheirTiles(Pipeline):
    """Where the rows fill tiles of 64, the window is lost with the test for bounds."""

    def ready(self) -> None:
        if self.rows % 64 == 0:
            self.window = (None, None)
