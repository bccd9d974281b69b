"""Outputs of a tile of rows: out and lse, from the exponentials and the values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnspec.oracle.double_double.exponential import LOG_ERROR, NATURAL, logarithm
from attnspec.oracle.double_double.pairs import Pair, add, divide, times
from attnspec.oracle.double_double.products import FLOOR, UP, Sums
from attnspec.oracle.double_double.reading import Tile
from attnspec.oracle.double_double.scratch import Scratch
from attnspec.oracle.double_double.softmax import Softmax
from attnspec.oracle.formats import Float64Array

__all__ = ["Bounded", "Forward", "forward", "log_sum_exp"]


@dataclass(frozen=True)
class Bounded:
    """A pair and what it may err by: |exact - pair| <= error."""

    pair: Pair
    error: Float64Array


@dataclass(frozen=True)
class Forward:
    """A tile's softmax, total = Σ p (H, R, 1), and out (H, R, Dv) over 2^exponent of the values.

    relative (H, R, 1): relative error of total. A row that sees nothing has total 1, out 0.
    """

    softmax: Softmax
    total: Pair
    relative: Float64Array
    out: Bounded


def forward(tile: Tile, weights: Softmax, *, work: Scratch) -> Forward:
    """The outputs of a tile.

    N = Σ p v, over the powers of two of the values' columns, whose last column is of ones and
    gives total = Σ p. With relative errors of p of at most θ,
        |N exact - N| <= θ Σ p|v| + what the sums lost + FLOOR,
    and out = N / total with errors errN and err: |out exact - out| <= (errN + |out| err) /
    (total - err), beside the 2^-98 of the division.
    """
    heads, rows = weights.error.shape[:2]
    value = tile.group.value
    shape = (heads, rows, value.exponent.shape[-1])
    sums = Sums(shape, work)
    for keys, p, _ in weights.blocks:
        sums.add(p, p.high, p.high, value, keys)
    error = (weights.error * sums.around + sums.error) * UP + FLOOR
    ones = value.exponent[..., -1:]
    total = Pair(*(np.ldexp(part[..., -1:], ones) for part in sums.value))
    lost = np.ldexp(error[..., -1:], ones)
    if weights.sink is not None:
        total = add(total, weights.sink)
        lost = (lost + (weights.error + 2.0**-97) * weights.sink.high) * UP
    nothing = total.high == 0
    total = Pair(np.where(nothing, 1.0, total.high), np.where(nothing, 0.0, total.low))
    least = np.where(lost <= total.high / 2, (total.high - lost) * (1 - 2.0**-50), np.nan)
    out = divide(Pair(*(part[..., :-1] for part in sums.value)), total)
    around = (error[..., :-1] + np.abs(out.high) * lost) / least + 2.0**-97 * np.abs(out.high)
    return Forward(weights, total, lost / least * UP, Bounded(out, around * UP + FLOOR))


def log_sum_exp(result: Forward) -> Bounded:
    """lse (H, R): (below + N) λ + rest, with ln total = N λ + rest.

    |ln total exact - ln total| <= `relative` (mean value); N and below are whole and exact, λ and
    the operations on pairs lose 2^-96 of what they add.
    """
    count, rest = logarithm(result.total)
    whole = count + result.softmax.below
    ticks = times(NATURAL, whole)
    lse = add(ticks, rest)
    error = result.relative + LOG_ERROR + 2.0**-96 * (np.abs(ticks.high) + 1)
    return Bounded(Pair(lse.high[..., 0], lse.low[..., 0]), error[..., 0] * UP)
