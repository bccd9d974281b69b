"""Numbers as unevaluated sums of two float64: twice the digits, from operations that lose nothing.

A `Pair` stands for high + low, meant exactly. u = 2^-53. What each function loses, relative to its
exact result, is at most `ERROR` = 2^-98, far above the constants that are known (Joldes, Muller,
Popescu, "Tight and rigorous error bounds for basic building blocks of double-word arithmetic", ACM
Trans. Math. Softw. 44, 2017): 3u² for a sum of pairs (their algorithm 6), 3u² for pair times
number (8), 7u² for a product (10), about 15u² for a quotient (17), u² being 2^-106. They hold for
operands with |low| <= u |high|, which every result here fulfils, and without overflow. (Matrix
products that cancel may have |low| <= 3u |high|: a few u² more, for which ERROR has room.) An
underflow adds at most 2^-1070 in all (over |y| in x / y); callers scale so that this is far below
what they claim.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import mpmath
import numpy as np
import numpy.typing as npt

from attnspec.oracle.formats import Float64Array
from attnspec.oracle.problem import IntArray

__all__ = [
    "ERROR",
    "SPLITTER",
    "Pair",
    "add",
    "divide",
    "fast_two_sum",
    "multiply",
    "scale",
    "scaled",
    "sum_pairs",
    "times",
    "two_product",
    "two_sum",
]

ERROR = 2.0**-98
"""Relative error of each operation on pairs, from above."""

SPLITTER = 2.0**27 + 1


class Pair(NamedTuple):
    """The exact sum high + low, element by element; |low| <= u |high|."""

    high: Float64Array
    low: Float64Array

    @classmethod
    def of(cls, number: Float64Array) -> Pair:
        """A float64 number as a pair."""
        return cls(number, np.zeros_like(number))

    @classmethod
    def constant(cls, number: Any) -> Pair:
        """An mpmath number: to 2^-106 of itself, whatever mpmath's precision."""
        high = float(number)
        low = float(mpmath.fsub(number, high, exact=True))
        return cls(np.asarray(high), np.asarray(low))


def two_sum(a: Float64Array, b: Float64Array) -> Pair:
    """a + b exactly (Knuth), whatever their order."""
    high = a + b
    shifted = high - a
    low = a - (high - shifted)
    low += b - shifted
    return Pair(high, low)


def fast_two_sum(a: Float64Array, b: Float64Array) -> Pair:
    """a + b exactly (Dekker), where |a| >= |b| or a = 0."""
    high = a + b
    low = high - a
    np.subtract(b, low, out=low)
    return Pair(high, low)


def _split(a: Float64Array) -> Pair:
    """a exactly, in halves of at most 26 bits (Veltkamp); |a| < 2^996."""
    high = a * SPLITTER
    high -= high - a
    return Pair(high, a - high)


def two_product(a: Float64Array, b: Float64Array) -> Pair:
    """a · b exactly (Dekker), without a fused multiply-add; |a|, |b| < 2^500 or so."""
    high = a * b
    (a1, a2), (b1, b2) = _split(a), _split(b)
    low = a1 * b1
    low -= high
    low += a1 * b2
    low += a2 * b1
    low += a2 * b2
    return Pair(high, low)


def add(x: Pair, y: Pair) -> Pair:
    """x + y, accurate even where the high parts cancel (JMP, algorithm 6)."""
    high, low = two_sum(x.high, y.high)
    rest = two_sum(x.low, y.low)
    low += rest.high
    high, low = fast_two_sum(high, low)
    low += rest.low
    return fast_two_sum(high, low)


def times(x: Pair, number: Float64Array | float) -> Pair:
    """x · number (JMP, algorithm 8)."""
    high, low = two_product(x.high, np.asarray(number))
    low += x.low * number
    return fast_two_sum(high, low)


def multiply(x: Pair, y: Pair) -> Pair:
    """x · y (JMP, algorithm 10)."""
    high, low = two_product(x.high, y.high)
    cross = x.high * y.low
    cross += x.low * y.high
    low += cross
    return fast_two_sum(high, low)


def divide(x: Pair, y: Pair) -> Pair:
    """x / y (JMP, algorithm 17, with the accurate sum in place of their shorter one)."""
    first = x.high / y.high
    product = times(y, first)
    rest = add(x, Pair(-product.high, -product.low))
    return fast_two_sum(first, rest.high / y.high)


def scale(
    x: npt.NDArray[Any], exponent: IntArray, *, out: Float64Array | None = None
) -> Float64Array:
    """x · 2^exponent: exact, but for underflow (at most 2^-1075)."""
    if out is None:
        out = np.empty(np.broadcast_shapes(x.shape, np.shape(exponent)))
    if np.any(np.abs(exponent) > 1000):  # a product is several times as fast
        np.ldexp(x.astype(np.float64), exponent, out=out)
        return out
    if x.dtype != np.float64:  # NumPy converts what it multiplies by buffers, slowly
        np.copyto(out, x)
        x = out
    np.multiply(x, np.ldexp(1.0, exponent), out=out)
    return out


def scaled(x: Pair, exponent: IntArray) -> Pair:
    """x · 2^exponent: exact, but for underflow (at most 2^-1075 in each part)."""
    return Pair(scale(x.high, exponent), scale(x.low, exponent))


def sum_pairs(x: Pair, *, axis: int) -> Pair:
    """The sum along an axis, by halves: of n terms it errs by at most n 2^-98 Σ|x|.

    Each of the ceil(log2 n) levels loses at most 2^-98 of the magnitudes that it adds up.
    """
    high, low = np.moveaxis(x.high, axis, 0), np.moveaxis(x.low, axis, 0)
    if len(high) == 0:
        return Pair(np.zeros(high.shape[1:]), np.zeros(high.shape[1:]))
    while len(high) > 1:
        half = len(high) // 2
        summed = add(
            Pair(high[:half], low[:half]), Pair(high[half : 2 * half], low[half : 2 * half])
        )
        rest = slice(2 * half, None)
        high = np.concatenate([summed.high, high[rest]])
        low = np.concatenate([summed.low, low[rest]])
    return Pair(high[0], low[0])
