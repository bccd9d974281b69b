"""Scores: the matrix Q Kᵀ, as products of vectors and as a bilinear form of the inputs."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import sympy as sp

from attnspec.spec.evidence import binary, exact
from attnspec.spec.evidence.expressions import matrices
from attnspec.spec.evidence.linear import rank
from attnspec.spec.evidence.statement import Check, Proof, Statement, require
from attnspec.spec.evidence.sums import identity
from attnspec.spec.evidence.symbols import channels

__all__ = ["STATEMENTS", "score_of_inputs"]

n, d, d_k = sp.symbols("n d d_k", integer=True, positive=True)
i, j, s, a, b = sp.symbols("i j s a b", integer=True)
X, W_Q, W_K = (
    sp.MatrixSymbol("X", n, d),
    sp.MatrixSymbol("W_Q", d, d_k),
    sp.MatrixSymbol("W_K", d, d_k),
)
G = sp.MatrixSymbol("G", d_k, d_k)


def score_of_inputs() -> Proof:
    """q_i·k_j = Σ_ab X_ia (W_Q W_Kᵀ)_ab X_jb."""
    x, w_q, w_k = (sp.IndexedBase(name) for name in ("X", "W", "U"))

    def over(index: Any) -> Any:
        return (index, 0, d - 1)

    query = sp.Sum(x[i, a] * w_q[a, s], over(a))
    key = sp.Sum(x[j, b] * w_k[b, s], over(b))
    product = sp.Sum(query * key, channels(s))

    def form(left: Any, right: Any) -> Any:
        middle = sp.Sum(w_q[left, s] * w_k[right, s], channels(s))
        return sp.Sum(x[i, a] * middle * x[j, b], over(a), over(b))

    return Proof(
        steps=(identity("S_ij = Σ_ab X_ia M_ab X_jb, M = W_Q W_Kᵀ", product, form(a, b)),),
        mutations={
            "M is transposed": identity("S_ij = Σ_ab X_ia M_ba X_jb", product, form(b, a)),
            "one weight for both": identity("S_ij with W_K = W_Q", product, sp.Sum(
                query * key.subs(w_k, w_q), channels(s))),
        },
    )  # fmt: skip


def bilinear_form() -> Proof:
    """S = X W_Q W_Kᵀ Xᵀ as matrices."""
    scores = X * W_Q * (X * W_K).T
    return Proof(
        steps=(
            matrices("Q Kᵀ = X W_Q W_Kᵀ Xᵀ", scores, X * W_Q * W_K.T * X.T),
            *score_of_inputs().steps,
        ),
        mutations={
            "the weights are exchanged": matrices(
                "Q Kᵀ = X W_K W_Qᵀ Xᵀ", scores, X * W_K * W_Q.T * X.T
            ),
            "queries against queries": matrices(
                "Q Kᵀ = X W_Q W_Qᵀ Xᵀ", scores, X * W_Q * W_Q.T * X.T
            ),
            **score_of_inputs().mutations,
        },
    )


def gauge() -> Proof:
    """(W_Q G, W_K G⁻ᵀ) gives the same scores, for every invertible G; W_Q = W_K gives squares."""
    scores = X * W_Q * W_K.T * X.T
    moved = X * W_Q * G * (X * W_K * G.I.T).T
    x = sp.MatrixSymbol("x", n, 1)
    shared = X * W_Q * (X * W_Q).T
    return Proof(
        steps=(
            matrices("X (W_Q G) (X W_K G⁻ᵀ)ᵀ = S", moved, scores),
            matrices("S = Sᵀ where W_Q = W_K", shared, shared.T),
            matrices("xᵀ S x = |W_Qᵀ Xᵀ x|² where W_Q = W_K", x.T * shared * x,
                     (W_Q.T * X.T * x).T * (W_Q.T * X.T * x)),
        ),
        mutations={
            "the same G for both": matrices(
                "X W_Q G (X W_K G)ᵀ = S", X * W_Q * G * (X * W_K * G).T, scores
            ),
            "not transposed": matrices(
                "X W_Q G (X W_K G⁻¹)ᵀ = S", X * W_Q * G * (X * W_K * G.I).T, scores
            ),
            "symmetric for any weights": matrices("S = Sᵀ for any W_Q, W_K", scores, scores.T),
        },
    )  # fmt: skip


# -- In numbers -----------------------------------------------------------------------------------


def entries_and_rank(scores: Callable[..., Any]) -> str:
    """Each entry is a product of a query and a key; the rank is at most d_k."""
    q, k = exact.rational((5, 2), seed=5), exact.rational((5, 2), seed=6)
    found = scores(q, k)
    for row in range(5):
        for key in range(5):
            product = sum((x * y for x, y in zip(q[row], k[key], strict=True)), Fraction(0))
            require(found[row, key] == product, f"S[{row}, {key}] is not q·k")
    require(rank(found) <= 2, "the rank exceeds d_k")
    return f"25 entries, one by one, and rank {rank(found)} <= d_k = 2, exactly"


def at_half_angle(tangent: Fraction) -> exact.Matrix:
    """The rational unit vector at the angle whose half has this tangent: (cos, sin)."""
    square = 1 + tangent**2
    return exact.matrix([(1 - tangent**2) / square, 2 * tangent / square])


def cosine_of_units(score: Callable[..., Any]) -> str:
    """The cosine of the difference of two angles, by the tangent of a difference."""
    for pair in (("1/2", "1/3"), ("2/3", "-1/5"), ("3", "1/7")):
        s, t = map(Fraction, pair)
        cosine = at_half_angle((s - t) / (1 + s * t))[0]
        found = score(at_half_angle(s), at_half_angle(t))
        require(found == cosine, f"{found} instead of {cosine}")
    return "3 pairs of rational unit vectors: q·k is the cosine, with a factor of 1, exactly"


def long_vectors() -> str:
    """q = (2, 0), k = (3, 0): the score 6 is no cosine."""
    score = exact.matrix([2, 0]) @ exact.matrix([3, 0])
    require(not -1 <= score <= 1, "the score is a cosine")
    return f"q = (2, 0), k = (3, 0): q·k = {score}, the cosine is 1"


def no_inner_product(weights: tuple[Any, Any]) -> str:
    """M = W_Q W_Kᵀ has rank <= d_k, is not symmetric, and some x has xᵀ M x < 0."""
    w_q, w_k = weights
    form = w_q @ w_k.T
    require(rank(form) <= w_q.shape[1], "the rank exceeds d_k")
    require((form != form.T).any(), "M is symmetric")
    lowest = min((x @ form @ x, tuple(x)) for x in binary.integers((60, len(form)), seed=8))
    require(lowest[0] < 0, "no x with xᵀ M x < 0 was found")
    return f"d = 3, d_k = 2: x = {lowest[1]} has xᵀ M x = {lowest[0]}; rank {rank(form)}; M ≠ Mᵀ"


FORM = exact.matrix([[1, 0], [2, -1], [0, 1]]), exact.matrix([[0, 1], [-1, 1], [3, 0]])
EXCHANGE = np.array([[0, 1], [1, 0]], object)

STATEMENTS = (
    Statement(
        id="ch11.def5",
        where="Definition 5, equation (3)",
        says="The matrix of scores holds the product of every query with every key.",
        formula=r"S = Q K^\top, \quad S_{ij} = q_i \cdot k_j; \qquad \mathrm{rank}\, S \le d_k",
        verdict="true",
        proof=score_of_inputs,
        check=Check(
            run=entries_and_rank,
            subject=lambda q, k: q @ k.T,
            mutations={
                "transposed": lambda q, k: k @ q.T,
                "element by element": lambda q, k: np.outer((q * k).sum(1), (q * k).sum(1)),
                "a bias of rank 1 added": lambda q, k: q @ k.T + np.eye(5, dtype=int),
            },
        ),
    ),
    Statement(
        id="ch11.def5.cos",
        where="after Definition 5, interpretation",
        says="For vectors of length 1 a score is proportional to the cosine of their angle.",
        formula=r"|q| = |k| = 1 \;\Rightarrow\; q \cdot k = \cos\angle(q, k)",
        verdict="imprecise",
        exact="It is the cosine: the factor is 1. For other vectors the factor is |q| |k|.",
        hypotheses={"|q| = |k| = 1": long_vectors},
        check=Check(
            run=cosine_of_units,
            subject=lambda q, k: q @ k,
            mutations={
                "proportional, with a factor of 2": lambda q, k: 2 * (q @ k),
                "the sine": lambda q, k: q[0] * k[1] - q[1] * k[0],
            },
        ),
    ),
    Statement(
        id="ch11.prop4",
        where="Proposition 4",
        says="The scores are a bilinear form of the inputs.",
        formula=r"S = X W_Q W_K^\top X^\top",
        verdict="true",
        proof=bilinear_form,
    ),
    Statement(
        id="ch11.prop4.kernel",
        where="Proposition 4, as a kernel",
        says="The form is a learned similarity kernel.",
        formula=r"S = X M X^\top, \; M = W_Q W_K^\top; \quad (W_Q G)(W_K G^{-\top})^\top = M",
        verdict="imprecise",
        exact="A bilinear form of rank <= d_k, in general neither symmetric nor positive, so not a "
        "kernel in the sense of Mercer; it is one where W_Q = W_K. W_Q ≠ W_K does not make it "
        "asymmetric (W_K = W_Q P with P = Pᵀ). W_Q and W_K are determined only up to G.",
        proof=gauge,
        check=Check(
            run=no_inner_product,
            subject=FORM,
            mutations={
                "W_Q = W_K": (FORM[0], FORM[0]),
                "W_K = W_Q P, P = Pᵀ": (FORM[0], FORM[0] @ EXCHANGE),
            },
        ),
        properties=("dq-and-dk-share-scores",),
    ),
)
