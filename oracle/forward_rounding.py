"""Rounding errors of the forward pass: bounds on out and lse, and their predicted deviations.

The model. A kernel computes, in any order and with or without FMA, with at most these roundings:

    s: D products and their sum, q and k each possibly pre-scaled, times constants (scale, log2 e);
    soft-cap, bias and ALiBi added; every step possibly stored in the storage format (`scores`);
    p = exp(s - m), m the largest score so far; earlier sums rescaled by exp(m_old - m_new) at
    most once every `tile` keys; l = sum p, o = sum p v / l, or p / l first; lse = m + log l.

Each inequality below is re-derived in numerics form: Higham, Accuracy and Stability, ch. 3 for
sums and products; the softmax's own step is the identity

    sum w_j v_j / sum w_j - o = sum A_j a_j θ_j (v_j - o) / (1 + sum A_j a_j θ_j)

for weights w_j = A_j (1 + a_j θ_j), |θ_j| <= 1, which holds because sum A_j (v_j - o) = 0.
Cauchy-Schwarz turns its numerator into matrix products: (sum A a |v - o|)² <= r sum A a (v - o)²,
with r = sum A a.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from attnspec.oracle.formats import Float64Array
from attnspec.oracle.problem import BoolArray, Problem
from attnspec.oracle.roundoffs import Roundoffs, flush, growth
from attnspec.oracle.statistics import U64, HeadStatistics

__all__ = ["Forward", "forward", "forward_head", "overflowing_rows", "score_error"]

INFLATION = 1 + 2.0**-20
"""Covers the float64 rounding of the bounds themselves: sums of terms >= 0, below 2^-30."""
STAGNATION = 16.0
"""In unit roundoffs: weights below it may be lost one and all (`_stagnation`)."""
Bound = tuple[Float64Array, Float64Array]


@dataclass(frozen=True, eq=False)
class Forward:
    """The errors of one head's forward pass that the outputs and the gradients need.

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
    problem: Problem, heads: Iterable[HeadStatistics], roundoffs: Roundoffs
) -> dict[str, Bound]:
    """(bound, sigma) of out and lse of the whole problem."""
    found = {
        name: (np.zeros(problem.shape_of(name)), np.zeros(problem.shape_of(name)))
        for name in ("out", "lse")
    }
    for st in heads:
        where = st.head.batch, st.head.index
        errors = forward_head(st, roundoffs)
        for name, pair in (("out", errors.out), ("lse", errors.lse)):
            found[name][0][where], found[name][1][where] = pair
    return found


def forward_head(st: HeadStatistics, r: Roundoffs) -> Forward:
    """All errors of one head's forward pass."""
    score, exponent = score_error(st, r)
    variance = score_variance(st, r)
    overflow = overflowing_rows(st, r, exponent)
    weight_error = _weight_errors(st, r, exponent)
    out, lse = _out_bound(st, r, weight_error), _lse_bound(st, r, weight_error, exponent)
    out_sigma, lse_sigma = _sigmas(st, r, variance)
    nothing = st.count[:, 0] == 0  # exactly 0, and exactly -inf
    bad = np.where(overflow, np.inf, 0.0)
    out, lse = out + bad[:, None], lse + bad
    out[nothing], lse[nothing], out_sigma[nothing], lse_sigma[nothing] = 0, 0, 0, 0
    return Forward(score, exponent, variance, (out, out_sigma), (lse, lse_sigma), overflow)


# -- scores ------------------------------------------------------------------------------------


def score_error(st: HeadStatistics, r: Roundoffs) -> tuple[Float64Array, Float64Array]:
    """Bounds on the errors of s, and of the exponent up to a shift common to the row."""
    head, u = st.head, r.unit
    size = head.query.shape[1]
    magnitude = np.abs(st.score)
    # Each product passes one rounding, at most D - 1 or D additions, and two more where q and k
    # are pre-scaled; operands rounded to a coarser format contribute (1 + u)² - 1.
    error = (growth(size + 2, u) + growth(2, r.operand)) * st.products
    error = error + growth(size + 2, u) * growth(2, r.operand) * st.products
    # Products, and flushed inputs, below the accumulator's normal range.
    lost = np.abs(st.query).sum(1)[:, None] + _keys(st, np.abs(st.key).sum(1))[None, :] + size + 1
    error = error + 2 * r.eta * max(1.0, abs(head.scale)) * lost
    # scale, log2 e and their product as constants, the multiplication, the division by the cap.
    error = error + growth(5, u) * (magnitude + error)
    error = error + growth(r.score_roundings, r.score) * (magnitude + error)
    if head.sink is not None:
        error[:, -1] = 0.0
    capped = error
    later = 2 * (head.softcap is not None) + st.additions
    if head.softcap is not None:
        # Mean value theorem: tanh' decreases away from 0. tanh's error is absolute, since it is
        # often computed from exp as 1 - 2 / (e^2x + 1).
        nearest = np.maximum(magnitude - error, 0) / head.softcap
        steepest = 1 - np.tanh(nearest) ** 2 + 2.0**-44
        capped = steepest * error + head.softcap * r.exp
    # Each part: up to 4 multiplicative roundings (slope, constant, product, conversion) and the
    # two additions; stored after each step where scores are stored.
    capped = capped + growth(6, u) * (st.parts + capped)
    capped = capped + growth(later + (head.slope is not None), r.score) * (st.parts + capped)
    capped = np.where(st.visible, capped, 0.0)
    return np.where(st.visible, error, 0.0), _exponent_error(st, r, capped)


def _keys(st: HeadStatistics, per_key: Float64Array) -> Float64Array:
    return np.pad(per_key, (0, st.visible.shape[1] - per_key.shape[0]))


def _exponent_error(st: HeadStatistics, r: Roundoffs, capped: Float64Array) -> Float64Array:
    """The error of s - m, summed over the rescales, which telescope to the row's maximum.

    m times log2 e is rounded for the tile's maximum, which lies between s_j and m, and a split
    over keys stores its lse, m + log l: 2 u max(|s_j|, |m|) + u log n. The differences
    s_j - m_tile and m_tile - m add to |x_j|; each is rounded, and multiplied, once: 2 u |x_j|.
    The computed maximum lies within `shift` of the exact one.
    """
    at_max = np.where(st.visible & (st.below == 0), capped, 0.0).max(1, keepdims=True, initial=0)
    reach = np.where(st.visible, st.below + capped, 0.0).max(1, keepdims=True, initial=0)
    shift = np.maximum(at_max, reach)
    anchor = np.maximum(np.abs(st.total), np.abs(st.row_max))
    moved = 2 * (anchor + np.abs(st.below)) + 4 * (shift + capped) + np.log1p(st.count)
    return np.where(st.visible, capped + growth(1, r.unit) * moved, 0.0)


def score_variance(st: HeadStatistics, r: Roundoffs) -> Float64Array:
    """Independent uniform roundings; partial sums in the worst order, sqrt(s² + sum of squares).

    Without the terms of `score_error` that the whole row shares: they cancel in the softmax.
    """
    head, third = st.head, r.unit**2 / 3
    size = head.query.shape[1]
    squared = st.score**2
    variance = third * (size * (st.squared_products + squared) + 4 * squared)
    variance = variance + 2 * r.operand**2 / 3 * st.squared_products
    variance = variance + r.score_roundings * r.score**2 / 3 * squared
    later = 2 * (head.softcap is not None) + st.additions
    if head.softcap is not None:
        variance = variance * st.slope**2 + (head.softcap * r.exp) ** 2 / 3
    if later:
        variance = variance + (6 * third + later * r.score**2 / 3) * st.parts**2
    variance = variance + third * (2 * st.below**2 + st.row_max**2)
    return np.where(st.visible, variance, 0.0)


def overflowing_rows(st: HeadStatistics, r: Roundoffs, exponent: Float64Array) -> BoolArray:
    """Rows in which a score, before or after scaling, may exceed what its format can hold.

    A score far below the row's maximum may overflow to -inf: its weight is 0 either way.
    """
    holds = min(r.accumulate.largest, r.storage.largest if r.score else np.inf)
    scale = abs(st.head.scale)
    before = st.products * (max(1.0, 1 / scale) if scale > 0 else 1.0)
    if scale == 0:
        before = st._masked(np.abs(st.query) @ np.abs(st.key).T)
    worst = np.where(st.visible, (1 + growth(st.query.shape[1] + 8, r.unit)) * before, 0.0)
    alive = st.visible & (st.below + exponent > -700)
    worst = np.maximum(worst, np.where(alive, st.parts + exponent, 0.0))
    largest = worst.max(1, initial=0)
    operands = np.abs(st.query).max(1, initial=0) * max(1.0, scale)
    keys = (np.abs(st.key).max(initial=0)) * max(1.0, np.sqrt(scale))
    seen = st.visible.any(1)
    large = (largest >= holds) | (operands >= holds) | (keys >= holds) | np.isnan(largest)
    return np.asarray(seen & large)


# -- output ------------------------------------------------------------------------------------


def _rescales(st: HeadStatistics, r: Roundoffs) -> Float64Array:
    """How often a row's sums may be rescaled; each multiplies in one more exp. (Nq, 1)"""
    return np.ceil(st.count / r.tile)


def relative_weight_error(exponent: Float64Array, exps: Float64Array, r: Roundoffs) -> Float64Array:
    """log of the largest factor by which an unnormalised weight may be off."""
    return np.asarray(exponent - exps * np.log1p(-r.exp))


def _weight_errors(st: HeadStatistics, r: Roundoffs, exponent: Float64Array) -> Float64Array:
    """W_j >= A_j a_j: how far each unnormalised weight, in units of l, may be off. (Nq, M)

    Its own exp and one for each later rescale; flushed to 0 below the accumulator's range.
    """
    log_factor = relative_weight_error(exponent, 1 + _rescales(st, r), r)
    error = st.upper * np.expm1(np.minimum(log_factor, 600.0))
    huge = log_factor > 600  # only far below the maximum, or in rows that are not usable
    if huge.any():
        most = np.exp(np.minimum(st.below + log_factor, 700.0)) / st.row_sum_low
        error = np.where(huge, most, error)
    return np.where(st.visible, error + 2 * r.eta, 0.0)


def _out_bound(st: HeadStatistics, r: Roundoffs, error: Float64Array) -> Float64Array:
    """The bound on out before its last rounding. (Nq, Dv)"""
    dv = st.value.shape[1]
    relative = error.sum(1, keepdims=True)
    second, first, absolute = np.split(error @ st.moments, [dv, 2 * dv], axis=1)
    output = st.absolute_output.copy()
    # sum W (v - o)² by its moments; what cancels in float64 is added back.
    raw = second - 2 * st.mean * first + relative * st.mean**2
    guard = growth(st.count + 10, 4 * U64) * (second + relative * st.mean**2)
    centred = np.maximum(raw, 0) + guard
    # Minkowski: the exact output lies within mean_error of the float64 one.
    spread = np.sqrt(centred) + np.sqrt(relative) * st.mean_error
    moved = np.minimum(np.sqrt(relative) * spread, absolute + relative * output)
    keep = np.maximum(1 - relative, 0.5)
    moved, mass = moved / keep, (st.absolute_mean + absolute) / keep
    deviation = np.sqrt((st.variance + spread**2) / keep)
    # A weighted mean never leaves the hull of the values that the row sees, whatever the weights.
    unusable = ~(st.usable & (relative[:, 0] < 0.5))
    if unusable.any():
        hull, most = st.value_range
        moved[unusable], mass[unusable] = hull[unusable], most[unusable]
        deviation[unusable], output[unusable] = hull[unusable], most[unusable]
    # Numerator: a product, additions, a multiplication and an addition a rescale, the division.
    # Denominator: the same without the product. 1 / (1 + d) is again within growth of 1.
    chain = growth(st.count + 2 * _rescales(st, r) + 4, r.unit)
    rounded = (1 + r.probability) * (1 + r.operand) ** 2 - 1
    # P rounded: |v| A in the numerator alone, or, where l sums the rounded P, centred.
    products = np.maximum(mass, deviation / (1 - r.probability)) if r.probability else mass
    bound = moved + chain * (output + moved)
    bound = bound + (1 + chain) * (chain * (1 + rounded) * mass + rounded * products)
    bound = bound + _underflow(st, r, error, unusable) * (1 + chain)
    return np.where(_sum_overflows(st, r, mass * (1 + chain)), np.inf, bound * INFLATION)


def _underflow(
    st: HeadStatistics, r: Roundoffs, error: Float64Array, unusable: BoolArray
) -> Float64Array:
    """Absolute errors: products and inputs below the accumulator's range, P below storage's."""
    lost = 2 * r.eta * (st.count + 2 * _rescales(st, r) + 6) + output_flush(r)
    if not r.probability:
        return np.broadcast_to(lost, st.mean.shape)
    if r.storage.name != "float16":
        return np.asarray(lost + r.probability_eta * st.count * np.abs(st.value).max(0, initial=0))
    small = small_weights(st, r, error)
    small[unusable] = st.visible[unusable]
    share = 1.0 if r.normalised else 1 / st.row_sum_low
    return lost + 2 * r.probability_eta * share * (small @ np.abs(st.value))


def small_weights(st: HeadStatistics, r: Roundoffs, error: Float64Array) -> Float64Array:
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


def _sum_overflows(st: HeadStatistics, r: Roundoffs, mass: Float64Array) -> BoolArray:
    """Where sum p |v|, with the largest p = 1 (or the sum of p = 1), exceeds the accumulator."""
    size = 1.0 if r.normalised else np.where(st.usable[:, None], st.row_sum, st.count)
    holds = r.accumulate.largest
    return (mass * size * 2 >= holds) | (size * 2 >= holds) | np.isnan(mass)


# -- lse ---------------------------------------------------------------------------------------


def _lse_bound(
    st: HeadStatistics, r: Roundoffs, error: Float64Array, exponent: Float64Array
) -> Float64Array:
    """The bound on lse before its last rounding. (Nq,)

    log of the ratio of the sums: above, log(1 + r) <= r; below, by convexity,
    -log sum A e^-g <= sum A g <= r, and a flushed share y <= 1/2 costs y + y². Or: lse moves by
    no more than the largest error of a score, of keys that are not vanishing.
    """
    relative = error.sum(1)
    log_factor = relative_weight_error(exponent, 1 + _rescales(st, r), r)
    alive = st.visible & (st.below + log_factor > -60)
    count = st.count[:, 0]
    largest = np.where(alive, log_factor, 0.0).max(1, initial=0) + count * (
        np.exp(-60.0) + 4 * r.eta
    )
    core = np.where(st.usable & (relative < 0.5), relative * (1 + relative), np.inf)
    core = np.minimum(core, largest)
    # The sum's roundings multiply it by k factors (1 + d): their log is at most -k log(1 - u).
    core = core - (count + 2 * _rescales(st, r)[:, 0] + 2) * np.log1p(-r.unit)
    shift = np.where(alive, exponent, 0.0).max(1, initial=0)
    # m scaled and added, the sum converted from base 2: three roundings each; log l.
    last = growth(3, r.unit) * (np.abs(st.lse) + np.abs(st.row_max[:, 0]) + 2 * shift + core)
    last = last + r.exp * (1 + np.log(np.maximum(st.row_sum[:, 0], 1)) + core)
    flushed = 0.0 if r.lse.name == "float16" else flush(r.lse)
    return np.asarray((core + last + flushed) * INFLATION)


# -- deviations --------------------------------------------------------------------------------


def _sigmas(
    st: HeadStatistics, r: Roundoffs, variance: Float64Array
) -> tuple[Float64Array, Float64Array]:
    """Predicted standard deviations of out and lse before their last rounding."""
    third = r.unit**2 / 3
    rescales = _rescales(st, r)
    # The maximum of random keys changes about log T times in T tiles.
    exps = (1 + np.log1p(rescales)) * r.exp**2 / 3
    squared = st.weights**2 * (variance + exps)
    dv = st.value.shape[1]
    total = squared.sum(1, keepdims=True)
    second, first, _ = np.split(squared @ st.moments, [dv, 2 * dv], axis=1)
    centred = np.maximum(second - 2 * st.mean * first + total * st.mean**2, 0)
    rounded = (r.probability**2 + 2 * r.operand**2) / 3
    mean2 = st.mean**2
    out = centred + rounded * st.squared_weights_moment
    out = out + third * st.count * (st.squared_weights_moment + mean2)
    out = out + third * (st.count + 8 * rescales + 4) * mean2
    lost_output, lost_weight = _stagnation(st, r)
    out = out + lost_output**2 + (lost_weight * st.mean) ** 2
    out = out + (2 * r.eta) ** 2 * (st.count + 6) * (1 + np.abs(st.value).max(0, initial=0)) ** 2
    out = out + output_flush(r) ** 2
    if r.probability and r.storage.name == "float16":
        share = r.probability_eta * (1.0 if r.normalised else 1 / np.maximum(st.row_sum, 1))
        out = out + share**2 / 3 * (small_weights(st, r, np.zeros(())) @ (st.value**2))
    core = np.sqrt(total + third * (st.count + 8 * rescales) + lost_weight**2)[:, 0]
    last = r.unit * (2 * np.abs(st.lse) + 2 * np.abs(st.row_max[:, 0]))
    last = last + r.exp * (1 + np.log(np.maximum(st.row_sum[:, 0], 1)))
    return np.sqrt(out), core + last / 6


def _stagnation(st: HeadStatistics, r: Roundoffs) -> tuple[Float64Array, Float64Array]:
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
    lost = coherent.sum(1, keepdims=True)
    if not (lost > r.unit).any():
        return np.zeros_like(st.mean), np.zeros_like(lost)
    # The sums shrink by up to this share; from a half on, first order says nothing.
    left = np.where(lost < 0.5, 1 - lost, np.nan)
    return (coherent @ st.value) / left, lost / left
