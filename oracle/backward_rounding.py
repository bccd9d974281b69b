"""Rounding errors of the gradients: sums of the entries of gradient_errors.py."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from attnspec.oracle.formats import Float64Array, Format, format_of
from attnspec.oracle.forward_rounding import INFLATION, Bound, Forward
from attnspec.oracle.gradient_errors import GradientErrors
from attnspec.oracle.gradient_sums import GradientSum, Terms
from attnspec.oracle.heads import IntArray, transposed
from attnspec.oracle.problem import Problem
from attnspec.oracle.roundoffs import Roundoffs, flush, output_flush
from attnspec.oracle.statistics import Statistics

__all__ = ["backward"]

SHARED = 9.0
"""Sums over rows (dk, dbias) share the rows' errors: where weights are even and q has a mean, they
are one random number for the whole head, which its mean square does not average. Three standard
deviations of it are allowed for."""


def backward(
    problem: Problem, stacks: Iterable[Statistics], r: Roundoffs, *, want: Collection[str]
) -> dict[str, Bound]:
    """(bound, sigma) of each output of `want`, which may be any."""
    sums = {name: total for name, total in _sums(problem, r).items() if name in want}
    shapes = {name: problem.shape_of(name) for name in ("out", "lse") if name in want}
    found = {name: (np.zeros(shape), np.zeros(shape)) for name, shape in shapes.items()}
    for st in stacks:
        errors = GradientErrors(st, r, Forward(st, r))
        where = st.heads.batch, st.heads.index
        for name, (bound, sigma) in found.items():
            bound[where], sigma[where] = errors.forward.of(name)
        for name, total in sums.items():
            places, terms = _share(errors, name, total.shares.shape)
            total.add(places, terms)
    for name, total in sums.items():
        scale = abs(problem.scale) if name in ("dq", "dk") else 1.0
        bound, sigma = total.result(r, scale=scale, flushed=_flushed(problem, name, r))
        shape = problem.shape_of(name)
        found[name] = (bound * INFLATION).reshape(shape), sigma.reshape(shape)
    return found


def _share(
    e: GradientErrors, output: str, shape: tuple[int, ...]
) -> tuple[tuple[IntArray, ...], Terms]:
    """Each head's share in a gradient of this shape, and its place."""
    heads = e.st.heads
    if output == "dq":
        return (heads.batch, heads.index), _dq(e)
    if output == "dsinks":
        return (heads.index,), _dsinks(e)
    if output == "dbias":
        return (heads.batch * (shape[0] > 1), heads.index * (shape[1] > 1)), _dbias(e, shape)
    return (heads.batch, heads.kv_index), _dk(e) if output == "dk" else _dv(e)


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


def _dq(e: GradientErrors) -> Terms:
    """scale · dS k. The errors of D and lse are common to a row, so they add up coherently."""
    scale, key = abs(e.st.heads.scale), e.st.key
    ds, most, error, variance = e.capped
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
        count=np.broadcast_to(e.seen.sum(-1, keepdims=True), value.shape),
    )


def _row_shared(e: GradientErrors, ds: Float64Array, slope: Float64Array) -> Float64Array:
    """Variance of dS from the errors of D and lse, one for each row, times `SHARED`. (Nq, Nk)"""
    return SHARED * ((e.weights * slope) ** 2 * e.delta_variance + ds**2 * e.row_variance)


def _dk(e: GradientErrors) -> Terms:
    """scale · dSᵀ q."""
    scale, query = abs(e.st.heads.scale), e.st.query
    ds, most, error, variance = e.capped
    variance = variance + _row_shared(e, ds, e.slope)
    magnitude, squared = np.abs(query), query**2
    value = scale * transposed(ds) @ query
    return Terms(
        error=scale * (transposed(error) @ magnitude),
        absolute=scale * (transposed(most) @ magnitude),
        variance=scale**2 * (transposed(variance) @ squared),
        squares=scale**2 * (transposed(ds**2) @ squared),
        value=value,
        count=np.broadcast_to(e.seen.sum(-2)[..., None], value.shape),
    )


def _dv(e: GradientErrors) -> Terms:
    """Pᵀ dout."""
    r, magnitude, squared = e.r, np.abs(e.dout), e.dout**2
    rounded = (r.probability**2 + 2 * r.operand**2) / 3
    relative = e.weight_variance[..., e.keys] + e.row_variance + rounded
    lost = (2 * r.eta) ** 2 + r.probability_eta**2 / 3
    variance = e.weights**2 * relative + np.where(e.seen, lost, 0.0)
    value = transposed(e.weights) @ e.dout
    return Terms(
        error=transposed(e.weight_bound[..., e.keys]) @ magnitude,
        absolute=transposed(e.weights_most) @ magnitude,
        variance=transposed(variance) @ squared,
        squares=transposed(e.weights**2) @ squared,
        value=value,
        count=np.broadcast_to(e.seen.sum(-2)[..., None], value.shape),
    )


def _dbias(e: GradientErrors, shape: tuple[int, ...]) -> Terms:
    """dS, summed over the rows and keys over which the bias, of this shape, is broadcast."""
    axes = tuple(axis for axis in (-2, -1) if shape[axis] == 1)
    return Terms(
        error=e.ds_bound,
        absolute=e.ds_most,
        variance=e.ds_variance + _row_shared(e, e.ds, np.ones(())),
        squares=e.ds**2,
        value=e.ds,
        count=e.seen.astype(np.float64),
    ).map(lambda field: field.sum(axes, keepdims=True))


def _dsinks(e: GradientErrors) -> Terms:
    """sum over rows of P_sink (dlse - D)."""
    weight, most, error = e.st.weights[..., -1:], e.st.upper[..., -1:], e.weight_bound[..., -1:]
    value = weight * e.common
    variance = weight**2 * e.delta_variance
    variance = variance + value**2 * (e.weight_variance[..., -1:] + e.row_variance)
    return Terms(
        error=error * e.common_most + (most + error) * e.common_error,
        absolute=most * e.common_most,
        variance=variance,
        squares=value**2,
        value=value,
        count=np.ones_like(value),
    ).map(lambda field: field.sum((-2, -1)))
