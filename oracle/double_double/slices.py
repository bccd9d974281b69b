"""Matrix products to twice the digits: slices of so few bits that float64 products are exact.

A product of matrices A (m, k) and B (k, n), after Ozaki, Ogita, Oishi and Rump ("Error-free
transformations of matrix multiplication by using fast routines of matrix multiplication and its
applications", Numer. Algorithms 59, 2012), with slices of unequal width:

    B = B1 + B2          |B| <= 1; B1 a multiple of 2^-31, |B2| <= 2^-32 (and u for a low part)
    A = A1 + A2 + A3     rows of Σ|A| <= unit: A1 a multiple of a, A2 of a', |A3| <= loss

A B = A1 B1 + A2 B1 + [(A1 + A2) B2 + A3 B]. The first two products are exact: every product of
elements, and so every sum of them in any order, with or without FMA, is a multiple of a 2^-31 (of
a' 2^-31) and below 2^53 of it. The bracket is below 2^-31 of the whole, so that a product in
float64 loses no more than 2^-31 · 2^-53 k of it. It costs four products, or three where B has no
more than 32 bits; two where A is as short.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from attnspec.oracle.double_double.pairs import Pair
from attnspec.oracle.double_double.scratch import Scratch
from attnspec.oracle.formats import Float64Array

__all__ = ["Narrow", "Wide", "narrow", "product", "product_error", "unit_of", "wide"]

U = 2.0**-53
WIDE = 31
"""Bits of B1 after the binary point."""
FIRST = 52 - WIDE
"""Bits of A1 below its row's unit."""
_ROUND = 1.5 * 2.0**52
"""Adding and subtracting 1.5 · 2^52 g rounds to a multiple of g what is below 2^51 g."""


class Wide(NamedTuple):
    """B = first + rest (..., k, n), and |B|; rest is None where it is 0 everywhere."""

    first: Float64Array
    rest: Float64Array | None
    whole: Float64Array
    size: Float64Array

    @property
    def transposed(self) -> Wide:
        """Bᵀ, as views."""
        rest = None if self.rest is None else np.swapaxes(self.rest, -1, -2)
        first, whole, size = (np.swapaxes(x, -1, -2) for x in (self.first, self.whole, self.size))
        return Wide(first, rest, whole, size)

    def columns(self, count: int) -> Wide:
        """The first so many columns."""
        rest = None if self.rest is None else self.rest[..., :count]
        return Wide(self.first[..., :count], rest, self.whole[..., :count], self.size[..., :count])


def wide(
    b: Float64Array, low: Float64Array | None = None, *, into: list[Float64Array] | None = None
) -> Wide:
    """Slices of b + low, for |b| <= 1 and |low| <= u |b|; `into` three arrays, if given.

    first + rest is b exactly; with a low part, rest rounds once: u 2^-32 <= 2^-85.
    """
    first, rest, size = into if into is not None else list(np.empty((3, *b.shape)))
    np.add(b, _ROUND * 2.0**-WIDE, out=first)
    first -= _ROUND * 2.0**-WIDE
    np.subtract(b, first, out=rest)
    if low is not None:
        rest += low
    np.abs(b, out=size)
    anything = rest.flat[:8].any() or rest.any()  # the first few decide, nearly always
    return Wide(first, rest if anything else None, b, size)


class Narrow(NamedTuple):
    """A = first + second + rest (..., m, k); `front` is first + second, exactly.

    unit (..., m, 1): powers of two >= Σ_k |A|. loss, likewise: |rest| <= loss, element by element.
    A transposed operand is sliced as it lies, with units (..., 1, k).
    """

    first: Float64Array
    second: Float64Array
    front: Float64Array
    rest: Float64Array
    unit: Float64Array
    loss: Float64Array

    def swapped(self, first: int, second: int) -> Narrow:
        """With two axes exchanged, as views."""
        return Narrow(*(np.swapaxes(x, first, second) for x in self))

    def part(self, some: slice) -> Narrow:
        """Some of the second axis."""
        return Narrow(*(x[:, some] for x in self))


def unit_of(total: Float64Array) -> Float64Array:
    """The power of two above each total, at most twice it; 0 for 0."""
    fraction, exponent = np.frexp(total)
    return np.where(fraction == 0, 0.0, np.ldexp(1.0, exponent))


def narrow(x: Pair, unit: Float64Array, *, terms: int, into: list[Float64Array]) -> Narrow:
    """Slices of x, to be multiplied with sums of at most `terms` <= 2^20 terms.

    unit: powers of two >= Σ|x| over those terms; 0 only where x is. Four arrays for the result.

    a = unit 2^-21: Σ|A1| <= unit + terms a / 2 <= 2 unit = 2^22 a, so that Σ|A1||B1| <= 2^53 of
    a 2^-31. The remainder x - A1 is exact (Dekker) and at most a / 2.
    a' = terms' a 2^-22, terms' the power of two above: Σ|A2| <= terms (a / 2 + a' / 2) <= terms a
    <= 2^22 a'. A3 is x - A1 - A2, exact, plus the low part, and rounds once.
    """
    first, second, front, rest = into
    grid = unit * 2.0**-FIRST
    finer = grid * 2.0 ** (math.ceil(math.log2(max(terms, 1))) - FIRST - 1)
    magic, finer_magic = _ROUND * grid, _ROUND * finer
    np.add(x.high, magic, out=first)
    first -= magic
    np.subtract(x.high, first, out=rest)
    np.add(rest, finer_magic, out=second)
    second -= finer_magic
    rest -= second
    rest += x.low
    np.add(first, second, out=front)  # exact: multiples of a' below 2^53 of it
    return Narrow(first, second, front, rest, unit, finer / 2 + 2 * U * unit)


def product(a: Narrow, b: Wide, *, work: Scratch, out: Pair) -> Pair:
    """A B as a pair (..., m, n), into `out`; see `product_error`."""
    high, low = out
    with work.arrays(high.shape, 2) as (second, other):
        _multiply(a.first, b.first, out=high)
        _multiply(a.second, b.first, out=second)
        np.add(high, second, out=low)  # now their exact sum (Knuth)
        np.subtract(low, high, out=other)
        second -= other
        np.subtract(low, other, out=other)
        high -= other
        second += high
        _multiply(a.rest, b.whole, out=other)
        second += other
        if b.rest is not None:
            _multiply(a.front, b.rest, out=other)
            second += other
        np.add(low, second, out=high)  # Dekker
        np.subtract(high, low, out=other)
        np.subtract(second, other, out=low)
    return out


def _multiply(a: Float64Array, b: Float64Array, *, out: Float64Array) -> None:
    """The matrix product; of a column and a row as NumPy does it faster."""
    (np.multiply if a.shape[-1] == 1 else np.matmul)(a, b, out=out)


def product_error(
    a: Narrow,
    b: Wide,
    size: Float64Array,
    column: Float64Array,
    *,
    out: Float64Array | None = None,
) -> Float64Array:
    """What `product` loses (..., m, n), for size = Σ|A| (..., m, 1) and column = Σ|B| (..., 1, n).

    With S = Σ_k |A|, T = Σ_k |B|, the bracket's terms are at most Z = 2^-32 S (0 without B2) and
    loss T. Each product errs by gamma_k of its part (Higham, Accuracy and Stability, 3.5). Beside
    it, in units u of Z + loss T: A3's rounding 1, B2's (`wide`) 1 of Z, B's low part beside A3 1 of
    loss T, the two additions into low, 1 each, and Dekker's sum where low exceeds high, 2; one is
    left for products of errors. Rounding what is left of high into low costs u² S twice, Dekker's
    sum once. So gamma_(k + 8) of the bracket, and 2^-104 S.
    Z means Σ|A1 + A2| <= S + k loss, where k loss <= k² 2^-42 S: of k roundings of that, the excess
    is (k / 2^14)³ of u Z.
    """
    k = a.first.shape[-1]
    roundings = k + 8 + (k / 2**14) ** 3
    gamma = roundings * U / (1 - roundings * U)
    share = 0.0 if b.rest is None else gamma * 2.0 ** -(WIDE + 1)
    out = np.multiply(gamma * a.loss, column, out=out)
    out += (share + 2.0**-104) * size
    return out
