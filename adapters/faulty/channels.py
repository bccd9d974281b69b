"""Channels and rows at the ends: left out, padded, or those of others."""

from __future__ import annotations

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.pipeline import Array, Pipeline

__all__: list[str] = []


class Channels(Pipeline):
    """Channels of q·k can be left out."""

    def used(self) -> Array:
        """Which channels take part: (D,)."""
        return np.ones(self.size, np.bool_)

    def dot(self, keys: slice) -> Array:
        return (self.q * self.used()).astype(self.real) @ self.key_tile(keys).swapaxes(-1, -2)


@fault(kind="tail-tile")
class LateChannelsDropped(Channels):
    """Channels of q·k from the 65th on are left out."""

    def used(self) -> Array:
        return np.arange(self.size) < 64


@fault(kind="tail-tile", beyond_smoke="no head size beyond 129")
class ChannelsOfTheLargestHeadsDropped(Channels):
    """Channels of q·k from the 257th on are left out."""

    def used(self) -> Array:
        return np.arange(self.size) < 256


@fault(kind="tail-tile")
class OddChannelDropped(Channels):
    """The last channel of an odd head size is left out of q·k."""

    def used(self) -> Array:
        return np.asarray(np.arange(self.size) < max(1, self.size // 2 * 2))


@fault(kind="tail-tile")
class ChannelsInGroupsOfEight(Channels):
    """Channels of q·k beyond the last multiple of 8 are left out."""

    def used(self) -> Array:
        return np.asarray((np.arange(self.size) < self.size // 8 * 8) | (self.size < 8))


@fault(kind="tail-tile", beyond_smoke="no heads of 96")
class HeadsOfNinetySixReadAsSixtyFour(Channels):
    """At head size 96, the channels from the 65th on are left out of q·k."""

    def used(self) -> Array:
        return np.asarray((np.arange(self.size) < 64) | (self.size != 96))


@fault(kind="tail-tile")
class HeadSizePaddedWithQueries(Channels):
    """The head size is padded to a multiple of 16 with the first channels."""

    def dot(self, keys: slice) -> Array:
        lost = min(-self.size % 16, self.size)
        k = self.key_tile(keys).swapaxes(-1, -2)
        return np.asarray(super().dot(keys) + self.q[..., :lost] @ k[..., :lost, :])


@fault(kind="tail-tile", spoils=("out", "dq", "dk", "dbias", "dsinks"))
class ValueColumnsBeyondHeadSizeZero(Pipeline):
    """Output columns beyond the head size are zero where the value size is larger."""

    def normalised(self, sums: Array, total: Array) -> Array:
        out = super().normalised(sums, total)
        out[..., self.size :] = 0
        return out


@fault(kind="tail-tile", spoils=("out", "dq", "dk", "dbias", "dsinks"))
class LastValueColumnRepeated(Pipeline):
    """The last output column of an odd value size is that before it."""

    def normalised(self, sums: Array, total: Array) -> Array:
        out = super().normalised(sums, total)
        if self.value_size % 2 and self.value_size > 1:
            out[..., -1] = out[..., -2]
        return out


@fault(kind="tail-tile", spoils=("out", "dq", "dk", "dbias", "dsinks"))
class RowsBeyondTheLastTileRepeated(Pipeline):
    """Rows beyond the last full tile of 16 are those of the tile before."""

    def normalised(self, sums: Array, total: Array) -> Array:
        out = super().normalised(sums, total)
        full = self.rows // 16 * 16
        if full:
            out[..., full:, :] = out[..., full - 16 : self.rows - 16, :]
        return out
