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

_BITS = 200
"""Of the constants. mpmath's precision is one for all threads, so each operation names its own."""
_TICKS = mpmath.fdiv(TICKS, mpmath.ln2(prec=_BITS), prec=_BITS)
FAR = 2.0**120
"""Natural exponents at which added terms are cut (see `_add_terms`)."""


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
        largest = np.maximum(largest, _exponentials(sink, below, unknown, work))
    # Bias b and ALiBi a lose 2^-98 of themselves when they are scaled, each sum 2^-98 of what it
    # adds, and so does what they are added to, P. With s = P + b + a in the end, this is
    # P + |b| + (P + |b|) + |a| + (|P + b| + |a|) <= 3 |s| + 4 P + 5 |a|, as |P + b| <= |s| + |a|
    # and |b| <= |P + b| + P; for one of them alone, less than that without 5 |a|.
    added = np.where(np.isneginf(top), 0.0, largest) + scores.most + scores.second
    error = scores.error + 2.0**-95 * added
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
    are added to, at most. second: the largest ALiBi where there is a bias too.
    """

    def __init__(self, tile: Tile, work: Scratch) -> None:
        problem = tile.group.problem
        self.tile, self.work = tile, work
        scale, cap = float(problem.scale), problem.softcap
        self.cap = None
        if cap is None:
            factor = mpmath.fmul(scale, _TICKS, prec=_BITS)
        else:
            factor = mpmath.fdiv(scale, float(cap), prec=_BITS)
            self.cap = Pair.constant(mpmath.fmul(float(cap), _TICKS, prec=_BITS))
        self.query, self.size = _scaled_query(tile, factor)
        self.error = np.where(np.isfinite(self.size), 0.0, np.inf)
        self.most = self.size
        self.second = np.zeros_like(self.size)
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
        """c tanh(z), z = s / c, in ticks. Its derivative is the logarithm's 2 |tanh| off, at most:
        where z errs by ε <= 2^-6, by a part e^2ε - 1 <= 2.1 ε. Beyond, it is not known."""
        value, derivative = tanh(score, work=self.work)
        capped = multiply(value, cap)
        for target, source in ((score, capped), (slope, derivative)):
            np.copyto(target.high, source.high)
            np.copyto(target.low, source.low)
        ticks = float(abs(cap.high))
        self.most = np.full_like(self.size, ticks)
        self.error = np.maximum(self.error, ticks * (error + TANH_ERROR) * UP)
        around = np.where(error <= 2.0**-6, 2.1 * error + TANH_ERROR, np.nan)
        self.slope_error = np.maximum(self.slope_error, around)

    def _add_terms(self, keys: slice, score: Pair) -> None:
        """Bias and ALiBi, cut at FAR: what that changes is out of reach or unknown either way.

        A term beyond FAR that is added to less than FAR / 2 takes its key beyond FAR / 2, cut or
        not: below what counts, or above what is known. Where it is added to more, 2^-95 of that is
        an error too large for anything to be known of the row.
        """
        problem = self.tile.group.problem
        bias = self.tile.bias(keys)
        if bias is not None:
            add_to(score, _in_ticks(bias), work=self.work)
        if problem.alibi is not None:
            slope = problem.alibi[self.tile.group.index].astype(np.float64)[:, None, None]
            distance = self.tile.distance(keys)
            added = times(_in_ticks(-slope), distance)
            add_to(score, added, work=self.work)
            if bias is not None:
                largest = np.abs(added.high).max(-1, keepdims=True)
                self.second = np.maximum(self.second, largest * UP)


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
