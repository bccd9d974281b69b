"""ALiBi with another distance, slope or sign."""

from __future__ import annotations

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.pipeline import Array, Pipeline

__all__: list[str] = []


class _Distance(Pipeline):
    """ALiBi by another distance than |i + offset - j|."""

    def distance(self, ahead: Array) -> Array:
        return np.abs(ahead)

    def sloped(self, s: Array, ahead: Array) -> Array:
        if self.slopes is None:
            return s
        return s - self.slopes * self.distance(ahead).astype(self.real)


@fault(kind="option-ignored")
class AlibiIgnored(_Distance):
    """ALiBi is ignored."""

    def distance(self, ahead: Array) -> Array:
        return np.zeros_like(ahead)


@fault(kind="option-ignored")
class AlibiWithoutAbsoluteValue(_Distance):
    """ALiBi grows with the signed distance: keys ahead of the row gain."""

    def distance(self, ahead: Array) -> Array:
        return ahead


@fault(kind="option-ignored")
class AlibiOfThePastAlone(_Distance):
    """ALiBi leaves keys ahead of the row as they are."""

    def distance(self, ahead: Array) -> Array:
        return np.maximum(ahead, 0)


@fault(kind="causal-alignment")
class AlibiTopLeft(_Distance):
    """ALiBi measures its distance from the top left corner."""

    def distance(self, ahead: Array) -> Array:
        return np.abs(ahead - self.offset())


@fault(kind="causal-alignment")
class AlibiTopLeftWithoutCausal(_Distance):
    """ALiBi measures its distance from the top left corner where there is no causal mask."""

    def distance(self, ahead: Array) -> Array:
        return np.abs(ahead if self.causal else ahead - self.offset())


@fault(kind="option-ignored")
class AlibiOneTokenOff(_Distance):
    """ALiBi counts the row's own token as one away."""

    def distance(self, ahead: Array) -> Array:
        return np.abs(ahead + 1)


@fault(kind="option-ignored")
class AlibiAddsWhereItSubtracts(_Distance):
    """ALiBi has the wrong sign: far keys gain."""

    def distance(self, ahead: Array) -> Array:
        return -np.abs(ahead)


@fault(kind="option-ignored", beyond_smoke="no two options together")
class AlibiLostBesideBias(_Distance):
    """ALiBi is lost beside a bias."""

    def distance(self, ahead: Array) -> Array:
        return np.abs(ahead) if self.bias is None else np.zeros_like(ahead)


@fault(kind="option-ignored", beyond_smoke="no two options together")
class AlibiLostBesideWindow(_Distance):
    """ALiBi is lost beside a window."""

    def distance(self, ahead: Array) -> Array:
        return np.abs(ahead) if self.window == (None, None) else np.zeros_like(ahead)


@fault(kind="option-ignored", beyond_smoke="no options for a single row")
class AlibiLostForOneQuery(_Distance):
    """ALiBi is lost for a single query row, as in decoding."""

    def distance(self, ahead: Array) -> Array:
        return np.abs(ahead) if self.rows > 1 else np.zeros_like(ahead)


@fault(kind="tail-tile")
class AlibiStartsAgainInEachTile(_Distance):
    """ALiBi measures the distance within the tile of keys, of which each starts again at 0."""

    def distance(self, ahead: Array) -> Array:
        row: Array = np.asarray(self.row_index() + self.offset())
        return np.abs(row - np.arange(ahead.shape[-1]))


@fault(kind="gqa-map")
class SlopesInReverseOrder(Pipeline):
    """The heads have their ALiBi slopes in reverse order."""

    def ready(self) -> None:
        self.slopes = None if self.slopes is None else self.slopes[:, ::-1]


@fault(kind="gqa-map")
class SlopeOfTheFirstHead(Pipeline):
    """All heads have the ALiBi slope of head 0."""

    def ready(self) -> None:
        if self.slopes is not None:
            self.slopes = np.broadcast_to(self.slopes[:, :1], self.slopes.shape)


@fault(kind="gqa-map", beyond_smoke="no two options together")
class SlopesOfKeyHeads(Pipeline):
    """The query heads of a group share one ALiBi slope, looked up by key head."""

    def ready(self) -> None:
        if self.slopes is not None:
            self.slopes = self.slopes[:, self.key_heads()]


@fault(kind="option-ignored")
class SlopesRecomputed(Pipeline):
    """The given ALiBi slopes are ignored for the usual ones, 2^(-8 h / H)."""

    def ready(self) -> None:
        if self.slopes is not None:
            head = np.arange(1, self.heads + 1, dtype=self.real)
            self.slopes = (2 ** (-8 * head / self.heads)).reshape(1, -1, 1, 1)


@fault(
    kind="option-ignored",
    shows=("lse",),
    spoils=("lse",),
    beyond_smoke="no options for a single row",
)
class AlibiOfPaddedLengthsForOneQuery(_Distance):
    """For a single query row ALiBi measures the distance from the last slot of the cache."""

    def distance(self, ahead: Array) -> Array:
        padded = self.keys - self.rows if self.rows == 1 else self.offset()
        return np.abs(ahead - self.offset() + padded)


@fault(kind="gqa-map", beyond_smoke="no variant of an option but the first")
class SlopesOfEightHeads(Pipeline):
    """Head h has the ALiBi slope of head h mod 8."""

    def ready(self) -> None:
        if self.slopes is not None:
            self.slopes = self.slopes[:, np.arange(self.heads) % 8]
