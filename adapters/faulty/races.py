"""Results that depend on what happens to come first, or on an earlier kernel still at work.

Chance is simulated by the number of the call, so that every run of the suite sees the same.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.faulty.state import Counting, Remembering
from attnspec.adapters.pipeline import Array, rounded

__all__: list[str] = []

ALL = ("dq", "dk", "dv")


class Chancy(Counting):
    """Random numbers that differ from call to call."""

    def chance(self) -> np.random.Generator:
        """The generator of this call."""
        return np.random.default_rng(self.call)


@fault(kind="nondeterminism", shows=("same-bits-again",))
class TilesInAnyOrder(Chancy):
    """The tiles of keys are summed in an order that changes from call to call."""

    tile = 8

    def tiles(self) -> Iterable[slice]:
        found = list(super().tiles())
        return [found[i] for i in self.chance().permutation(len(found))]


@fault(kind="nondeterminism", shows=("same-bits-again",), spoils=("out",))
class LastBitsOfTheOutputChange(Chancy):
    """The last bits of the output change from call to call."""

    def normalised(self, sums: Array, total: Array) -> Array:
        found = super().normalised(sums, total)
        return found * (1 + self.chance().integers(-1, 2, found.shape).astype(np.float32) * 2**-23)


@fault(kind="nondeterminism", shows=("eleven-calls",), spoils=("out",))
class EverySecondCallDiffers(Counting):
    """Every second call rounds otherwise."""

    def normalised(self, sums: Array, total: Array) -> Array:
        found = super().normalised(sums, total)
        return found * np.float32(1 + 2**-23) if self.call % 2 else found


@fault(kind="nondeterminism", spoils=("out",))
class EveryFifthCallLosesOneRow(Counting):
    """In every fifth call one row is written before its last tile is in."""

    def normalised(self, sums: Array, total: Array) -> Array:
        found = super().normalised(sums, total)
        unlucky = self.call % 5 == 3 and self.raw["dout"] is None
        late = (self.row_index() == 2) & unlucky
        return np.where(late, found * np.float32(0.75), found)


@fault(kind="nondeterminism", shows=("same-bits-again-gradients",), spoils=("dq",))
class DqInAnyOrder(Chancy):
    """dq is summed over the tiles of keys in an order that changes from call to call."""

    tile = 8

    def backward_tiles(self) -> Iterable[slice]:
        found = list(super().backward_tiles())
        return [found[i] for i in self.chance().permutation(len(found))]


@fault(
    kind="nondeterminism",
    shows=("dq",),
    spoils=("dq",),
    reports=("Dao-AILab/flash-attention#2244",),
)
class DqInAnyOrderInHalf(Chancy):
    """dq is summed in float16 in an order that changes from call to call."""

    tile = 8

    def backward_tiles(self) -> Iterable[slice]:
        found = list(super().backward_tiles())
        return [found[i] for i in self.chance().permutation(len(found))]

    def dq_added(self, dq: Array, part: Array) -> Array:
        return rounded(super().dq_added(dq, part), "float16")


@fault(kind="nondeterminism", shows=("same-bits-again-gradients",), spoils=("dk", "dv"))
class KeyGradientsInAnyOrder(Chancy):
    """The last bits of dk and dv change from call to call."""

    def per_key_head(self, name: str, x: Array) -> Array:
        found = super().per_key_head(name, x)
        return found * (1 + self.chance().integers(-1, 2, found.shape).astype(np.float32) * 2**-23)


@fault(
    kind="nondeterminism",
    shows=("dq", "dk"),
    spoils=("dq", "dk", "dbias", "dsinks"),
    reports=("Dao-AILab/flash-attention#2481",),
)
class CentringOfTheLastCotangent(Remembering):
    """The inner product of dout and out is taken before dout is there: it is the last call's."""

    def inner(self, dout: Array, out: Array) -> Array:
        return super().inner(self.swapped("dout", dout.copy()), out)


@fault(kind="nondeterminism")
class LastTileOfTheLastCall(Remembering):
    """The last tile of values is read before it is loaded: it is the last call's."""

    def value_tile(self, keys: slice) -> Array:
        found = super().value_tile(keys)
        if keys.stop < self.keys or self.returning:
            return found
        loaded: Array = self.swapped("values", found.copy())
        return loaded


@fault(kind="nondeterminism", shows=("same-bits-again",), spoils=("out",), dtypes=("bfloat16",))
class OutputRoundedByChance(Chancy):
    """The output is rounded up or down by chance, as stochastic rounding does."""

    def stored(self, x: Array, like: Array) -> Array:
        found = super().stored(x, like)
        if self.returning:
            return found
        up = self.chance().random(x.shape) < 0.25
        above = np.nextafter(found, np.asarray(np.inf, found.dtype))
        return np.where(up, above, found).astype(found.dtype)
