"""Gradients: what the loss makes of the output, handed back through softmax to Q, K and V."""

from __future__ import annotations

from typing import Any

import numpy as np
import sympy as sp

from attnspec.spec.chapter11.softmax import softmax_gradient
from attnspec.spec.evidence import exact
from attnspec.spec.evidence.statement import Check, Proof, Statement, require
from attnspec.spec.evidence.sums import identity
from attnspec.spec.evidence.symbols import (
    A,
    G,
    K,
    Q,
    V,
    alpha,
    channels,
    keys,
    queries,
    score_gradient,
    values,
)

__all__ = ["STATEMENTS"]

i, j, other, c, s, a, b = sp.symbols("i j l c s a b", integer=True)
delta = sp.KroneckerDelta


# -- Proposition 9: dQ and dK ---------------------------------------------------------------------


def derivative_of_loss(dS: Any) -> Any:
    """<G, dO> when the scores move by dS(i, j): dA_ij = A_ij (dS_ij - Σ_l A_il dS_il)."""
    dA = A[i, j] * (dS(i, j) - sp.Sum(A[i, other] * dS(i, other), keys(other)))
    return sp.Sum(G[i, c] * sp.Sum(dA * V[j, c], keys(j)), queries(i), values(c))


def query_and_key_gradients() -> Proof:
    """∂L/∂Q_ab and ∂L/∂K_ab: scores move by α δ_ia K_jb and by α δ_ja Q_ib."""
    by_query = derivative_of_loss(
        lambda i, j: alpha * sp.Sum(delta(i, a) * delta(s, b) * K[j, s], channels(s))
    )
    by_key = derivative_of_loss(
        lambda i, j: alpha * sp.Sum(delta(j, a) * delta(s, b) * Q[i, s], channels(s))
    )
    dQ = sp.Sum(score_gradient(a, j) * K[j, b], keys(j))
    dK = sp.Sum(score_gradient(i, a) * Q[i, b], queries(i))
    centred = sp.Sum(G[a, c] * V[j, c], values(c))
    return Proof(
        steps=(
            identity("∂L/∂Q = α dS K", by_query, alpha * dQ),
            identity("∂L/∂K = α dSᵀ Q", by_key, alpha * dK),
        ),
        mutations={
            "the scale is missing": identity("∂L/∂Q = dS K", by_query, dQ),
            "Q stands for K": identity(
                "∂L/∂Q = α dS Q",
                by_query,
                alpha * sp.Sum(score_gradient(a, j) * Q[j, b], keys(j)),
            ),
            "dS is not centred": identity(
                "∂L/∂Q = α (A ∘ dA) K",
                by_query,
                alpha * sp.Sum(A[a, j] * centred * K[j, b], keys(j)),
            ),
            "dS is not transposed": identity(
                "∂L/∂K = α dS Q",
                by_key,
                alpha * sp.Sum(score_gradient(a, i) * Q[i, b], queries(i)),
            ),
        },
    )


# -- Proposition 7: dV and dA ---------------------------------------------------------------------


def value_and_weight_gradients() -> Proof:
    """∂/∂V_ab and ∂/∂A_ab of <G, A V>."""
    loss = sp.Sum(G[i, c] * A[i, j] * V[j, c], queries(i), keys(j), values(c))
    by_value, by_weight = sp.diff(loss, V[a, b]), sp.diff(loss, A[a, b])
    dV = sp.Sum(A[i, a] * G[i, b], queries(i))
    dA = sp.Sum(G[a, c] * V[b, c], values(c))
    return Proof(
        steps=(
            identity("∂L/∂V = Aᵀ dO", by_value, dV),
            identity("∂L/∂A = dO Vᵀ", by_weight, dA),
        ),
        mutations={
            "A is not transposed": identity(
                "∂L/∂V = A dO", by_value, sp.Sum(A[a, i] * G[i, b], queries(i))
            ),
            "V is not transposed": identity(
                "∂L/∂A = dO V", by_weight, sp.Sum(G[a, c] * V[c, b], values(c))
            ),
            "twice": identity("∂L/∂V = 2 Aᵀ dO", by_value, 2 * dV),
        },
    )


# -- Equation (17), in numbers --------------------------------------------------------------------


def agrees_with_differences(formula: Any) -> str:
    """The derivative of <dO, A V> by each score, exactly: e^S moves by e^S dS."""
    exponentials, v = exact.positive((3, 4), seed=1), exact.rational((4, 2), seed=2)
    dout = exact.rational((3, 2), seed=3)
    ds = formula(exponentials, v, dout)
    total = exponentials.sum(-1)
    for row, key in np.ndindex(3, 4):
        # d/dS of Σ_j e^S_j g_j / Σ_j e^S_j, by the quotient rule, in one row.
        g = v @ dout[row]
        e = exponentials[row]
        slope = e[key] * (g[key] * total[row] - (e * g).sum()) / total[row] ** 2
        require(ds[row, key] == slope, f"dS[{row}, {key}] is not the derivative")
    return "all 12 derivatives of a (3, 4) problem by the quotient rule, exactly"


def gradients_in_numbers(formula: Any) -> str:
    """dV of <dO, A V> by exact differences: the output is linear in V."""
    e, v = exact.positive((3, 4), seed=1), exact.rational((4, 2), seed=2)
    dout = exact.rational((3, 2), seed=3)
    dv = formula(exact.weights(e), dout)
    for key in range(4):
        for channel in range(2):
            moved = v.copy()
            moved[key, channel] += 1
            slope = (dout * (exact.output(e, moved) - exact.output(e, v))).sum()
            require(dv[key, channel] == slope, f"dV[{key}, {channel}] is not the difference")
    return "all 8 derivatives by V of a (3, 4) problem by differences, exactly"


STATEMENTS = (
    Statement(
        id="ch11.prop7",
        where="Proposition 7, equation (16)",
        says="The gradients by the values and by the weights.",
        formula=r"dV = A^\top dO, \qquad dA = dO\, V^\top",
        verdict="true",
        proof=value_and_weight_gradients,
        check=Check(
            run=gradients_in_numbers,
            subject=lambda a, dout: a.T @ dout,
            mutations={
                "rows instead of columns": lambda a, dout: np.ones((4, 3), int) @ dout,
                "divided by the weight of each key": lambda a, dout: a.T @ dout / a.sum(0)[:, None],
            },
        ),
        properties=("dv", "dv-sums-to-dout", "dv-with-v-equals-dout-with-out"),
    ),
    Statement(
        id="ch11.prop8",
        where="Proposition 8, equation (17)",
        says="The gradient goes back through the softmax of each row as in equation (9).",
        formula=r"dS_{ij} = A_{ij}\,\bigl(dA_{ij} - \textstyle\sum_l A_{il}\, dA_{il}\bigr)",
        verdict="true",
        check=Check(
            run=agrees_with_differences,
            subject=lambda e, v, do: exact.gradients(e, v, do).ds,
            mutations={
                "not centred": lambda e, v, do: exact.weights(e) * (do @ v.T),
                "centred by the plain mean": lambda e, v, do: (
                    exact.weights(e) * (do @ v.T - (do @ v.T).mean(-1, keepdims=True))
                ),
            },
        ),
        proof=softmax_gradient,
        properties=(
            "dbias",
            "dbias-rows-sum-to-zero",
            "equal-values-have-no-score-gradient",
            "hidden-keys-have-no-gradient",
            "unseen-has-no-gradient",
        ),
    ),
    Statement(
        id="ch11.prop9",
        where="Proposition 9, equation (18)",
        says="The gradients by the queries and the keys.",
        formula=r"dQ = \alpha\, dS\, K, \qquad dK = \alpha\, dS^\top Q",
        verdict="true",
        proof=query_and_key_gradients,
        properties=(
            "dq",
            "dk",
            "dq-and-dk-share-scores",
            "dk-sums-to-zero",
            "gradients-follow-scale",
        ),
    ),
)
