"""What this tier must believe of the machine beside `oracle.assumptions`, and the test of each.

1. A matrix product whose products and sums are all integers below 2^53 times a power of two is
   exact, in the layouts that are used here: transposed views, rows of wider arrays, a batch of
   chunks, results in part of an array, one row or one column. It is where each element is a sum of
   its products in float64, in whatever order, with or without FMA; it is not where rows or columns
   are added up first (Strassen), or in any narrower format.
2. log2 errs by at most 2^-13: `logarithm` corrects what it gets wrong, if it is that little.

Neither can be proven from here. Both are tested once a process, in milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np

from attnspec.oracle import assumptions
from attnspec.oracle.assumptions import AssumptionFailed
from attnspec.oracle.formats import Float64Array

__all__ = ["check"]

_SHAPES = ((128, 256, 64), (3, 70, 33), (2, 256, 1), (1, 256, 7), (40, 2, 5))
"""Rows, inner size and columns: large, odd, and for matrix times vector on either side."""


def check() -> None:
    """Test every assumption (the thread's state each time, the rest once a process).

    Raises `AssumptionFailed`.
    """
    assumptions.check()
    _check_libraries()


@cache
def _check_libraries() -> None:
    for shape in _SHAPES:
        left, right, exact = _operands(*shape)
        for a, b, out in _layouts(left, right):
            np.matmul(a, b, out=out)
            wanted = exact if out.ndim == 3 else exact[:, None]
            _require(bool(np.all(out == wanted)), "a matrix product")
    x = np.ldexp(1 + np.arange(512) / 512, np.array([-1, 0, 29])[:, None])
    error = np.abs(np.log2(x) - np.log(x) / np.log(2.0))  # log is tested already
    _require(bool(np.all(error <= 2.0**-14)), "numpy.log2")


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise AssumptionFailed(
            f"{what} errs by more than the proof of tier 'double-double' allows for; "
            "ask for tier='balls', or repair the NumPy or BLAS in use"
        )


def _operands(
    rows: int, inner: int, columns: int
) -> tuple[Float64Array, Float64Array, Float64Array]:
    """A (2, R, k), B (2, k, n) and their product: a (w·z) bᵀ, for A = a wᵀ and B = z bᵀ.

    w and z are integers, Σw < 2^22 and z < 2^31, as large as the slices' are: w·z takes nearly all
    of 53 bits. a and b are powers of two, so far apart that a sum of two rows loses the smaller.
    """
    rng = np.random.default_rng(inner)
    w = 2 * rng.integers(2**20 // inner, 2**21 // inner, inner) - 1
    z = 2 * rng.integers(2**29, 2**30, inner) - 1
    a = np.where(np.arange(rows) < rows // 2, 2.0**70, 1.0)
    b = np.where(np.arange(columns) < columns // 2, 2.0**-70, 1.0)
    exact = np.outer(a, b) * float(sum(int(x) * int(y) for x, y in zip(w, z, strict=True)))
    signs = np.array([1.0, -1.0])[:, None, None]
    return signs * np.outer(a, w), np.outer(z, b) * np.ones_like(signs), signs * exact


def _layouts(
    a: Float64Array, b: Float64Array
) -> Iterator[tuple[Float64Array, Float64Array, Float64Array]]:
    """A, B and room for the product, as `row_products`, `Sums` and `Gradients` lay them out."""
    rows, columns = a.shape[-2], b.shape[-1]
    wider = np.zeros((2, columns, a.shape[-1] + 1))
    wider[..., :-1] = np.swapaxes(b, -1, -2)
    part = np.empty((2, rows, 2 * columns + 1))[..., columns : 2 * columns]
    yield a, np.swapaxes(wider[..., :-1], -1, -2), part
    chunks = np.swapaxes(np.repeat(a[:, :, None], 3, axis=2), 1, 2)
    yield chunks, np.repeat(b[:, None], 3, axis=1), np.empty((2, 3, rows, columns))
    transposed = np.ascontiguousarray(np.swapaxes(a, -1, -2))
    yield np.swapaxes(transposed, -1, -2), b, np.empty((2, rows, columns))
