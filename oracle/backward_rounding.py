"""Rounding errors of the gradients: sums of the entries of gradient_errors.py."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from attnspec.oracle.formats import Float64Array, Format, format_of
from attnspec.oracle.forward_rounding import INFLATION, Bound, forward_head, output_flush
from attnspec.oracle.gradient_errors import GradientErrors
from attnspec.oracle.gradient_sums import GradientSum, Terms
from attnspec.oracle.problem import Problem
from attnspec.oracle.roundoffs import Roundoffs, flush
from attnspec.oracle.statistics import HeadStatistics

__all__ = ["backward"]

SHARED = 9.0
"""Sums over rows (dk, dbias) share the rows' errors: where weights are even and q has a mean, they
are one random number for the whole head, which its mean square does not average. Three standard
deviations of it are allowed for."""


def backward(problem: Problem, heads: Iterable[HeadStatistics], r: Roundoffs) -> dict[str, Bound]:
    """(bound, sigma) of every output, gradients included."""
    sums = _sums(problem, r)
    shapes = {name: problem.shape_of(name) for name in ("out", "lse")}
    found = {name: (np.zeros(shape), np.zeros(shape)) for name, shape in shapes.items()}
    for st in heads:
        errors = GradientErrors(st, r, forward_head(st, r))
        where, keys = (st.head.batch, st.head.index), (st.head.batch, st.head.kv_index)
        for name, pair in (("out", errors.forward.out), ("lse", errors.forward.lse)):
            found[name][0][where], found[name][1][where] = pair
        sums["dq"].add(where, _dq(errors))
        sums["dk"].add(keys, _dk(errors))
        sums["dv"].add(keys, _dv(errors))
        if "dbias" in sums:
            _add_bias(sums["dbias"], errors)
        if "dsinks" in sums:
            sums["dsinks"].add((st.head.index,), _dsinks(errors))
    for name, total in sums.items():
        scale = abs(problem.scale) if name in ("dq", "dk") else 1.0
        bound, sigma = total.result(r, scale=scale, flushed=_flushed(problem, name, r))
        shape = problem.shape_of(name)
        found[name] = (bound * INFLATION).reshape(shape), sigma.reshape(shape)
    return found


def _flushed(problem: Problem, output: str, r: Roundoffs) -> float:
    array = {"dbias": problem.bias, "dsinks": problem.sinks}.get(output)
    return output_flush(r) if array is None else flush(format_of(array.dtype))


def _sums(problem: Problem, r: Roundoffs) -> dict[str, GradientSum]:
    """Empty sums. A share is stored on its own only where several are added."""
    grouped = r.storage if problem.query_heads > problem.kv_heads else None
    sums = {"dq": GradientSum(problem.q.shape)}
    sums["dk"] = GradientSum(problem.k.shape, stored=grouped)
    sums["dv"] = GradientSum(problem.v.shape, stored=grouped)
    if problem.bias is not None:
        shape = (1,) * (4 - problem.bias.ndim) + problem.bias.shape
        full = (problem.batch, problem.query_heads, problem.query_count, problem.key_count)
        broadcast = None if shape == full else _coarser(r.storage, format_of(problem.bias.dtype))
        sums["dbias"] = GradientSum(shape, stored=broadcast)
    if problem.sinks is not None:
        several = _coarser(r.storage, format_of(problem.sinks.dtype))
        sums["dsinks"] = GradientSum(
            problem.sinks.shape, stored=several if problem.batch > 1 else None
        )
    return sums


def _coarser(one: Format, other: Format) -> Format:
    return min(one, other, key=lambda form: form.digits)


def _capped(e: GradientErrors) -> tuple[Float64Array, Float64Array, Float64Array, Float64Array]:
    """dS times the soft-cap's slope: value, from above, error, variance. (Nq, Nk)"""
    if e.st.head.softcap is None:
        return e.ds, e.ds_most, e.ds_bound, e.ds_variance
    lost = np.where(e.seen, e.ds_underflow, 0.0)
    error = e.ds_bound * (e.slope + e.slope_error) + e.ds_most * e.slope_error + lost
    variance = e.ds_variance * e.slope**2 + e.ds**2 * e.slope_variance + lost**2
    return e.ds * e.slope, e.ds_most * e.slope, error, variance


def _dq(e: GradientErrors) -> Terms:
    """scale · dS k. The errors of D and lse are common to a row, so they add up coherently."""
    scale, key = abs(e.st.head.scale), e.st.key
    ds, most, error, variance = _capped(e)
    magnitude, squared = np.abs(key), key**2
    value = scale * ds @ key
    mean_key = (e.weights * e.slope) @ key
    shared = scale**2 * e.delta_variance * mean_key**2 + e.row_variance * value**2
    return Terms(
        error=scale * (error @ magnitude),
        absolute=scale * (most @ magnitude),
        variance=scale**2 * (variance @ squared) + shared,
        squares=scale**2 * (ds**2 @ squared),
        value=value,
        count=np.broadcast_to(e.seen.sum(1, keepdims=True), value.shape),
    )


def _row_shared(e: GradientErrors, ds: Float64Array, slope: Float64Array) -> Float64Array:
    """Variance of dS from the errors of D and lse, one for each row, times `SHARED`. (Nq, Nk)"""
    return SHARED * ((e.weights * slope) ** 2 * e.delta_variance + ds**2 * e.row_variance)


def _dk(e: GradientErrors) -> Terms:
    """scale · dSᵀ q."""
    scale, query = abs(e.st.head.scale), e.st.query
    ds, most, error, variance = _capped(e)
    variance = variance + _row_shared(e, ds, e.slope)
    magnitude, squared = np.abs(query), query**2
    value = scale * ds.T @ query
    return Terms(
        error=scale * (error.T @ magnitude),
        absolute=scale * (most.T @ magnitude),
        variance=scale**2 * (variance.T @ squared),
        squares=scale**2 * ((ds**2).T @ squared),
        value=value,
        count=np.broadcast_to(e.seen.sum(0)[:, None], value.shape),
    )


def _dv(e: GradientErrors) -> Terms:
    """Pᵀ dout."""
    r, magnitude, squared = e.r, np.abs(e.dout), e.dout**2
    rounded = (r.probability**2 + 2 * r.operand**2) / 3
    relative = e.weight_variance[:, e.keys] + e.row_variance + rounded
    lost = (2 * r.eta) ** 2 + r.probability_eta**2 / 3
    variance = e.weights**2 * relative + np.where(e.seen, lost, 0.0)
    value = e.weights.T @ e.dout
    return Terms(
        error=e.weight_bound[:, e.keys].T @ magnitude,
        absolute=e.weights_most.T @ magnitude,
        variance=variance.T @ squared,
        squares=(e.weights**2).T @ squared,
        value=value,
        count=np.broadcast_to(e.seen.sum(0)[:, None], value.shape),
    )


def _add_bias(total: GradientSum, e: GradientErrors) -> None:
    """dS, summed over the axes over which the bias is broadcast."""
    shape = total.shares.shape
    axes = tuple(axis for axis in (0, 1) if shape[2 + axis] == 1)
    terms = Terms(
        error=e.ds_bound,
        absolute=e.ds_most,
        variance=e.ds_variance + _row_shared(e, e.ds, np.ones(())),
        squares=e.ds**2,
        value=e.ds,
        count=e.seen.astype(np.float64),
    ).map(lambda field: field.sum(axes, keepdims=True))
    batch, index = (where if size > 1 else 0 for where, size in zip(_place(e), shape, strict=False))
    total.add((batch, index), terms)


def _place(e: GradientErrors) -> tuple[int, int]:
    return e.st.head.batch, e.st.head.index


def _dsinks(e: GradientErrors) -> Terms:
    """sum over rows of P_sink (dlse - D)."""
    weight, most, error = e.st.weights[:, -1:], e.st.upper[:, -1:], e.weight_bound[:, -1:]
    value = weight * e.common
    variance = weight**2 * e.delta_variance
    variance = variance + value**2 * (e.weight_variance[:, -1:] + e.row_variance)
    return Terms(
        error=error * e.common_most + (most + error) * e.common_error,
        absolute=most * e.common_most,
        variance=variance,
        squares=value**2,
        value=value,
        count=np.ones_like(value),
    ).map(np.sum)
