"""The softmax Jacobian: its form, what it couples, and where it vanishes."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import sympy as sp

from attnspec.spec.evidence import exact
from attnspec.spec.evidence.expressions import scalars
from attnspec.spec.evidence.statement import Check, Proof, Statement, require
from attnspec.spec.evidence.sums import identity
from attnspec.spec.evidence.symbols import A, keys

__all__ = ["STATEMENTS"]

i, j, l = sp.symbols("i j l", integer=True)  # noqa: E741
s = sp.IndexedBase("s")
delta = sp.KroneckerDelta

# -- its form -------------------------------------------------------------------------------------


def quotient_rule() -> Proof:
    """Z² ∂a_i/∂s_j for a_i = e^s_i / Z, where sympy differentiates e^s_i and Z = Σ_l e^s_l."""
    e, total = sp.exp(s[i]), sp.Sum(sp.exp(s[l]), keys(l))
    derivative = sp.diff(e, s[j]) * total - e * sp.diff(total, s[j])
    centred = e * (delta(i, j) * total - sp.exp(s[j]))
    return Proof(
        steps=(
            identity("Z² ∂a_i/∂s_j = Z² a_i (δ_ij - a_j)", derivative, centred),
            identity("Σ_j a_i (δ_ij - a_j) = 0", _row_sum(1), 0, stochastic=(A,)),
        ),
        mutations={
            "not centred": identity("Z² a_i δ_ij", derivative, e * delta(i, j) * total),
            "the other sign": identity(
                "Z² a_i (δ_ij + a_j)", derivative, e * (delta(i, j) * total + sp.exp(s[j]))
            ),
            "centred twice": identity(
                "Σ_j a_i (δ_ij - 2 a_j) = 0", _row_sum(2), 0, stochastic=(A,)
            ),
        },
    )


def _row_sum(times: int) -> Any:
    row = sp.Symbol("r", integer=True)
    return sp.Sum(A[row, i] * (delta(i, j) - times * A[row, j]), keys(j))


def jacobian(e: Any) -> Any:
    """diag(a) - a aᵀ, from exponentials."""
    a = exact.weights(e[None])[0]
    return exact.matrix([[x * ((k == m) - y) for m, y in enumerate(a)] for k, x in enumerate(a)])


def is_the_derivative(formula: Any) -> str:
    """∂a_i/∂s_j by the quotient rule, 5 scores: e_j moves by e_j."""
    e = exact.positive((5,), seed=1)
    total, found = e.sum(), formula(e)
    for row in range(5):
        for key in range(5):
            moved = e[row] * (row == key) * total - e[row] * e[key]
            require(found[row, key] == moved / total**2, f"J[{row}, {key}] is not the derivative")
    return "all 25 derivatives of 5 weights, exactly"


# -- coupling -------------------------------------------------------------------------------------


def one_logit_raised() -> Proof:
    """e_j becomes t e_j: a_i falls by the factor Z / (Z + (t - 1) e_j), whatever the other keys."""
    e_i, e_j, total, t = sp.symbols("e_i e_j Z t", positive=True)
    fall = e_i / (total + (t - 1) * e_j) - e_i / total
    exactly = -(t - 1) * e_i * e_j / (total * (total + (t - 1) * e_j))
    return Proof(
        steps=(scalars("a_i' - a_i = -(t - 1) e_i e_j / (Z (Z + (t - 1) e_j))", fall, exactly),),
        mutations={
            "the other sign": scalars("a_i' - a_i > 0", fall, -exactly),
            "no coupling": scalars("a_i' = a_i", fall, 0),
        },
    )


def others_fall(weights: Any) -> str:
    """Each of 4 logits raised by log 2: every other weight falls, strictly."""
    e = exact.positive((4,), seed=2)
    before = weights(e)
    for key in range(4):
        raised = e.copy()
        raised[key] = 2 * raised[key]
        after = weights(raised)
        others = [other for other in range(4) if other != key]
        require(
            (after[others] < before[others]).all(), f"raising logit {key} lowers not all others"
        )
    return "4 logits raised by log 2, one by one: the other 3 weights fall each time"


def hidden_keys_do_not_fall() -> str:
    """A score of -∞."""
    e = exact.matrix([1, 2, 0])
    raised = exact.matrix([1, 4, 0])
    before, after = (exact.weights(row[None])[0] for row in (e, raised))
    require(after[2] == before[2], "the hidden key fell")
    return "a hidden key's weight is 0 before and after: it does not fall"


def alone() -> str:
    """n = 1."""
    require(exact.weights(exact.matrix([[3]]))[0, 0] == 1, "the only weight is not 1")
    return "a single key has weight 1 at any score; there is no other to lower"


# -- saturation -----------------------------------------------------------------------------------


def row_sums_of_magnitudes() -> Proof:
    """Σ_j |J_ij| = a_i (1 - a_i) + a_i Σ_(j≠i) a_j for a row of any length."""
    row = sp.Symbol("r", integer=True)
    own = A[row, i]
    off = sp.Sum(own * A[row, j] * (1 - delta(i, j)), keys(j))
    total = own * (1 - own) + off

    def claim(text: str, value: Any) -> Any:
        return identity(text, total, value, stochastic=(A,))

    return Proof(
        steps=(claim("Σ_j |J_ij| = 2 a_i (1 - a_i)", 2 * own * (1 - own)),),
        mutations={
            "half of it": claim("Σ_j |J_ij| = a_i (1 - a_i)", own * (1 - own)),
            "not vanishing": claim("Σ_j |J_ij| = 2 a_i", 2 * own),
        },
    )


def bounded_by_rest(bound: Any) -> str:
    """‖J‖_∞ = 2ε(1 - ε) where ε = 1 - max a ≤ 1/2, and the bound tends to 0 with ε."""
    for power in (1, 4, 12, 30):
        e = exact.matrix([Fraction(2) ** power, 1, Fraction(1, 3), Fraction(2, 5)])
        rest = 1 - exact.weights(e[None])[0].max()
        norm = max(abs(row).sum() for row in jacobian(e))
        if rest <= Fraction(1, 2):
            require(norm == bound(rest), f"‖J‖ = {float(norm):g}, ε = {float(rest):g}")
        require(norm <= Fraction(1, 2), "‖J‖ exceeds 1/2")
    return f"4 rows up to ε = {float(rest):.2g}: ‖J‖_∞ = 2ε(1 - ε), exactly; last {float(norm):.2g}"


STATEMENTS = (
    Statement(
        id="lesson3.sec4.jacobian",
        where="Section 4, the Jacobian",
        says="The derivative of each weight by each score.",
        formula=r"\partial a_i/\partial s_j = a_i(\delta_{ij} - a_j),\qquad "
        r"J = \mathrm{diag}(a) - a a^\top",
        verdict="true",
        proof=quotient_rule,
        check=Check(
            run=is_the_derivative,
            subject=jacobian,
            mutations={
                "only the diagonal": lambda e: exact.matrix(
                    [[jacobian(e)[k, m] * (k == m) for m in range(5)] for k in range(5)]
                ),
                "the other sign": lambda e: -jacobian(e),
            },
        ),
        properties=("dbias-rows-sum-to-zero", "equal-values-have-no-score-gradient"),
    ),
    Statement(
        id="lesson3.sec4.couple",
        where="Section 4, first consequence",
        says="The off-diagonal is -a_i a_j: raising one logit lowers every other probability.",
        formula=r"J_{ij} = -a_i a_j < 0 \quad (i \ne j)",
        verdict="conditional",
        hypotheses={
            "all scores finite": hidden_keys_do_not_fall,
            "at least two keys": alone,
        },
        proof=one_logit_raised,
        check=Check(
            run=others_fall,
            subject=lambda e: exact.weights(e[None])[0],
            mutations={
                "a sigmoid for each key": lambda e: e / (1 + e),
                "not normalised": lambda e: e,
            },
        ),
    ),
    Statement(
        id="lesson3.sec4.onehot",
        where="Section 4, second consequence",
        says="Where the weights are nearly one-hot, the Jacobian nearly vanishes.",
        formula=r"\|J\|_\infty = 2\varepsilon(1-\varepsilon),\quad \varepsilon = 1 - \max_i a_i "
        r"\le \tfrac12",
        verdict="true",
        proof=row_sums_of_magnitudes,
        check=Check(
            run=bounded_by_rest,
            subject=lambda rest: 2 * rest * (1 - rest),
            mutations={
                "half of it": lambda rest: rest * (1 - rest),
                "of second order": lambda rest: 2 * rest**2,
            },
        ),
    ),
)
