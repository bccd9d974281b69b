"""Projections: what makes queries, keys and values of one input."""

from __future__ import annotations

import sympy as sp

from attnspec.spec.evidence.expressions import matrices
from attnspec.spec.evidence.shapes import shaped
from attnspec.spec.evidence.statement import Proof, Statement

__all__ = ["STATEMENTS", "projection_shapes"]

n, d, d_k, d_v = sp.symbols("n d d_k d_v", integer=True, positive=True)


def projection_shapes() -> Proof:
    """Q, K: n × d_k; V: n × d_v; S: n × n."""
    X = sp.MatrixSymbol("X", n, d)
    W_Q, W_K = sp.MatrixSymbol("W_Q", d, d_k), sp.MatrixSymbol("W_K", d, d_k)
    W_V = sp.MatrixSymbol("W_V", d, d_v)
    return Proof(
        steps=(
            shaped("X W_Q is n × d_k", [X, W_Q], (n, d_k)),
            shaped("X W_V is n × d_v", [X, W_V], (n, d_v)),
            shaped("Q Kᵀ is n × n", [X, W_Q, W_K.T, X.T], (n, n)),
            shaped("(Q Kᵀ) V is n × d_v", [X, W_Q, W_K.T, X.T, X, W_V], (n, d_v)),
        ),
        mutations={
            "keys as wide as values": shaped(
                "Q Kᵀ with K of width d_v", [X, W_Q, W_V.T, X.T], (n, n)
            ),
            "transposed weights": shaped("X W_Qᵀ", [X, W_Q.T], (n, d_k)),
            "values of the width of keys": shaped("X W_V is n × d_k", [X, W_V], (n, d_k)),
        },
    )


def shared_projection() -> Proof:
    """W_Q = W_K = W makes S symmetric, and xᵀ S x a sum of squares."""
    X, x = sp.MatrixSymbol("X", n, d), sp.MatrixSymbol("x", n, 1)
    W, U = sp.MatrixSymbol("W", d, d_k), sp.MatrixSymbol("U", d, d_k)
    shared, apart = X * W * (X * W).T, X * W * (X * U).T
    square = (W.T * X.T * x).T * (W.T * X.T * x)
    return Proof(
        steps=(
            matrices("S = Sᵀ where W_Q = W_K", shared, shared.T),
            matrices("xᵀ S x = |Wᵀ Xᵀ x|² where W_Q = W_K", x.T * shared * x, square),
        ),
        mutations={
            "two projections": matrices("S = Sᵀ for any W_Q, W_K", apart, apart.T),
            "two projections, positive": matrices(
                "xᵀ S x = |Wᵀ Xᵀ x|² for any W_K", x.T * apart * x, square
            ),
        },
    )


STATEMENTS = (
    Statement(
        id="ch11.def4",
        where="Definition 4, equation (2), and the dimensions below it",
        says="Queries, keys and values are linear maps of the same input.",
        formula=r"Q = X W_Q, \quad K = X W_K, \quad V = X W_V",
        verdict="true",
        proof=projection_shapes,
    ),
    Statement(
        id="ch11.prop3",
        where="Proposition 3",
        says="Separate projections let one embedding ask, offer and inform in different subspaces.",
        formula=r"W_Q = W_K \;\Rightarrow\; S = S^\top \succeq 0",
        verdict="narrative",
        reason="Roles are an interpretation. What can be proved: with W_Q = W_K the scores are "
        "symmetric and positive semidefinite, and for two projections they need not be.",
        proof=shared_projection,
    ),
)  # fmt: skip
