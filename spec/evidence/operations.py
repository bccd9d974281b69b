"""Exact counts of arithmetic: numbers that count what is done with them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from attnspec.spec.evidence.exact import Matrix

__all__ = [
    "Number",
    "attention_operations",
    "numbers",
    "product_operations",
    "softmax_operations",
]


class Number:
    """A number that enters every operation on it in `tally`, under its name."""

    def __init__(self, value: float, tally: Counter[str]) -> None:
        self.value = value
        self.tally = tally

    def _new(self, value: float, operation: str) -> Number:
        self.tally[operation] += 1
        return Number(value, self.tally)

    def __add__(self, other: Number) -> Number:
        return self._new(self.value + other.value, "add")

    def __sub__(self, other: Number) -> Number:
        return self._new(self.value - other.value, "subtract")

    def __mul__(self, other: Number) -> Number:
        return self._new(self.value * other.value, "multiply")

    def __truediv__(self, other: Number) -> Number:
        return self._new(self.value / other.value, "divide")

    def exp(self) -> Number:
        """e to this power: one operation."""
        return self._new(float(np.exp(self.value)), "exp")

    def larger(self, other: Number) -> Number:
        """The larger of two: one operation."""
        return self._new(max(self.value, other.value), "max")


def numbers(shape: tuple[int, ...], tally: Counter[str]) -> Matrix:
    """An array of ones that count."""
    ones = np.vectorize(lambda _: Number(1.0, tally), otypes=[object])
    return np.asarray(ones(np.empty(shape)))


def product_operations(rows: int, inner: int, columns: int) -> Counter[str]:
    """Of a (rows, inner) matrix times an (inner, columns) one."""
    tally: Counter[str] = Counter()
    _ = numbers((rows, inner), tally) @ numbers((inner, columns), tally)
    return tally


def softmax_operations(rows: int, keys: int) -> Counter[str]:
    """Of softmax in each row: the greatest, differences, exponentials, their sum, quotients."""
    tally: Counter[str] = Counter()
    for scores in numbers((rows, keys), tally):
        _softmax(scores)
    return tally


def attention_operations(n: int, d_k: int, d_v: int, *, heads: int = 1) -> Counter[str]:
    """What `heads` heads do for n tokens, from Q, K, V to their outputs: every operation."""
    tally: Counter[str] = Counter()
    for _ in range(heads):
        q, k, v = (numbers((n, size), tally) for size in (d_k, d_k, d_v))
        scores = (q @ k.T) * Number(d_k**-0.5, tally)
        _ = np.array([_softmax(row) for row in scores], object) @ v
    return tally


def _softmax(scores: Matrix) -> Any:
    top = scores[0]
    for score in scores[1:]:
        top = top.larger(score)
    e = np.array([(score - top).exp() for score in scores], object)
    return e / np.add.reduce(e)
