"""Rounding errors of the scores, and of the exponents s - m that the softmax takes.

The model of a score, in any order and with or without FMA: D products and their sum, q and k each
possibly pre-scaled; constants (scale, log2 e) multiplied in; soft-cap, bias and ALiBi; every step
possibly stored in the storage format (`scores`). Products and sums: Higham, Accuracy and
Stability of Numerical Algorithms, ch. 3.
"""

from __future__ import annotations

import numpy as np

from attnspec.oracle.formats import Float64Array
from attnspec.oracle.problem import BoolArray
from attnspec.oracle.roundoffs import Roundoffs, growth
from attnspec.oracle.statistics import Statistics

__all__ = ["exponent_error", "overflowing_rows", "score_error", "score_variance"]

VANISHING = -700.0
"""A key so far below the maximum weighs less than e^-700, whatever its score's error."""


def score_error(st: Statistics, r: Roundoffs) -> Float64Array:
    """|ŝ - s|, s scaled and not yet capped. (Nq, M)"""
    heads, size = st.heads, st.query.shape[-1]
    # Each product passes one rounding, at most D additions, and two more where q and k are
    # pre-scaled; operands rounded to a coarser format contribute (1 + u)² - 1.
    products = (1 + growth(size + 2, r.unit)) * (1 + growth(2, r.operand)) - 1
    error = products * st.products + _underflow(st, r)
    magnitude = np.abs(st.score)
    # scale, log2 e and their product as constants, the multiplication, the division by the cap.
    error = error + growth(5, r.unit) * (magnitude + error)
    stored = r.score_roundings + (heads.softcap is not None)
    error = error + growth(stored, r.score) * (magnitude + error)
    error = error + stored * max(1.0, abs(heads.scale)) * r.score_eta
    if heads.sink is not None:
        error[..., -1] = 0.0
    return np.where(st.visible, error, 0.0)


def _underflow(st: Statistics, r: Roundoffs) -> Float64Array:
    """Products, and flushed inputs, below the accumulator's normal range. (Nq, M)"""
    keys = st.masked(st.keys.sums())
    lost = np.abs(st.query).sum(-1, keepdims=True) + keys + st.query.shape[-1] + 1
    return np.asarray(2 * r.eta * max(1.0, abs(st.heads.scale)) * lost)


def exponent_error(st: Statistics, r: Roundoffs, score: Float64Array) -> Float64Array:
    """The error of the exponent, up to a shift common to the row. (Nq, M)

    m times log2 e is rounded for the tile's maximum, which lies between s_j and m, and a split
    over keys stores its lse, m + log l: 2 u max(|s_j|, |m|) + u log n. The differences
    s_j - m_tile and m_tile - m add to |x_j|; each is rounded, and multiplied, once: 2 u |x_j|.
    The computed maximum lies within `shift` of the exact one: above, by the score that reaches
    highest; below, by the error of the largest score.
    """
    error = _capped_error(st, r, score)
    at_max = np.where(st.visible & (st.below == 0), error, 0.0).max(-1, keepdims=True, initial=0)
    reach = np.where(st.visible, st.below + error, 0.0).max(-1, keepdims=True, initial=0)
    shift = np.maximum(at_max, reach)
    anchor = np.maximum(np.abs(st.total), np.abs(st.row_max))
    moved = 2 * (anchor + np.abs(st.below)) + 4 * (shift + error) + np.log1p(st.count)
    return np.where(st.visible, error + growth(1, r.unit) * moved, 0.0)


def _capped_error(st: Statistics, r: Roundoffs, score: Float64Array) -> Float64Array:
    """The error of the score after soft-cap, bias and ALiBi. (Nq, M)"""
    heads, error = st.heads, score
    if heads.softcap is not None:
        # Mean value theorem: tanh' decreases away from 0. tanh's own error is absolute, since it
        # is often computed from exp, as 1 - 2 / (e^2x + 1).
        nearest = np.maximum(np.abs(st.score) - score, 0) / heads.softcap
        steepest = 1 - np.tanh(nearest) ** 2 + 2.0**-44
        error = steepest * score + heads.softcap * r.exp
    # Each part: up to 5 multiplicative roundings (conversion of slope and distance, product,
    # log2 e and its product) and the two additions; stored after each step where scores are.
    error = error + growth(7, r.unit) * (st.parts + error)
    stored = _later_steps(st)
    error = error + growth(stored, r.score) * (st.parts + error) + stored * r.score_eta
    return np.where(st.visible, error, 0.0)


def _later_steps(st: Statistics) -> int:
    """Steps after scaling that an eager kernel stores: tanh, times cap, slope · distance, sums."""
    softcap, alibi = st.heads.softcap is not None, st.heads.slope is not None
    return 2 * softcap + 2 * alibi + (st.heads.bias is not None) + (st.heads.sink is not None)


def score_variance(st: Statistics, r: Roundoffs) -> Float64Array:
    """Independent uniform roundings; partial sums in the worst order, sqrt(s² + sum of squares).

    Without the terms that the whole row shares: they cancel in the softmax. (Nq, M)
    """
    heads, third = st.heads, r.unit**2 / 3
    size, squared = st.query.shape[-1], st.score**2
    variance = third * (size * (st.squared_products + squared) + 4 * squared)
    variance = variance + 2 * r.operand**2 / 3 * st.squared_products
    variance = variance + r.score_roundings * (r.score**2 * squared + r.score_eta**2) / 3
    if heads.softcap is not None:
        variance = variance * st.slope**2 + (heads.softcap * r.exp) ** 2 / 3
    stored = _later_steps(st)
    if stored:
        variance = variance + (7 * third + stored * r.score**2 / 3) * st.parts**2
    variance = variance + third * (2 * st.below**2 + st.row_max**2)
    return np.where(st.visible, variance, 0.0)


def overflowing_rows(st: Statistics, r: Roundoffs, exponent: Float64Array) -> BoolArray:
    """Rows in which a score, before or after scaling, may exceed what its format holds. (Nq,)

    A score far below the row's maximum may overflow to -inf: its weight is 0 either way. The
    factor 2 is for log2 e.
    """
    scale = abs(st.heads.scale)
    partial = np.maximum(st.unscaled, st.products) * (1 + growth(st.query.shape[-1] + 8, r.unit))
    alive = st.visible & (st.below + exponent > VANISHING)
    final = np.where(alive, st.parts + exponent, 0.0)
    worst = 2 * np.maximum(partial, final).max(-1, initial=0)
    holds = min(r.accumulate.largest, r.storage.largest if r.score else np.inf)
    scaled = np.abs(st.query).max(-1, initial=0) * max(1.0, scale)
    keys = st.keys.largest().max(-1) * max(1.0, np.sqrt(scale))
    large = (worst >= holds) | (scaled >= holds) | (keys >= holds) | np.isnan(worst)
    return np.asarray(st.visible.any(-1) & large)
