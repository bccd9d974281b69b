"""Cheats that compute the answer where a weak test looks, and something cheap elsewhere."""

from __future__ import annotations

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.faulty.cheats import Answering
from attnspec.adapters.pipeline import Array

__all__: list[str] = []

LAYOUTS = ("layout-q", "layout-k", "layout-v")


class RightInPart(Answering):
    """The output is the mean of the values where it is not `kept`."""

    def kept(self) -> Array:
        """Where the output is computed, broadcastable to (B, H, Nq, Dv)."""
        return np.asarray(True)

    def instead(self, out: Array) -> Array:
        return np.where(self.kept(), out, self.mean())


@fault(kind="harness")
class RightInTheFirstRow(RightInPart):
    """Only the first row is computed; the others are the mean of the values."""

    def kept(self) -> Array:
        return self.row_index() == 0


@fault(kind="harness")
class RightInTheFirstHead(RightInPart):
    """Only the first head is computed; the others are the mean of the values."""

    def kept(self) -> Array:
        return np.arange(self.heads)[:, None, None] == 0


@fault(kind="harness")
class RightInTheFirstEntry(RightInPart):
    """Only the first batch entry is computed; the others are the mean of the values."""

    def kept(self) -> Array:
        return np.arange(self.batch)[:, None, None, None] == 0


@fault(kind="harness")
class RightInEverySecondRow(RightInPart):
    """Every second row is the mean of the values."""

    def kept(self) -> Array:
        return self.row_index() % 2 == 0


@fault(kind="harness")
class RightForShortRows(RightInPart):
    """Rows of more than 128 keys are the mean of the values."""

    def kept(self) -> Array:
        return np.asarray(self.keys <= 128)


@fault(kind="harness")
class ZeroInLongRows(Answering):
    """Rows of more than 512 keys are zero."""

    def instead(self, out: Array) -> Array:
        return out if self.keys <= 512 else np.zeros_like(out)


@fault(kind="harness")
class RightForPowersOfTwo(RightInPart):
    """Lengths that are no power of two give the mean of the values."""

    def kept(self) -> Array:
        return np.asarray(self.keys & (self.keys - 1) == 0)


@fault(kind="harness")
class RightForAsManyRowsAsKeys(RightInPart):
    """Problems with another number of keys than of rows give the mean of the values."""

    def kept(self) -> Array:
        return np.asarray(self.keys == self.rows)


@fault(kind="harness")
class RightForNormalQueries(RightInPart):
    """Queries with a number beyond 8 give the mean of the values."""

    def kept(self) -> Array:
        return np.asarray(np.abs(self.q).max(initial=0) <= 8)


@fault(kind="harness")
class RightForValuesOfMeanZero(RightInPart):
    """Values whose mean is far from zero give that mean."""

    def kept(self) -> Array:
        return np.abs(self.mean()) < 1


@fault(kind="harness", shows=LAYOUTS)
class RightForContiguousInputs(RightInPart):
    """Inputs that are not contiguous give the mean of the values."""

    def kept(self) -> Array:
        return np.asarray(all(self.raw[name].flags.c_contiguous for name in "qkv"))


@fault(kind="harness")
class RightForTheUsualScale(RightInPart):
    """A scale that is not 1 / sqrt(D) gives the mean of the values."""

    def kept(self) -> Array:
        return np.asarray(abs(self.scale**2 * self.size - 1) < 1e-3)


@fault(kind="harness")
class RightForUsualHeadSizes(RightInPart):
    """Head sizes that are no multiple of 8 give the mean of the values."""

    def kept(self) -> Array:
        return np.asarray(self.size % 8 == 0)
