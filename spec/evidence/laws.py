"""Random numbers of finitely many values: expectations by enumeration, exactly."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from fractions import Fraction

__all__ = ["RARE", "SIGNS", "Law", "moments"]

Law = Sequence[tuple[Fraction, Fraction]]
"""Pairs of a value and its probability."""
SIGNS: Law = ((Fraction(-1), Fraction(1, 2)), (Fraction(1), Fraction(1, 2)))
"""±1."""
RARE: Law = tuple((Fraction(v), Fraction(p, 8)) for v, p in ((-2, 1), (0, 6), (2, 1)))
"""-2, 0, 2, of mean 0, variance 1 and fourth moment 4."""


def moments(score: Callable[..., Fraction], law: Law, count: int) -> tuple[Fraction, Fraction]:
    """Mean and variance of score(x_1, …, x_count) for independent x of one law."""
    first = second = Fraction(0)
    for drawn in itertools.product(law, repeat=count):
        probability, value = Fraction(1), score(*(value for value, _ in drawn))
        for _, p in drawn:
            probability *= p
        first, second = first + probability * value, second + probability * value**2
    return first, second - first**2
