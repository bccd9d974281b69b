"""Tier `float64`: attention and its gradients in NumPy float64, with a proven error bound.

The proof is in the pieces: `running_error.py` (the model and the lemmas), `float64_softmax.py`,
and the gradients here. What must be assumed of the machine is in `assumptions.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from attnspec.oracle import assumptions
from attnspec.oracle.enclosure import Reference
from attnspec.oracle.float64_softmax import scores, softmax
from attnspec.oracle.formats import Float64Array
from attnspec.oracle.heads import Heads, stacked, transposed
from attnspec.oracle.problem import BoolArray, Problem
from attnspec.oracle.running_error import (
    FLOOR,
    SLACK,
    TINY,
    Ball,
    Place,
    Total,
    U,
    gamma,
    operand_product,
    product,
    scaled,
)

__all__ = ["enclose"]

TILE = 2**16
MIN_ROWS = 16
"""Scores and rows that are worked on together: what the caches hold, and enough for a fast gemm."""


def enclose(problem: Problem, *, want: Collection[str] = ("out", "lse")) -> Reference:
    """Enclose the outputs named in `want` (of `OUTPUTS`), each in its shape of `Problem.shape_of`.

    A bound of inf means that float64 does not reach: something overflows, or the scores are too
    large for their rounding errors. Raises `AssumptionFailed`.
    """
    assumptions.check()
    totals = {name: Total(_total_shape(problem, name)) for name in want}
    with np.errstate(all="ignore"):
        for heads in stacked(problem, rows=_step(problem)):
            for name, ball in _outputs(problem, heads, want):
                totals[name].add(_place(problem, heads, name), ball)
        enclosures = {n: total.enclosure(problem.shape_of(n)) for n, total in totals.items()}
    return Reference("float64", enclosures)


def _step(problem: Problem) -> int:
    """How many query rows make a tile of about TILE scores."""
    return max(MIN_ROWS, TILE // max(1, problem.key_count))


def _total_shape(problem: Problem, output: str) -> tuple[int, ...]:
    """The shape that heads add into: the output's, with dbias's missing leading axes."""
    shape = problem.shape_of(output)
    return (1,) * (4 - len(shape)) + shape if output == "dbias" else shape


def _place(problem: Problem, heads: Heads, output: str) -> Place:
    """Where a tile of each head adds into the output: at which head, and at which part of that."""
    if output == "dbias":
        batches, several, row_count, key_count = _total_shape(problem, output)
        rows = heads.rows if row_count > 1 else slice(None)
        keys = heads.keys if key_count > 1 else slice(None)
        return heads.batch * (batches > 1), heads.index * (several > 1), rows, keys
    if output == "dsinks":
        return (heads.index,)
    if output in ("dk", "dv"):
        return heads.batch, heads.kv_index, heads.keys
    return heads.batch, heads.index, heads.rows


def _outputs(problem: Problem, heads: Heads, want: Collection[str]) -> Iterator[tuple[str, Ball]]:
    """This tile's part of every output of `want`."""
    rows: BoolArray = np.asarray(heads.visible.any(axis=-1))
    # A row that sees no key may be padding, with anything in it.
    query = np.where(rows[..., None], heads.query, 0.0)
    hidden = ~heads.visible
    ball, slope = scores(heads, query, hidden)
    keys = heads.key.shape[-2]
    if heads.sink is not None or keys == 0:
        ball, hidden = _with_sink(ball, hidden, heads.sink)
    terms = sum(hidden.shape[-2:])  # no sum has more; dbias sums over one axis, then the other
    all_weights, lse = softmax(ball, hidden, terms=terms)
    weights = Ball(all_weights.value[..., :keys], all_weights.radius[..., :keys])
    out = _exact_zero(operand_product(weights, heads.value), unless=rows)
    yield from ((name, ball) for name, ball in (("out", out), ("lse", lse)) if name in want)
    if not set(want) <= {"out", "lse"}:
        sink = Ball(all_weights.value[..., keys:], all_weights.radius[..., keys:])
        yield from _gradients(
            _Forward(heads, query, weights, sink, out, slope, terms), problem, want
        )


def _with_sink(ball: Ball, hidden: BoolArray, sink: Float64Array | None) -> tuple[Ball, BoolArray]:
    """With a last column: the exact logit of the sink, or hidden where there is none (Nk = 0)."""
    column = (*hidden.shape[:-1], 1)
    logit = np.broadcast_to(-np.inf if sink is None else sink, column)
    value = np.concatenate([ball.value, logit], axis=-1)
    radius = np.concatenate([ball.radius, np.zeros(column)], axis=-1)
    return Ball(value, radius), np.concatenate([hidden, np.full(column, sink is None)], axis=-1)


def _exact_zero(ball: Ball, *, unless: BoolArray) -> Ball:
    """The ball, with rows that are exactly 0 unless used."""
    used = unless[..., None]
    return Ball(np.where(used, ball.value, 0.0), np.where(used, ball.radius, 0.0))


# -- gradients ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Forward:
    """What the gradients need of the forward pass. Weights are operands, and include
    gamma_terms |value| in their radius; `slope` is 1 - tanh² of the soft-cap."""

    heads: Heads
    query: Float64Array
    weights: Ball
    sink: Ball  # (Nq, 1), or (Nq, 0) without a sink
    out: Ball
    slope: Ball | None
    terms: int


def _gradients(f: _Forward, problem: Problem, want: Collection[str]) -> Iterator[tuple[str, Ball]]:
    """This tile's part of every gradient of `want`."""
    heads = f.heads
    rows: BoolArray = np.asarray(heads.visible.any(axis=-1))
    used: BoolArray = np.asarray(heads.visible.any(axis=-2))
    dout = np.zeros_like(f.out.value) if heads.dout is None else heads.dout
    if "dv" in want:
        yield "dv", _exact_zero(operand_product(_transposed_ball(f.weights), dout), unless=used)
    shift = _row_shift(f, dout)
    if "dsinks" in want:
        yield "dsinks", _sink_gradient(f.sink, shift, f.terms)
    if not {"dq", "dk", "dbias"} & set(want):
        return
    dscores = _score_gradient(f, dout, shift)
    if "dbias" in want:
        yield "dbias", _folded(dscores, _total_shape(problem, "dbias")[2:])
    if f.slope is not None:
        dscores = _through_cap(dscores, f.slope, f.terms)
    if "dq" in want:
        dq = scaled(operand_product(dscores, heads.key), heads.scale)
        yield "dq", _exact_zero(dq, unless=rows)
    if "dk" in want:
        dk = scaled(operand_product(_transposed_ball(dscores), f.query), heads.scale)
        yield "dk", _exact_zero(dk, unless=used)


def _transposed_ball(ball: Ball) -> Ball:
    return Ball(transposed(ball.value), transposed(ball.radius))


def _row_shift(f: _Forward, dout: Float64Array) -> Ball:
    """dlse - D for each row, D = Σ_c dout_c out_c over Dv terms.

    |D - D̂| <= Σ |dout| rad out + gamma_Dv Σ |dout| |ôut| + Dv 2^-1074, and computing the radius
    loses two underflows a term more; the difference rounds once.
    """
    size = dout.shape[-1]
    value = -np.einsum("...c,...c->...", dout, f.out.value)
    around = f.out.radius + gamma(size) * np.abs(f.out.value) + TINY
    radius = np.einsum("...c,...c->...", np.abs(dout), around) + 2 * size * TINY
    if f.heads.dlse is not None:
        value = value + f.heads.dlse
    return Ball(value, (radius + U * np.abs(value)) * SLACK + TINY)


def _score_gradient(f: _Forward, dout: Float64Array, shift: Ball) -> Ball:
    """dS = P (dP - D + dlse), dP = dout vᵀ, as an operand.

    inner = dP + shift errs by r + u |inner^|, r = rad dP + rad shift. Since |P x - P̂ x^| <=
    |P - P̂| |x| + P̂ |x - x^|, and the product rounds once,
        |dS - fl(P̂ inner^)| <= rad P (|inner^| + r) + P̂ (r + 2u |inner^|) + 2^-1074
    (rad P times u |inner^| is left to SLACK). To be an operand, it takes up gamma_terms |dS| too.
    """
    weights = f.weights
    inner, r = product(dout, transposed(f.heads.value))
    inner += shift.value[..., None]
    size = np.abs(inner)
    r += shift.radius[..., None]
    value = weights.value * inner
    radius = size + r
    radius *= weights.radius
    size *= gamma(f.terms) + 2 * U
    r += size
    r *= weights.value
    radius += r
    return _operand(value, radius, ~f.heads.visible)


def _operand(value: Float64Array, radius: Float64Array, hidden: BoolArray) -> Ball:
    """With the floor of an operand (which covers every underflow), and exactly 0 where hidden."""
    radius *= SLACK
    radius += FLOOR
    np.copyto(value, 0.0, where=hidden)
    np.copyto(radius, 0.0, where=hidden)
    return Ball(value, radius)


def _through_cap(dscores: Ball, slope: Ball, terms: int) -> Ball:
    """dS (1 - tanh²): rad dS (|cap'| + rad cap') + |dS| (rad cap' + (gamma + 2u) |cap'|)."""
    cap = np.abs(slope.value)
    radius = dscores.radius * (cap + slope.radius)
    radius += np.abs(dscores.value) * (slope.radius + (gamma(terms) + 2 * U) * cap)
    return _operand(dscores.value * slope.value, radius, dscores.radius == 0)


def _sink_gradient(sink: Ball, shift: Ball, terms: int) -> Ball:
    """Σ_i Psink_i (dlse_i - D_i): a product of balls, summed over at most `terms` rows."""
    weight, around = sink.value[..., 0], sink.radius[..., 0]
    size = np.abs(shift.value)
    radius = around * (size + shift.radius)
    radius += weight * (shift.radius + (gamma(terms) + 2 * U) * size)
    value = (weight[..., None, :] @ shift.value[..., None])[..., 0, 0]
    return Ball(value, (radius + FLOOR).sum(-1) * SLACK)


def _folded(dscores: Ball, shape: tuple[int, ...]) -> Ball:
    """dS summed over the axes along which the bias was broadcast, one after the other.

    A sum of Nq terms and then one of Nk err by gamma_Nq + gamma_Nk + gamma_Nq gamma_Nk <=
    gamma_(Nq + Nk) of Σ|dS| (Higham, lemma 3.3), which the operand's radius includes.
    """
    value, radius = dscores
    for axis, size in zip((-2, -1), shape, strict=True):
        if size == 1:
            value, radius = value.sum(axis, keepdims=True), radius.sum(axis, keepdims=True)
    return Ball(value, radius * SLACK)
