"""Attention in exact rationals: choose e^S rational, and weights, outputs and gradients are too.

Matrices are object arrays of `Fraction`. Exponentials stand for e^score; 0 hides a key.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "Gradients",
    "Matrix",
    "gradients",
    "matrix",
    "output",
    "positive",
    "rational",
    "weights",
]

Matrix = npt.NDArray[np.object_]


def matrix(rows: Any) -> Matrix:
    """Rows of integers or fractions ("1/3" too), exactly."""
    return np.asarray(np.vectorize(Fraction, otypes=[object])(np.array(rows, object)))


def rational(shape: tuple[int, ...], *, seed: int = 0) -> Matrix:
    """Small fractions of any sign."""
    rng = np.random.default_rng(seed)
    above, below = rng.integers(-9, 10, shape), rng.integers(1, 6, shape)
    fractions = np.vectorize(Fraction, otypes=[object])
    return np.asarray(fractions(above.astype(object), below.astype(object)))


def positive(shape: tuple[int, ...], *, seed: int = 0) -> Matrix:
    """Small positive fractions, as exponentials."""
    return np.asarray(np.abs(rational(shape, seed=seed)) + Fraction(1, 7))


def weights(exponentials: Matrix) -> Matrix:
    """A (Nq, Nk): each row over its sum; a row of zeros, which sees no key, stays zero."""
    total = exponentials.sum(-1, keepdims=True)
    return np.asarray(exponentials / (total + (total == 0)))


def output(exponentials: Matrix, value: Matrix) -> Matrix:
    """A V: (Nq, Dv)."""
    return np.asarray(weights(exponentials) @ value)


@dataclass(frozen=True)
class Gradients:
    """dV = Aᵀ dO, dA = dO Vᵀ, dS = A (dA - Σ A dA)."""

    dv: Matrix
    da: Matrix
    ds: Matrix


def gradients(exponentials: Matrix, value: Matrix, dout: Matrix) -> Gradients:
    """Gradients of <dO, A V>, with respect to the scores themselves."""
    a = weights(exponentials)
    da = dout @ value.T
    return Gradients(a.T @ dout, da, a * (da - (a * da).sum(-1, keepdims=True)))
