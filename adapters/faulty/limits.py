"""What is right in small problems: wrong for some head sizes, late rows, wide windows, far keys."""

from __future__ import annotations

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.pipeline import Array, Pipeline, State, rounded

__all__: list[str] = []


# -- head sizes that have a kernel of their own ----------------------------------------------------


@fault(kind="option-ignored", beyond_smoke="no options in heads of 128")
class SoftcapLostInHeadsOfOneHundredTwentyEight(Pipeline):
    """At head size 128, the soft cap is not applied."""

    def capped(self, s: Array) -> tuple[Array, Array | float]:
        return (s, 1.0) if self.size == 128 else super().capped(s)


@fault(kind="option-ignored", beyond_smoke="no options in heads above 128")
class BiasLostInLargeHeads(Pipeline):
    """At head sizes above 128, the bias is not added."""

    def biased(self, s: Array, keys: slice) -> Array:
        return s if self.size > 128 else super().biased(s, keys)


@fault(kind="causality", beyond_smoke="no options in heads of 64")
class CausalSeesTheNextTokenInHeadsOfSixtyFour(Pipeline):
    """At head size 64, a causal row sees one token of its future."""

    def seen_causally(self, ahead: Array) -> Array:
        return np.asarray(ahead >= (-1 if self.size == 64 else 0))


@fault(kind="sink", shows=("out", "lse"), beyond_smoke="no options in heads of 64")
class SinkLostInHeadsOfSixtyFour(Pipeline):
    """At head size 64, sinks are not used."""

    def ready(self) -> None:
        if self.sinks is not None and self.size == 64:
            self.sinks = np.full_like(self.sinks, -np.inf)


@fault(kind="gqa-map", beyond_smoke="no grouped heads of 128")
class GroupedHeadsTiledInHeadsOfOneHundredTwentyEight(Pipeline):
    """At head size 128, query head h reads key head h mod Hkv."""

    def key_heads(self) -> Array:
        tiled = np.arange(self.heads) % self.kv_heads
        return tiled if self.size == 128 else super().key_heads()


@fault(kind="window", beyond_smoke="no options in heads of 64")
class WindowLostInHeadsOfSixtyFour(Pipeline):
    """At head size 64, the left edge of a window is ignored."""

    def seen_in_window(self, ahead: Array) -> Array:
        given = self.window
        self.window = (None, given[1]) if self.size == 64 else given
        seen = super().seen_in_window(ahead)
        self.window = given
        return seen


# -- late rows and far keys ------------------------------------------------------------------------


@fault(kind="option-ignored", beyond_smoke="no more than 64 rows")
class BiasOfLateRowsLost(Pipeline):
    """Rows from the 129th on have no bias."""

    def biased(self, s: Array, keys: slice) -> Array:
        found = super().biased(s, keys)
        return np.where(self.row_index() < 128, found, s)


@fault(kind="broadcast", beyond_smoke="no more than 64 rows")
class MaskOfLateRowsStartsAgain(Pipeline):
    """Row i has the mask of row i mod 128."""

    def seen_by_mask(self, keys: slice) -> Array:
        found = super().seen_by_mask(keys)
        return found if self.mask is None else found[..., np.arange(self.rows) % 128, :]


@fault(kind="softcap-order", beyond_smoke="no more than 64 rows")
class SoftcapOfLateRowsLost(Pipeline):
    """Rows from the 129th on have no soft cap."""

    def capped(self, s: Array) -> tuple[Array, Array | float]:
        found, slope = super().capped(s)
        late = self.row_index() >= 128
        return np.where(late, s, found), np.where(late, 1, slope)


@fault(kind="sink", shows=("out", "lse"), beyond_smoke="no more than 64 rows")
class SinkOfLateRowsLost(Pipeline):
    """Rows from the 129th on have no sink."""

    def start(self) -> State:
        largest, total, sums = super().start()
        late = self.row_index() >= 128
        lost = np.where(late, -np.inf, largest), np.where(late, 0, total)
        return lost[0].astype(self.real), lost[1].astype(self.real), sums


@fault(kind="window", beyond_smoke="no window of a hundred keys")
class WindowAtMostHundred(Pipeline):
    """A window reaches back 100 keys at most."""

    def seen_in_window(self, ahead: Array) -> Array:
        given = self.window
        self.window = (None if given[0] is None else min(given[0], 100), given[1])
        seen = super().seen_in_window(ahead)
        self.window = given
        return seen


@fault(kind="acc-precision", beyond_smoke="no gentle slopes")
class AlibiDistanceInBfloat16(Pipeline):
    """ALiBi's distances are rounded to bfloat16, which holds no odd number beyond 256."""

    def sloped(self, s: Array, ahead: Array) -> Array:
        if self.slopes is None:
            return s
        distance = rounded(np.abs(ahead).astype(self.real), "bfloat16")
        return np.asarray(s - self.slopes * distance)


@fault(kind="index-overflow", beyond_smoke="no gentle slopes")
class AlibiDistanceInEightBits(Pipeline):
    """ALiBi's distances are at most 255."""

    def sloped(self, s: Array, ahead: Array) -> Array:
        return super().sloped(s, np.clip(ahead, -255, 255))


# -- additions in fewer bits -----------------------------------------------------------------------


@fault(kind="acc-precision")
class BiasInHalf(Pipeline):
    """The bias is rounded to float16."""

    def spread(self, name: str, x: Array) -> Array:
        return super().spread(name, rounded(x, "float16") if name == "bias" else x)


@fault(kind="acc-precision")
class BiasedScoresInHalf(Pipeline):
    """The sum of score and bias is rounded to float16."""

    def biased(self, s: Array, keys: slice) -> Array:
        found = super().biased(s, keys)
        return found if self.bias is None else rounded(found, "float16")


@fault(kind="acc-precision", beyond_smoke="slopes are powers of two")
class SlopesInBfloat16(Pipeline):
    """ALiBi's slopes are rounded to bfloat16."""

    def ready(self) -> None:
        if self.slopes is not None:
            self.slopes = rounded(self.slopes, "bfloat16")
