"""Outputs of a tile of rows: out and lse, from the exponentials and the values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnspec.oracle.double_double.exponential import LOG_ERROR, NATURAL, logarithm
from attnspec.oracle.double_double.pairs import Pair, add, divide, sum_pairs, times
from attnspec.oracle.double_double.reading import CHUNK, Tile
from attnspec.oracle.double_double.scratch import Scratch
from attnspec.oracle.double_double.slices import Wide, narrow, product, product_error, unit_of
from attnspec.oracle.double_double.softmax import FLOOR, UP, Softmax
from attnspec.oracle.formats import Float64Array

__all__ = ["Bounded", "Forward", "Sums", "forward", "log_sum_exp"]


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


class Sums:
    """Sums over keys of what belongs to rows: A B for A (H, R, m), block by block of keys.

    `value` (H, R, n) is their sum, a pair; each product is over at most CHUNK keys.
    """

    def __init__(self, shape: tuple[int, int, int], work: Scratch) -> None:
        self.value = Pair(np.zeros(shape), np.zeros(shape))
        self.size = np.zeros((*shape[:2], 1))
        self._lost = np.zeros(shape)
        self._additions = 0
        self._work = work

    def add(self, a: Pair, size: Float64Array, b: Wide) -> None:
        """Add A B, where size is |A|."""
        heads, rows, keys = a.high.shape
        chunk = min(CHUNK, keys)
        count = keys // chunk
        shape = (heads, rows, count, chunk)
        parts = size.reshape(shape).sum(-1, keepdims=True)
        right = _in_chunks(b, count)
        with (
            self._work.arrays(shape, 4) as into,
            self._work.arrays((heads, count, rows, b.whole.shape[-1]), 2) as (high, low),
        ):
            pair = Pair(a.high.reshape(shape), a.low.reshape(shape))
            left = narrow(pair, unit_of(parts * UP), terms=chunk, into=into).swapped(1, 2)
            summed = product(left, right, work=self._work, out=Pair(high, low))
            self.value = add(self.value, sum_pairs(summed, axis=1))
        parts = np.swapaxes(parts, 1, 2)
        column = right.size.sum(-2, keepdims=True)
        self._lost += product_error(left, right, parts, column).sum(1)
        self.size += parts.sum(1)
        self._additions += 1 + count

    @property
    def error(self) -> Float64Array:
        """What `value` has lost: that of each product, and in each addition of pairs at most
        2^-98 of what has been added up so far, which is below Σ|A| (|B| <= 1)."""
        return np.asarray((self._lost + self._additions * 2.0**-98 * self.size) * UP)


def _in_chunks(b: Wide, count: int) -> Wide:
    """B (H, m, n) as (H, count, m / count, n)."""
    heads, keys, width = b.whole.shape
    shape = (heads, count, keys // count, width)
    rest = None if b.rest is None else b.rest.reshape(shape)
    return Wide(b.first.reshape(shape), rest, b.whole.reshape(shape), b.size.reshape(shape))


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
    sums, size = Sums(shape, work), np.zeros(shape)
    for keys, p, _ in weights.blocks:
        block = value.block(keys)
        sums.add(p, p.high, block)
        size += p.high @ block.size
    error = (weights.error * size + sums.error) * UP + FLOOR
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
