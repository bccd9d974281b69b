"""A gradient as a sum over heads and rows: what its error bound needs, gathered head by head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from attnspec.oracle.formats import Float64Array, Format
from attnspec.oracle.heads import IntArray, disjoint
from attnspec.oracle.roundoffs import Roundoffs, flush, growth

__all__ = ["GradientSum", "Terms"]


@dataclass(frozen=True, eq=False)
class Terms:
    """The shares of H heads in a gradient, (H, …) behind which the shape is that of a slice of it.

    error, absolute: sum of bounds on the terms' errors, and of the terms' magnitudes.
    variance, squares: sum of the terms' variances, and of their squares.
    value: the share itself, in float64. count: how many terms.
    """

    error: Float64Array
    absolute: Float64Array
    variance: Float64Array
    squares: Float64Array
    value: Float64Array
    count: npt.NDArray[np.float64]

    def map(self, change: Callable[[Float64Array], Float64Array]) -> Terms:
        """`change` applied to each field."""
        return Terms(*(change(getattr(self, field.name)) for field in fields(self)))


class GradientSum:
    """The sum of `Terms`, and its (bound, sigma).

    `stored`: each head's share may be stored once, in this format, before shares are added
    (gradients of expanded key heads, or of a broadcast bias).
    """

    def __init__(self, shape: tuple[int, ...], *, stored: Format | None = None) -> None:
        self.stored = 0.0 if stored is None else stored.unit_roundoff
        self.stored_eta = 0.0 if stored is None else flush(stored)
        self.stored_largest = np.inf if stored is None else stored.largest
        self.total = Terms(*(np.zeros(shape) for _ in fields(Terms)))
        self.shares, self.shares_squared, self.heads = np.zeros(shape), np.zeros(shape), 0

    def add(self, places: tuple[IntArray, ...], terms: Terms) -> None:
        """Add the share of each of H heads to the slice at its place; coordinates (H,) each."""
        for some in disjoint(*places):
            where = tuple(place[some] for place in places)
            value = terms.value[some]
            for field in fields(Terms):
                getattr(self.total, field.name)[where] += getattr(terms, field.name)[some]
            self.shares[where] += np.abs(value)
            self.shares_squared[where] += value**2
            self.heads += len(some)

    def result(
        self, r: Roundoffs, *, scale: float = 1.0, flushed: float = 0.0
    ) -> tuple[Float64Array, Float64Array]:
        """(bound, sigma) of the sum; both 0 where it has no term.

        Each term passes one product, the additions in any order, one addition a tile, and up to
        six multiplications by constants (Higham, ch. 3); in the storage format as well, one
        addition a tile and the scaling, where gradients are accumulated in it.
        """
        t, third = self.total, r.unit**2 / 3
        tiles = np.ceil(t.count / r.tile)
        chain = growth(t.count + tiles + 8, r.unit)
        chain = chain + (1 + chain) * growth(tiles + 3, r.gradient)
        bound = t.error + chain * (t.absolute + t.error)
        bound = bound + self.stored * (self.shares + bound) * (1 + chain)
        lost = (2 * r.eta) * max(1.0, scale) * (t.count + tiles + 8)
        lost = lost + (tiles + 3) * r.gradient_eta + self.stored_eta * self.heads + flushed
        bound = bound + lost * (1 + chain)
        smaller = min(1.0, scale) if scale > 0 else 1.0
        holds = r.storage.largest if r.gradient else r.accumulate.largest
        overflows = 2 * (1 + chain) * (t.absolute + t.error) / smaller >= holds
        overflows |= self.shares + bound >= self.stored_largest
        variance = t.variance + third * (t.count * t.squares + (t.count + 4) * t.value**2)
        variance = variance + r.gradient**2 / 3 * (tiles + 2) * (t.squares + t.value**2)
        variance = variance + self.stored**2 / 3 * self.shares_squared
        variance = variance + lost**2 / np.maximum(t.count, 1)
        bound = np.where(overflows | np.isnan(bound), np.inf, bound)
        some = t.count > 0
        return np.where(some, bound, 0.0), np.where(some, np.sqrt(variance), 0.0)
