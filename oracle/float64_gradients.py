"""Gradients of the float64 engine's sharp way: an error bound for each score."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from attnspec.oracle.formats import Float64Array
from attnspec.oracle.heads import Heads, transposed
from attnspec.oracle.problem import BoolArray
from attnspec.oracle.running_error import (
    FLOOR,
    SLACK,
    TINY,
    Ball,
    U,
    exact_zero,
    gamma,
    operand_product,
    product,
    scaled,
)

__all__ = ["Forward", "gradients", "row_shift", "sink_gradient"]


@dataclass(frozen=True)
class Forward:
    """What the gradients need of the forward pass. Weights are operands, and include
    gamma_terms |value| in their radius; `slope` is 1 - tanh² of the soft-cap."""

    heads: Heads
    query: Float64Array
    weights: Ball
    sink: Ball  # (Nq, 1), or (Nq, 0) without a sink
    out: Ball
    slope: Ball | None
    terms: int


def gradients(
    f: Forward, want: Collection[str], *, bias_shape: tuple[int, ...]
) -> Iterator[tuple[str, Ball]]:
    """This tile's part of every gradient of `want`; `bias_shape` is along rows and keys."""
    heads = f.heads
    rows: BoolArray = np.asarray(heads.visible.any(axis=-1))
    used: BoolArray = np.asarray(heads.visible.any(axis=-2))
    dout = np.zeros_like(f.out.value) if heads.dout is None else heads.dout
    if "dv" in want:
        yield "dv", exact_zero(operand_product(_transposed_ball(f.weights), dout), unless=used)
    shift = row_shift(heads, dout, f.out)
    if "dsinks" in want:
        yield "dsinks", sink_gradient(f.sink, shift, f.terms)
    if not {"dq", "dk", "dbias"} & set(want):
        return
    dscores = _score_gradient(f, dout, shift)
    if "dbias" in want:
        yield "dbias", _folded(dscores, bias_shape)
    if f.slope is not None:
        dscores = _through_cap(dscores, f.slope, f.terms)
    if "dq" in want:
        dq = scaled(operand_product(dscores, heads.key), heads.scale)
        yield "dq", exact_zero(dq, unless=rows)
    if "dk" in want:
        dk = scaled(operand_product(_transposed_ball(dscores), f.query), heads.scale)
        yield "dk", exact_zero(dk, unless=used)


def _transposed_ball(ball: Ball) -> Ball:
    return Ball(transposed(ball.value), transposed(ball.radius))


def row_shift(heads: Heads, dout: Float64Array, out: Ball) -> Ball:
    """dlse - D for each row, D = Σ_c dout_c out_c over Dv terms.

    |D - D̂| <= Σ |dout| rad out + gamma_Dv Σ |dout| |ôut| + Dv 2^-1074, and computing the radius
    loses two underflows a term more; the difference rounds once.
    """
    size = dout.shape[-1]
    value = -np.einsum("...c,...c->...", dout, out.value)
    around = out.radius + gamma(size) * np.abs(out.value) + TINY
    radius = np.einsum("...c,...c->...", np.abs(dout), around) + 2 * size * TINY
    if heads.dlse is not None:
        value = value + heads.dlse
    return Ball(value, (radius + U * np.abs(value)) * SLACK + TINY)


def _score_gradient(f: Forward, dout: Float64Array, shift: Ball) -> Ball:
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


def sink_gradient(sink: Ball, shift: Ball, terms: int) -> Ball:
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
