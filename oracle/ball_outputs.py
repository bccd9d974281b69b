"""From balls to float64: the outputs of `balls` under way, and their outward rounding."""

from __future__ import annotations

import math

import numpy as np
from flint import arb, arb_mat

from attnspec.oracle.enclosure import Enclosure
from attnspec.oracle.formats import Float64Array
from attnspec.oracle.problem import Head, Problem

__all__ = ["Outputs", "split"]


class Outputs:
    """The outputs under way: float64 planes for what rows determine, balls for what they add to."""

    def __init__(self, problem: Problem, shapes: dict[str, tuple[int, ...]]) -> None:
        self.problem = problem
        self.shapes = shapes
        self.gradients = bool(shapes.keys() - {"out", "lse"})
        self.rows = {
            output: np.zeros((3, *shapes[output]))
            for output in ("out", "lse", "dq")
            if output in shapes
        }
        self.keys: dict[tuple[str, int, int], arb_mat] = {}
        cells = math.prod(shapes["dbias"]) if "dbias" in shapes else 0
        self.bias = [arb(0)] * cells
        self.sinks = [arb(0)] * problem.query_heads

    def set_rows(self, output: str, head: Head, rows: slice, balls: list[arb]) -> None:
        """Set these rows of out or dq, if it is wanted."""
        if output in self.rows:
            planes = self.rows[output][:, head.batch, head.index, rows]
            planes[...] = _floats(balls).reshape(planes.shape)

    def set_lse(self, head: Head, rows: slice, balls: list[arb | None]) -> None:
        """Set these rows of lse, if it is wanted; None stands for -inf."""
        if "lse" not in self.rows:
            return
        floats = [(-math.inf, 0.0, 0.0) if ball is None else split(ball) for ball in balls]
        self.rows["lse"][:, head.batch, head.index, rows] = np.array(floats).reshape(-1, 3).T

    def add_keys(self, output: str, head: Head, left: arb_mat, right: arb_mat) -> None:
        """Add left · right to the gradient of this head's keys or values."""
        if output not in self.shapes:
            return
        place = (output, head.batch, head.kv_index)
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
        shape = self.shapes[output]
        if output in self.rows:
            planes = self.rows[output]
        elif output in ("dbias", "dsinks"):
            planes = _floats(self.bias if output == "dbias" else self.sinks)
        else:
            planes = np.zeros((3, *shape))
            for (name, batch, kv), matrix in self.keys.items():
                if name == output:
                    planes[:, batch, kv] = _floats(matrix.entries()).reshape(3, *shape[2:])
        value, low, bound = planes.reshape(3, *shape)
        return Enclosure(value, low, bound)


def _floats(balls: list[arb]) -> Float64Array:
    """The (value, low, bound) planes of some balls: (3, len)."""
    return np.array([split(ball) for ball in balls], np.float64).reshape(-1, 3).T


def split(ball: arb) -> tuple[float, float, float]:
    """value, low and bound with |x - (value + low)| <= bound for every x in the ball.

    `value` and `low` may be any floats: what they miss is subtracted in ball arithmetic and goes
    into the bound. Where the ball or its midpoint is beyond float64, nothing is known: 0 ± inf.
    """
    value = float(ball.mid())
    if not ball.is_finite() or math.isinf(value):
        return 0.0, 0.0, math.inf
    rest = ball - arb(value)
    low = float(rest.mid())
    return value, low, _up((rest - arb(low)).abs_upper())


def _up(x: arb) -> float:
    """A float64 that is >= the exact, finite number x.

    The comparison of balls is true only if it holds for all numbers in them, so leaving the loop
    is the proof, whichever way float() rounded; at the latest it leaves at inf.
    """
    bound = float(x)
    while not arb(bound) >= x:
        bound = math.nextafter(bound, math.inf)
    return bound
