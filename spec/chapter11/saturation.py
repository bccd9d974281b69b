"""Saturation: what large scores do to the derivative of softmax, and what the scale changes."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath

from attnspec.spec.evidence import exact
from attnspec.spec.evidence.statement import Check, Statement, require

__all__ = ["STATEMENTS"]

DIGITS = 30


# -- Corollary 1: |S| for Gaussian entries --------------------------------------------------------


def deviation_of_magnitude(size: int) -> Any:
    """The standard deviation of |S|: E|S| = √(2/π) E|k|, as S given k is Gaussian of scale |k|."""
    mean = 2 / mpmath.sqrt(mpmath.pi) * mpmath.gammaprod([(size + 1) / 2], [size / 2])
    return mpmath.sqrt(size - mean**2)


def magnitude_integrated(claimed: Callable[[int], Any]) -> str:
    """E|S| by another way: E|S| = (2/π) ∫ (-φ'(t)/t) dt, φ(t) = (1 + t²)^(-d_k/2) that of S."""
    with mpmath.workdps(DIGITS):
        for size in (1, 2, 64):
            integral = mpmath.quad(
                lambda t, size=size: (1 + t * t) ** (-mpmath.mpf(size) / 2 - 1), [0, 1, mpmath.inf]
            )
            exact_value = mpmath.sqrt(size - (2 * size / mpmath.pi * integral) ** 2)
            gap = abs(claimed(size) - exact_value)
            require(gap < mpmath.mpf(10) ** -20, f"{mpmath.nstr(exact_value, 15)}, d_k = {size}")
        ratio = mpmath.nstr(deviation_of_magnitude(64), 15)
    return f"d_k = 1, 2, 64 by quadrature to 20 digits; at 64: {ratio}, not 8"


# -- Corollary 1: the bound by the gap of the two largest scores ----------------------------------


def bounded_by_gap(bound: Callable[[int, Fraction], Fraction]) -> str:
    """‖J‖₂ <= tr J <= bound(n, e^-gap), over rational rows; J is positive semidefinite."""
    for seed in range(40):
        n = 2 + seed % 5
        e = exact.positive((1, n), seed=seed)
        e[0, 0] *= 10 ** (seed % 4)
        *_, second, first = sorted(e[0])
        trace = 1 - (exact.weights(e) ** 2).sum()
        limit = bound(n, second / first)
        require(trace <= limit, f"tr J = {float(trace):.4g} > {float(limit):.4g}, n = {n}")
    return "40 rows of 2 to 6 rational exponentials, exactly"


def ties() -> str:
    """Two equal scores of any size: weights ½, and a derivative that does not vanish."""
    e = exact.matrix([[Fraction(2) ** 1000, Fraction(2) ** 1000]])
    w = exact.weights(e)[0]
    slope = w[0] * (1 - w[0])
    require(slope > Fraction(1, 100), f"the derivative {slope} vanishes")
    return "scores (1000, 1000) in base 2: J = [[1/4, -1/4], [-1/4, 1/4]]"


STATEMENTS = (
    Statement(
        id="ch11.cor1.a",
        where="Corollary 1, the standard deviation",
        says="The magnitude |S| of a score has standard deviation √d_k.",
        formula=r"\operatorname{sd}|S| = \sqrt{d_k - \tfrac{4}{\pi}\Bigl("
        r"\tfrac{\Gamma((d_k+1)/2)}{\Gamma(d_k/2)}\Bigr)^2} \sim \sqrt{(1 - 2/\pi)\, d_k}",
        verdict="false",
        exact="S has it. |S| has a smaller one, for Gaussian entries 0.603 √d_k in the limit: "
        "4.855 at d_k = 64, not 8.",
        check=Check(
            run=magnitude_integrated,
            subject=deviation_of_magnitude,
            mutations={
                "as claimed": mpmath.sqrt,
                "the limit for all d_k": lambda size: mpmath.sqrt((1 - 2 / mpmath.pi) * size),
            },
        ),
    ),
    Statement(
        id="ch11.cor1.b",
        where="Corollary 1, saturation",
        says="Large scores saturate softmax: its derivative is about 0.",
        formula=r"\lVert J \rVert_2 \le \operatorname{tr} J \le 2(n-1)\,e^{-(s_{(1)} - s_{(2)})}",
        verdict="imprecise",
        exact="What counts is the gap between the greatest score and the next, not the size of "
        "scores: equal scores never saturate. In the random model it holds for the typical row, "
        "not in the mean.",
        hypotheses={"a gap between the greatest score and the next": ties},
        check=Check(
            run=bounded_by_gap,
            subject=lambda n, ratio: 2 * (n - 1) * ratio,
            mutations={
                "half of it": lambda n, ratio: (n - 1) * ratio,
                "whatever the number of keys": lambda n, ratio: 2 * ratio,
                "twice the gap": lambda n, ratio: 2 * (n - 1) * ratio**2,
            },
        ),
    ),
)
