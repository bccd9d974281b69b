"""The outputs under way: sums of pairs and of bounds, slot by slot, and their enclosures."""

from __future__ import annotations

import numpy as np

from attnspec.oracle.double_double.forward import Bounded
from attnspec.oracle.double_double.pairs import Pair, add, scale, scaled
from attnspec.oracle.enclosure import Enclosure
from attnspec.oracle.problem import IntArray

__all__ = ["Total"]

TINY = 2.0**-1074
"""The spacing of subnormal numbers: what a scaling may lose of a number."""


class Total:
    """An output: |exact - (value + low)| <= bound, to which tiles of heads add their parts."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.value = np.zeros(shape)
        self.low = np.zeros(shape)
        self.bound = np.zeros(shape)

    def add(self, place: tuple[int | slice, ...], part: Bounded, exponent: IntArray | int) -> None:
        """Add part · 2^exponent at a place.

        Scaling loses at most TINY of each part and of the bound; adding 2^-98 of what is added.
        Where no place has a bound yet, all places are exactly zero.
        """
        new = scaled(part.pair, np.asarray(exponent))
        bound = scale(part.error, np.asarray(exponent)) + np.where(part.error > 0, 3 * TINY, 0.0)
        if np.any(self.bound[place]):
            before = Pair(self.value[place], self.low[place])
            bound += self.bound[place] + 2.0**-98 * (np.abs(before.high) + np.abs(new.high))
            new = add(before, new)
        self.value[place], self.low[place], self.bound[place] = new.high, new.low, bound

    def enclosure(self, shape: tuple[int, ...]) -> Enclosure:
        """The sum in the output's shape; the bound is inf where anything is not known."""
        known = np.isfinite(self.value) & np.isfinite(self.low) & np.isfinite(self.bound)
        exact = np.isneginf(self.value) & (self.bound == 0)
        bound = np.where(exact, 0.0, np.where(known, self.bound * (1 + 2.0**-20), np.inf))
        low = np.where(known, self.low, 0.0)
        return Enclosure(self.value.reshape(shape), low.reshape(shape), bound.reshape(shape))
