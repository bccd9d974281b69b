"""Float64 arithmetic that carries a proven bound on its own error.

Every intermediate is a `Ball`: a computed number and a radius, |exact - value| <= radius, element
by element. Each function takes true balls to a true ball; its docstring holds the proof. `exact`
means the real number that the formula defines.

The standard model (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., 2.2 and
2.8): fl(x op y) = (x op y)(1 + d) + e with |d| <= u = 2^-53, and equally
|fl(z) - z| <= u |fl(z)| + |e|; |e| <= 2^-1075 where a product or quotient underflows, e = 0
otherwise and always for sums. A sum of k products errs, in any order, with FMA or without, by at
most gamma_k Σ|x||y| + k 2^-1075 (1 + gamma_k), gamma_k = k u / (1 - k u) (Higham 3.1, 3.4, 3.5).
That NumPy and its BLAS obey it is assumed, stated and tested in `assumptions.py`.

Radii are themselves computed in float64, as sums of products of non-negative numbers. Over fewer
than 2^30 operations, rounding lowers such a number by a factor of at least 1 - gamma_(2^30) >
1 - 2^-22, which `SLACK` makes good; underflow lowers it by at most 2^-1075 a product, which
multiples of `TINY` make good. The product with SLACK never lowers it: rounding is monotone.

Overflow gives inf or NaN, in a value or a radius, and both survive to the end, where they become
the bound inf: not known. Two functions map an infinite value to a finite one, exp and tanh; before
each, the rounding term u |x| of its argument makes the radius inf.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attnspec.oracle.enclosure import Enclosure
from attnspec.oracle.formats import Float64Array
from attnspec.oracle.heads import IntArray, disjoint
from attnspec.oracle.problem import BoolArray

__all__ = [
    "FLOOR",
    "SLACK",
    "TINY",
    "Ball",
    "Place",
    "Total",
    "U",
    "exact_zero",
    "gamma",
    "operand_product",
    "product",
    "scaled",
    "up",
]

U = 2.0**-53
"""Unit roundoff of float64."""
SLACK = 1 + 2.0**-20
"""What a radius is multiplied by, to make good the rounding of its own computation."""
TINY = 2.0**-1074
"""The spacing of subnormal numbers: two underflows."""
FLOOR = 2.0**-1000
"""Least radius of an operand. It covers exp's absolute error where exp underflows, and keeps what
is multiplied into a radius out of underflow; it is far below anything that float32 resolves."""


Place = tuple[IntArray | slice, ...]
"""Where each of H heads is added to: coordinates (H,) each, then slices of what is there."""


class Ball(NamedTuple):
    """|exact - value| <= radius, element by element. A radius of inf or NaN: not known."""

    value: Float64Array
    radius: Float64Array


def gamma(k: int) -> float:
    """gamma_k of the standard model, for k < 2^30."""
    return k * U / (1 - k * U)


def up(x: float) -> float:
    """At least the exact value of a non-negative `x` computed in a few operations."""
    return x * SLACK + TINY


def product(a: Float64Array, b: Float64Array) -> Ball:
    """A B for exact A (…, m, k) and B (…, k, n).

    The value errs by gamma_k |A||B| + k 2^-1075 (1 + gamma_k). Computed, |A||B| is low by SLACK
    and k 2^-1075, the latter then scaled by gamma_k, and that product by 2^-1075: (k + 1) TINY.
    """
    k = a.shape[-1]
    radius = np.abs(a) @ np.abs(b)
    radius *= up(gamma(k))
    radius += (k + 1) * TINY
    return Ball(a @ b, radius)


def operand_product(operand: Ball, b: Float64Array) -> Ball:
    """A B for an exact B (…, k, n) and an operand A (…, m, k): a ball whose radius already includes
    gamma_N |value| for an N >= k, and is at least FLOOR wherever the value is not 0.

    |exact - fl(Â B)| <= rad A |B| + gamma_k |Â||B| + k 2^-1075 (1 + gamma_k), and the operand's
    radius covers the first two; computing radius · |B| loses at most SLACK and k 2^-1075.
    """
    k = operand.value.shape[-1]
    radius = operand.radius @ np.abs(b)
    return Ball(operand.value @ b, radius * SLACK + (k + 1) * TINY)


def scaled(ball: Ball, scale: float) -> Ball:
    """scale · x: |scale| rad x, one rounding u|fl|, and three underflows of 2^-1075 at most
    (the value's, that of |scale| rad x, that of u|fl|)."""
    value = ball.value * scale
    return Ball(value, (ball.radius * abs(scale) + U * np.abs(value)) * SLACK + 2 * TINY)


def exact_zero(ball: Ball, *, unless: BoolArray) -> Ball:
    """The ball, with rows that are exactly 0 unless used."""
    used = unless[..., None]
    return Ball(np.where(used, ball.value, 0.0), np.where(used, ball.radius, 0.0))


class Total:
    """A sum of balls over heads and tiles, slot by slot.

    Adding to 0 is exact; every other addition errs by at most u |fl|, and underflows never.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.value = np.zeros(shape)
        self.radius = np.zeros(shape)

    def put(self, place: Place, ball: Ball) -> None:
        """Set the ball of each head at its place, to which nothing else is added."""
        if ball.value.size == self.value.size:  # all of it: no copy
            self.value = ball.value.reshape(self.value.shape)
            self.radius = ball.radius.reshape(self.value.shape)
        else:
            self.value[place], self.radius[place] = ball

    def add(self, place: Place, ball: Ball) -> None:
        """Add the ball of each head at its place."""
        heads = [part for part in place if not isinstance(part, slice)]
        for some in disjoint(*heads):
            where = tuple(part if isinstance(part, slice) else part[some] for part in place)
            before = self.value[where]
            after = before + ball.value[some]
            lost = np.where(before == 0, 0.0, U * np.abs(after) + TINY)
            self.radius[where] += ball.radius[some] + lost
            self.value[where] = after

    def enclosure(self, shape: tuple[int, ...]) -> Enclosure:
        """The sum, with the bound inf wherever anything has overflowed. -inf of radius 0 is exact:
        the lse of a row that sees nothing."""
        bound = self.radius
        bound *= SLACK
        unknown = ~(np.isfinite(self.value) & np.isfinite(bound))
        if unknown.any():
            exact = np.isneginf(self.value) & (bound == 0)
            bound[unknown] = np.inf
            bound[exact] = 0.0
        return Enclosure.of(self.value.reshape(shape), bound.reshape(shape))
