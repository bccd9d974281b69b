"""Definition and shapes: projections, scaled dot-product attention, one row of it."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import sympy as sp

from attnspec.spec.evidence import binary, digits, exact
from attnspec.spec.evidence.shapes import shaped
from attnspec.spec.evidence.statement import Check, Proof, Statement, require

__all__ = ["STATEMENTS"]

WQ, WK, WV = (binary.integers((4, width), seed=seed) for seed, width in enumerate((2, 2, 5)))


# -- projections ----------------------------------------------------------------------------------


def shapes() -> Proof:
    """n tokens of width d, for all sizes."""
    n, d, dk, dv = sp.symbols("n d d_k d_v", integer=True, positive=True)
    H, A = sp.MatrixSymbol("H", n, d), sp.MatrixSymbol("A", n, n)
    W, WV = sp.MatrixSymbol("W", d, dk), sp.MatrixSymbol("W_V", d, dv)
    return Proof(
        steps=(
            shaped("H W_Q and H W_K: n × d_k", (H, W), (n, dk)),
            shaped("(H W_Q)(H W_K)ᵀ: n × n", (H, W, W.T, H.T), (n, n)),
            shaped("A (H W_V): n × d_v", (A, H, WV), (n, dv)),
        ),
        mutations={
            "W transposed": shaped("H Wᵀ: n × d_k", (H, W.T), (n, dk)),
            "scores of channels": shaped("QᵀK: n × n", (W.T, H.T, H, W), (n, n)),
        },
    )


def projects_rows(projection: Any) -> str:
    """Linear in the tokens, and row i of the result reads row i alone."""
    x, other = binary.integers((6, 4), seed=1), binary.integers((6, 4), seed=2)
    projected = projection(x, WQ)
    require(projected.shape == (6, 2), f"the shape is {projected.shape}, not (n, d_k)")
    for row in range(6):
        alone = projection(x[row : row + 1], WQ)[0]
        require(binary.same(projected[row], alone), f"row {row} depends on other tokens")
    both = projection(x + other, WQ)
    require(binary.same(both, projected + projection(other, WQ)), "not linear")
    return "6 tokens of width 4 to (6, 2): each row by itself, and linear, exactly"


# -- the operator ---------------------------------------------------------------------------------


def term_by_term(q: Any, k: Any, v: Any, m: Any) -> Any:
    """Σ_j e^(q_i·k_j/√d_k + M_ij) v_jc / Σ_j e^(…), written out by index."""
    n, d = q.shape
    out = np.empty((n, v.shape[1]), object)
    with mpmath.workdps(digits.DIGITS):
        for i in range(n):
            dots = [mpmath.fsum(q[i][c] * k[j][c] for c in range(d)) for j in range(len(k))]
            e = [mpmath.exp(dot / mpmath.sqrt(d) + m[i][j]) for j, dot in enumerate(dots)]
            for c in range(v.shape[1]):
                out[i, c] = mpmath.fsum(e[j] * v[j][c] for j in range(len(k))) / mpmath.fsum(e)
    return out


def mask_of(visible: Any) -> Any:
    """M: 0 where visible, -∞ where hidden."""
    return np.where(visible, mpmath.mpf(0), mpmath.mpf("-inf"))


def is_the_definition(attention: Any) -> str:
    """A causal mask over 4 tokens, d_k = 2, d_v = 5, in 50 digits."""
    x = binary.integers((4, 4), seed=3)
    q, k, v = x @ WQ, x @ WK, x @ WV
    m = mask_of(binary.causal(4))
    out = attention(q, k, v, m)
    require(out.shape == (4, 5), "the output is not n × d_v")
    gap = digits.distance(out, term_by_term(q, k, v, m))
    require(gap < mpmath.mpf(10) ** -40, f"{mpmath.nstr(gap, 3)} from the formula by index")
    return "a causal problem of 4 tokens, d_k = 2, d_v = 5: equal to the sums to 40 digits"


def a_row_of_minus_infinity() -> str:
    """No finite entry in a row of M: 0/0."""
    total = mpmath.fsum(mpmath.exp(s) for s in [mpmath.mpf("-inf")] * 3)
    require(total == 0, "such a row has a sum to divide by")
    return "a row of M that is -∞ throughout makes the row 0/0"


def rows_are_distributions(weights: Any) -> str:
    """5 × 7, with hidden keys in some rows."""
    e = exact.positive((5, 7), seed=4)
    e[1, 2:5] = Fraction(0)
    e[3, 0:6] = Fraction(0)
    a = weights(e)
    require((a >= 0).all(), "a weight is negative")
    require(binary.same(a.sum(1), exact.matrix([1] * 5)), "a row does not sum to 1")
    require(((a == 0) == (e == 0)).all(), "other keys than the hidden ones have weight 0")
    return "5 rows over 7 keys, some of them hidden: weights >= 0 and row sums 1, exactly"


def nothing_to_sum() -> str:
    """The convention for a row that sees no key: weights of 0."""
    total = exact.weights(exact.matrix([[0, 0, 0]])).sum()
    require(total == 0, "the row still sums to 1")
    return "a row that sees no key has no weights that sum to 1; by convention they sum to 0"


STATEMENTS = (
    Statement(
        id="lesson3.sec2.proj",
        where="Section 2, the three projections",
        says="Queries, keys and values are linear projections of the tokens.",
        formula=r"Q = HW_Q,\quad K = HW_K,\quad V = HW_V",
        verdict="true",
        proof=shapes,
        check=Check(
            run=projects_rows,
            subject=lambda x, w: x @ w,
            mutations={
                "tokens are mixed": lambda x, w: x.cumsum(0) @ w,
                "with a bias": lambda x, w: x @ w + 1,
            },
        ),
    ),
    Statement(
        id="lesson3.sec2.attn",
        where="Section 2, the boxed formula",
        says="Scaled dot-product attention with an additive mask, softmax along each row.",
        formula=r"\mathrm{Attn}(Q,K,V) = \mathrm{softmax}\bigl(QK^\top/\sqrt{d_k} + M\bigr)\,V",
        verdict="conditional",
        hypotheses={"a finite entry in each row of M, and none of +∞": a_row_of_minus_infinity},
        check=Check(
            run=is_the_definition,
            subject=lambda q, k, v, m: digits.attention(q, k, v, mask=m),
            mutations={
                "unscaled": lambda q, k, v, m: digits.attention(q, k, v, scale=1, mask=m),
                "without the mask": lambda q, k, v, m: digits.attention(q, k, v),
                "queries and keys exchanged": lambda q, k, v, m: digits.attention(k, q, v, mask=m),
            },
        ),
        properties=("biases-add-to-scores", "zero-bias-adds-nothing", "mask-is-a-bias"),
    ),
    Statement(
        id="lesson3.sec2.stoch",
        where="Section 2, shapes",
        says="The attention matrix is row-stochastic.",
        formula=r"A\mathbf{1} = \mathbf{1},\qquad A_{ij} \ge 0",
        verdict="conditional",
        hypotheses={"a visible key in each row": nothing_to_sum},
        check=Check(
            run=rows_are_distributions,
            subject=exact.weights,
            mutations={
                "columns sum to 1": lambda e: exact.weights(e.T).T,
                "not normalised": lambda e: e,
                "normalised by the sum of squares": lambda e: e / (e * e).sum(1, keepdims=True),
            },
        ),
        properties=("weights-sum-to-one", "weights-are-probabilities", "long-rows-keep-their-mass"),
    ),
)
