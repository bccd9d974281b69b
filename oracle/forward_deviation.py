"""Predicted standard deviations of the forward pass, for generic inputs: independent roundings.

What the model is, forward_rounding.py says.
"""

from __future__ import annotations

import numpy as np

from attnspec.oracle.formats import Float64Array
from attnspec.oracle.roundoffs import LAMBDA, Roundoffs, output_flush
from attnspec.oracle.statistics import Statistics

__all__ = [
    "exp_variance",
    "lse_deviation",
    "out_deviation",
    "rescales",
    "small_weights",
    "weight_variance",
]

STAGNATION = 16.0
"""In unit roundoffs: weights below it may be lost one and all (`_stagnation`)."""


def rescales(st: Statistics, r: Roundoffs) -> Float64Array:
    """How often a row's sums may be rescaled; each multiplies in one more exp. (Nq, 1)"""
    return np.ceil(st.count / r.tile)


def small_weights(st: Statistics, r: Roundoffs, error: Float64Array) -> Float64Array:
    """1.0 for the weights that the kernel may round as subnormal numbers of the storage format.

    The computed weight is at least A - W, and at least A / 2 where W <= A / 2.
    """
    size = 1.0 if r.normalised else st.row_sum
    return (st.visible & ((st.weights - error) * size < 2 * r.storage.smallest_normal)).astype(
        np.float64
    )


def exp_variance(st: Statistics, r: Roundoffs) -> Float64Array:
    """Relative variance of a weight from the exps that are multiplied into it. (Nq, 1)

    The maximum of random keys changes about log T times in T tiles.
    """
    return np.asarray((1 + np.log1p(rescales(st, r))) * r.exp**2 / 3)


def out_deviation(st: Statistics, r: Roundoffs, squared: Float64Array) -> Float64Array:
    """Predicted standard deviation of out before its last rounding. (Nq, Dv)"""
    third = r.unit**2 / 3
    total = squared.sum(-1, keepdims=True)
    second, first = st.values.product(squared, "square"), st.values.product(squared)
    mean2 = st.mean**2
    centred = np.maximum(second - 2 * st.mean * first + total * mean2, 0)
    rounded = (r.probability**2 + 2 * r.operand**2) / 3
    out = centred + rounded * st.squared_weights_moment
    out = out + third * st.count * (st.squared_weights_moment + mean2)
    out = out + third * (st.count + 8 * rescales(st, r) + 4) * mean2
    lost_output, lost_weight = _stagnation(st, r)
    out = out + lost_output**2 + (lost_weight * st.mean) ** 2
    out = out + (2 * r.eta) ** 2 * (st.count + 6) * (1 + st.largest_value) ** 2
    out = out + output_flush(r) ** 2
    if r.merged:  # the weights of the parts err as their lse and the row's
        out = out + (2 * _last_roundings(st, r)[..., None] / LAMBDA * st.absolute_mean) ** 2
    if r.probability and r.storage.name == "float16":
        share = r.probability_eta * (1.0 if r.normalised else 1 / np.maximum(st.row_sum, 1))
        out = out + share**2 / 3 * st.values.product(small_weights(st, r, np.zeros(())), "square")
    return np.asarray(np.sqrt(out))


def lse_deviation(st: Statistics, r: Roundoffs, moved: Float64Array) -> Float64Array:
    """Predicted standard deviation of lse before its last rounding. (Nq,)"""
    _, lost_weight = _stagnation(st, r)
    roundings = r.unit**2 / 3 * (st.count + 8 * rescales(st, r)) + _shared_query(st, r)
    core = np.sqrt(moved.sum(-1, keepdims=True) + roundings + lost_weight**2)[..., 0]
    return np.asarray(core + _last_roundings(st, r) / LAMBDA)


def _last_roundings(st: Statistics, r: Roundoffs) -> Float64Array:
    """What m + log l errs by its own roundings, at most. (Nq,)"""
    last = r.unit * (2 * np.abs(st.lse) + 2 * np.abs(st.row_max[..., 0]))
    return np.asarray(last + r.exp * (1 + np.log(np.maximum(st.row_sum[..., 0], 1))))


def _shared_query(st: Statistics, r: Roundoffs) -> Float64Array:
    """Variance of lse from q rounded as an operand, once for all keys: (Nq, 1).

    q_d (1 + δ_d) moves every score by scale δ_d q_d k_jd, and lse by that of the mean key. The
    softmax does not see what all scores share.
    """
    if not r.operand:
        return np.zeros((*st.query.shape[:-1], 1))
    keys = slice(0, st.heads.visible.shape[-1])
    mean_key = st.keys.product(st.weights[..., keys] * st.slope[..., keys])
    moved = (st.query * mean_key) ** 2
    return np.asarray(r.operand**2 / 3 * st.heads.scale**2 * moved.sum(-1, keepdims=True))


def weight_variance(variance: Float64Array) -> Float64Array:
    """Relative variance of e^error for a score's error of this variance.

    To first order they are the same. Where errors reach a tenth (large scores in a coarse
    format) e^error is skewed: 6 sigma of it shall cover e to the 6 sigma of the score.
    """
    return np.asarray((np.expm1(np.minimum(LAMBDA * np.sqrt(variance), 50.0)) / LAMBDA) ** 2)


def _stagnation(st: Statistics, r: Roundoffs) -> tuple[Float64Array, Float64Array]:
    """What strictly sequential sums may lose coherently, of sum A v and of sum A. (Nq, ·)

    Adding a < u S to a sum S returns S: the error is -a every time, not a random rounding, so a
    dominant key that comes first hides every later weight below u. In general an addition errs by
    at most min(a, u S); errors of one sign need addends that fall between the same two numbers,
    that is, addends of a few u. Below `STAGNATION` u they are counted as coherent.

    That is measured, not proven: generic rows (weights that differ by a tenth or more, in a
    dominated row) stay below 0.6 of 6 sigma. Rows of more nearly equal weights under a dominant
    one, and long rows of equal weights with equal values, are structured inputs: judge them by the
    hard bound alone.
    """
    coherent = np.where(st.weights < STAGNATION * r.unit, np.minimum(st.weights, r.unit), 0.0)
    lost = coherent.sum(-1, keepdims=True)
    if not lost.any():
        return np.zeros_like(st.mean), np.zeros_like(lost)
    # The sums shrink by up to this share; from a half on, first order says nothing.
    left = np.where(lost < 0.5, 1 - lost, np.nan)
    return st.values.product(coherent) / left, lost / left
