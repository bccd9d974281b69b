"""Responses: how an output moves with a score, and with its query."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import sympy as sp

from attnspec.spec.evidence import exact
from attnspec.spec.evidence.binary import attention, integers, same
from attnspec.spec.evidence.exact import matrix
from attnspec.spec.evidence.statement import Check, Proof, Statement, require
from attnspec.spec.evidence.sums import identity
from attnspec.spec.evidence.symbols import (
    A,
    K,
    V,
    alpha,
    channels,
    keys,
)

__all__ = ["STATEMENTS"]

i, j, other, c, a, b, s = sp.symbols("i j l c a b s", integer=True)
delta = sp.KroneckerDelta


# -- How the output responds -----------------------------------------------------------------------


def responses() -> Proof:
    """o_c = Σ_l a_l v_lc moves by a_l (dS_l - Σ a dS)."""

    def moved(step: Any) -> Any:
        mean = sp.Sum(A[i, s] * step(s), keys(s))
        return sp.Sum(A[i, other] * (step(other) - mean) * V[other, c], keys(other))

    out = sp.Sum(A[i, other] * V[other, c], keys(other))
    by_score = moved(lambda index: delta(index, j))
    by_query = moved(lambda index: alpha * sp.Sum(delta(a, b) * K[index, a], channels(a)))
    mean_key = sp.Sum(A[i, other] * K[other, b], keys(other))
    covariance = sp.Sum(A[i, j] * (V[j, c] - out) * (K[j, b] - mean_key), keys(j))
    return Proof(
        steps=(
            identity("∂o/∂s_j = a_j (v_j - o)", by_score, A[i, j] * (V[j, c] - out)),
            identity("∂o/∂q = α Cov_a(v, k)", by_query, alpha * covariance, stochastic=[A]),
        ),
        mutations={
            "not centred": identity("a_j v_j", by_score, A[i, j] * V[j, c]),
            "the scale is missing": identity("Cov_a(v, k)", by_query, covariance, stochastic=[A]),
            "the mean of products": identity(
                "α Σ a v k",
                by_query,
                alpha * sp.Sum(A[i, j] * V[j, c] * K[j, b], keys(j)),
                stochastic=[A],
            ),
        },
    )


def score_steps(formula: Any) -> str:
    """A score raised by log t, exactly: o moves by a_j (t - 1) (v_j - o) / (1 + a_j (t - 1))."""
    e, v = exact.positive((1, 5), seed=1), integers((5, 2), seed=2)
    weights, out = exact.weights(e)[0], exact.output(e, v)[0]
    for j_key in range(5):
        for t in (Fraction(1, 3), Fraction(2), Fraction(1001, 1000)):
            raised = e.copy()
            raised[0, j_key] = raised[0, j_key] * t
            expected = formula(weights[j_key], v[j_key], out) * (t - 1)
            step = (exact.output(raised, v)[0] - out) * (1 + weights[j_key] * (t - 1))
            require(same(step, expected), f"key {j_key}: not the slope times the step")
    return "5 keys raised by log 1/3, log 2, log 1.001, exactly"


# -- Values that are the keys ----------------------------------------------------------------------


def gradient_of_a_convex_function() -> Proof:
    """With V = K: Z ∂LSE/∂q_a = Σ E_j α k_ja; and xᵀ (∂o/∂q) x is a variance."""
    E, x = sp.IndexedBase("E"), sp.IndexedBase("x")
    slope = sp.Sum(E[j] * alpha * sp.Sum(delta(b, a) * K[j, b], channels(b)), keys(j))
    out = sp.Sum(E[j] * K[j, a], keys(j))
    along = sp.Sum(x[a] * K[j, a], channels(a))
    also = sp.Sum(x[b] * K[other, b], channels(b))
    mean = sp.Sum(A[i, other] * also, keys(other))
    form = sp.Sum(A[i, j] * along * (along - mean), keys(j))
    pairs = sp.Sum(A[i, j] * A[i, other] * (along - also) ** 2, keys(j), keys(other))
    return Proof(
        steps=(
            identity("∂LSE/∂q = α o", slope, alpha * out),
            identity(
                "xᵀ (∂o/∂q) x = α/2 ΣΣ a a (x·k - x·k')² ≥ 0",
                alpha * form,
                alpha * pairs / 2,
                stochastic=[A],
            ),
        ),
        mutations={
            "the scale is missing": identity("∂LSE/∂q = o", slope, out),
            "not halved": identity("α ΣΣ a a (x·k - x·k')²", form, pairs, stochastic=[A]),
        },
    )


def monotone(values_of: Any) -> str:
    """(o(q) - o(q'))·(q - q') ≥ 0 for 15 pairs of queries."""
    k, q = integers((5, 2), seed=1), integers((6, 2), seed=2, within=3)
    out = attention(q, k, values_of(k))
    for one in range(6):
        for two in range(one):
            product = (out[one] - out[two]) @ (q[one] - q[two])
            require(product >= 0, f"queries {two} and {one}: {float(product):.3g}")
    return "15 pairs of queries over 5 keys, exactly"


def values_apart_from_keys() -> str:
    """Values of their own: no monotone map."""
    k, q = integers((5, 2), seed=1), matrix([[0, 0], [1, 0]])
    out = attention(q, k, -k)
    product = (out[1] - out[0]) @ (q[1] - q[0])
    require(product < 0, f"{product}")
    return f"V = -K: (o - o')·(q - q') = {float(product):.3g} < 0"


STATEMENTS = (
    Statement(
        id="ext.response",
        where="folklore; beside chapter 11, equation (9)",
        says="A raised score draws the output toward its value; a query moves it by the "
        "covariance of values and keys.",
        formula=r"\partial o / \partial s_j = a_j (v_j - o), \qquad "
        r"\partial o / \partial q = \alpha\, \mathrm{Cov}_a(v, k)",
        verdict="true",
        proof=responses,
        check=Check(
            run=score_steps,
            subject=lambda weight, value, out: weight * (value - out),
            mutations={
                "not centred": lambda weight, value, out: weight * value,
                "toward the value by (1 - a)": lambda weight, value, out: (
                    weight * (1 - weight) * (value - out)
                ),
            },
        ),
        properties=("equal-values-have-no-score-gradient",),
    ),
    Statement(
        id="ext.hopfield",
        where="Ramsauer et al. 2021; none of the documents",
        says="With the keys as values, the output is the gradient of a convex function of the "
        "query, and so a monotone map.",
        formula=r"o(q) = \tfrac1\alpha \nabla_q \mathrm{LSE}(\alpha K q), \quad "
        r"(o(q) - o(q'))^\top (q - q') \ge 0",
        verdict="conditional",
        hypotheses={"the values are the keys": values_apart_from_keys},
        proof=gradient_of_a_convex_function,
        check=Check(
            run=monotone,
            subject=lambda k: k,
            mutations={"negated": lambda k: -k, "channels exchanged": lambda k: -k[:, ::-1]},
        ),
    ),
)
