"""Weights: their ratios, how small and large they can be, and their limits at extreme scales."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import sympy as sp

from attnspec.spec.evidence import exact
from attnspec.spec.evidence.binary import integers, power_of_two, same
from attnspec.spec.evidence.exact import Matrix, matrix
from attnspec.spec.evidence.expressions import scalars
from attnspec.spec.evidence.statement import Check, Proof, Statement, require
from attnspec.spec.evidence.sums import identity

__all__ = ["STATEMENTS"]

i, j = sp.symbols("i j", integer=True)
n = sp.Symbol("n", integer=True, positive=True)
E, s = sp.IndexedBase("E"), sp.IndexedBase("s")


# -- Ratios ---------------------------------------------------------------------------------------


def ratios() -> Proof:
    """a_i = e^(s_i) / Z with one Z for the row."""
    z = sp.Sum(sp.exp(s[j]), (j, 0, n - 1))
    first, second = (sp.exp(s[index]) / z for index in (0, 1))
    gap = s[0] - s[1]
    return Proof(
        steps=(
            scalars("a_i / a_j = e^(s_i - s_j)", first / second, sp.exp(gap)),
            scalars(
                "a_i - a_j = a_j (e^(s_i - s_j) - 1)", first - second, second * (sp.exp(gap) - 1)
            ),
        ),
        mutations={
            "the other way round": scalars("e^(s_j - s_i)", first / second, sp.exp(-gap)),
            "the gap itself": scalars("s_i - s_j", first / second, gap),
        },
    )


def order_is_kept(weigh: Any) -> str:
    """Larger scores, larger weights; equal scores, equal weights; odds 2^(gap) in base 2."""
    scores = integers((5, 6), seed=1, within=3)
    for row in scores:
        a = weigh(power_of_two(row))
        for x, first in enumerate(row):
            for y, second in enumerate(row):
                odds = Fraction(2) ** (first - second)
                require(a[x] == odds * a[y], f"odds {a[x]} : {a[y]} are not 2^{first - second}")
    return "5 rows of 6 scores, all pairs, exactly"


def softmax(e: Matrix) -> Matrix:
    """One row."""
    return np.asarray(exact.weights(e[None])[0])


# -- Bounds ---------------------------------------------------------------------------------------


def one_over_a_weight() -> Proof:
    """1 / a_i = 1 + Σ_(l≠i) e^(s_l - s_i); each of n - 1 terms lies in [e^-Δ, e^Δ]."""
    every = (j, 0, n - 1)
    others = sp.Sum((1 - sp.KroneckerDelta(i, j)) * E[j], every)
    r = sp.Symbol("r")
    same_terms = sp.Sum((1 - sp.KroneckerDelta(i, j)) * r, every)
    return Proof(
        steps=(
            identity("Z = E_i + Σ_(l≠i) E_l", sp.Sum(E[j], every), E[i] + others),
            identity("n - 1 terms of r", same_terms, (n - 1) * r),
        ),
        mutations={
            "term i counted twice": identity(
                "Z = E_i + Z", sp.Sum(E[j], every), E[i] + sp.Sum(E[j], every)
            ),
            "n terms": identity("n r", same_terms, n * r),
        },
    )


def bounds(count: int, spread: Fraction) -> tuple[Fraction, Fraction]:
    """Of n weights, where the scores differ by log(spread) at most."""
    return 1 / (1 + (count - 1) * spread), 1 / (1 + (count - 1) / spread)


def within_bounds(subject: Any) -> str:
    """Rows of 1..7 random exponentials; both bounds are reached."""
    for count in range(1, 8):
        for seed in range(5):
            e = exact.positive((count,), seed=seed)
            low, high = subject(count, max(e) / min(e))
            require(all(low <= x <= high for x in softmax(e)), f"n = {count}: outside")
        apart = matrix([1] + [8] * (count - 1))
        low, high = subject(count, Fraction(8))
        require(softmax(apart)[0] == low, f"n = {count}: the lower bound is not reached")
        require(softmax(1 / apart)[0] == high, f"n = {count}: the upper bound is not reached")
    return "35 random rows of 1..7, and 14 rows that reach the bounds, exactly"


# -- Limits ---------------------------------------------------------------------------------------


def each_term_has_its_limit() -> Proof:
    """1 / a_i = Σ_l e^((s_l - s_i)/T), n terms; m of them are ties with i."""
    gap, T = sp.symbols("g T", positive=True)
    ties, ahead = sp.symbols("m h", positive=True)

    def limit(term: Any, to: Any) -> Any:
        return sp.limit(term, T, to, "+" if to == 0 else "-")

    below, above = sp.exp(-gap / T), sp.exp(gap / T)
    return Proof(
        steps=(
            scalars("a smaller score: its term → 0 as T → 0", limit(below, 0), 0),
            scalars("a larger score: a_i → 0 as T → 0", limit(1 / (ties + ahead * above), 0), 0),
            scalars(
                "a tie of m at the top: 1/m as T → 0",
                limit(1 / (ties + ahead * below), 0),
                1 / ties,
            ),
            scalars("any score: its term → 1 as T → ∞", limit(above, sp.oo), 1),
        ),
        mutations={
            "the top takes all": scalars("1", limit(1 / (ties + ahead * below), 0), 1),
            "terms vanish when hot": scalars("0", limit(above, sp.oo), 0),
        },
    )


def cold(e: Matrix) -> Matrix:
    """The limit T → 0: the largest share evenly."""
    top = [x == max(e) for x in e]
    return matrix([Fraction(x, sum(top)) for x in top])


def limits_are_reached(subject: Any) -> str:
    """At T = 1/64: within n r^64 of the cold limit, r the odds of the second; hot: mpmath."""
    for row in ((3, 1, 2), (5, 5, 1, 2), (4, 4, 4), (1, 7, 2, 7, 7)):
        e = matrix(list(row))
        below = [x for x in e if x < max(e)]
        gap = (max(below) / max(e)) ** 64 if below else Fraction(0)
        away = max(abs(softmax(e**64) - subject(e)))
        require(away <= len(e) * gap, f"{row}: {float(away):.3g} from the cold limit")
    _require_hot((3, 1, 2))
    return "4 rows with ties of 1, 2 and 3 at T = 1/64, exactly; T = 1e20 at 40 digits"


def _require_hot(row: tuple[int, ...]) -> None:
    with mpmath.workdps(40):
        e = [mpmath.mpf(x) ** mpmath.mpf("1e-20") for x in row]
        away = max(abs(x / mpmath.fsum(e) - mpmath.mpf(1) / len(row)) for x in e)
        require(0 < away < mpmath.mpf("2e-20"), f"{away} from the mean")


def winner(e: Matrix) -> Matrix:
    """All to the first of the largest."""
    return matrix([int(x == list(e).index(max(e))) for x in range(len(e))])


def tie_between_two() -> str:
    """A tie at the top does not sharpen."""
    found = softmax(matrix([5, 5, 1]) ** 64)
    require(same(found[:1], found[1:2]) and found[0] < Fraction(1, 2), f"weights {found[:2]}")
    return "scores (s, s, s - log 5) at T = 1/64: two weights just below 1/2"


def hidden_when_hot() -> str:
    """A score of -∞ has weight 0 at every temperature."""
    found = [softmax(matrix([4, 1, 0]) ** power)[2] for power in (1, 64)]
    require(found == [0, 0], f"{found}")
    return "a hidden key: weight 0 at T = 1 and T = 1/64, and 1/n at none"


STATEMENTS = (
    Statement(
        id="ext.ratio",
        where="folklore; chapter 11, section on the mechanism (high weight, high score)",
        says="Odds of two weights are the exponential of the difference of their scores; their "
        "order is the scores' order.",
        formula=r"a_i / a_j = e^{s_i - s_j}",
        verdict="true",
        proof=ratios,
        check=Check(
            run=order_is_kept,
            subject=softmax,
            mutations={
                "squared": lambda e: softmax(e**2),
                "smoothed": lambda e: softmax(e + 1),
            },
        ),
        properties=("odds-are-exponential",),
    ),
    Statement(
        id="ext.bounds",
        where="Veličković et al. 2024 for the dispersion; none of the documents",
        says="Scores that differ by Δ at most keep every weight between two bounds, which both "
        "fall as 1/n: bounded scores disperse.",
        formula=r"\frac{1}{1 + (n-1) e^{\Delta}} \le a_i \le \frac{1}{1 + (n-1) e^{-\Delta}}",
        verdict="true",
        proof=one_over_a_weight,
        check=Check(
            run=within_bounds,
            subject=bounds,
            mutations={
                "n for n - 1": lambda count, spread: bounds(count + 1, spread),
                "the spread halved": lambda count, spread: bounds(count, spread / 2),
                "the spread doubled": lambda count, spread: bounds(count, spread * 2),
            },
        ),
    ),
    Statement(
        id="ext.templimits",
        where="folklore; chapter 11, Pitfall 1 and lesson 3, section 3 (saturation), for the scale",
        says="Hot, all weights are 1/n; cold, the largest score takes all, or m ties share it.",
        formula=r"\lim_{T \to \infty} a_i = \tfrac1n, \qquad "
        r"\lim_{T \to 0^+} a_i = \tfrac1m \text{ at the } m \text{ largest, else } 0",
        verdict="conditional",
        hypotheses={
            "one largest score, to take all": tie_between_two,
            "finite scores, for 1/n": hidden_when_hot,
        },
        proof=each_term_has_its_limit,
        check=Check(
            run=limits_are_reached,
            subject=cold,
            mutations={
                "the first of the ties takes all": winner,
                "uniform": lambda e: softmax(e * 0 + 1),
            },
        ),
        properties=("sink-takes-nothing-or-all", "equal-scores-average-plainly"),
    ),
)
