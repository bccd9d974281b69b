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

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attnspec.oracle.formats import Float64Array
from attnspec.oracle.forward_deviation import (
    exp_variance,
    lse_deviation,
    out_deviation,
    rescales,
    small_weights,
    weight_variance,
)
from attnspec.oracle.heads import Heads
from attnspec.oracle.problem import BoolArray, Problem
from attnspec.oracle.roundoffs import Roundoffs, flush, growth, output_flush
from attnspec.oracle.score_rounding import (
    exponent_error,
    overflowing_rows,
    score_error,
    score_variance,
)
from attnspec.oracle.statistics import U64, Statistics, problem_scores
from attnspec.oracle.workers import in_order

__all__ = ["INFLATION", "Bound", "Forward", "forward", "weight_error"]

INFLATION = 1 + 2.0**-20
"""Covers the float64 rounding of the bounds themselves: sums of terms >= 0, below 2^-30."""
Bound = tuple[Float64Array, Float64Array]


@dataclass(frozen=True, eq=False)
class Forward:
    """The errors of the forward pass of a stack of heads, each computed when it is asked for.

    out, lse: bounds on what the outputs err before their last rounding; …_sigma: the predicted
    deviations.
    """

    st: Statistics
    r: Roundoffs

    @cached_property
    def score(self) -> Float64Array:
        """Bound on the error of a score before soft-cap and additions: (Nq, M)."""
        return score_error(self.st, self.r)

    @cached_property
    def score_variance(self) -> Float64Array:
        """(Nq, M)."""
        return score_variance(self.st, self.r)

    @cached_property
    def exponent(self) -> Float64Array:
        """Bound on the error of the exponent s - m: (Nq, M)."""
        return exponent_error(self.st, self.r, self.score)

    @cached_property
    def overflow(self) -> BoolArray:
        """Rows in which the model admits an overflow: (Nq,)."""
        return overflowing_rows(self.st, self.r, self.exponent)

    @cached_property
    def log_factor(self) -> Float64Array:
        """Bound on the error of a weight's logarithm: its own exp, and one a later rescale."""
        exps = 1 + rescales(self.st, self.r)
        return np.asarray(self.exponent - exps * np.log1p(-self.r.exp))

    @cached_property
    def weight(self) -> Float64Array:
        """Bound on the error of a weight: (Nq, M)."""
        return weight_error(self.st, self.r, self.log_factor)

    @cached_property
    def squared(self) -> Float64Array:
        """Variance of a weight: (Nq, M)."""
        return self.st.weights**2 * (
            weight_variance(self.score_variance) + exp_variance(self.st, self.r)
        )

    @cached_property
    def out(self) -> Float64Array:
        """(Nq, Dv)."""
        bound = _out_bound(self.st, self.r, self.weight)
        bound[self.overflow] = np.inf
        return np.where(self._valued, bound, 0.0)

    @cached_property
    def lse(self) -> Float64Array:
        """(Nq,)."""
        bound = _lse_bound(self.st, self.r, self.weight, self.log_factor)
        bound[self.overflow] = np.inf
        return np.where(self.st.count[..., 0] > 0, bound, 0.0)  # exactly -inf

    @cached_property
    def out_sigma(self) -> Float64Array:
        """(Nq, Dv)."""
        return np.where(self._valued, out_deviation(self.st, self.r, self.squared), 0.0)

    @cached_property
    def lse_sigma(self) -> Float64Array:
        """(Nq,)."""
        # lse moves with a dominant score by the score's error, not by e to it.
        moved = np.minimum(self.squared, self.score_variance + exp_variance(self.st, self.r))
        return np.where(self.st.count[..., 0] > 0, lse_deviation(self.st, self.r, moved), 0.0)

    @property
    def _valued(self) -> BoolArray:
        """Rows whose out is not exactly 0: (Nq, 1)."""
        return np.asarray(self.st.heads.visible.any(-1, keepdims=True))

    def of(self, output: str, *, sigma: bool = True) -> Bound:
        """(bound, sigma) of out or lse; sigma is inf, not known, where it is not asked for."""
        bound = self.out if output == "out" else self.lse
        if not sigma:
            return bound, np.full_like(bound, np.inf)
        return bound, self.out_sigma if output == "out" else self.lse_sigma


def forward(
    problem: Problem,
    stacks: Iterable[Callable[[], Statistics]],
    roundoffs: Roundoffs,
    *,
    want: Collection[str] = ("out", "lse"),
    sigma: bool = True,
) -> dict[str, Bound]:
    """(bound, sigma) of out and lse of the whole problem, those of `want`."""
    shapes = {name: problem.shape_of(name) for name in want}
    found = {name: (np.zeros(shape), np.zeros(shape)) for name, shape in shapes.items()}

    def judge(find: Callable[[], Statistics]) -> tuple[Heads, dict[str, Bound]]:
        with np.errstate(all="ignore"):
            errors = Forward(find(), roundoffs)
            return errors.st.heads, {name: errors.of(name, sigma=sigma) for name in want}

    for heads, bounds in in_order(judge, stacks, scores=problem_scores(problem)):
        where = heads.batch, heads.index, heads.rows
        for name, (bound, deviation) in found.items():
            bound[where], deviation[where] = bounds[name]
    return found


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


def lse_roundings(st: Statistics, r: Roundoffs, moved: Float64Array | float = 0.0) -> Float64Array:
    """What m + log l errs by its own roundings, where m and lse are off by up to `moved`. (Nq,)

    m scaled and added, the sum converted from base 2: three roundings each; log l.
    """
    size = np.abs(st.lse) + np.abs(st.row_max[..., 0]) + moved
    log = 1 + np.log(np.maximum(st.row_sum[..., 0], 1))
    return np.asarray(growth(3, r.unit) * size + r.exp * log)


# -- output ------------------------------------------------------------------------------------


def _out_bound(st: Statistics, r: Roundoffs, error: Float64Array) -> Float64Array:
    """The bound on out before its last rounding. (Nq, Dv)"""
    moved, mass, deviation, output, usable = _perturbed(st, error)
    # Numerator: a product, additions, a multiplication and an addition a rescale, the division.
    # Denominator: the same without the product. 1 / (1 + d) is again within growth of 1.
    # Merged: each part's own division, its weight and that product. A part's additions and those of
    # the parts are together no more than the row's, as no part that counts is empty.
    chain = growth(st.count + 2 * rescales(st, r) + 4 + 3 * r.merged, r.unit)
    # P rounded: sum A |v| in the numerator alone, or, where l sums the rounded P, centred as
    # above, sum A |v - o|: by Cauchy-Schwarz at most the deviation.
    rounded = (1 + r.probability) * (1 + r.operand) ** 2 - 1
    products = np.maximum(mass, deviation / (1 - r.probability)) if r.probability else mass
    bound = moved + chain * (output + moved)
    bound = bound + (1 + chain) * (chain * (1 + rounded) * mass + rounded * products)
    bound = bound + _underflow(st, r, error, usable) * (1 + chain)
    if r.merged:
        # A part's weight w = exp(lse_part - lse) errs as both lse do, by their own roundings.
        # Those of the part grow with x = lse - lse_part = -log w, of which sum w x is an entropy:
        # at most log of the parts; lse_part and its maximum move by that and by log(count).
        entropy = 4 * np.log1p(st.count[..., 0]) + 2
        off = np.expm1(np.minimum(2 * lse_roundings(st, r, entropy), 600.0))[..., None]
        bound = bound + off * (mass + bound)
    return np.where(_sum_overflows(st, r, mass * (1 + chain)), np.inf, bound * INFLATION)


def _perturbed(
    st: Statistics, error: Float64Array
) -> tuple[Float64Array, Float64Array, Float64Array, Float64Array, BoolArray]:
    """What wrong weights do: how far the mean moves, sum w |v|, the deviation of v under w, |o|.

    (Nq, Dv) each, and the rows in which that follows from first principles, (Nq,). In the others
    the weights may be anything: a weighted mean never leaves the hull of the values it sees.
    """
    relative = error.sum(-1, keepdims=True)
    second, first, absolute = (
        st.values.product(error, moment) for moment in ("square", "plain", "magnitude")
    )
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
        hull, most = st.value_range(bad)
        moved[bad], deviation[bad], mass[bad], output[bad] = hull, hull, most, most
    return moved, mass, deviation, output, usable


def _underflow(
    st: Statistics, r: Roundoffs, error: Float64Array, usable: BoolArray
) -> Float64Array:
    """Absolute errors: products and inputs below the accumulator's range, P below storage's."""
    lost = 2 * r.eta * (st.count + 2 * rescales(st, r) + 6) + output_flush(r)
    if not r.probability:
        return np.broadcast_to(lost, st.mean.shape)
    if r.storage.name != "float16":
        return np.asarray(lost + r.probability_eta * st.count * st.largest_value)
    small = small_weights(st, r, error)
    small[~usable] = st.visible[~usable]
    share = 1.0 if r.normalised else 1 / st.row_sum_low
    return lost + 2 * r.probability_eta * share * st.values.product(small, "magnitude")


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
    core = core - (count + 2 * rescales(st, r)[..., 0] + 2) * np.log1p(-r.unit)
    shift = np.where(alive, log_factor, 0.0).max(-1, initial=0)
    last = lse_roundings(st, r, 2 * shift + core) + r.exp * core
    flushed = 0.0 if r.lse.name == "float16" else flush(r.lse)
    return np.asarray((core + last + flushed) * INFLATION)
