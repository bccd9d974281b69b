"""Rounding errors of the forward pass: bounds on out and lse, and their predicted deviations.

The model, after the scores (score_rounding.py), in any order and with or without FMA:

    p = exp(s - m), m the largest score so far; earlier sums rescaled by exp(m_old - m_new) at
    most once every `tile` keys; l = sum p, o = sum p v / l, or p / l first; lse = m + log l;
    P rounded to storage before P v where declared, with l from the unrounded or the rounded P.

The softmax's own step is the identity

    sum w_j v_j / sum w_j - o = sum A_j a_j θ_j (v_j - o) / (1 + sum A_j a_j θ_j)

for weights w_j = A_j (1 + a_j θ_j), |θ_j| <= 1, which holds because sum A_j (v_j - o) = 0.
Cauchy-Schwarz turns its numerator into matrix products: (sum A a |v - o|)² <= r sum A a (v - o)²,
with r = sum A a. Products and sums: Higham, Accuracy and Stability, ch. 3.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from attnspec.oracle.formats import Float64Array
from attnspec.oracle.problem import BoolArray, Problem
from attnspec.oracle.roundoffs import LAMBDA, Roundoffs, flush, growth
from attnspec.oracle.score_rounding import (
    exponent_error,
    overflowing_rows,
    score_error,
    score_variance,
)
from attnspec.oracle.statistics import U64, Statistics

__all__ = [
    "Forward",
    "forward",
    "forward_errors",
    "output_flush",
    "weight_error",
    "weight_variance",
]

INFLATION = 1 + 2.0**-20
"""Covers the float64 rounding of the bounds themselves: sums of terms >= 0, below 2^-30."""
STAGNATION = 16.0
"""In unit roundoffs: weights below it may be lost one and all (`_stagnation`)."""
Bound = tuple[Float64Array, Float64Array]


@dataclass(frozen=True, eq=False)
class Forward:
    """The errors of a forward pass that the outputs and the gradients need.

    score, exponent: bounds on the error of a score before, and of the exponent after, soft-cap,
    additions and the maximum; score_variance. (Nq, M) each.
    out, lse: (bound, sigma). overflow: rows in which the model admits an overflow, (Nq,).
    """

    score: Float64Array
    exponent: Float64Array
    score_variance: Float64Array
    out: Bound
    lse: Bound
    overflow: BoolArray


def forward(
    problem: Problem, stacks: Iterable[Statistics], roundoffs: Roundoffs
) -> dict[str, Bound]:
    """(bound, sigma) of out and lse of the whole problem."""
    found = {
        name: (np.zeros(problem.shape_of(name)), np.zeros(problem.shape_of(name)))
        for name in ("out", "lse")
    }
    for st in stacks:
        where = st.heads.batch, st.heads.index
        errors = forward_errors(st, roundoffs)
        for name, pair in (("out", errors.out), ("lse", errors.lse)):
            found[name][0][where], found[name][1][where] = pair
    return found


def forward_errors(st: Statistics, r: Roundoffs) -> Forward:
    """All errors of the forward pass of a stack of heads."""
    score = score_error(st, r)
    exponent = exponent_error(st, r, score)
    variance = score_variance(st, r)
    # A weight's own exp, and one for each later rescale.
    log_factor = exponent - (1 + _rescales(st, r)) * np.log1p(-r.exp)
    error = weight_error(st, r, log_factor)
    out, lse = _out_bound(st, r, error), _lse_bound(st, r, error, log_factor)
    out_sigma, lse_sigma = _sigmas(st, r, variance)
    overflow = overflowing_rows(st, r, exponent)
    out[overflow], lse[overflow] = np.inf, np.inf
    no_value = ~st.heads.visible.any(-1)  # exactly 0
    out[no_value], out_sigma[no_value] = 0.0, 0.0
    nothing = st.count[..., 0] == 0  # exactly -inf
    lse[nothing], lse_sigma[nothing] = 0.0, 0.0
    return Forward(score, exponent, variance, (out, out_sigma), (lse, lse_sigma), overflow)


def weight_error(st: Statistics, r: Roundoffs, log_factor: Float64Array) -> Float64Array:
    """W_j >= A_j a_j: how far a weight may be off that is wrong by a factor e^±log_factor. (Nq, M)

    Besides, exp and the weight itself may be flushed to 0 below the accumulator's range.
    """
    error = st.upper * np.expm1(np.minimum(log_factor, 600.0))
    huge = st.visible & ~(log_factor <= 600)  # far below the maximum, or in unusable rows
    if huge.any():
        most = np.exp(np.minimum(st.below + log_factor, 700.0)) / st.row_sum_low
        error = np.where(huge, most, error)
    return np.where(st.visible, error + 2 * r.eta, 0.0)


# -- output ------------------------------------------------------------------------------------


def _rescales(st: Statistics, r: Roundoffs) -> Float64Array:
    """How often a row's sums may be rescaled; each multiplies in one more exp. (Nq, 1)"""
    return np.ceil(st.count / r.tile)


def _out_bound(st: Statistics, r: Roundoffs, error: Float64Array) -> Float64Array:
    """The bound on out before its last rounding. (Nq, Dv)"""
    moved, mass, deviation, output, usable = _perturbed(st, error)
    # Numerator: a product, additions, a multiplication and an addition a rescale, the division.
    # Denominator: the same without the product. 1 / (1 + d) is again within growth of 1.
    chain = growth(st.count + 2 * _rescales(st, r) + 4, r.unit)
    # P rounded: sum A |v| in the numerator alone, or, where l sums the rounded P, centred as
    # above, sum A |v - o|: by Cauchy-Schwarz at most the deviation.
    rounded = (1 + r.probability) * (1 + r.operand) ** 2 - 1
    products = np.maximum(mass, deviation / (1 - r.probability)) if r.probability else mass
    bound = moved + chain * (output + moved)
    bound = bound + (1 + chain) * (chain * (1 + rounded) * mass + rounded * products)
    bound = bound + _underflow(st, r, error, usable) * (1 + chain)
    return np.where(_sum_overflows(st, r, mass * (1 + chain)), np.inf, bound * INFLATION)


def _perturbed(
    st: Statistics, error: Float64Array
) -> tuple[Float64Array, Float64Array, Float64Array, Float64Array, BoolArray]:
    """What wrong weights do: how far the mean moves, sum w |v|, the deviation of v under w, |o|.

    (Nq, Dv) each, and the rows in which that follows from first principles, (Nq,). In the others
    the weights may be anything: a weighted mean never leaves the hull of the values it sees.
    """
    dv = st.value.shape[-1]
    relative = error.sum(-1, keepdims=True)
    second, first, absolute = np.split(error @ st.moments, [dv, 2 * dv], axis=-1)
    # sum W (v - o)² by its moments; what cancels in float64 is added back.
    raw = second - 2 * st.mean * first + relative * st.mean**2
    guard = growth(st.count + 10, 4 * U64) * (second + relative * st.mean**2)
    # Minkowski: the exact output lies within mean_error of the float64 one.
    spread = np.sqrt(np.maximum(raw, 0) + guard) + np.sqrt(relative) * st.mean_error
    output = st.absolute_output.copy()
    moved = np.minimum(np.sqrt(relative) * spread, absolute + relative * output)
    keep = np.maximum(1 - relative, 0.5)
    moved, mass = moved / keep, (st.absolute_mean + absolute) / keep
    deviation = np.sqrt((st.variance + spread**2) / keep)
    usable = st.usable & (relative[..., 0] < 0.5)
    if not usable.all():
        bad = ~usable
        hull, most = st.value_range
        moved[bad], deviation[bad], mass[bad], output[bad] = (
            hull[bad],
            hull[bad],
            most[bad],
            most[bad],
        )
    return moved, mass, deviation, output, usable


def _underflow(
    st: Statistics, r: Roundoffs, error: Float64Array, usable: BoolArray
) -> Float64Array:
    """Absolute errors: products and inputs below the accumulator's range, P below storage's."""
    lost = 2 * r.eta * (st.count + 2 * _rescales(st, r) + 6) + output_flush(r)
    if not r.probability:
        return np.broadcast_to(lost, st.mean.shape)
    if r.storage.name != "float16":
        return np.asarray(lost + r.probability_eta * st.count * st.largest_value)
    small = _small_weights(st, r, error)
    small[~usable] = st.visible[~usable]
    share = 1.0 if r.normalised else 1 / st.row_sum_low
    return lost + 2 * r.probability_eta * share * (small @ np.abs(st.value))


def _small_weights(st: Statistics, r: Roundoffs, error: Float64Array) -> Float64Array:
    """1.0 for the weights that the kernel may round as subnormal numbers of the storage format.

    The computed weight is at least A - W, and at least A / 2 where W <= A / 2.
    """
    size = 1.0 if r.normalised else st.row_sum
    return (st.visible & ((st.weights - error) * size < 2 * r.storage.smallest_normal)).astype(
        np.float64
    )


def output_flush(r: Roundoffs) -> float:
    """A subnormal result may be flushed to zero, except in float16."""
    return 0.0 if r.storage.name == "float16" else flush(r.storage)


def _sum_overflows(st: Statistics, r: Roundoffs, mass: Float64Array) -> BoolArray:
    """Where sum p |v|, with the largest p = 1 (or the sum of p = 1), exceeds the accumulator."""
    size = 1.0 if r.normalised else np.where(st.usable[..., None], st.row_sum, st.count)
    holds = r.accumulate.largest
    return (mass * size * 2 >= holds) | (size * 2 >= holds) | np.isnan(mass)


# -- lse ---------------------------------------------------------------------------------------


def _lse_bound(
    st: Statistics, r: Roundoffs, error: Float64Array, log_factor: Float64Array
) -> Float64Array:
    """The bound on lse before its last rounding. (Nq,)

    log of the ratio of the sums: above, log(1 + r) <= r; below, by convexity,
    -log sum A e^-g <= sum A g <= r, and a flushed share y <= 1/2 costs y + y². Or: lse moves by
    no more than the largest error of a score, of keys that are not vanishing.
    """
    relative = error.sum(-1)
    alive = st.visible & (st.below + log_factor > -60)
    count = st.count[..., 0]
    largest = np.where(alive, log_factor, 0.0).max(-1, initial=0) + count * (
        np.exp(-60.0) + 4 * r.eta
    )
    core = np.where(st.usable & (relative < 0.5), relative * (1 + relative), np.inf)
    core = np.minimum(core, largest)
    # The sum's roundings multiply it by k factors (1 + d): their log is at most -k log(1 - u).
    core = core - (count + 2 * _rescales(st, r)[..., 0] + 2) * np.log1p(-r.unit)
    shift = np.where(alive, log_factor, 0.0).max(-1, initial=0)
    # m scaled and added, the sum converted from base 2: three roundings each; log l.
    last = growth(3, r.unit) * (np.abs(st.lse) + np.abs(st.row_max[..., 0]) + 2 * shift + core)
    last = last + r.exp * (1 + np.log(np.maximum(st.row_sum[..., 0], 1)) + core)
    flushed = 0.0 if r.lse.name == "float16" else flush(r.lse)
    return np.asarray((core + last + flushed) * INFLATION)


# -- deviations --------------------------------------------------------------------------------


def _sigmas(
    st: Statistics, r: Roundoffs, variance: Float64Array
) -> tuple[Float64Array, Float64Array]:
    """Predicted standard deviations of out and lse before their last rounding."""
    third = r.unit**2 / 3
    rescales = _rescales(st, r)
    # The maximum of random keys changes about log T times in T tiles.
    exps = (1 + np.log1p(rescales)) * r.exp**2 / 3
    squared = st.weights**2 * (weight_variance(variance) + exps)
    dv = st.value.shape[-1]
    total = squared.sum(-1, keepdims=True)
    second, first, _ = np.split(squared @ st.moments, [dv, 2 * dv], axis=-1)
    centred = np.maximum(second - 2 * st.mean * first + total * st.mean**2, 0)
    rounded = (r.probability**2 + 2 * r.operand**2) / 3
    mean2 = st.mean**2
    out = centred + rounded * st.squared_weights_moment
    out = out + third * st.count * (st.squared_weights_moment + mean2)
    out = out + third * (st.count + 8 * rescales + 4) * mean2
    lost_output, lost_weight = _stagnation(st, r)
    out = out + lost_output**2 + (lost_weight * st.mean) ** 2
    out = out + (2 * r.eta) ** 2 * (st.count + 6) * (1 + st.largest_value) ** 2
    out = out + output_flush(r) ** 2
    if r.probability and r.storage.name == "float16":
        share = r.probability_eta * (1.0 if r.normalised else 1 / np.maximum(st.row_sum, 1))
        out = out + share**2 / 3 * (_small_weights(st, r, np.zeros(())) @ (st.value**2))
    # lse moves with a dominant score by the score's error, not by e to it.
    lse = np.minimum(squared, variance + exps).sum(-1, keepdims=True)
    core = np.sqrt(lse + third * (st.count + 8 * rescales) + lost_weight**2)[..., 0]
    last = r.unit * (2 * np.abs(st.lse) + 2 * np.abs(st.row_max[..., 0]))
    last = last + r.exp * (1 + np.log(np.maximum(st.row_sum[..., 0], 1)))
    return np.sqrt(out), core + last / LAMBDA


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
    some = (lost > r.unit).any(-2, keepdims=True)  # heads
    if not some.any():
        return np.zeros_like(st.mean), np.zeros_like(lost)
    # The sums shrink by up to this share; from a half on, first order says nothing.
    left = np.where(lost < 0.5, 1 - lost, np.nan)
    lost_output, lost_weight = (coherent @ st.value) / left, lost / left
    return np.where(some, lost_output, 0.0), np.where(some, lost_weight, 0.0)
