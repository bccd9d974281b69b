"""Magnitudes of matrices by blocks of rows, which bound products without a product of their own.

    |q_i · k_j| <= ‖q_i‖ ‖k_j‖ (Cauchy-Schwarz)
    sum_j p_ij |v_jc| <= (sum_j p_ij) max_j |v_jc|, over the keys j of a block

Where the rows of a block differ much in size, or the product's row does not see all of them, the
second may lose much; `Blocks.even` says where it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attnspec.oracle.formats import Float64Array
from attnspec.oracle.heads import transposed
from attnspec.oracle.problem import BoolArray
from attnspec.oracle.running_error import SLACK, TINY

__all__ = ["BLOCK", "Blocks", "Part", "Shares", "absolute_product", "even_shares", "norm"]
__all__ += ["parts", "weighted_columns"]

BLOCK = 256
"""Keys that are worked on together."""
EVEN = 16.0
"""In a block of even size, no magnitude exceeds so many times the mean of its channel."""
CHUNK = 2**14
"""Rows whose magnitudes are taken together. A multiple of BLOCK."""

Part = tuple[int, slice]
"""The number of a block among all keys, and where its keys are in a tile of them."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """Magnitudes of a matrix (H, N, size) by B blocks of BLOCK rows, the last shorter.

    `rows` gives the rows [slice] of it, `count` is N. Found when they are asked for.
    """

    rows: Callable[[slice], Float64Array]
    count: int

    @cached_property
    def norms(self) -> Float64Array:
        """Of each row, from above: (H, N)."""
        return np.concatenate([norm(self.rows(part)) for part in self._chunks], axis=-1)

    @cached_property
    def largest(self) -> Float64Array:
        """max |x| of each channel: (H, B, size)."""
        return np.concatenate([_by_block(np.maximum, self.rows(p)) for p in self._chunks], axis=-2)

    @cached_property
    def even(self) -> BoolArray:
        """Which blocks are full, and of even size: (B,)."""
        full = self.count // BLOCK
        if full == 0:
            return np.zeros(self.largest.shape[-2], np.bool_)
        sums = np.concatenate([_by_block(np.add, self.rows(p)) for p in self._chunks], axis=-2)
        even: BoolArray = np.asarray((self.largest * BLOCK <= sums * EVEN).all(axis=(0, 2)))
        even[full:] = False
        return even

    @property
    def _chunks(self) -> list[slice]:
        starts = range(0, max(1, self.count), CHUNK)
        return [slice(start, min(start + CHUNK, self.count)) for start in starts]


def _by_block(reduce: np.ufunc, matrix: Float64Array) -> Float64Array:
    """Magnitudes, reduced over the rows of each block."""
    starts = np.arange(0, matrix.shape[-2], BLOCK)
    if len(starts) == 1:
        return np.asarray(reduce.reduce(np.abs(matrix), axis=-2, keepdims=True))
    return np.asarray(reduce.reduceat(np.abs(matrix), starts, axis=-2))


def parts(keys: slice) -> Iterator[Part]:
    """The blocks that a tile with these keys reaches into."""
    for number in range(keys.start // BLOCK, -(-keys.stop // BLOCK)):
        start, stop = max(number * BLOCK, keys.start), min((number + 1) * BLOCK, keys.stop)
        yield number, slice(start - keys.start, stop - keys.start)


def norm(matrix: Float64Array) -> Float64Array:
    """‖row‖, from above: SLACK for the rounding, 2^-500 for squares that underflow, which lose
    sqrt(D 2^-1075) at most. inf where a square overflows."""
    squares: Float64Array = np.einsum("...d,...d->...", matrix, matrix)
    return np.asarray(np.sqrt(squares) * SLACK + 2.0**-500)


def absolute_product(
    x: Float64Array, mass: Float64Array, matrix: Float64Array, largest: Float64Array | None
) -> Float64Array:
    """x |matrix| for x >= 0 (H, R, m), up to SLACK, or more.

    By its row sums `mass` (H, R, 1) and the largest magnitudes (H, 1, size), where given.
    """
    found = x @ np.abs(matrix) if largest is None else mass * largest
    found += x.shape[-1] * TINY
    return found


Shares = tuple[Float64Array, Float64Array]
"""(H, R, 1) and (H, 1, size), whose product is not below a matrix's magnitudes."""


def weighted_columns(
    x: Float64Array, weights: Float64Array, matrix: Float64Array, shares: Shares | None
) -> Float64Array:
    """sum_i x_ij weights_i |matrix_ic| for x, weights >= 0, up to SLACK and underflow, or more.

    x (H, R, m), weights (H, R, 1), matrix (H, R, size); (H, m, size). By the product with a vector
    where shares are given. Underflow: R 2^-1074 (1 + max x) (1 + max |matrix|) at most.
    """
    if shares is None:
        return transposed(x) @ (weights * np.abs(matrix))
    rows, channels = shares
    return (transposed(x) @ (weights * rows)) * channels


def even_shares(matrix: Float64Array) -> Shares | None:
    """Each channel's largest magnitude, and each row's largest share of one, if they are even.

    The quotient is rounded to nearest, and so is the product: SLACK makes good for both.
    """
    if matrix.shape[-2] < BLOCK // 2:
        return None
    size = np.abs(matrix)
    channels = size.max(axis=-2, keepdims=True)
    rows = (size / np.where(channels > 0, channels, 1.0)).max(axis=-1, keepdims=True)
    total = rows.sum(axis=(-2, -1)) * channels.sum(axis=(-2, -1))
    even = np.all(total <= EVEN * size.sum(axis=(-2, -1)))
    return (rows * SLACK + TINY, channels) if even else None
