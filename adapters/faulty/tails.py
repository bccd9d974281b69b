"""The ends: last keys and last tiles, and what pads them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.pipeline import Array, Pipeline, State, shift

__all__: list[str] = []


# -- padding that is counted -----------------------------------------------------------------------


class Padded(Pipeline):
    """After the last tile, `padding` keys of score 0 and value 0 are counted."""

    def padding(self) -> int:
        """How many keys of padding are counted."""
        return 0

    def attend(self) -> State:
        before, total, sums = super().attend()
        if not self.keys or not self.padding():
            return before, total, sums
        after = np.maximum(before, np.zeros(1, self.real))
        fade = self.fade(before, after)
        more = self.padding() * self.exp(0 - shift(after))
        return after, (total * fade + more).astype(self.real), sums * fade


@fault(kind="tail-tile", reports=("jax-ml/jax#27224",), shows=("out", "lse", "weights-sum-to-one"))
class PaddingKeysCounted(Padded):
    """Keys are padded with zeros to whole tiles, and the padding takes part in the softmax."""

    def padding(self) -> int:
        return int(-self.keys % self.tile)


@fault(
    kind="tail-tile",
    reports=("flashinfer-ai/flashinfer#3716",),
    shows=("out", "equal-scores-average-plainly"),
)
class PaddingCountedUnlessCausal(Padded):
    """Without causal, the padding lanes of the last tile are in the sum of the weights."""

    def padding(self) -> int:
        return 0 if self.causal else -self.keys % self.tile


@fault(kind="tail-tile")
class PaddingCountedWhenDecoding(Padded):
    """With one query row, the padding of the last tile takes part in the softmax."""

    def padding(self) -> int:
        return -self.keys % self.tile if self.rows == 1 else 0


@fault(kind="tail-tile")
class PaddingRepeatsTheLastKey(Pipeline):
    """The last tile is filled up with its last key, which is counted each time."""

    def scores(self, keys: slice) -> tuple[Array, Array | float]:
        s, slope = super().scores(keys)
        times = 1 + self.tile - (keys.stop - keys.start)
        last = self.key_index(keys) == self.keys - 1
        return np.where(last, s + np.log(times), s).astype(self.real), slope


# -- keys lost or counted twice --------------------------------------------------------------------


@fault(kind="tail-tile")
class LastPartialTileDropped(Pipeline):
    """Keys beyond the last full tile are left out."""

    def tiles(self) -> Iterable[slice]:
        full = self.keys // self.tile * self.tile
        return [keys for keys in super().tiles() if keys.stop <= full or not full]


class Seen(Pipeline):
    """Keys can be hidden, by their index."""

    def taken(self, j: Array) -> Array:
        """Which keys take part: (c,)."""
        return np.ones(j.shape, np.bool_)

    def seen_by_length(self, keys: slice) -> Array:
        return super().seen_by_length(keys) & self.taken(self.key_index(keys))


@fault(kind="tail-tile")
class LastKeyDropped(Seen):
    """The last key is left out."""

    def taken(self, j: Array) -> Array:
        return np.asarray(j < self.keys - 1)


@fault(kind="tail-tile")
class FirstKeyDropped(Seen):
    """The first key is left out."""

    def taken(self, j: Array) -> Array:
        return np.asarray(j > 0)


@fault(kind="tail-tile")
class LastKeyDroppedBehindTiles(Seen):
    """The last key is left out where the number of keys is 1 more than a multiple of 16."""

    def taken(self, j: Array) -> Array:
        return np.asarray((j < self.keys - 1) | (self.keys % 16 != 1))


@fault(kind="tail-tile")
class LastKeyDroppedBehindThousands(Seen):
    """The last key is left out where the number of keys is 1 more than a multiple of 1,024."""

    def taken(self, j: Array) -> Array:
        return np.asarray((j < self.keys - 1) | (self.keys % 1024 != 1))


@fault(kind="tail-tile")
class KeyBeforeEachTileEdgeDropped(Seen):
    """The last key of each full tile is left out."""

    def taken(self, j: Array) -> Array:
        return np.asarray(j % self.tile != self.tile - 1)


@fault(kind="tail-tile", beyond_smoke="no row of 1,025 keys")
class KeysBeyondThousandDropped(Seen):
    """Keys from the 1,025th on are left out."""

    def taken(self, j: Array) -> Array:
        return np.asarray(j < 1024)


@fault(kind="tail-tile")
class KeysInGroupsOfEight(Seen):
    """Keys beyond the last multiple of 8 are left out."""

    def taken(self, j: Array) -> Array:
        return np.asarray((j < self.keys // 8 * 8) | (self.keys < 8))


@fault(kind="tail-tile")
class KeysUpToTheRowCount(Seen):
    """With as many heads as rows are long, keys beyond the number of rows are left out."""

    def taken(self, j: Array) -> Array:
        return np.asarray((j < self.rows) | (self.rows < 32))


@fault(kind="tail-tile")
class TileOfTheLastRowsLost(Pipeline):
    """Rows beyond the last full tile of 16 skip the first tile of keys."""

    def seen_by_length(self, keys: slice) -> Array:
        late = self.row_index() >= max(16, self.rows // 16 * 16)
        return np.asarray(
            super().seen_by_length(keys) & ~(late & (self.key_index(keys) < self.tile))
        )


class Twice(Pipeline):
    """Keys can be counted twice, by their index."""

    def doubled(self, j: Array) -> Array:
        """Which keys are counted twice: (c,)."""
        return np.zeros(j.shape, np.bool_)

    def scores(self, keys: slice) -> tuple[Array, Array | float]:
        s, slope = super().scores(keys)
        more = np.where(self.doubled(self.key_index(keys)), np.log(2), 0)
        return (s + more).astype(self.real), slope


@fault(kind="tail-tile")
class FirstKeyTwice(Twice):
    """The first key is counted twice."""

    def doubled(self, j: Array) -> Array:
        return np.asarray(j == 0)


@fault(kind="tail-tile")
class LastKeyTwice(Twice):
    """The last key is counted twice."""

    def doubled(self, j: Array) -> Array:
        return np.asarray(j == self.keys - 1)


@fault(kind="tail-tile")
class TileEdgesTwice(Twice):
    """The first key of each tile but the first is in the tile before, too."""

    def doubled(self, j: Array) -> Array:
        return np.asarray((j % self.tile == 0) & (j > 0))


@fault(kind="tail-tile")
class LastKeysReadAgainFromTheTileBefore(Pipeline):
    """A last tile that is not full is moved back to be full: its first keys are counted twice."""

    def scores(self, keys: slice) -> tuple[Array, Array | float]:
        s, slope = super().scores(keys)
        j, start = self.key_index(keys), self.keys - self.tile
        again = (j >= start) & (j < self.keys // self.tile * self.tile) & (start >= 0)
        return (s + np.where(again, np.log(2), 0)).astype(self.real), slope


@fault(kind="tail-tile", reports=("pytorch/pytorch#191937",))
class LastKeyOfThePreviousHead(Pipeline):
    """Where Nk mod 32 is 1, the last key is that of the head before."""

    def key_tile(self, keys: slice) -> Array:
        k = super().key_tile(keys)
        if self.keys % 32 != 1:
            return k
        last = self.key_index(keys)[:, None] == self.keys - 1
        return np.where(last, np.roll(k, 1, axis=1), k)
