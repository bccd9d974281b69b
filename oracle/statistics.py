"""What the tolerance reads of a stack of heads: scores, weights and moments, in float64.

They are themselves inexact, and a float64 kernel errs as much as they do. So each comes with an
upper bound that holds for the exact quantity: `score_error` bounds the scores' error, and
`upper` the exact weights, from below nothing is needed. Every later use is a sum of products
that are >= 0, whose own float64 rounding (below 2^-40 relative) the final inflation covers.

A sink is one more key, with its logit as score, value 0, and no product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from attnspec.oracle.formats import Float64Array
from attnspec.oracle.heads import Heads, Operands, stacked
from attnspec.oracle.moments import Moments, Source
from attnspec.oracle.problem import BoolArray, Problem
from attnspec.oracle.roundoffs import growth

__all__ = ["EXP64", "U64", "Again", "Statistics", "each_statistics"]
__all__ += ["problem_scores", "statistics", "tile_rows"]

U64 = 2.0**-53
EXP64 = 2.0**-46
"""Assumed of NumPy's float64 exp and tanh: within 64 ulp, as in the float64 engine."""
TILE = 2**17
"""Scores of a tile of rows."""
FEW_ROWS = 4
KEPT_SCORES = 2**20
"""Scores whose statistics are kept, in about 200 MB."""
TINY = 1e-300
"""Added to every visible weight's upper bound: float64 exp flushes below e^-745."""


@dataclass(frozen=True, eq=False)
class Statistics:
    """A stack of H heads, with M = Nk keys, and one more where there is a sink.

    keys, values: of these heads, by their moments.
    visible, score (s, after scale, before soft-cap), parts (|capped s| + |bias| + |alibi|),
    total (t, the softmax's argument), below (x = t - max t), products (|scale| |q| |k|ᵀ),
    score_error, slope (1 - tanh²), weights, upper: (H, Nq, M), 0 where hidden.
    row_max, row_sum (of e^x), count: (H, Nq, 1). mean (the output): (H, Nq, Dv). lse: (H, Nq).
    usable: rows whose float64 statistics mean anything, (H, Nq).

    Wherever the tolerance gives a shape, it is that of one head, behind the axis of H.
    """

    heads: Heads
    query: Float64Array
    keys: Moments
    values: Moments
    visible: BoolArray
    score: Float64Array
    parts: Float64Array
    total: Float64Array
    below: Float64Array
    products: Float64Array
    slope: Float64Array
    score_error: Float64Array
    exponentials: Float64Array
    weights: Float64Array
    upper: Float64Array
    row_max: Float64Array
    row_sum: Float64Array
    row_sum_low: Float64Array
    count: Float64Array
    usable: BoolArray
    mean: Float64Array
    lse: Float64Array

    @property
    def additions(self) -> int:
        """How many additive terms a score has (bias, ALiBi)."""
        return (self.heads.bias is not None) + (self.heads.slope is not None)

    @cached_property
    def largest_value(self) -> Float64Array:
        """max |v| of each channel: (1, Dv)."""
        return self.values.largest()

    @cached_property
    def unscaled(self) -> Float64Array:
        """|q| |k|ᵀ: (Nq, M)."""
        if abs(self.heads.scale) == 1:
            return self.products
        return self.masked(self.keys.scores(np.abs(self.query), "magnitude"))

    @cached_property
    def absolute_mean(self) -> Float64Array:
        """sum_j A_ij |v_j|, from above: (Nq, Dv)."""
        return self.values.product(self.upper, "magnitude")

    @cached_property
    def mean_error(self) -> Float64Array:
        """|mean - exact output|: (Nq, Dv).

        With weights A (1 + a θ), |θ| <= 1, the mean moves by at most (sum A a |v| + r |o|) /
        (1 - r), r = sum A a; `upper` - A is at least A a. Twice that covers 1/(1 - r), r < 1/2.
        """
        excess = self.upper - self.weights
        lost = self.values.product(excess, "magnitude")
        lost = lost + excess.sum(-1, keepdims=True) * np.abs(self.mean)
        lost = lost + growth(self.count + 4, U64) * self.absolute_mean
        return np.asarray(2 * lost)

    @cached_property
    def absolute_output(self) -> Float64Array:
        """|exact output|, from above."""
        return np.abs(self.mean) + self.mean_error

    @cached_property
    def variance(self) -> Float64Array:
        """sum_j A_ij (v_j - o_i)², from above: (Nq, Dv)."""
        second = self.values.product(self.upper, "square")
        lost = growth(self.count + 8, 4 * U64) * second
        lost = lost + 2 * self.mean_error * self.absolute_output
        return np.maximum(second - self.mean**2, 0) + lost

    @cached_property
    def squared_products(self) -> Float64Array:
        """scale² (q²)(k²)ᵀ: the sum of squares of the products in each score."""
        h = self.heads
        return self.masked(h.scale**2 * self.keys.scores(self.query**2, "square"))

    @cached_property
    def squared_weights_moment(self) -> Float64Array:
        """sum_j A_ij² v_j²: (Nq, Dv)."""
        return self.values.product(self.weights**2, "square")

    def value_range(self, rows: BoolArray) -> tuple[Float64Array, Float64Array]:
        """Of these rows (H, Nq), over the keys each sees: max v - min v, and max |v|. (n, Dv)"""
        head, row = np.nonzero(rows)
        low, high = np.zeros((2, len(head), self.mean.shape[-1]))
        sees = self.heads.visible
        if sees.size and sees.all():
            least, most = self.values.extremes()
            low, high = least[head], most[head]
        else:
            for at, (one, which) in enumerate(zip(head, row, strict=True)):
                seen = self.values.of(int(one), sees[one, which])
                low[at], high[at] = seen.min(0, initial=np.inf), seen.max(0, initial=-np.inf)
            low, high = np.where(low > high, 0.0, low), np.where(low > high, 0.0, high)
        if self.heads.sink is not None:
            low, high = np.minimum(low, 0), np.maximum(high, 0)
        return high - low, np.maximum(-low, high)

    def masked(self, matrix: Float64Array) -> Float64Array:
        """With a column for the sink, and 0 where hidden."""
        return _masked(matrix, self.visible)


class Again:
    """The statistics of a problem, found anew whenever they are asked for."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def __iter__(self) -> Iterator[Statistics]:
        return (find() for find in each_statistics(self.problem))


def statistics(problem: Problem) -> Iterable[Statistics]:
    """The statistics of every head, to be shared by several calls of `tolerance`.

    They take some twenty float64 numbers a score. Where that is much they are not kept, but found
    again for every call.
    """
    return tuple(Again(problem)) if problem_scores(problem) <= KEPT_SCORES else Again(problem)


def problem_scores(problem: Problem) -> int:
    """How many scores all heads have together."""
    return problem.batch * problem.query_heads * problem.query_count * problem.key_count


def tile_rows(problem: Problem) -> int:
    """How many rows make a tile: few rows are one, however many keys they see."""
    return max(FEW_ROWS, TILE // max(1, problem.key_count))


def each_statistics(problem: Problem) -> Iterator[Callable[[], Statistics]]:
    """What finds the statistics of one stack of heads, and one tile of rows, at a time."""
    operands: Operands | None = None
    for heads in stacked(problem, rows=tile_rows(problem)):
        if operands is not heads.operands:
            operands, count = heads.operands, problem.key_count
            key = Source(operands.key, len(heads.index), count, problem.head_size)
            value = Source(operands.value, len(heads.index), count, problem.value_size)
        yield partial(_statistics, heads, Moments(key, heads.keys), Moments(value, heads.keys))


def _padded(array: npt.NDArray[Any], size: int, *, axis: int, fill: float = 0) -> npt.NDArray[Any]:
    """With `fill` behind, up to `size` along an axis: the sink's place."""
    shape = list(array.shape)
    shape[axis] = size - shape[axis]
    if shape[axis] == 0:
        return array
    return np.concatenate([array, np.full(shape, fill, array.dtype)], axis=axis)


def _masked(matrix: Float64Array, visible: BoolArray) -> Float64Array:
    return np.where(visible, _padded(matrix, visible.shape[-1], axis=-1), 0.0)


def _finite(array: npt.NDArray[Any]) -> Float64Array:
    return np.where(np.isfinite(array), array, 0.0)


@np.errstate(all="ignore")
def _statistics(heads: Heads, keys: Moments, values: Moments) -> Statistics:
    query, visible = _finite(heads.query), heads.visible
    if heads.sink is not None:
        visible = _padded(visible, visible.shape[-1] + 1, axis=-1, fill=True)
    score = _masked(heads.scale * keys.scores(query), visible)
    products = _masked(abs(heads.scale) * keys.scores(np.abs(query), "magnitude"), visible)
    capped, slope = score, visible.astype(np.float64)
    if heads.softcap is not None:
        tanh = np.tanh(score / heads.softcap)
        capped, slope = heads.softcap * tanh, np.where(visible, 1 - tanh * tanh, 0.0)
    total, parts = _added(heads, capped, visible)
    row_max = np.where(visible, total, -np.inf).max(-1, keepdims=True, initial=-np.inf)
    row_max = np.where(np.isfinite(row_max), row_max, 0.0)
    below = np.where(visible, total - row_max, 0.0)
    # As a kernel's score error (forward_rounding.py), for float64, generously.
    error = growth(query.shape[-1] + 8, U64) * products + 16 * U64 * (
        parts + np.abs(total) + np.abs(row_max) + np.abs(below)
    )
    if heads.softcap is not None:
        error = error + np.where(visible, EXP64 * heads.softcap, 0.0)
    error = np.where(visible, np.where(np.isnan(error), np.inf, error), 0.0)
    exponentials = np.where(visible, np.exp(below), 0.0)
    row_sum = exponentials.sum(-1, keepdims=True)
    most = np.where(visible, np.exp(np.minimum(below + error, 700.0)), 0.0) * (1 + 2 * EXP64)
    # Both sums move by at most this, relatively: 1 - e^-h <= e^h - 1.
    excess = (most - exponentials).sum(-1, keepdims=True) / np.maximum(row_sum, 1) + 2 * EXP64
    usable = excess < 0.25
    row_sum_low = np.maximum(row_sum * np.where(usable, 1 - excess, 0), 0.5)
    weights = exponentials / np.maximum(row_sum, 1)
    return Statistics(
        heads=heads,
        query=query,
        keys=keys,
        values=values,
        visible=visible,
        score=score,
        parts=parts,
        total=total,
        below=below,
        products=products,
        slope=slope,
        score_error=error,
        exponentials=exponentials,
        weights=weights,
        upper=np.where(visible, most / row_sum_low + TINY, 0.0),
        row_max=row_max,
        row_sum=row_sum,
        row_sum_low=row_sum_low,
        count=visible.sum(-1, keepdims=True).astype(np.float64),
        usable=usable[..., 0],
        mean=values.product(weights),
        lse=(row_max + np.log(np.maximum(row_sum, 1)))[..., 0],
    )


def _added(
    heads: Heads, capped: Float64Array, visible: BoolArray
) -> tuple[Float64Array, Float64Array]:
    """The softmax's argument and the sum of its parts' magnitudes."""
    total, parts = capped, np.abs(capped)
    if heads.bias is not None:
        bias = _masked(_finite(heads.bias), visible)
        total, parts = total + bias, parts + np.abs(bias)
    if heads.slope is not None:
        alibi = _masked(-heads.slope * np.abs(heads.ahead), visible)
        total, parts = total + alibi, parts + np.abs(alibi)
    if heads.sink is not None:
        total, parts = total.copy(), parts.copy()
        total[..., -1:], parts[..., -1:] = heads.sink, np.abs(heads.sink)
    return total, parts
