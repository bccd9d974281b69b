"""The largest of many random scores."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import mpmath
import sympy as sp

from attnspec.spec.evidence.expressions import scalars
from attnspec.spec.evidence.statement import Check, Proof, Statement, Step, require

__all__ = ["STATEMENTS"]


# -- The largest of n scores -----------------------------------------------------------------------


def best_exponent() -> Proof:
    """E max ≤ (log Σ E e^(t s)) / t ≤ log n / t + t σ²/2 (Jensen); the least t."""
    t, sigma, w = sp.symbols("t sigma w", positive=True)
    log_n = sp.Symbol("log_n", positive=True)
    bound = log_n / t + t * sigma**2 / 2
    best = sp.sqrt(2 * log_n) / sigma
    density = sp.exp(-(w**2) / 2) / sp.sqrt(2 * sp.pi)
    whole = sp.integrate(sp.exp(t * w) * density, (w, 0, sp.oo)) + sp.integrate(
        sp.exp(-t * w) * density, (w, 0, sp.oo)
    )
    least = bound.subs(t, best)
    return Proof(
        sizes="all n, for scores whose moments are at most a normal's",
        steps=(
            scalars("E e^(t s) = e^(t²/2), s ~ N(0, 1)", whole, sp.exp(t**2 / 2)),
            scalars("the slope is 0 at t = √(2 log n)/σ", sp.diff(bound, t).subs(t, best), 0),
            Step("convex in t", lambda: bool(sp.simplify(sp.diff(bound, t, 2)).is_positive)),
            scalars("there it is σ √(2 log n)", least, sigma * sp.sqrt(2 * log_n)),
        ),
        mutations={
            "half the logarithm": scalars("σ √(log n)", least, sigma * sp.sqrt(log_n)),
            "another exponent": scalars(
                "the slope at √(log n)/σ", sp.diff(bound, t).subs(t, best / sp.sqrt(2)), 0
            ),
        },
    )


def mean_of_the_largest(n: int) -> Any:
    """E max of n independent N(0, 1), as an integral, 30 digits."""

    def term(x: Any) -> Any:
        return x * n * mpmath.npdf(x) * mpmath.ncdf(x) ** (n - 1)

    return mpmath.quad(term, [-10, -3, 0, 2, 4, 6, 9, 14])


def below_the_bound(bound: Any) -> str:
    """n = 2, 3, 16, 1024: exact integrals; n = 2 has 1/√π; the bound is within 2 of each."""
    with mpmath.workdps(30):
        require(abs(mean_of_the_largest(2) - 1 / mpmath.sqrt(mpmath.pi)) < 1e-20, "n = 2")
        found = {n: mean_of_the_largest(n) for n in (2, 3, 16, 1024)}
        for n, mean in found.items():
            require(mean <= bound(n), f"n = {n}: {mpmath.nstr(mean, 8)} above")
        require(bound(1024) < mpmath.mpf("1.2") * found[1024], "n = 1024: the bound is loose")
        return f"n = 1024: {mpmath.nstr(found[1024], 10)} ≤ {mpmath.nstr(bound(1024), 10)}"


def scores_off_centre() -> str:
    """A common mean is added to the maximum."""
    with mpmath.workdps(30):
        mean, bound = mean_of_the_largest(16) + 2, mpmath.sqrt(2 * mpmath.log(16))
        require(mean > bound, "the bound still holds")
        return f"16 scores ~ N(2, 1): {mpmath.nstr(mean, 6)} > {mpmath.nstr(bound, 6)}"


def heavy_tails() -> str:
    """Of n scores one, at random, is n - 1 and the others -1: mean 0, variance n - 1."""
    n = 1000
    variance = Fraction((n - 1) ** 2 + (n - 1), n)
    require(variance == n - 1, f"variance {variance}")
    bound = mpmath.sqrt(2 * mpmath.log(n) * (n - 1))
    require(n - 1 > bound, "the bound still holds")
    return f"one of {n} scores is {n - 1}, the others -1: E max = {n - 1} > {float(bound):.4g}"


STATEMENTS = (
    Statement(
        id="ext.maxgauss",
        where="folklore (Boucheron, Lugosi and Massart 2013, theorem 2.5); beside chapter 11, "
        "Corollary 1",
        says="The largest of n centred scores of deviation σ is σ√(2 log n) at most, in the mean.",
        formula=r"\mathbb{E} \max_j s_j \le \sigma \sqrt{2 \log n}",
        verdict="conditional",
        hypotheses={"means of 0": scores_off_centre, "tails of a normal at most": heavy_tails},
        proof=best_exponent,
        check=Check(
            run=below_the_bound,
            subject=lambda n: mpmath.sqrt(2 * mpmath.log(n)),
            mutations={
                "√(log n)": lambda n: mpmath.sqrt(mpmath.log(n)),
                "log n": lambda n: mpmath.log(n),
            },
        ),
    ),
)
