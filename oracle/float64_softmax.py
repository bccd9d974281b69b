"""Scores and softmax of the float64 engine, with their error bounds (see `running_error.py`)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attnspec.oracle.assumptions import ELEMENTARY_ERROR
from attnspec.oracle.formats import Float64Array
from attnspec.oracle.heads import Heads, transposed
from attnspec.oracle.problem import BoolArray
from attnspec.oracle.running_error import FLOOR, SLACK, TINY, Ball, U, gamma, scaled, up

__all__ = ["Softmax", "scores", "softmax"]


def scores(heads: Heads, query: Float64Array, hidden: BoolArray) -> tuple[Ball, Ball | None]:
    """The scores (Nq, Nk), -inf where hidden, and 1 - tanh² of the soft-cap where there is one."""
    ball, slope = _scaled_products(heads, query), None
    if heads.softcap is not None:
        ball, slope = _capped(ball, heads.softcap)
    value, radius = ball
    if heads.bias is not None:
        value += heads.bias  # one rounding; sums do not underflow
        radius += U * np.abs(value) + TINY
    if heads.slope is not None:
        distance = np.abs(heads.ahead) * heads.slope  # |ahead| < 2^53 is exact: one rounding
        value -= distance
        radius += U * np.abs(distance) + U * np.abs(value) + 2 * TINY
    radius *= SLACK
    np.copyto(value, -np.inf, where=hidden)
    np.copyto(radius, 0.0, where=hidden)
    return ball, slope


def _scaled_products(heads: Heads, query: Float64Array) -> Ball:
    """scale · q kᵀ. With s = q kᵀ and M = |q||k|ᵀ, of D terms each,

        |scale s - fl(scale ŝ)| <= |scale| |s - ŝ| + u |scale ŝ| + 2^-1075
            <= |scale| (gamma_D + u (1 + gamma_D)) M + |scale| (D + 1) 2^-1074 + 2^-1075.

    The computed M is low by SLACK and D 2^-1075, its product with the factor by 2^-1075 more.
    """
    size, scale = query.shape[-1], abs(heads.scale)
    value = query @ transposed(heads.key)
    value *= heads.scale
    radius = np.abs(query) @ transposed(np.abs(heads.key))
    radius *= up(scale * (gamma(size) + 2 * U))
    radius += up(scale * ((size + 1) * TINY)) + 2 * TINY
    return Ball(value, radius)


def _capped(ball: Ball, cap: float) -> tuple[Ball, Ball]:
    """c tanh(s / c) and 1 - tanh²(s / c).

    z = s / c errs by rad z = rad s / c + u |ẑ| + 2^-1075; tanh' <= 1 passes that on, and tanh's
    own error is E of it (or 64 TINY where subnormal): rad t.
    |t² - t̂²| = |t - t̂| |t + t̂| <= (2 + E) rad t, as |t| <= 1 and |t̂| <= 1 + E; the square and
    the difference are at most 1 + 3E and round once each: 2u, with a margin 3u.
    """
    ratio = ball.value / cap
    around = (ball.radius / cap + U * np.abs(ratio)) * SLACK + 2 * TINY
    tanh = np.tanh(ratio)
    around += ELEMENTARY_ERROR * np.abs(tanh) * SLACK + 66 * TINY
    return scaled(Ball(tanh, around), cap), Ball(1 - tanh * tanh, 2 * SLACK * around + 3 * U)


class Softmax(NamedTuple):
    """The weights (Nq, columns), as an operand of `operand_product`, and the lse (Nq,)."""

    weights: Ball
    lse: Ball


def softmax(ball: Ball, hidden: BoolArray, *, terms: int) -> Softmax:
    """Softmax of scores over the columns that are not hidden. Overwrites the scores.

    The radius of the weights includes gamma_terms |value|.

    Scores are shifted by the *exact* score of the winner, the column w with the largest computed
    one: x_j = s_j - s_w. The softmax and lse - s_w stay the same, and x_w = 0 exactly, so a row
    that one key dominates stays sharp however large its scores and their errors are:
        |x_j - x̂_j| <= rad s_j + rad s_w + u |x̂_j|.
    """
    empty = hidden.all(axis=-1, keepdims=True)
    winner = ball.value.argmax(axis=-1, keepdims=True)  # a NaN wins, and spoils its row
    top = np.where(empty, 0.0, np.take_along_axis(ball.value, winner, axis=-1))
    top_radius = np.where(empty, 0.0, np.take_along_axis(ball.radius, winner, axis=-1))

    x, g = ball
    x -= top
    g += top_radius
    g -= U * x
    np.put_along_axis(g, winner, 0.0, axis=-1)
    relative = _exp_error(x, g)
    np.copyto(relative, 0.0, where=hidden)
    weights = np.exp(x, out=x)

    total, spread, least = _row_sums(weights, relative)
    total[empty] = 1.0
    weights /= total
    # p/l - p̂/l̂ = (p - p̂)/l + (p̂/l̂)(l̂ - l)/l, so with P̂ = fl(p̂/l̂)
    #   |P - P̂| <= P̂ (1 + u) (rel SLACK l̂ / least + rad l / least) + FLOOR / least + u P̂ + 2^-1074,
    # where 4 FLOOR cover FLOOR / least and every underflow.
    relative *= total / least * SLACK
    relative += (spread / least + (gamma(terms) + 2 * U)) * SLACK
    relative *= weights
    relative += 4 * FLOOR
    np.copyto(relative, 0.0, where=hidden)

    # lse = s_w + log l: |log l - log l̂| <= rad l / least (mean value), and log errs by E of itself.
    log = np.log(total)
    lse = top + log
    around = (top_radius + spread / least + ELEMENTARY_ERROR * log + U * np.abs(lse)) * SLACK
    value, radius = np.where(empty, -np.inf, lse), np.where(empty, 0.0, around)
    return Softmax(Ball(weights, relative), Ball(value[..., 0], radius[..., 0]))


def _exp_error(x: Float64Array, g: Float64Array) -> Float64Array:
    """rel with |exp(exact) - fl(exp x)| <= fl(exp x) rel SLACK + FLOOR, |exact - x| <= g, x <= 0.

    For g <= 1: |e^exact - e^x| <= e^x (e^g - 1) <= e^x (g + g²), as
    Σ_(k>=2) g^k / k! <= g² (e - 2). exp's own error adds E e^x + 2^-1022, and
    e^x <= (fl(exp x) + 2^-1022) / (1 - E). What stands beside fl(exp x) is below 2^-1019 <= FLOOR.
    For g > 1 nothing is claimed, unless x + g < -700: then both numbers lie in [0, 2^-1009].
    """
    relative = g + 1
    relative *= g
    relative += ELEMENTARY_ERROR
    if not np.all(g <= 1):
        relative[~(g <= 1)] = np.inf
        relative[x + g < -700] = 0.0
    return relative


def _row_sums(
    weights: Float64Array, relative: Float64Array
) -> tuple[Float64Array, Float64Array, Float64Array]:
    """l̂, rad l and a lower bound of l = Σ p_j over k columns, with rad p_j = p̂_j rel SLACK + FLOOR.

    rad l = Σ rad p_j + gamma_k Σ p̂_j, and Σ p̂_j <= l̂ / (1 - gamma_k). Where that is more than
    l̂ / 2 nothing is claimed (NaN). l̂ >= 1 in a row that sees anything: the winner's weight is 1
    and sums of non-negative numbers round monotonically; so l >= least >= 1/2. All are (Nq, 1).
    """
    columns = weights.shape[-1]
    total = weights.sum(axis=-1, keepdims=True)
    spread = np.einsum("...j,...j->...", weights, relative)[..., None] + gamma(columns) * total
    spread = (spread + columns * FLOOR) * SLACK
    return total, spread, np.where(spread <= total / 2, (total - spread) * (1 - 2 * U), np.nan)
