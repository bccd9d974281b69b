"""Exercises: the answers, proved or computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import sympy as sp

from attnspec.spec.chapter11.heads import EXCESS, EXCESS_CHECK, excess
from attnspec.spec.chapter11.outlook import (
    breaks_order,
    causal_attention,
    equivariant,
    self_attention,
    with_positions,
)
from attnspec.spec.chapter11.retrieval import convex_combination
from attnspec.spec.chapter11.softmax import softmax_gradient
from attnspec.spec.chapter11.variance import INDEPENDENT, VARIANCE_CHECK, score_variance
from attnspec.spec.evidence import digits
from attnspec.spec.evidence.expressions import matrices
from attnspec.spec.evidence.shapes import shaped
from attnspec.spec.evidence.statement import Check, Proof, Statement, require

__all__ = ["STATEMENTS"]


# -- Exercise 8 -----------------------------------------------------------------------------------


def scores_move_along() -> Proof:
    """Scores, and then outputs, of P X.

    Between the two steps, A(P S Pᵀ) = P A(S) Pᵀ: softmax acts on elements and on sums of rows,
    and a permutation P only renames both.
    """
    n, d = sp.symbols("n d", integer=True, positive=True)
    P, X, M = sp.MatrixSymbol("P", n, n), sp.MatrixSymbol("X", n, d), sp.MatrixSymbol("M", d, d)
    A, W_V = sp.MatrixSymbol("A", n, n), sp.MatrixSymbol("W_V", d, d)
    moved, scores = P * X * M * (P * X).T, X * M * X.T
    out = P * A * P.I * (P * X * W_V)
    return Proof(
        steps=(
            matrices("S(P X) = P S(X) Pᵀ", moved, P * scores * P.T),
            matrices("(P A Pᵀ)(P X W_V) = P (A X W_V), as Pᵀ = P⁻¹", out, P * A * X * W_V),
        ),
        mutations={
            "invariant": matrices("S(P X) = S(X)", moved, scores),
            "rows only": matrices("S(P X) = P S(X)", moved, P * scores),
            "outputs are the same": matrices("A(P X) P X W_V = A X W_V", out, A * X * W_V),
            "the wrong way": matrices("S(P X) = Pᵀ S(X) P", moved, P.T * scores * P),
        },
    )


# -- Exercises 5, 6 and 7 -------------------------------------------------------------------------

HIDDEN = -mpmath.inf
MASK = ((0, HIDDEN, HIDDEN, HIDDEN), (0, 0, HIDDEN, HIDDEN), (0, 0, 0, HIDDEN), (0, 0, 0, 0))


def mask_of_four(mask: Any) -> str:
    """0 where j <= i and minus infinity elsewhere."""
    for i, j in np.ndindex(4, 4):
        require(mask[i][j] == (0 if j <= i else HIDDEN), f"element ({i + 1}, {j + 1})")
    return "16 elements: 10 zeros, 6 of minus infinity"


def weights_of_ten(first: Callable[[Any], Any]) -> str:
    """The first weight for raw scores 10 and 0, d_k = 64: unscaled, and divided by 8."""
    with mpmath.workdps(digits.DIGITS):
        for score in (mpmath.mpf(10), mpmath.mpf(10) / 8):
            right = digits.softmax([score, 0])[0]
            gap = abs(first(score) - right)
            require(gap < mpmath.mpf(10) ** -40, f"{mpmath.nstr(right, 20)} at {score}")
        raw, scaled = (mpmath.nstr(first(s), 20) for s in (mpmath.mpf(10), mpmath.mpf("1.25")))
    return f"first weight {raw} unscaled, {scaled} scaled (50 digits)"


def adapted() -> Proof:
    """X (W + B A) = X W + (X B) A, of the shape of X W."""
    n, d, d_k, r = sp.symbols("n d d_k r", integer=True, positive=True)
    X, W = sp.MatrixSymbol("X", n, d), sp.MatrixSymbol("W", d, d_k)
    B, A = sp.MatrixSymbol("B", d, r), sp.MatrixSymbol("A", r, d_k)
    other = sp.MatrixSymbol("B", d_k, r)
    merged = X * (W + B * A)
    return Proof(
        steps=(
            matrices("X (W + B A) = X W + (X B) A", merged, X * W + X * B * A),
            shaped("X B A is n × d_k, by way of n × r", [X, B, A], (n, d_k)),
        ),
        mutations={
            "only the adapter": matrices("X (W + B A) = X B A", merged, X * B * A),
            "added twice": matrices("X W + 2 X B A", merged, X * W + 2 * X * B * A),
            "B of the width of the output": shaped("X B A, B d_k × r", [X, other, A], (n, d_k)),
        },
    )


STATEMENTS = (
    Statement(
        id="ch11.exer1",
        where="Exercise 1",
        says="Prove Theorem 1.",
        formula=r"\mathrm{Var}\, S = \textstyle\sum_{lm} \delta_{lm}\delta_{lm} = d_k",
        verdict="conditional",
        hypotheses=INDEPENDENT,
        proof=score_variance,
        check=VARIANCE_CHECK,
    ),
    Statement(
        id="ch11.exer2",
        where="Exercise 2",
        says="Show that the output lies in the convex hull of the values.",
        formula=r"b - f\cdot o_i = \textstyle\sum_j A_{ij}\,(b - f\cdot v_j) \ge 0",
        verdict="true",
        proof=convex_combination,
        properties=("output-in-hull-of-values",),
    ),
    Statement(
        id="ch11.exer3",
        where="Exercise 3",
        says="Derive the gradient through softmax.",
        formula=r"\tfrac{\partial a_i}{\partial s_j} = a_i(\delta_{ij} - a_j) \;\Rightarrow\;"
        r"\tfrac{\partial L}{\partial s_j} = a_j\bigl(g_j - \textstyle\sum_l a_l g_l\bigr)",
        verdict="true",
        proof=softmax_gradient,
        properties=("dbias-rows-sum-to-zero",),
    ),
    Statement(
        id="ch11.exer4",
        where="Exercise 4",
        says="Prove that heads cost no more.",
        formula=r"F_h - F_1 = (h-1)(5n^2 - 2n)",
        verdict="imprecise",
        exact=EXCESS,
        proof=excess,
        check=EXCESS_CHECK,
    ),
    Statement(
        id="ch11.exer5",
        where="Exercise 5",
        says="Write the causal mask for four tokens.",
        formula=r"M_{ij} = 0 \text{ for } j \le i, \quad -\infty \text{ for } j > i",
        verdict="true",
        check=Check(
            run=mask_of_four,
            subject=MASK,
            mutations={
                "transposed": tuple(zip(*MASK, strict=True)),
                "the diagonal hidden": ((HIDDEN,) * 4, *MASK[:3]),
                "-10⁹": tuple(tuple(-1e9 if x else 0 for x in row) for row in MASK),
            },
        ),
        properties=("hiding-is-masking",),
    ),
    Statement(
        id="ch11.exer6",
        where="Exercise 6",
        says="The output for raw scores 10 and 0, d_k = 64, with the scale and without.",
        formula=r"o = A_1 v_1 + (1 - A_1) v_2, \; A_1 = \sigma(10) = 0.99995\ldots"
        r"\text{ or } \sigma(1.25) = 0.77729\ldots",
        verdict="true",
        check=Check(
            run=weights_of_ten,
            subject=lambda score: 1 / (1 + mpmath.exp(-score)),
            mutations={
                "divided by d_k": lambda score: 1 / (1 + mpmath.exp(-score / 8)),
                "without the other key": lambda score: mpmath.exp(score) / (mpmath.exp(score) + 2),
                "the other weight": lambda score: 1 / (1 + mpmath.exp(score)),
            },
        ),
        properties=("odds-are-exponential",),
    ),
    Statement(
        id="ch11.exer7",
        where="Exercise 7",
        says="Low-rank adaptation changes the projections and not the structure.",
        formula=r"X(W + BA) = XW + (XB)A, \quad \mathrm{rank}\, BA \le r",
        verdict="true",
        proof=adapted,
    ),
    Statement(
        id="ch11.exer8",
        where="Exercise 8",
        says="Self-attention alone does not encode the order of tokens; positions do.",
        formula=r"\mathrm{Attn}(PX) = P \mathrm{Attn}(X)",
        verdict="conditional",
        hypotheses={
            "no mask": lambda: breaks_order(causal_attention, "causal"),
            "no positions in the input": lambda: breaks_order(with_positions, "positions added"),
        },
        proof=scores_move_along,
        check=Check(
            run=equivariant,
            subject=self_attention,
            mutations={
                "causal": causal_attention,
                "positions added": with_positions,
                "first token marked": lambda x: self_attention(x) * np.array([[2], [1], [1], [1]]),
            },
        ),
        properties=("queries-in-any-order", "keys-in-any-order"),
    ),
)
