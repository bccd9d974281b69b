"""Saturation: what large scores do to the derivative of softmax, and what the scale changes."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import sympy as sp

from attnspec.spec.chapter11.softmax import jacobian
from attnspec.spec.evidence import exact
from attnspec.spec.evidence.expressions import scalars
from attnspec.spec.evidence.statement import Check, Proof, Statement, require
from attnspec.spec.evidence.sums import identity
from attnspec.spec.evidence.symbols import keys, keys_count

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


def gap_bound() -> Proof:
    """‖J‖₂ <= tr J <= 2 (1 - a_1), and 1 - a_1 = Σ_(j > 1) a_j <= (n - 1) a_2, a_2 <= e^-gap.

    The first, as xᵀ J x >= 0; each other one, as its right side is a sum of terms >= 0.
    """
    j = sp.Symbol("j", integer=True)
    a, first, second = sp.IndexedBase("a"), sp.Symbol("a_1"), sp.Symbol("a_2")
    trace = sp.Sum(a[j] * (1 - a[j]), keys(j))
    squares = sp.Sum(a[j] ** 2, keys(j))
    others = (j, 1, keys_count - 1)
    rest = sp.Sum(second - a[j], others)
    gap, z = sp.symbols("g z", positive=True)
    ratio = (sp.exp(0) / z) / (sp.exp(gap) / z)
    psd = jacobian()
    return Proof(
        steps=(
            psd.steps[2],
            identity("tr J = 1 - Σ a_j²", trace, 1 - squares, stochastic=[a]),
            scalars("2 (1 - a_1) - (1 - a_1²) = (1 - a_1)²", 2 * (1 - first) - (1 - first**2),
                    (1 - first) ** 2),
            identity("(n - 1) a_2 - Σ_(j > 1) a_j = Σ_(j > 1) (a_2 - a_j)",
                     (keys_count - 1) * second - sp.Sum(a[j], others), rest),
            scalars("a_2 / a_1 = e^-gap", ratio, sp.exp(-gap)),
        ),
        mutations={
            "one key too many": identity("n a_2 - Σ_(j > 1) a_j = …",
                                         keys_count * second - sp.Sum(a[j], others), rest),
            "half of it": scalars("(1 - a_1) - (1 - a_1²) = (1 - a_1)²",
                                  (1 - first) - (1 - first**2), (1 - first) ** 2),
            "of the other sign": scalars("a_2 / a_1 = e^gap", ratio, sp.exp(gap)),
        },
    )  # fmt: skip


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
        formula=r"\mathrm{sd}\,|S| = \sqrt{d_k - \tfrac{4}{\pi}\Bigl("
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
        formula=r"\lVert J \rVert_2 \le \mathrm{tr}\, J \le 2(n-1)\,e^{-(s_{(1)} - s_{(2)})}",
        verdict="imprecise",
        exact="What counts is the gap between the greatest score and the next, not the size of "
        "scores: equal scores never saturate. In the random model it holds for the typical row, "
        "not in the mean.",
        proof=gap_bound,
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
