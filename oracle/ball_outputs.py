"""From balls to float64: the outputs of `balls` under way, and their outward rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import ge, sub

import numpy as np
from flint import arb, arb_mat

from attnspec.oracle.enclosure import Enclosure
from attnspec.oracle.formats import Float64Array
from attnspec.oracle.problem import Head, Problem

__all__ = ["Outputs", "split"]

CHUNK = 1 << 14
"""Balls that are rounded together: enough to hide the calls, few enough to stay in the caches."""


class Outputs:
    """The outputs under way: float64 planes for what rows determine, balls for what they add to.

    `terms` is how many float64 a value is made of. A plane is the output's shape; the planes are
    the terms, from the largest on, and the bound.
    """

    def __init__(self, problem: Problem, shapes: dict[str, tuple[int, ...]], terms: int) -> None:
        self.problem = problem
        self.shapes = shapes
        self.terms = terms
        self.gradients = bool(shapes.keys() - {"out", "lse"})
        self.rows = {
            output: np.zeros((terms + 1, *shapes[output]))
            for output in ("out", "lse", "dq")
            if output in shapes
        }
        self.keys: dict[tuple[str, int, int, int], arb_mat] = {}
        cells = math.prod(shapes["dbias"]) if "dbias" in shapes else 0
        self.bias = [arb(0)] * cells
        self.sinks = [arb(0)] * problem.query_heads

    def set_rows(self, output: str, head: Head, rows: slice, balls: list[arb]) -> None:
        """Set these rows of out or dq, if it is wanted."""
        if output in self.rows:
            planes = self.rows[output][:, head.batch, head.index, rows]
            planes[...] = split(balls, self.terms).reshape(planes.shape)

    def set_lse(self, head: Head, rows: slice, balls: list[arb | None]) -> None:
        """Set these rows of lse, if it is wanted; None stands for -inf."""
        if "lse" not in self.rows:
            return
        planes = split([arb(0) if ball is None else ball for ball in balls], self.terms)
        planes[0, [ball is None for ball in balls]] = -math.inf
        self.rows["lse"][:, head.batch, head.index, rows] = planes

    def add_keys(self, output: str, head: Head, start: int, left: arb_mat, right: arb_mat) -> None:
        """Add left · right to the gradient of this head's keys or values from key `start` on."""
        if output not in self.shapes:
            return
        place = (output, head.batch, head.kv_index, start)
        product = left * right
        self.keys[place] = self.keys[place] + product if place in self.keys else product

    def add_bias(self, head: Head, rows: slice, seen: list[list[int]], dS: list[list[arb]]) -> None:
        """Add each dS_ij to the element of `bias` that was broadcast to its slot."""
        if "dbias" not in self.shapes:
            return
        shape = self.shapes["dbias"]
        problem = self.problem
        scores = (problem.batch, problem.query_heads, problem.query_count, problem.key_count)
        numbered = np.broadcast_to(np.arange(len(self.bias)).reshape(shape), scores)
        cells = numbered[head.batch, head.index, rows]
        for row, keys, balls in zip(cells, seen, dS, strict=True):
            for cell, ball in zip(row[keys].tolist(), balls, strict=True):
                self.bias[cell] += ball

    def add_sink(self, head: Head, ball: arb) -> None:
        """Add to the gradient of this head's sink."""
        self.sinks[head.index] += ball

    def enclosure(self, output: str) -> Enclosure:
        """The finished output, rounded outward to float64."""
        planes = self._planes(output).reshape(self.terms + 1, *self.shapes[output])
        value, low, *rest, bound = planes
        while rest and not rest[-1].any():
            rest.pop()
        return Enclosure(value, low, bound, tuple(rest))

    def _planes(self, output: str) -> Float64Array:
        if output in self.rows:
            return self.rows[output]
        if output in ("dbias", "dsinks"):
            return split(self.bias if output == "dbias" else self.sinks, self.terms)
        planes = np.zeros((self.terms + 1, *self.shapes[output]))
        for (name, batch, kv, start), matrix in self.keys.items():
            if name == output:
                part = planes[:, batch, kv, start : start + matrix.nrows()]
                part[...] = split(matrix.entries(), self.terms).reshape(part.shape)
        return planes


def split(balls: Sequence[arb], terms: int) -> Float64Array:
    """float64 terms and a bound: |x - Σ terms| <= bound for every x in the ball, for each ball.

    (terms + 1, len(balls)): the terms from the largest on, each what float64 holds of what those
    before it leave, then the bounds. Where the ball or its middle is beyond float64, nothing is
    known: 0 ± inf. What lies below 2^-1074 is in the bound.
    """
    planes = np.zeros((terms + 1, len(balls)))
    for start in range(0, len(balls), CHUNK):
        _split(balls[start : start + CHUNK], planes[:, start : start + CHUNK])
    return planes


def _split(balls: Sequence[arb], planes: Float64Array) -> None:
    """The terms may be any floats: what they miss is subtracted in ball arithmetic and goes into
    the bound."""
    rest = balls
    for term in planes[:-1]:
        term[:] = _floats(rest)
        term[~np.isfinite(term)] = 0.0
        if not term.any():
            break
        rest = list(map(sub, rest, map(arb, term.tolist())))
    missed = list(map(arb.abs_upper, rest))
    bound = _floats(missed)
    # float() may have rounded down; below the normal numbers, the next float is left to _up.
    bound = np.where(bound > 2.0**-1000, np.nextafter(bound, np.inf), bound)
    # A comparison of balls is true only if it holds for all numbers in them: this is the proof.
    proven = np.fromiter(map(ge, map(arb, bound.tolist()), missed), np.bool_, len(missed))
    for i in np.flatnonzero(~proven).tolist():
        bound[i] = _up(missed[i])
    planes[-1] = bound
    planes[:-1, np.isinf(bound)] = 0.0


def _floats(balls: Sequence[arb]) -> Float64Array:
    """The balls' middles in float64, rounded."""
    return np.fromiter(map(float, balls), np.float64, len(balls))


def _up(x: arb) -> float:
    """A float64 that is >= the exact number x; inf where x is not finite.

    The comparison of balls is true only if it holds for all numbers in them, so leaving the loop
    is the proof, whichever way float() rounded; at the latest it leaves at inf.
    """
    if not x.is_finite():
        return math.inf
    bound = float(x)
    while not arb(bound) >= x:
        bound = math.nextafter(bound, math.inf)
    return bound
