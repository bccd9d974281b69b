"""Gradients of a tile of rows: dq of the rows, and what they add to everything else.

With p the exponentials, l = Σ p, dP = dout vᵀ, D = dout · out:
    W = p (dP - D + dlse),  dq = (scale / l) W k,  dk = Wᵀ (scale q / l),  dv = pᵀ (dout / l).
So 1 / l is applied to rows of numbers, never to all scores. The cotangents are scaled by a power of
two, to at most 1 with the values in their own scaling; what depends on them is scaled back.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np

from attnspec.oracle.double_double.blocks import add_to, multiply_by
from attnspec.oracle.double_double.forward import Bounded, Forward
from attnspec.oracle.double_double.pairs import (
    Pair,
    add,
    divide,
    multiply,
    scale,
    scaled,
    sum_pairs,
    times,
)
from attnspec.oracle.double_double.products import FLOOR, UP, Sums, row_products
from attnspec.oracle.double_double.reading import BLOCK, Tile
from attnspec.oracle.double_double.scratch import Scratch
from attnspec.oracle.double_double.slices import (
    Narrow,
    Wide,
    narrow,
    product,
    product_error,
    unit_of,
    wide,
)
from attnspec.oracle.formats import Float64Array
from attnspec.oracle.problem import IntArray

__all__ = ["Gradients", "Part"]


@dataclass(frozen=True)
class Part:
    """Part of an output, to be added: `bounded` · 2^exponent, for the rows or for some keys.

    Its arrays are there until the next part is asked for.
    """

    output: str
    bounded: Bounded
    exponent: IntArray
    keys: slice | None = None

    def copy(self) -> Part:
        """A part that stays."""
        high, low = self.bounded.pair
        bounded = Bounded(Pair(high.copy(), low.copy()), self.bounded.error.copy())
        return replace(self, bounded=bounded)


@dataclass(frozen=True)
class _Rows:
    """Rows of numbers that columns of scores are multiplied with: a wide operand (H, R, n), each
    column scaled by 2^-exponent (H, 1, n), to a relative error of 2^-96 beside that of 1 / l."""

    wide: Wide
    exponent: IntArray

    @classmethod
    def of(cls, rows: Float64Array, factor: float, total: Pair) -> _Rows:
        """rows · factor / total, for 1/2 <= |factor| < 1 or 0, and total > 1/4."""
        exponent = _exponent(rows)
        divided = divide(times(Pair.of(scale(rows, -exponent)), factor), total)
        shift = _exponent(divided.high)
        divided = scaled(divided, -shift)
        return cls(wide(divided.high, divided.low), exponent + shift)


def _exponent(rows: Float64Array) -> IntArray:
    """The power of two above each column's largest number: (H, 1, n)."""
    return np.asarray(np.frexp(np.abs(rows).max(-2, keepdims=True))[1], np.int64)


class Gradients:
    """The gradients of one tile; `parts` yields them, keys block by block."""

    def __init__(self, tile: Tile, result: Forward, want: Collection[str], work: Scratch) -> None:
        self.tile, self.result, self.want, self.work = tile, result, want, work
        problem = tile.group.problem
        shape = (*result.relative.shape[:2], problem.value_size)
        self.dout = np.zeros(shape) if problem.dout is None else tile.rows_of(problem.dout)
        self.dout[~tile.sees] = 0  # perhaps padding, and without influence
        dlse = np.zeros(shape[:2]) if problem.dlse is None else tile.rows_of(problem.dlse)
        if problem.sinks is None:
            dlse[~tile.sees] = 0
        self.scale, exponent = math.frexp(problem.scale)
        self.scale_exponent = exponent
        self._scale_cotangents(dlse[..., None])
        # Of p / l and of W / l, relative to themselves. Of the errors θ of p, ρ of l and s of the
        # slope, θ and ρ are below 2^-9 and s below 2^-4, so their products are below a hundredth of
        # their sum; 2^-95 is for the operations on pairs.
        self.p_relative = 1.01 * (result.softmax.error + result.relative) + 2.0**-95
        self.relative = self.p_relative + 1.01 * result.softmax.slope_error
        total, query = result.total, tile.query
        self._values = _Rows.of(self.dout, 0.5, total) if "dv" in want else None
        self._keys = _Rows.of(query, self.scale, total) if "dk" in want else None
        self._sums = Sums((*shape[:2], problem.head_size), work) if "dq" in want else None

    def _scale_cotangents(self, dlse: Float64Array) -> None:
        """dout and dlse over 2^exponent, to at most 1 in the values' scaling; and dlse - D.

        |D exact - D| <= Σ |dout| (error of out) + Dv 2^-97 Σ |dout||out| (`sum_pairs`, and the
        products).
        """
        values = self.tile.group.value.exponent[..., :-1]
        largest = np.abs(self.dout).max(-2, keepdims=True)
        each = np.where(largest > 0, np.frexp(largest)[1] + values, -(2**20))
        top = np.abs(dlse).max(-2, keepdims=True)
        other = np.where(top > 0, np.frexp(top)[1], -(2**20))
        exponent = np.maximum(each.max(-1, keepdims=True), other).astype(np.int64)
        self.exponent: IntArray = np.where(exponent == -(2**20), 0, exponent)
        cotangent = np.ldexp(self.dout, values - self.exponent)
        self.size = np.abs(cotangent).sum(-1, keepdims=True)
        into = list(np.empty((4, *cotangent.shape)))
        terms = cotangent.shape[-1]
        unit = unit_of(self.size * UP)
        self.cotangent: Narrow = narrow(Pair.of(cotangent), unit, terms=terms, into=into)
        out = self.result.out
        inner = sum_pairs(times(out.pair, cotangent), axis=-1)
        dlse = np.ldexp(dlse, -self.exponent)
        self.shift = add(Pair.of(dlse), Pair(-inner.high[..., None], -inner.low[..., None]))
        around = out.error + terms * 2.0**-97 * np.abs(out.pair.high)
        self.shift_error = (np.abs(cotangent) * around).sum(-1, keepdims=True)
        self.shift_error += 2.0**-97 * np.abs(self.shift.high)

    def parts(self) -> Iterator[Part]:
        """Every part of every gradient wanted."""
        if "dsinks" in self.want:
            yield self._sinks()
        for block in self.result.softmax.blocks:
            yield from self.of_block(block)
        if self._sums is not None:
            yield self._queries(self._sums)

    def of_block(self, block: tuple[slice, Pair, Pair | None]) -> Iterator[Part]:
        """What a block of keys gets: its dk, dv and dbias. What it adds to dq is kept."""
        keys, p, slope = block
        if self._values is not None:
            yield from self._to_values(keys, p, self._values)
        if not {"dq", "dk", "dbias"} & set(self.want):
            return
        with (
            self.work.arrays(p.high.shape, 2) as (high, low),
            self.work.arrays(p.high.shape, 2) as (size, error),
        ):
            W = Pair(high, low)
            inner = self._inner(keys, p, W)
            if "dbias" in self.want:
                yield from self._bias(keys, p, W, inner)
            if slope is not None:
                multiply_by(W, slope, work=self.work)
            # |W exact - W| <= p · inner + relative |W|, and what 1 / l errs by.
            np.multiply(p.high, inner, out=error)
            np.abs(high, out=size)
            with self.work.arrays(p.high.shape, 1) as (part,):
                np.multiply(size, self.relative, out=part)
                error += part
            if self._sums is not None:
                self._sums.add(W, size, error, self.tile.group.key, keys)
            if self._keys is not None:
                yield from self._of_keys("dk", keys, W, size, error, self._keys)

    def _inner(self, keys: slice, p: Pair, W: Pair) -> Float64Array:
        """W = p (dP - D + dlse), and the error of the factor of p: (H, R, 1).

        |dP| <= Σ|dout| = size, as |v| <= 1 in its scaling. 1.01 covers the error of p, at most
        2^-10 of it, times the error of the factor.
        """
        values = self.tile.group.value
        error = row_products(self.cotangent, self.size, values, keys, work=self.work, out=W)
        add_to(W, self.shift, work=self.work)
        multiply_by(W, p, work=self.work)
        error += self.shift_error + 2.0**-97 * (self.size + np.abs(self.shift.high))
        return np.asarray(1.01 * error)

    def _of_keys(
        self, name: str, keys: slice, x: Pair, size: Float64Array, error: Float64Array, rows: _Rows
    ) -> Iterator[Part]:
        """Xᵀ rows: (H, m, n), where X errs by `error`, and size is |X|."""
        width = rows.wide.whole.shape[-1]
        columns = size.sum(-2, keepdims=True)
        exponent = rows.exponent
        if name == "dk":
            exponent = exponent + self.exponent + self.scale_exponent
        heads, terms, _ = size.shape
        with self.work.arrays(x.high.shape, 4) as into:
            left = narrow(x, unit_of(columns * UP), terms=terms, into=into).swapped(-1, -2)
            columns = np.swapaxes(columns, -1, -2)
            column = rows.wide.size.sum(-2, keepdims=True)
            step = max(1, 2 * BLOCK // (heads * width))
            for start in range(0, keys.stop - keys.start, step):
                some = slice(start, min(start + step, keys.stop - keys.start))
                shape = (heads, some.stop - start, width)
                part = slice(keys.start + start, keys.start + some.stop)
                with self.work.arrays(shape, 4) as (high, low, lost, around):
                    out, factor = Pair(high, low), left.part(some)
                    product(factor, rows.wide, work=self.work, out=out)
                    product_error(factor, rows.wide, columns[:, some], column, out=lost)
                    np.matmul(np.swapaxes(error[..., some], -1, -2), rows.wide.size, out=around)
                    lost += around
                    lost *= UP
                    lost += FLOOR
                    unused = ~self.tile.group.used[:, part]
                    if unused.any():
                        lost[unused] = 0
                    yield Part(name, Bounded(out, lost), exponent + (name == "dv"), part)

    def _to_values(self, keys: slice, p: Pair, rows: _Rows) -> Iterator[Part]:
        """dv: pᵀ (dout / l), where p errs by a part of itself."""
        with self.work.arrays(p.high.shape, 1) as (error,):
            np.multiply(p.high, self.p_relative, out=error)
            yield from self._of_keys("dv", keys, p, p.high, error, rows)

    def _queries(self, sums: Sums) -> Part:
        """dq: (scale / l) W k."""
        total = self.result.total
        dq = divide(times(sums.value, self.scale), total)
        error = (sums.around + sums.error + FLOOR) * abs(self.scale) / total.high
        error += 2.0**-96 * np.abs(dq.high)
        error = np.where(self.tile.sees[..., None], error * UP + FLOOR, 0.0)
        exponent = self.exponent + self.scale_exponent + self.tile.group.key.exponent
        return Part("dq", Bounded(dq, error), exponent)

    def _sinks(self) -> Part:
        """dsinks: Σ_i p_sink (dlse - D) / l, a number for each head."""
        sink, total = self.result.softmax.sink, self.result.total
        assert sink is not None  # `want` says so
        weighted = divide(multiply(sink, self.shift), total)
        error = self.relative * np.abs(weighted.high)
        error += sink.high / total.high * 1.01 * self.shift_error
        error += sink.high.shape[-2] * 2.0**-97 * np.abs(weighted.high)
        bounded = Bounded(sum_pairs(weighted, axis=-2), error.sum(-2) * UP + FLOOR)
        return Part("dsinks", bounded, self.exponent[:, 0])

    def _bias(self, keys: slice, p: Pair, W: Pair, inner: Float64Array) -> Iterator[Part]:
        """dbias: W / l, summed over the rows and keys along which the bias was broadcast."""
        bias, total = self.tile.group.problem.bias, self.result.total
        assert bias is not None  # `want` says so
        dS = divide(W, total)
        error = p.high * inner / total.high + self.relative * np.abs(dS.high)
        error = error * UP + FLOOR
        hidden = self.tile.hidden(keys)
        if hidden is not None:
            error[hidden] = 0
        for axis in (-2, -1):
            if (1, 1, *bias.shape)[axis] == 1:
                count = dS.high.shape[axis]
                lost = count * 2.0**-98 * np.abs(dS.high).sum(axis, keepdims=True)
                error = (error.sum(axis, keepdims=True) + lost) * UP
                summed = sum_pairs(dS, axis=axis)
                dS = Pair(*(np.expand_dims(part, axis) for part in summed))
        yield Part("dbias", Bounded(dS, error), self.exponent, keys)
