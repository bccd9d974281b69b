"""Linear algebra in exact rationals: rank, determinant, null space, by elimination."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np

from attnspec.spec.evidence.exact import Matrix, matrix

__all__ = ["determinant", "identity_matrix", "null_vector", "powers", "product", "rank"]


def identity_matrix(size: int) -> Matrix:
    """The identity, exactly."""
    return matrix(np.eye(size, dtype=int).tolist())


def rank(rows: Any) -> int:
    """The number of independent rows."""
    return len(_eliminated(rows)[1])


def determinant(rows: Any) -> Fraction:
    """The product of the pivots, with the sign of the exchanges of rows."""
    reduced, pivots, sign = _eliminated(rows)
    if len(pivots) < len(reduced):
        return Fraction(0)
    return sign * product(np.diagonal(reduced))


def product(factors: Iterable[Any]) -> Fraction:
    """All factors multiplied; 1 if there are none."""
    return Fraction(math.prod(factors, start=Fraction(1)))


def null_vector(rows: Any) -> Matrix | None:
    """Some x ≠ 0 with rows @ x = 0, or None."""
    reduced, pivots, _ = _eliminated(rows)
    free = [column for column in range(reduced.shape[1]) if column not in pivots]
    if not free:
        return None
    x = matrix([0] * reduced.shape[1])
    x[free[0]] = Fraction(1)
    for row, column in reversed(list(enumerate(pivots))):
        x[column] = -(reduced[row, column + 1 :] @ x[column + 1 :]) / reduced[row, column]
    return x


def powers(square: Matrix, exponent: int) -> Matrix:
    """The matrix multiplied by itself, `exponent` factors."""
    power = identity_matrix(len(square))
    for _ in range(exponent):
        power = np.asarray(power @ square)
    return power


def _eliminated(rows: Any) -> tuple[Matrix, list[int], int]:
    """Row echelon form, the columns of its pivots, and the sign of the exchanges."""
    work = matrix(np.asarray(rows, object).tolist())
    pivots: list[int] = []
    sign = 1
    for column in range(work.shape[1]):
        row = len(pivots)
        below = [r for r in range(row, len(work)) if work[r, column] != 0]
        if not below:
            continue
        if below[0] != row:
            work[[row, below[0]]] = work[[below[0], row]]
            sign = -sign
        for r in range(row + 1, len(work)):
            work[r] = work[r] - work[row] * (work[r, column] / work[row, column])
        pivots.append(column)
    return work, pivots, sign
