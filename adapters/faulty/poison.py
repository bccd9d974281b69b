"""NaN and huge numbers that leak from hidden slots, and NaN that gets lost."""

from __future__ import annotations

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.pipeline import Array, Pipeline, finite

__all__: list[str] = []

HIDDEN, SEEN = "hidden-nan", "visible-nan-is-not-lost"


class _ZeroTimesNan(Pipeline):
    """Hidden values are multiplied by a weight of 0, where `leaks` says so."""

    def leaks(self, keys: slice) -> bool:
        return True

    def collected(self, sums: Array, p: Array, keys: slice, fade: Array) -> Array:
        if not self.leaks(keys):
            return super().collected(sums, p, keys, fade)
        return sums * fade + self.probabilities(p) @ self.value_tile(keys)


@fault(kind="nan-leak", shows=(HIDDEN,), spoils=())
class HiddenValuesTimesZero(_ZeroTimesNan):
    """Hidden values are multiplied by a weight of 0: NaN and infinities leak."""


@fault(kind="nan-leak", shows=(HIDDEN,), spoils=(), reports=("Dao-AILab/flash-attention#1745",))
class CacheTailTimesZero(_ZeroTimesNan):
    """Values beyond the length of their cache are multiplied by a weight of 0: NaN leaks."""

    def leaks(self, keys: slice) -> bool:
        return self.raw["key_lengths"] is not None


@fault(kind="nan-leak", shows=(HIDDEN,), spoils=())
class LastTileTimesZero(_ZeroTimesNan):
    """Hidden values of the last tile are multiplied by a weight of 0: NaN leaks."""

    def leaks(self, keys: slice) -> bool:
        return keys.stop == self.keys


@fault(kind="nan-leak", shows=(HIDDEN,), spoils=())
class MaskedValuesTimesZero(_ZeroTimesNan):
    """Values that a mask hides are multiplied by a weight of 0: NaN leaks."""

    def leaks(self, keys: slice) -> bool:
        return self.mask is not None


@fault(kind="nan-leak", shows=(HIDDEN,), spoils=())
class LaterValuesTimesZero(_ZeroTimesNan):
    """Values of later tokens are multiplied by a weight of 0: NaN leaks into the past."""

    def leaks(self, keys: slice) -> bool:
        return self.causal


@fault(kind="nan-leak", shows=(HIDDEN,), spoils=(), reports=("deepbeepmeep/Wan2GP#1628",))
class HiddenScoresPlusMinusInfinity(Pipeline):
    """Scores are hidden by adding -inf: a NaN in a hidden key stays NaN."""

    def hidden(self, s: Array, visible: Array) -> Array:
        return s + np.where(visible, 0, -np.inf).astype(s.dtype)


@fault(kind="nan-leak", shows=(HIDDEN,), spoils=())
class HiddenInfinityLeaks(Pipeline):
    """NaN in hidden values is cleared, but an infinity is multiplied by a weight of 0."""

    def collected(self, sums: Array, p: Array, keys: slice, fade: Array) -> Array:
        value = self.value_tile(keys)
        seen = super().collected(sums, p, keys, fade)
        leak = np.where(np.isinf(value), value, 0)
        return seen + 0 * (p @ leak)


@fault(kind="nan-swallow", shows=(SEEN,), spoils=())
class NanOutputBecomesZero(Pipeline):
    """NaN in the output is replaced by 0."""

    def normalised(self, sums: Array, total: Array) -> Array:
        out = super().normalised(sums, total)
        return np.where(np.isnan(out), 0, out).astype(out.dtype)


@fault(kind="nan-swallow", shows=(SEEN,), spoils=())
class NanScoresAreHidden(Pipeline):
    """A score that is NaN counts as hidden."""

    def hidden(self, s: Array, visible: Array) -> Array:
        return super().hidden(s, visible & ~np.isnan(s))


@fault(kind="nan-swallow", shows=(SEEN,), spoils=())
class NanValuesBecomeZero(Pipeline):
    """NaN and infinities in values are read as 0."""

    def value_tile(self, keys: slice) -> Array:
        return finite(super().value_tile(keys))


@fault(kind="nan-swallow", shows=(SEEN,), spoils=())
class NanRowTakenAsEmpty(Pipeline):
    """A row whose sum is not positive returns 0, and NaN is not positive."""

    def normalised(self, sums: Array, total: Array) -> Array:
        positive = total > 0
        return np.where(positive, sums / np.where(positive, total, 1), 0).astype(sums.dtype)


@fault(kind="nan-swallow", shows=(SEEN,), spoils=())
class NanQueriesBecomeZero(Pipeline):
    """NaN in queries is read as 0."""

    def read(self, name: str, x: Array) -> Array:
        found = super().read(name, x)
        return np.where(np.isnan(found), 0, found) if name == "q" else found
