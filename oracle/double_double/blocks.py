"""Operations on pairs the size of a block of scores: in place, as an array more costs its time."""

from __future__ import annotations

import numpy as np

from attnspec.oracle.double_double.pairs import SPLITTER, Pair
from attnspec.oracle.double_double.scratch import Scratch

__all__ = ["add_to", "multiply_by"]


def add_to(x: Pair, y: Pair, *, work: Scratch) -> None:
    """x += y, where y may broadcast: error at most 2^-98 (|x| + |y|).

    The sum of the high parts is exact; the low parts, at most u |x| and u |y|, and its error are
    added with two roundings: less than 4u² (|x| + |y|) (JMP, algorithm 5).
    """
    high, low = x
    with work.arrays(high.shape, 3) as (total, shifted, rest):
        np.add(high, y.high, out=total)
        np.subtract(total, high, out=shifted)
        np.subtract(y.high, shifted, out=rest)
        np.subtract(total, shifted, out=shifted)
        high -= shifted
        high += rest  # what the sum of the high parts leaves, exactly
        low += y.low
        low += high
        np.add(total, low, out=high)
        total -= high
        low += total


def multiply_by(x: Pair, y: Pair, *, work: Scratch) -> None:
    """x *= y: relative error at most 2^-98 (JMP, algorithm 10)."""
    high, low = x
    with work.arrays(high.shape, 5) as (product, x1, x2, y1, y2):
        np.multiply(high, y.high, out=product)
        low *= y.high
        np.multiply(high, y.low, out=y2)
        low += y2
        for number, upper, lower in ((high, x1, x2), (y.high, y1, y2)):
            np.multiply(number, SPLITTER, out=upper)
            np.subtract(upper, number, out=lower)
            upper -= lower
            np.subtract(number, upper, out=lower)
        np.multiply(x1, y1, out=high)
        high -= product
        x1 *= y2
        high += x1
        y1 *= x2
        high += y1
        x2 *= y2
        high += x2
        low += high
        np.add(product, low, out=high)
        product -= high
        low += product
