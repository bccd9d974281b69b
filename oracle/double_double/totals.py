"""The outputs under way: sums of pairs and of bounds, slot by slot, and their enclosures."""

from __future__ import annotations

import numpy as np

from attnspec.oracle.double_double.forward import Bounded
from attnspec.oracle.double_double.pairs import Pair, add, scale, scaled
from attnspec.oracle.enclosure import Enclosure
from attnspec.oracle.formats import Float64Array
from attnspec.oracle.problem import IntArray

__all__ = ["Total"]

PART = 2**15
"""Numbers that are settled together: what the cache holds."""
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
        exponent = np.asarray(exponent)
        bound = self.bound[place]
        lost = 3 * TINY if np.all(part.error) else np.where(part.error > 0, 3 * TINY, 0.0)
        if bound.max(initial=0.0) == 0:
            scale(part.pair.high, exponent, out=self.value[place])
            scale(part.pair.low, exponent, out=self.low[place])
            scale(part.error, exponent, out=bound)
            bound += lost
            return
        new, before = scaled(part.pair, exponent), Pair(self.value[place], self.low[place])
        bound += scale(part.error, exponent)
        bound += 2.0**-98 * (np.abs(before.high) + np.abs(new.high)) + lost
        self.value[place], self.low[place] = add(before, new)

    def clear(self) -> None:
        """Begin anew."""
        for array in (self.value, self.low, self.bound):
            array.fill(0.0)

    def enclosure(self, shape: tuple[int, ...]) -> Enclosure:
        """The sum in the output's shape; the bound is inf where anything is not known. Ends it."""
        flat = [array.reshape(-1) for array in (self.value, self.low, self.bound)]
        for start in range(0, self.value.size, PART):
            _settle(*(array[start : start + PART] for array in flat))
        return Enclosure(
            self.value.reshape(shape), self.low.reshape(shape), self.bound.reshape(shape)
        )


def _settle(value: Float64Array, low: Float64Array, bound: Float64Array) -> None:
    if np.isfinite(value.sum() + low.sum() + bound.sum()):  # then so is every one
        bound *= 1 + 2.0**-20
        return
    exact = np.isneginf(value) & (bound == 0)
    bound *= 1 + 2.0**-20
    known = np.isfinite(value) & np.isfinite(low) & np.isfinite(bound)
    unknown = ~(known | exact)
    bound[unknown] = np.inf
    low[unknown] = 0.0
