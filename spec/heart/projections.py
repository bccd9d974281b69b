"""The three projection matrices, and why queries and keys have two."""

from __future__ import annotations

from typing import Any

import sympy as sp

from attnspec.spec.evidence import binary, exact
from attnspec.spec.evidence.statement import Check, Proof, Statement, require
from attnspec.spec.evidence.sums import identity
from attnspec.spec.evidence.symbols import Q, channels, queries

__all__ = ["STATEMENTS"]

WQ, WK, WV = (binary.integers((4, width), seed=seed) for seed, width in enumerate((2, 2, 3)))
X = binary.integers((3, 4), seed=5)


# -- projections ----------------------------------------------------------------------------------


def projects(projection: Any) -> str:
    """x_i W, row by row, in all three widths."""
    for w in (WQ, WK, WV):
        whole = projection(X, w)
        require(whole.shape == (3, w.shape[1]), f"the shape is {whole.shape}")
        for i in range(3):
            row = [sum(X[i, a] * w[a, b] for a in range(4)) for b in range(w.shape[1])]
            require(binary.same(whole[i], row), f"row {i} is not x_{i} W")
    return "3 tokens of width 4 to widths 2, 2, 3: the matrix form is the form token by token"


def with_one_matrix(claim: Any) -> str:
    """W_Q = W_K: which queries and keys are equal, and what the scores look like."""
    x = exact.matrix([[1, 0], [3, 0], [0, 1]])
    q = k = x @ exact.matrix([[1, 1], [0, 1]])
    pairs = [(i, j) for i in range(3) for j in range(3) if binary.same(q[i], k[j])]
    require(set(pairs) == set(claim(3)), f"equal are q_i and k_j for {pairs}")
    s = q @ k.T
    require(binary.same(s, s.T), "S is not symmetric")
    require(s.max() in s.diagonal(), "the greatest score is not on the diagonal")
    require(s[0].argmax() != 0, "every row has its greatest score on the diagonal")
    return "W_Q = W_K, 3 tokens: q_i = k_j only for i = j; S symmetric; token 1 prefers token 2"


def distance_of_queries() -> Proof:
    """S_ii + S_jj - 2 S_ij for S = Q Qᵀ, any sizes: so S_ij is at most the mean of the two."""
    i, j, a = sp.symbols("i j a", integer=True)

    def score(row: Any, column: Any) -> Any:
        return sp.Sum(Q[row, a] * Q[column, a], channels(a))

    x = sp.IndexedBase("x")
    form = sp.Sum(x[i] * score(i, j) * x[j], queries(i), queries(j))
    squares = sp.Sum(sp.Sum(x[i] * Q[i, a], queries(i)) ** 2, channels(a))
    square = sp.Sum((Q[i, a] - Q[j, a]) ** 2, channels(a))
    return Proof(
        steps=(
            identity(
                "S_ii + S_jj - 2 S_ij = |q_i - q_j|²",
                score(i, i) + score(j, j) - 2 * score(i, j),
                square,
            ),
            identity("S_ij = S_ji", score(i, j), score(j, i)),
            identity("Σ_ij x_i S_ij x_j = Σ_a (Σ_i x_i Q_ia)² >= 0", form, squares),
        ),
        mutations={
            "the other sign": identity(
                "S_ii + S_jj + 2 S_ij = |q_i - q_j|²",
                score(i, i) + score(j, j) + 2 * score(i, j),
                square,
            ),
            "all queries equal": identity("S_ij = S_ii", score(i, j), score(i, i)),
        },
    )


STATEMENTS = (
    Statement(
        id="heart.proj",
        where="The three projection matrices",
        says="Each token makes a query, a key and a value; the matrix form makes all at once.",
        formula=r"q_i = x_i W_Q,\quad k_i = x_i W_K,\quad v_i = x_i W_V",
        verdict="true",
        check=Check(
            run=projects,
            subject=lambda x, w: x @ w,
            mutations={
                "tokens are mixed": lambda x, w: x.cumsum(0) @ w,
                "with a bias": lambda x, w: x @ w + 1,
            },
        ),
    ),
    Statement(
        id="heart.sepqk",
        where="The three projection matrices, why two",
        says="With one matrix for both, every token would have the same query and key.",
        formula=r"W_Q = W_K \Rightarrow q_i = k_i,\ S = S^\top,\ S_{ij} \le (S_{ii}+S_{jj})/2",
        verdict="imprecise",
        exact="Each token's query equals its own key, not that of others. The scores become "
        "symmetric and positive semidefinite, with the greatest on the diagonal; a row may still "
        "prefer another token.",
        proof=distance_of_queries,
        check=Check(
            run=with_one_matrix,
            subject=lambda n: [(i, i) for i in range(n)],
            mutations={
                "the same for every token": lambda n: [(i, j) for i in range(n) for j in range(n)],
                "never equal": lambda n: [],
            },
        ),
    ),
)
