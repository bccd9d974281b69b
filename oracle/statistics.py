"""What the tolerance reads of a stack of heads: scores, weights and moments, in float64.

They are themselves inexact, and a float64 kernel errs as much as they do. So each comes with an
upper bound that holds for the exact quantity: `score_error` bounds the scores' error, and
`upper` the exact weights, from below nothing is needed. Every later use is a sum of products
that are >= 0, whose own float64 rounding (below 2^-40 relative) the final inflation covers.

A sink is one more key, with its logit as score, value 0, and no product.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from attnspec.oracle.formats import Float64Array
from attnspec.oracle.heads import Heads, stacked, transposed
from attnspec.oracle.problem import BoolArray, Problem
from attnspec.oracle.roundoffs import growth

__all__ = ["EXP64", "U64", "Statistics", "each_statistics", "statistics"]

U64 = 2.0**-53
EXP64 = 2.0**-46
"""Assumed of NumPy's float64 exp and tanh: within 64 ulp, as in the float64 engine."""
TINY = 1e-300
"""Added to every visible weight's upper bound: float64 exp flushes below e^-745."""


@dataclass(frozen=True, eq=False)
class Statistics:
    """A stack of H heads, with M = Nk keys, and one more where there is a sink.

    visible, score (s, after scale, before soft-cap), parts (|capped s| + |bias| + |alibi|),
    total (t, the softmax's argument), below (x = t - max t), products (|scale| |q| |k|ᵀ),
    score_error, slope (1 - tanh²), weights, upper: (H, Nq, M), 0 where hidden. value: (H, M, Dv).
    row_max, row_sum (of e^x), count: (H, Nq, 1). mean (the output): (H, Nq, Dv). lse: (H, Nq).
    usable: rows whose float64 statistics mean anything, (H, Nq).

    Wherever the tolerance gives a shape, it is that of one head, behind the axis of H.
    """

    heads: Heads
    query: Float64Array
    key: Float64Array
    value: Float64Array
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
        return np.asarray(np.abs(self.value).max(-2, keepdims=True, initial=0))

    @cached_property
    def moments(self) -> Float64Array:
        """[V², V, |V|] side by side, so that one matrix product serves the three."""
        v = self.value
        return np.concatenate([v * v, v, np.abs(v)], axis=-1)

    @cached_property
    def absolute_mean(self) -> Float64Array:
        """sum_j A_ij |v_j|, from above: (Nq, Dv)."""
        return self.upper @ np.abs(self.value)

    @cached_property
    def mean_error(self) -> Float64Array:
        """|mean - exact output|: (Nq, Dv).

        With weights A (1 + a θ), |θ| <= 1, the mean moves by at most (sum A a |v| + r |o|) /
        (1 - r), r = sum A a; `upper` - A is at least A a. Twice that covers 1/(1 - r), r < 1/2.
        """
        excess = self.upper - self.weights
        lost = excess @ np.abs(self.value) + excess.sum(-1, keepdims=True) * np.abs(self.mean)
        lost = lost + growth(self.count + 4, U64) * self.absolute_mean
        return np.asarray(2 * lost)

    @cached_property
    def absolute_output(self) -> Float64Array:
        """|exact output|, from above."""
        return np.abs(self.mean) + self.mean_error

    @cached_property
    def variance(self) -> Float64Array:
        """sum_j A_ij (v_j - o_i)², from above: (Nq, Dv)."""
        second = self.upper @ (self.value * self.value)
        lost = growth(self.count + 8, 4 * U64) * second
        lost = lost + 2 * self.mean_error * self.absolute_output
        return np.maximum(second - self.mean**2, 0) + lost

    @cached_property
    def squared_products(self) -> Float64Array:
        """scale² (q²)(k²)ᵀ: the sum of squares of the products in each score."""
        h = self.heads
        return self.masked(h.scale**2 * ((self.query**2) @ transposed(self.key**2)))

    @cached_property
    def squared_weights_moment(self) -> Float64Array:
        """sum_j A_ij² v_j²: (Nq, Dv)."""
        return (self.weights**2) @ (self.value**2)

    @cached_property
    def value_range(self) -> tuple[Float64Array, Float64Array]:
        """Per row, over the keys it sees: max v - min v, and max |v|. (Nq, Dv) each."""
        if self.visible.all():
            low = self.value.min(-2, keepdims=True)
            high = self.value.max(-2, keepdims=True)
            shape = self.mean.shape
            most = np.maximum(-low, high)
            return np.broadcast_to(high - low, shape), np.broadcast_to(most, shape)
        spread, most = np.zeros_like(self.mean), np.zeros_like(self.mean)
        for head, row in np.argwhere(self.visible.any(-1)):
            seen = self.value[head, self.visible[head, row]]
            spread[head, row] = seen.max(0) - seen.min(0)
            most[head, row] = np.abs(seen).max(0)
        return spread, most

    def masked(self, matrix: Float64Array) -> Float64Array:
        """With a column for the sink, and 0 where hidden."""
        return _masked(matrix, self.visible)


def statistics(problem: Problem) -> Sequence[Statistics]:
    """The statistics of every head, to be shared by several calls of `tolerance`.

    Takes about a dozen (Nq, Nk) float64 arrays of memory a head.
    """
    return tuple(each_statistics(problem))


def each_statistics(problem: Problem) -> Iterator[Statistics]:
    """The statistics of every head, one stack of heads at a time."""
    for heads in stacked(problem):
        with np.errstate(all="ignore"):
            found = _statistics(heads)
        yield found


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


def _statistics(heads: Heads) -> Statistics:
    query, key, value = _finite(heads.query), _finite(heads.key), _finite(heads.value)
    visible = heads.visible
    if heads.sink is not None:
        columns = visible.shape[-1] + 1
        visible = _padded(visible, columns, axis=-1, fill=True)
        value = _padded(value, columns, axis=-2)
    score = _masked(heads.scale * (query @ transposed(key)), visible)
    products = _masked(abs(heads.scale) * (np.abs(query) @ transposed(np.abs(key))), visible)
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
        key=key,
        value=value,
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
        mean=weights @ value,
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
