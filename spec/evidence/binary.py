"""Attention from integer queries and keys, exactly: at the scale ln 2, e^(α q·k) is 2^(q·k).

So weights and outputs are rational functions of integers, and whatever holds for them holds
without rounding. Matrices are object arrays of `int` and `Fraction`; a NaN among them spoils
every row that reads it, which is how a test sees that something was read.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from attnspec.spec.evidence.exact import Matrix, output

__all__ = [
    "attention",
    "causal",
    "exponentials",
    "integers",
    "masked",
    "power_of_two",
    "same",
]

Visible = npt.NDArray[np.bool_]


def integers(shape: tuple[int, ...], *, seed: int = 0, within: int = 2) -> Matrix:
    """Integers from -within to within, as queries, keys or values."""
    drawn = np.random.default_rng(seed).integers(-within, within + 1, shape)
    return np.asarray(drawn.astype(object))


def power_of_two(exponents: Any) -> Matrix:
    """2^x, element by element."""
    power = np.vectorize(lambda exponent: Fraction(2) ** exponent, otypes=[object])
    return np.asarray(power(np.asarray(exponents, object)))


def causal(queries: int, keys: int | None = None) -> Visible:
    """(Nq, Nk): what each query sees; the last query stands at the last key."""
    keys = queries if keys is None else keys
    return np.tri(queries, keys, keys - queries, dtype=bool)


def masked(e: Matrix, visible: Visible) -> Matrix:
    """The same, with 0 where a key is hidden, whatever stood there."""
    return np.asarray(np.where(visible, e, np.array(Fraction(0), object)))


def exponentials(q: Matrix, k: Matrix, *, visible: Visible | None = None) -> Matrix:
    """2^(q·k), (Nq, Nk); 0 where a key is hidden."""
    powers = power_of_two(q @ k.T)
    return powers if visible is None else masked(powers, visible)


def attention(q: Matrix, k: Matrix, v: Matrix, *, visible: Visible | None = None) -> Matrix:
    """softmax(ln 2 · Q Kᵀ) V, (Nq, Dv), over the visible keys."""
    return output(exponentials(q, k, visible=visible), v)


def same(left: Any, right: Any) -> bool:
    """Whether two arrays of exact numbers are equal everywhere; NaN equals nothing."""
    left, right = np.asarray(left, object), np.asarray(right, object)
    return left.shape == right.shape and bool((left == right).all())
