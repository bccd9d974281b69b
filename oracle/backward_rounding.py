"""Rounding errors of the gradients, from those of the forward pass.

The model. P is recomputed as exp(s - lse) from a stored lse, or kept from a softmax that did not
rescale; D = sum_c dout · out from the rounded output, or sum_j P dP; dS = P (dP - D + dlse). P
enters dv = Pᵀ dout, and dS enters dq and dk, each possibly rounded to storage (`probabilities`);
in an eager framework every step is stored (`scores`). With computed values
P + p, E + e: |(P + p)(E + e) - P E| <= |p| |E| + (P + |p|) |e|, products of errors kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from attnspec.oracle.formats import Float64Array, format_of
from attnspec.oracle.forward_rounding import (
    INFLATION,
    Bound,
    Forward,
    forward_head,
    output_flush,
    relative_weight_error,
)
from attnspec.oracle.gradient_sums import GradientSum, Terms
from attnspec.oracle.problem import BoolArray, Problem
from attnspec.oracle.roundoffs import Roundoffs, flush, growth
from attnspec.oracle.statistics import U64, HeadStatistics

__all__ = ["backward"]


def backward(problem: Problem, heads: Iterable[HeadStatistics], r: Roundoffs) -> dict[str, Bound]:
    """(bound, sigma) of every output, gradients included."""
    sums = _sums(problem, r)
    found = {
        name: (np.zeros(problem.shape_of(name)), np.zeros(problem.shape_of(name)))
        for name in ("out", "lse")
    }
    for st in heads:
        where = st.head.batch, st.head.index
        forward = forward_head(st, r)
        for name, pair in (("out", forward.out), ("lse", forward.lse)):
            found[name][0][where], found[name][1][where] = pair
        errors = _entries(st, r, forward)
        keys = st.head.batch, st.head.kv_index
        sums["dq"].add(where, _dq(st, errors))
        sums["dk"].add(keys, _dk(st, errors))
        sums["dv"].add(keys, _dv(st, r, errors))
        if "dbias" in sums:
            _add_bias(sums["dbias"], st, errors)
        if "dsinks" in sums:
            sums["dsinks"].add((st.head.index,), _dsinks(st, errors))
    scale, flushed = abs(problem.scale), output_flush(r)
    found["dq"] = sums["dq"].result(r, scale=scale, flushed=flushed)
    found["dk"] = sums["dk"].result(r, scale=scale, flushed=flushed)
    found["dv"] = sums["dv"].result(r, flushed=flushed)
    if problem.bias is not None and "dbias" in sums:
        small = flush(format_of(problem.bias.dtype))
        bound, sigma = sums["dbias"].result(r, flushed=small)
        found["dbias"] = bound.reshape(problem.bias.shape), sigma.reshape(problem.bias.shape)
    if problem.sinks is not None and "dsinks" in sums:
        found["dsinks"] = sums["dsinks"].result(r, flushed=flush(format_of(problem.sinks.dtype)))
    return {name: (bound * INFLATION, sigma) for name, (bound, sigma) in found.items()}


def _sums(problem: Problem, r: Roundoffs) -> dict[str, GradientSum]:
    """Empty sums. A share is stored on its own only where several are added."""
    group = problem.query_heads // problem.kv_heads
    stored = r.output if group > 1 else 0.0
    sums = {"dq": GradientSum(problem.q.shape)}
    sums["dk"] = GradientSum(problem.k.shape, stored=stored)
    sums["dv"] = GradientSum(problem.v.shape, stored=stored)
    if problem.bias is not None:
        shape = (1,) * (4 - problem.bias.ndim) + problem.bias.shape
        full = (problem.batch, problem.query_heads, problem.query_count, problem.key_count)
        coarser = max(r.output, format_of(problem.bias.dtype).unit_roundoff)
        sums["dbias"] = GradientSum(shape, stored=0.0 if shape == full else coarser)
    if problem.sinks is not None:
        coarser = max(r.output, format_of(problem.sinks.dtype).unit_roundoff)
        sums["dsinks"] = GradientSum(
            problem.sinks.shape, stored=coarser if problem.batch > 1 else 0.0
        )
    return sums


@dataclass(frozen=True, eq=False)
class _Entries:
    """Per row i and key j (sink included where M is said): errors of P and dS.

    weight_error (Nq, M): of P, rounded as it enters dv. weight_variance (Nq, M): relative.
    score_gradient (dS), its error and variance; capped, its error and variance: the same times
    the soft-cap's slope, with its underflow. (Nq, Nk). row_variance: of lse, common to a row; delta: D; delta_error,
    delta_variance: (Nq, 1). common: dlse - D. dout (Nq, Dv). seen (Nq, Nk).
    """

    seen: Float64Array
    dout: Float64Array
    weight_error: Float64Array
    weight_variance: Float64Array
    score_gradient: Float64Array
    score_gradient_up: Float64Array
    score_gradient_error: Float64Array
    score_gradient_variance: Float64Array
    slope: Float64Array
    slope_error: Float64Array
    slope_variance: Float64Array
    underflow: Float64Array
    common: Float64Array
    common_up: Float64Array
    common_error: Float64Array
    row_variance: Float64Array
    delta_variance: Float64Array


def _entries(st: HeadStatistics, r: Roundoffs, forward: Forward) -> _Entries:
    head = st.head
    keys, third = st.key.shape[0], r.unit**2 / 3
    size = st.value.shape[1]
    dout = np.zeros_like(st.mean) if head.dout is None else head.dout
    dlse = (np.zeros(st.lse.shape) if head.dlse is None else head.dlse)[:, None]
    seen, value = st.visible[:, :keys], st.value[:keys]
    upper, weights = st.upper[:, :keys], st.weights[:, :keys]
    weight_error = _weight_error(st, r, forward)
    # dP
    dp = np.where(seen, dout @ value.T, 0)
    absolute = np.where(seen, np.abs(dout) @ np.abs(value).T, 0)
    dp_up = np.abs(dp) + growth(size + 2, U64) * absolute
    dp_error = (1 + growth(size + 1, r.unit)) * (1 + growth(2, r.operand)) - 1
    dp_error = dp_error * absolute + 2 * r.eta * (
        size + 1 + np.abs(dout).sum(1)[:, None] + np.abs(value).sum(1)[None, :]
    )
    score_eta = flush(r.storage) if r.score else 0.0
    dp_error = dp_error + np.maximum(r.score * (dp_up + dp_error), score_eta)
    # D
    delta = (dout * st.mean).sum(1, keepdims=True)
    delta_up = np.abs(delta) + (
        np.abs(dout) * (st.mean_error + growth(size + 4, U64) * np.abs(st.mean))
    ).sum(1, keepdims=True)
    delta_error = _delta_error(st, r, forward, dout, dp_up, dp_error, weight_error[:, :keys])
    # E = dP - D + dlse, and the row's part of it
    gradient = np.where(seen, dp - delta + dlse, 0)
    gradient_up = np.where(
        seen, np.abs(gradient) + (dp_up - np.abs(dp)) + (delta_up - np.abs(delta)), 0
    )
    sizes = dp_up + delta_up + np.abs(dlse)
    gradient_error = dp_error + delta_error
    gradient_error = gradient_error + growth(3, r.unit) * (sizes + gradient_error)
    common_up = np.abs(dlse - delta) + (delta_up - np.abs(delta))
    common_error = delta_error + growth(3, r.unit) * (delta_up + np.abs(dlse) + delta_error)
    # dS
    ds_up, p = upper * gradient_up, weight_error[:, :keys]
    ds_error = p * gradient_up + (upper + p) * gradient_error
    rounded = (1 + growth(2, r.unit)) * (1 + r.probability) * (1 + r.operand) ** 2
    rounded = rounded * (1 + growth(r.score_roundings + 1, r.score)) - 1
    ds_error = ds_error + rounded * (ds_up + ds_error) + 2 * r.eta + r.probability_eta + score_eta
    bad = _bad_rows(st, r, forward, absolute, ds_up + ds_error)
    ds_error = np.where(seen, np.where(bad, np.inf, ds_error), 0.0)
    weight_error = np.where(st.visible, np.where(bad, np.inf, weight_error), 0.0)
    # The predicted deviations
    relative = forward.score_variance + r.exp**2 / 3
    row = (forward.lse[1] ** 2 + r.lse.unit_roundoff**2 / 3 * st.lse**2)[:, None]
    row = np.where(st.count > 0, row, 0.0)
    dout2 = dout**2
    out_variance = forward.out[1] ** 2 + r.output**2 / 3 * st.mean**2
    delta_variance = (dout2 * out_variance).sum(1, keepdims=True)
    delta_variance = delta_variance + third * size * (
        (dout2 * st.mean**2).sum(1, keepdims=True) + delta**2
    )
    dp_variance = (third * size + 2 * r.operand**2 / 3) * (dout2 @ (value**2).T)
    dp_variance = dp_variance + (third * size + r.score**2 / 3) * dp**2
    ds = weights * gradient
    rounded2 = (r.probability**2 + (r.score_roundings + 1) * r.score**2 + 2 * r.operand**2) / 3
    ds_variance = ds**2 * (relative[:, :keys] + rounded2 + 3 * third)
    ds_variance = ds_variance + weights**2 * (dp_variance + third * (dp**2 + delta**2 + dlse**2))
    lost = (2 * r.eta) ** 2 + (r.probability_eta**2 + score_eta**2) / 3
    ds_variance = ds_variance + np.where(seen, lost, 0)
    slope_error, slope_variance = _slope_error(st, r, forward)
    return _Entries(
        seen=seen.astype(np.float64),
        dout=dout,
        weight_error=weight_error,
        weight_variance=relative,
        score_gradient=ds,
        score_gradient_up=ds_up,
        score_gradient_error=ds_error,
        score_gradient_variance=ds_variance,
        slope=st.slope[:, :keys],
        slope_error=slope_error[:, :keys],
        slope_variance=slope_variance[:, :keys],
        underflow=np.where(seen, 2 * r.eta + r.probability_eta + score_eta, 0.0)
        * (head.softcap is not None),
        common=dlse - delta,
        common_up=common_up,
        common_error=common_error,
        row_variance=row,
        delta_variance=delta_variance,
    )


def _weight_error(st: HeadStatistics, r: Roundoffs, forward: Forward) -> Float64Array:
    """|P̂ - P|, P rounded as it enters dv. (Nq, M)

    The exponent s - lse: the score's error, the stored lse's, and two more roundings of
    |s - lse| <= |x| + log l. A kept P has the row sum's error, which is part of the lse's, and
    the division's.
    """
    lse_error = forward.lse[0][:, None]
    stored = lse_error + r.lse.unit_roundoff * (np.abs(st.lse)[:, None] + lse_error)
    apart = growth(2, r.unit) * (np.log(np.maximum(st.row_sum, 1)) + stored)
    log_factor = relative_weight_error(forward.exponent + stored + apart, np.ones(()), r)
    log_factor = log_factor - 2 * np.log1p(-r.unit)
    error = st.upper * np.expm1(np.minimum(log_factor, 600.0))
    far = np.exp(np.minimum(st.below + log_factor, 700.0)) / st.row_sum_low
    error = np.where(log_factor > 600, far, error) + 2 * r.eta
    rounded = (1 + r.probability) * (1 + r.operand) ** 2 - 1
    error = error + np.maximum(rounded * (st.upper + error), r.probability_eta)
    return np.where(st.visible, error, 0.0)


def _delta_error(
    st: HeadStatistics,
    r: Roundoffs,
    forward: Forward,
    dout: Float64Array,
    dp_up: Float64Array,
    dp_error: Float64Array,
    weight_error: Float64Array,
) -> Float64Array:
    """|D̂ - D| for both ways to compute it. (Nq, 1)"""
    size = dout.shape[1]
    output, error = st.absolute_output, forward.out[0]
    error = error + r.output * (output + error) + flush(r.storage)
    from_output = (np.abs(dout) * error).sum(1, keepdims=True)
    from_output = from_output + growth(size + 1, r.unit) * (np.abs(dout) * (output + error)).sum(
        1, keepdims=True
    )
    upper = st.upper[:, : dp_up.shape[1]] + weight_error
    terms = weight_error * dp_up + upper * dp_error
    terms = terms + growth(st.count + 2, r.unit) * upper * (dp_up + dp_error)
    from_weights = np.where(st.visible[:, : dp_up.shape[1]], terms, 0).sum(1, keepdims=True)
    lost = 2 * r.eta * (size + st.count + 1)
    return np.asarray(np.maximum(from_output, from_weights) + lost)


def _bad_rows(
    st: HeadStatistics, r: Roundoffs, forward: Forward, dp: Float64Array, ds: Float64Array
) -> BoolArray:
    """Rows of which nothing is known: statistics unusable, or an overflow possible. (Nq, 1)"""
    holds = r.accumulate.largest
    stored = r.storage.largest if r.probability or r.score else holds
    seen = st.visible[:, : dp.shape[1]]
    large = np.where(seen, 2 * dp, 0).max(1, initial=0) >= (stored if r.score else holds)
    large |= np.where(seen, ds, 0).max(1, initial=0) >= stored
    large |= forward.overflow | ~st.usable | np.isnan(ds).any(1)
    return np.asarray((large & (st.count[:, 0] > 0))[:, None])


def _slope_error(
    st: HeadStatistics, r: Roundoffs, forward: Forward
) -> tuple[Float64Array, Float64Array]:
    """Bound and variance of the error of 1 - tanh². (Nq, M)

    |d(1 - tanh²)/dx| = 2 |tanh| (1 - tanh²) <= min(0.77, 2 (1 - tanh²)), by the mean value theorem
    at the steepest point within reach; tanh's own error enters twice, and three roundings.
    """
    cap = st.head.softcap
    if cap is None:
        return np.zeros_like(st.slope), np.zeros_like(st.slope)
    nearest = np.maximum(np.abs(st.score) - forward.score, 0) / cap
    steepest = np.minimum(0.77, 2 * (1 - np.tanh(nearest) ** 2) + 2.0**-43)
    own = 2 * r.exp * (1 + r.exp) + growth(4, r.unit) + 2.0**-43
    error = steepest * forward.score / cap + own
    # The score's variance is that after the cap: divided by the slope it would be the one before.
    variance = (2 / cap) ** 2 * forward.score_variance * st.slope + own**2 / 3
    return np.where(st.visible, error, 0.0), np.where(st.visible, variance, 0.0)


# -- the five gradients ------------------------------------------------------------------------


def _capped(e: _Entries) -> tuple[Float64Array, ...]:
    """dS times the soft-cap's slope: value, magnitude, error, variance. (Nq, Nk)"""
    ds, slope, off = e.score_gradient, e.slope, e.slope_error
    up = e.score_gradient_up * slope
    error = e.score_gradient_error * (slope + off) + e.score_gradient_up * off + e.underflow
    variance = e.score_gradient_variance * slope**2 + ds**2 * e.slope_variance
    variance = variance + e.underflow**2
    return ds * slope, up, error, variance


def _dq(st: HeadStatistics, e: _Entries) -> Terms:
    scale, key = abs(st.head.scale), st.key
    ds, up, error, variance = _capped(e)
    magnitude, key2 = np.abs(key), key**2
    mean_key = (st.weights[:, : key.shape[0]] * e.slope) @ key
    value = scale * ds @ key
    shared = scale**2 * e.delta_variance * mean_key**2 + e.row_variance * value**2
    return Terms(
        error=scale * (error @ magnitude),
        absolute=scale * (up @ magnitude),
        variance=scale**2 * (variance @ key2) + shared,
        squares=scale**2 * (ds**2 @ key2),
        value=value,
        count=np.broadcast_to(e.seen.sum(1, keepdims=True), value.shape),
    )


def _dk(st: HeadStatistics, e: _Entries) -> Terms:
    scale, query = abs(st.head.scale), st.query
    ds, up, error, variance = _capped(e)
    weights = st.weights[:, : e.seen.shape[1]] * e.slope
    variance = variance + weights**2 * e.delta_variance + ds**2 * e.row_variance
    magnitude, query2 = np.abs(query), query**2
    value = scale * ds.T @ query
    return Terms(
        error=scale * (error.T @ magnitude),
        absolute=scale * (up.T @ magnitude),
        variance=scale**2 * (variance.T @ query2),
        squares=scale**2 * ((ds**2).T @ query2),
        value=value,
        count=np.broadcast_to(e.seen.sum(0)[:, None], value.shape),
    )


def _dv(st: HeadStatistics, r: Roundoffs, e: _Entries) -> Terms:
    keys = e.seen.shape[1]
    weights, magnitude, dout2 = st.weights[:, :keys], np.abs(e.dout), e.dout**2
    rounded = (r.probability**2 + 2 * r.operand**2) / 3
    relative = e.weight_variance[:, :keys] + e.row_variance + rounded
    variance = weights**2 * relative + e.seen * ((2 * r.eta) ** 2 + r.probability_eta**2 / 3)
    value = weights.T @ e.dout
    return Terms(
        error=e.weight_error[:, :keys].T @ magnitude,
        absolute=st.upper[:, :keys].T @ magnitude,
        variance=variance.T @ dout2,
        squares=(weights**2).T @ dout2,
        value=value,
        count=np.broadcast_to(e.seen.sum(0)[:, None], value.shape),
    )


def _add_bias(total: GradientSum, st: HeadStatistics, e: _Entries) -> None:
    """dS, summed over the axes over which the bias is broadcast."""
    ds = e.score_gradient
    weights = st.weights[:, : ds.shape[1]]
    variance = e.score_gradient_variance + weights**2 * e.delta_variance + ds**2 * e.row_variance
    shape = total.shares.shape
    axes = tuple(axis for axis in (0, 1) if shape[2 + axis] == 1)
    terms = Terms(
        error=e.score_gradient_error,
        absolute=e.score_gradient_up,
        variance=variance,
        squares=ds**2,
        value=ds,
        count=e.seen,
    ).map(lambda field: field.sum(axes, keepdims=True))
    batch = st.head.batch if shape[0] > 1 else 0
    index = st.head.index if shape[1] > 1 else 0
    total.add((batch, index), terms)


def _dsinks(st: HeadStatistics, e: _Entries) -> Terms:
    """sum over rows of P_sink (dlse - D)."""
    weight, upper, error = st.weights[:, -1:], st.upper[:, -1:], e.weight_error[:, -1:]
    value = weight * e.common
    variance = weight**2 * e.delta_variance
    variance = variance + value**2 * (e.weight_variance[:, -1:] + e.row_variance)
    return Terms(
        error=error * e.common_up + (upper + error) * e.common_error,
        absolute=upper * e.common_up,
        variance=variance,
        squares=value**2,
        value=value,
        count=np.ones_like(value),
    ).map(np.sum)
