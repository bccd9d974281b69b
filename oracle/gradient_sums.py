"""A gradient as a sum over heads and rows: what its error bound needs, gathered head by head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from attnspec.oracle.formats import Float64Array, Format
from attnspec.oracle.heads import IntArray, disjoint
from attnspec.oracle.roundoffs import Roundoffs, flush, growth

__all__ = ["GradientSum", "Part", "Places", "Terms"]

NOTHING = np.zeros(())
Places = tuple[IntArray, ...]
Part = tuple[slice, ...]


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
    """The (bound, sigma) of a gradient that is the sum of `Terms`.

    stored: each head's share may be stored once, in this format, before shares are added
        (gradients of expanded key heads, or of a broadcast bias).
    alone: no slot gets terms twice, so that nothing has to be added up.
    scale, flushed: what the sum is multiplied by, and what its last rounding may flush.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        r: Roundoffs,
        *,
        stored: Format | None = None,
        alone: bool = False,
        scale: float = 1.0,
        flushed: float = 0.0,
    ) -> None:
        self.shape, self.r, self.scale, self.flushed = shape, r, scale, flushed
        self.stored, self.alone = stored, alone and stored is None
        self.bound, self.sigma = np.zeros(shape), np.zeros(shape)
        self.total = Terms(*(np.zeros(() if self.alone else shape) for _ in fields(Terms)))
        several = () if stored is None else shape
        self.shares, self.shares_squared, self.heads = np.zeros(several), np.zeros(several), 0
        self.open: Float64Array | None = None

    def add(self, places: Places, part: Part, terms: Terms) -> None:
        """Add what some rows of each of H heads contribute to a part of the slice at its place.

        Coordinates of the places: (H,) each. All rows of some heads come before those of others.
        """
        for some in disjoint(*places):
            where = tuple(place[some] for place in places) + part
            mine = Terms(*(getattr(terms, field.name)[some] for field in fields(Terms)))
            if self.alone:
                self.bound[where], self.sigma[where] = self._bounds(mine, NOTHING, NOTHING)
                continue
            for field in fields(Terms):
                getattr(self.total, field.name)[where] += getattr(mine, field.name)
        if self.stored is not None:
            if self.open is None:
                self.open = np.zeros((len(places[0]), *self.shape[len(places) :]))
            self.open[(slice(None), *part)] += terms.value

    def close(self, places: Places) -> None:
        """The share of each of these heads is complete."""
        self.heads += len(places[0])
        if self.open is None:
            return
        for some in disjoint(*places):
            where = tuple(place[some] for place in places)
            self.shares[where] += np.abs(self.open[some])
            self.shares_squared[where] += self.open[some] ** 2
        self.open = None

    def result(self) -> tuple[Float64Array, Float64Array]:
        """(bound, sigma) of the sum; both 0 where it has no term."""
        if self.alone:
            return self.bound, self.sigma
        return self._bounds(self.total, self.shares, self.shares_squared)

    def _bounds(
        self, t: Terms, shares: Float64Array, shares_squared: Float64Array
    ) -> tuple[Float64Array, Float64Array]:
        """Each term passes one product, the additions in any order, one addition a tile, and up to
        six multiplications by constants (Higham, ch. 3); in the storage format as well, one
        addition a tile and the scaling, where gradients are accumulated in it.
        """
        r, scale, third = self.r, self.scale, self.r.unit**2 / 3
        stored, stored_eta, stored_largest = 0.0, 0.0, np.inf
        if self.stored is not None:
            stored, stored_eta = self.stored.unit_roundoff, flush(self.stored)
            stored_largest = self.stored.largest
        tiles = np.ceil(t.count / r.tile)
        chain = growth(t.count + tiles + 8, r.unit)
        chain = chain + (1 + chain) * growth(tiles + 3, r.gradient)
        bound = t.error + chain * (t.absolute + t.error)
        bound = bound + stored * (shares + bound) * (1 + chain)
        lost = (2 * r.eta) * max(1.0, scale) * (t.count + tiles + 8)
        lost = lost + (tiles + 3) * r.gradient_eta + stored_eta * self.heads + self.flushed
        bound = bound + lost * (1 + chain)
        smaller = min(1.0, scale) if scale > 0 else 1.0
        holds = r.storage.largest if r.gradient else r.accumulate.largest
        overflows = 2 * (1 + chain) * (t.absolute + t.error) / smaller >= holds
        overflows |= shares + bound >= stored_largest
        variance = t.variance + third * (t.count * t.squares + (t.count + 4) * t.value**2)
        variance = variance + r.gradient**2 / 3 * (tiles + 2) * (t.squares + t.value**2)
        variance = variance + stored**2 / 3 * shares_squared
        variance = variance + lost**2 / np.maximum(t.count, 1)
        bound = np.where(overflows | np.isnan(bound), np.inf, bound)
        nothing = np.where(np.isfinite(t.error), 0.0, np.inf)  # an overflow reaches hidden keys
        some = t.count > 0
        return np.where(some, bound, nothing), np.where(some, np.sqrt(variance), nothing)
