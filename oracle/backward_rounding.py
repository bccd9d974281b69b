"""Rounding errors of the gradients: sums of the entries of gradient_errors.py."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from attnspec.oracle.formats import Float64Array, Format, format_of
from attnspec.oracle.forward_rounding import INFLATION, Bound, Forward
from attnspec.oracle.gradient_errors import GradientErrors
from attnspec.oracle.gradient_sums import GradientSum, Part, Places, Terms
from attnspec.oracle.heads import Heads, transposed
from attnspec.oracle.problem import Problem
from attnspec.oracle.roundoffs import Roundoffs, flush, output_flush
from attnspec.oracle.statistics import Statistics, problem_scores, tile_rows
from attnspec.oracle.workers import in_order

__all__ = ["backward"]

CHUNK = 2**14
"""Keys up to which dk and dv are worked on together. Where there are more, only as they are added:
they take as much memory as the keys themselves."""
SHARED = 9.0
"""Sums over rows (dk, dbias) share the rows' errors: where weights are even and q has a mean, they
are one random number for the whole head, which its mean square does not average. Three standard
deviations of it are allowed for."""


_Judged = tuple[Heads, dict[str, Bound], "dict[str, Share]"]


def backward(
    problem: Problem,
    stacks: Iterable[Callable[[], Statistics]],
    r: Roundoffs,
    *,
    want: Collection[str],
) -> dict[str, Bound]:
    """(bound, sigma) of each output of `want`, which may be any."""
    sums = {name: _sum(problem, name, r) for name in want if name.startswith("d")}
    shapes = {name: problem.shape_of(name) for name in ("out", "lse") if name in want}
    found = {name: (np.zeros(shape), np.zeros(shape)) for name, shape in shapes.items()}

    def judge(find: Callable[[], Statistics]) -> _Judged:
        with np.errstate(all="ignore"):
            st = find()
            errors = GradientErrors(st, r, Forward(st, r))
            shares = {name: _shares(errors, name, total.shape) for name, total in sums.items()}
            return st.heads, {name: errors.forward.of(name) for name in found}, shares

    for heads, bounds, shares in in_order(judge, stacks, scores=problem_scores(problem)):
        where = heads.batch, heads.index, heads.rows
        for name, one in bounds.items():
            found[name][0][where], found[name][1][where] = one
        for name, share in shares.items():
            for part, terms in share.parts:
                sums[name].add(share.places, part, terms)
            if heads.rows.stop == problem.query_count:
                sums[name].close(share.places)
    for name, total in sums.items():
        bound, sigma = total.result()
        bound *= INFLATION
        shape = problem.shape_of(name)
        found[name] = bound.reshape(shape), sigma.reshape(shape)
    return found


@dataclass(frozen=True)
class Share:
    """What a tile of some heads adds to a gradient: at whose place, and to which parts of that."""

    places: Places
    parts: Iterable[tuple[Part, Terms]]


def _shares(e: GradientErrors, output: str, shape: tuple[int, ...]) -> Share:
    """The share in a gradient of this shape."""
    heads = e.st.heads
    if output == "dq":
        return Share((heads.batch, heads.index), [((heads.rows,), _dq(e))])
    if output == "dsinks":
        return Share((heads.index,), [((), _dsinks(e))])
    if output == "dbias":
        places = heads.batch * (shape[0] > 1), heads.index * (shape[1] > 1)
        rows = heads.rows if shape[2] > 1 else slice(None)
        keys = heads.keys if shape[3] > 1 else slice(None)
        return Share(places, [((rows, keys), _dbias(e, shape))])
    columns = (
        ((_behind(heads.keys, part),), _dk(e, part) if output == "dk" else _dv(e, part))
        for part in e.st.keys.parts()
    )
    parts = itertools.chain(columns, _beyond(e, shape))
    few = heads.keys.stop - heads.keys.start <= CHUNK
    return Share((heads.batch, heads.kv_index), list(parts) if few else parts)


def _beyond(e: GradientErrors, shape: tuple[int, ...]) -> Iterator[tuple[Part, Terms]]:
    """What rows that overflow do to the keys that no row sees: see `GradientErrors.overflows`."""
    reached = np.asarray(e.overflows.any(-2, keepdims=True))
    for keys in (slice(0, e.st.heads.keys.start), slice(e.st.heads.keys.stop, shape[2])):
        if reached.any() and keys.start < keys.stop:
            none = np.zeros((len(reached), keys.stop - keys.start, shape[3]))
            yield (keys,), Terms(none + np.where(reached, np.inf, 0.0), *(none,) * 5)


def _behind(keys: slice, part: slice) -> slice:
    return slice(keys.start + part.start, keys.start + part.stop)


def _sum(problem: Problem, output: str, r: Roundoffs) -> GradientSum:
    """An empty sum. A share is stored on its own only where several are added."""
    array = {"dbias": problem.bias, "dsinks": problem.sinks}.get(output)
    if array is None:
        grouped = problem.query_heads > problem.kv_heads
        return GradientSum(
            problem.shape_of(output),
            r,
            stored=r.storage if grouped and output != "dq" else None,
            alone=output == "dq" or tile_rows(problem) >= problem.query_count,
            scale=abs(problem.scale) if output in ("dq", "dk") else 1.0,
            flushed=output_flush(r),
        )
    shape = (1,) * (4 - array.ndim) + array.shape if output == "dbias" else array.shape
    full = (problem.batch, problem.query_heads, problem.query_count, problem.key_count)
    several = problem.batch > 1 if output == "dsinks" else shape != full
    stored = _coarser(r.storage, format_of(array.dtype)) if several else None
    return GradientSum(shape, r, stored=stored, flushed=flush(format_of(array.dtype)))


def _coarser(one: Format, other: Format) -> Format:
    return min(one, other, key=lambda form: form.digits)


def _dq(e: GradientErrors) -> Terms:
    """scale · dS k. The errors of D and lse are common to a row, so they add up coherently."""
    scale, keys = abs(e.st.heads.scale), e.st.keys
    ds, most, error, variance = e.capped
    value = scale * keys.product(ds)
    mean_key = keys.product(e.weights * e.slope)
    shared = scale**2 * e.delta_variance * mean_key**2 + e.row_variance * value**2
    return Terms(
        error=scale * keys.product(error, "magnitude"),
        absolute=scale * keys.product(most, "magnitude"),
        variance=scale**2 * keys.product(variance, "square") + shared,
        squares=scale**2 * keys.product(ds**2, "square"),
        value=value,
        count=np.broadcast_to(e.seen.sum(-1, keepdims=True), value.shape),
    )


def _row_shared(
    e: GradientErrors, ds: Float64Array, slope: Float64Array | float, part: slice
) -> Float64Array:
    """Variance of dS from the errors of D and lse, one for each row, times `SHARED`. (Nq, ·)"""
    weights = e.weights[..., part] * slope
    return SHARED * (weights**2 * e.delta_variance + ds**2 * e.row_variance)


def _dk(e: GradientErrors, part: slice) -> Terms:
    """scale · dSᵀ q, of some keys."""
    scale, query = abs(e.st.heads.scale), e.st.query
    ds, most, error, variance = (each[..., part] for each in e.capped)
    variance = variance + _row_shared(e, ds, e.slope[..., part], part)
    magnitude, squared = np.abs(query), query**2
    value = scale * transposed(ds) @ query
    return Terms(
        error=scale * (transposed(error) @ magnitude),
        absolute=scale * (transposed(most) @ magnitude),
        variance=scale**2 * (transposed(variance) @ squared),
        squares=scale**2 * (transposed(ds**2) @ squared),
        value=value,
        count=np.broadcast_to(e.seen[..., part].sum(-2)[..., None], value.shape),
    )


def _dv(e: GradientErrors, part: slice) -> Terms:
    """Pᵀ dout, of some keys."""
    r, magnitude, squared = e.r, np.abs(e.dout), e.dout**2
    weights, seen = e.weights[..., part], e.seen[..., part]
    rounded = (r.probability**2 + 2 * r.operand**2) / 3
    relative = e.weight_variance[..., part] + e.row_variance + rounded
    lost = (2 * r.eta) ** 2 + r.probability_eta**2 / 3
    variance = weights**2 * relative + np.where(seen, lost, 0.0)
    value = transposed(weights) @ e.dout
    return Terms(
        error=transposed(e.weight_bound[..., part]) @ magnitude,
        absolute=transposed(e.weights_most[..., part]) @ magnitude,
        variance=transposed(variance) @ squared,
        squares=transposed(weights**2) @ squared,
        value=value,
        count=np.broadcast_to(seen.sum(-2)[..., None], value.shape),
    )


def _dbias(e: GradientErrors, shape: tuple[int, ...]) -> Terms:
    """dS, summed over the rows and keys over which the bias, of this shape, is broadcast."""
    axes = tuple(axis for axis in (-2, -1) if shape[axis] == 1)
    return Terms(
        error=e.ds_bound,
        absolute=e.ds_most,
        variance=e.ds_variance + _row_shared(e, e.ds, 1.0, e.keys),
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
