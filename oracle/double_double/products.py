"""Products of rows with keys or values, which come in blocks."""

from __future__ import annotations

import numpy as np

from attnspec.oracle.double_double.pairs import Pair, add, sum_pairs
from attnspec.oracle.double_double.reading import CHUNK, Operand
from attnspec.oracle.double_double.scratch import Scratch
from attnspec.oracle.double_double.slices import (
    Narrow,
    Wide,
    narrow,
    product,
    product_error,
    unit_of,
)
from attnspec.oracle.formats import Float64Array

__all__ = ["FLOOR", "UP", "Sums", "row_products"]

UP = 1 + 2.0**-20
"""Makes good what float64 rounding takes from a bound: fewer than 2^30 operations."""
FLOOR = 2.0**-860
"""Added to bounds of numbers that are scaled to about 1: more than all underflows and all
exponentials below DEAD, times any number of keys, together."""


def row_products(
    rows: Narrow, size: Float64Array, operand: Operand, keys: slice, *, work: Scratch, out: Pair
) -> Float64Array:
    """A Bᵀ for rows A (H, R, n) with size = Σ|A| (H, R, 1), and keys B of the operand: (H, R, m).

    Returns what each row's products may err by: (H, R, 1). The operand's first n columns count.
    """
    width = rows.first.shape[-1]
    error = np.zeros_like(size)
    for part, block in operand.blocks(keys, work=work):
        place = slice(part.start - keys.start, part.stop - keys.start)
        columns = block.columns(width).transposed
        product(rows, columns, work=work, out=Pair(out.high[..., place], out.low[..., place]))
        longest = columns.size.sum(-2, keepdims=True).max(-1, keepdims=True)
        np.maximum(error, product_error(rows, columns, size, longest), out=error)
    return error


class Sums:
    """Sums over keys of what belongs to rows: A B for A (H, R, m), block by block of keys.

    value (H, R, n): a pair, from products over at most CHUNK keys each. around (H, R, n): what the
    errors of A amount to, Σ (error of A) |B|.
    """

    def __init__(self, shape: tuple[int, int, int], work: Scratch) -> None:
        self.value = Pair(np.zeros(shape), np.zeros(shape))
        self.around = np.zeros(shape)
        self._lost = np.zeros(shape)
        self._size = np.zeros((*shape[:2], 1))
        self._additions = 0
        self._work = work

    def add(
        self, a: Pair, size: Float64Array, error: Float64Array, operand: Operand, keys: slice
    ) -> None:
        """Add A B of these keys, where size is |A|, and A errs by `error`."""
        heads, rows, count = a.high.shape
        chunk = min(CHUNK, count)
        shape = (heads, rows, count // chunk, chunk)
        parts = size.reshape(shape).sum(-1, keepdims=True)
        with self._work.arrays(shape, 4) as into:
            pair = Pair(a.high.reshape(shape), a.low.reshape(shape))
            left = narrow(pair, unit_of(parts * UP), terms=chunk, into=into).swapped(1, 2)
            parts = np.swapaxes(parts, 1, 2)
            for part, block in operand.blocks(keys, work=self._work):
                place = slice(part.start - keys.start, part.stop - keys.start)
                self.around += error[..., place] @ block.size
                some = slice(place.start // chunk, place.stop // chunk)
                self._add_product(left.part(some), _in_chunks(block, chunk), parts[:, some])
        self._size += parts.sum(1)

    def _add_product(self, left: Narrow, right: Wide, parts: Float64Array) -> None:
        heads, count, rows, _ = left.first.shape
        shape = (heads, count, rows, right.whole.shape[-1])
        with self._work.arrays(shape, 2) as (high, low):
            summed = product(left, right, work=self._work, out=Pair(high, low))
            self.value = add(self.value, sum_pairs(summed, axis=1))
        column = right.size.sum(-2, keepdims=True)
        self._lost += product_error(left, right, parts, column).sum(1)
        self._additions += 1 + count

    @property
    def error(self) -> Float64Array:
        """What `value` has lost: that of each product, and in each addition of pairs at most
        2^-98 of what has been added up so far, which is below Σ|A| (|B| <= 1)."""
        return np.asarray((self._lost + self._additions * 2.0**-98 * self._size) * UP)


def _in_chunks(b: Wide, chunk: int) -> Wide:
    """B (H, m, n) as (H, m / chunk, chunk, n)."""
    heads, keys, width = b.whole.shape
    shape = (heads, keys // chunk, chunk, width)
    rest = None if b.rest is None else b.rest.reshape(shape)
    return Wide(b.first.reshape(shape), rest, b.whole.reshape(shape), b.size.reshape(shape))
