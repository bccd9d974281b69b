"""Scores in ticks, and their exponentials: a tile of rows, block by block of keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np

from attnspec.oracle.double_double.blocks import add_to
from attnspec.oracle.double_double.exponential import (
    EXP_ERROR,
    LARGEST,
    NATURAL,
    TANH_ERROR,
    TICK_OF_NATURAL,
    TICKS,
    exponential,
    tanh,
)
from attnspec.oracle.double_double.pairs import Pair, multiply, times
from attnspec.oracle.double_double.products import UP, row_products
from attnspec.oracle.double_double.reading import Tile
from attnspec.oracle.double_double.scratch import Scratch
from attnspec.oracle.double_double.slices import Narrow, narrow, unit_of
from attnspec.oracle.formats import Float64Array
from attnspec.oracle.problem import BoolArray, IntArray

__all__ = ["Softmax", "softmax"]

FAR = 2.0**80
"""Ticks beyond which an added term only says that its key is out of reach, or its row unknown."""


@dataclass
class Softmax:
    """The exponentials of a tile: p = e^(score - below · λ), and what they may err by.

    blocks: keys, p and the soft-cap's slope there, pairs (H, R, m). below (H, R, 1): ticks, at most
    one above each row's largest score. error (H, R, 1): |p exact - p| <= error · p + FLOOR; NaN for
    rows of which nothing is known. slope_error likewise. sink: its exponential, a pair (H, R, 1).
    """

    blocks: list[tuple[slice, Pair, Pair | None]]
    below: IntArray
    error: Float64Array
    slope_error: Float64Array
    sink: Pair | None


def softmax(tile: Tile, buffer: Float64Array, *, work: Scratch) -> Softmax:
    """The exponentials of every block, in `buffer`: room for four numbers a score.

    With the scores exact to ε ticks, p errs by e^(λε) - 1 <= λε (1 + λε) for λε <= 2^-10, and by
    EXP_ERROR. Beyond, and where a score exceeds LARGEST, nothing is known.
    """
    scores = _Scores(tile, work)
    blocks: list[tuple[slice, Pair, Pair | None]] = []
    top = np.full((*scores.size.shape[:2], 1), -np.inf)
    for keys in tile.blocks():
        shape = (*scores.size.shape[:2], keys.stop - keys.start)
        score, buffer = _pair_in(buffer, shape)
        slope = None
        if tile.group.problem.softcap is not None:
            slope, buffer = _pair_in(buffer, shape)
        scores.block(keys, score, slope)
        blocks.append((keys, score, slope))
        np.maximum(top, score.high.max(-1, keepdims=True), out=top)
    sink = _sink(tile)
    if sink is not None:
        top = np.maximum(top, sink.high)
    unknown = ~(np.abs(top) <= LARGEST) & ~np.isneginf(top)
    below = np.where(np.abs(top) <= LARGEST, np.ceil(top), 0.0).astype(np.int64)
    largest = np.abs(top)
    for _, score, _ in blocks:
        largest = np.maximum(largest, _exponentials(score, below, unknown, work))
    if sink is not None:
        _exponentials(sink, below, unknown, work)
    # Every sum of pairs loses 2^-98 of what it adds; what is added is at most twice the sum and
    # the product (or soft-cap) that it began with.
    error = scores.error + 2.0**-95 * (np.where(np.isneginf(top), 0.0, largest) + scores.most)
    relative = float(NATURAL.high) * error
    relative = (relative * (1 + relative) + EXP_ERROR) * UP
    bad = unknown | ~(relative <= 2.0**-10)
    nan = np.where(bad, np.nan, 0.0)
    return Softmax(blocks, below, relative + nan, scores.slope_error + nan, sink)


def _pair_in(buffer: Float64Array, shape: tuple[int, int, int]) -> tuple[Pair, Float64Array]:
    """A pair at the start of the buffer, and the rest of it."""
    size = int(np.prod(shape))
    high, low = buffer[: 2 * size].reshape(2, *shape)
    return Pair(high, low), buffer[2 * size :]


def _exponentials(score: Pair, below: IntArray, unknown: BoolArray, work: Scratch) -> Float64Array:
    """Overwrite scores with exponentials; 0 where hidden, far below, or unknown.

    Returns the largest |score| of each row that is none of these.
    """
    limit = below - 900.0 * TICKS
    least = score.high.min(-1, keepdims=True)
    dead = None
    if not np.all(least >= limit) or unknown.any():
        dead = ~(score.high >= limit) | unknown
        np.copyto(score.high, below, where=dead)
        np.copyto(score.low, 0.0, where=dead)
        least = score.high.min(-1, keepdims=True)
    exponential(score, below, work=work)
    if dead is not None:
        np.copyto(score.high, 0.0, where=dead)
        np.copyto(score.low, 0.0, where=dead)
    return np.asarray(np.abs(least))


class _Scores:
    """Scores of a tile: ticks, exact to `error` (H, R, 1) and what their sums lose.

    size (H, R, 1): Σ|q̃| of the scaled query, which bounds every product. most: what additive terms
    are added to, at most.
    """

    def __init__(self, tile: Tile, work: Scratch) -> None:
        problem = tile.group.problem
        self.tile, self.work = tile, work
        with mpmath.workprec(200):
            ticks = TICKS / mpmath.log(2)
            cap = None if problem.softcap is None else mpmath.mpf(float(problem.softcap))
            factor = mpmath.mpf(float(problem.scale)) * (ticks if cap is None else 1 / cap)
            self.cap = None if cap is None else Pair.constant(cap * ticks)
        self.query, self.size = _scaled_query(tile, factor)
        self.error = np.where(np.isfinite(self.size), 0.0, np.inf)
        self.most = self.size
        self.slope_error = np.zeros_like(self.size)

    def block(self, keys: slice, score: Pair, slope: Pair | None) -> None:
        """The scores of these keys, -inf where hidden, and the slope of the soft-cap."""
        tile, work = self.tile, self.work
        error = row_products(self.query, self.size, tile.group.key, keys, work=work, out=score)
        # The scaled query is one product of pairs; |key| <= 1.
        error = (error + 2.0**-96 * self.size) * UP + 2.0**-200
        if slope is not None and self.cap is not None:
            self._through_cap(score, slope, self.cap, error)
        else:
            self.error = np.maximum(self.error, error)
        self._add_terms(keys, score)
        hidden = tile.hidden(keys)
        if hidden is not None:
            np.copyto(score.high, -np.inf, where=hidden)

    def _through_cap(self, score: Pair, slope: Pair, cap: Pair, error: Float64Array) -> None:
        """c tanh(z), z = s / c, in ticks; its derivative moves by 2 |tanh| of z relatively."""
        value, derivative = tanh(score, work=self.work)
        capped = multiply(value, cap)
        for target, source in ((score, capped), (slope, derivative)):
            np.copyto(target.high, source.high)
            np.copyto(target.low, source.low)
        ticks = float(abs(cap.high))
        self.most = np.full_like(self.size, ticks)
        self.error = np.maximum(self.error, ticks * (error + TANH_ERROR) * UP)
        self.slope_error = np.maximum(self.slope_error, 2.1 * error + TANH_ERROR)

    def _add_terms(self, keys: slice, score: Pair) -> None:
        """Bias and ALiBi. Terms beyond FAR are cut there: a key that far below the largest score
        of its row counts as 0 either way, and a row whose largest score is that far is unknown."""
        problem = self.tile.group.problem
        bias = self.tile.bias(keys)
        if bias is not None:
            add_to(score, _in_ticks(bias), work=self.work)
        if problem.alibi is not None:
            slope = problem.alibi[self.tile.group.index].astype(np.float64)[:, None, None]
            slope = np.clip(-slope, -FAR, FAR)
            add_to(score, times(_in_ticks(slope), self.tile.distance(keys)), work=self.work)


def _in_ticks(natural: Float64Array) -> Pair:
    """Natural exponents as ticks, cut at FAR."""
    return times(TICK_OF_NATURAL, np.clip(natural, -FAR, FAR))


def _scaled_query(tile: Tile, factor: Any) -> tuple[Narrow, Float64Array]:
    """The query times the factor and the scales of the key's columns, in slices; and Σ|q̃|.

    Rows of scores beyond any use (2^200 ticks) are 0, of size inf.
    """
    mantissa, exponent = mpmath.frexp(factor)
    query = np.ldexp(tile.query, tile.group.key.exponent + int(exponent))
    sizes = np.abs(query).sum(-1, keepdims=True) * UP
    lost = ~(sizes <= 2.0**200)
    query = np.where(lost, 0.0, query)
    scaled = times(Pair.constant(mantissa), query)
    into = list(np.empty((4, *query.shape)))
    sliced = narrow(scaled, unit_of(np.where(lost, 0.0, sizes)), terms=query.shape[-1], into=into)
    return sliced, np.where(lost, np.inf, sizes)


def _sink(tile: Tile) -> Pair | None:
    """The sink's logit in ticks, for each row: (H, R, 1)."""
    sinks = tile.group.problem.sinks
    if sinks is None:
        return None
    rows = tile.rows.stop - tile.rows.start
    logit = sinks.astype(np.float64)[tile.group.index][:, None, None]
    ticks = _in_ticks(np.repeat(logit, rows, axis=1))
    return Pair(ticks.high.copy(), ticks.low.copy())
