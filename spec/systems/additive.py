"""Additive scores: averaged with like products, of a rank that products do not reach."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import sympy as sp

from attnspec.spec.evidence.binary import integers, same
from attnspec.spec.evidence.exact import Matrix
from attnspec.spec.evidence.expressions import scalars
from attnspec.spec.evidence.linear import determinant, identity_matrix
from attnspec.spec.evidence.statement import Check, Proof, Statement, Step, require

__all__ = ["STATEMENTS"]


# -- An average, whatever the scores --------------------------------------------------------------


def additive_scores(q: Matrix, k: Matrix) -> list[list[Any]]:
    """Σ_c tanh(q_c + k_c), (Nq, Nk), 40 digits."""
    return [
        [mpmath.fsum(mpmath.tanh(int(x + y)) for x, y in zip(a, b, strict=True)) for b in k]
        for a in q
    ]


def averaged(scores: list[list[Any]], v: Matrix) -> list[list[Any]]:
    """Each row of weights e^score over their sum, times the values."""
    rows = [[mpmath.exp(score) for score in row] for row in scores]
    return [[mpmath.fdot(row, map(int, c)) / mpmath.fsum(row) for c in v.T] for row in rows]


def additive_is_an_average(attend: Any) -> str:
    """Within the hull of the values; rows follow their queries; keys in any order."""
    q, k, v = integers((3, 2), seed=1), integers((4, 2), seed=2), integers((4, 3), seed=3)
    with mpmath.workdps(40):
        out = np.array(attend(q, k, v), object)
        require(((v.min(0) <= out) & (out <= v.max(0))).all(), "outside the hull of the values")
        moved = np.array(attend(q[::-1], k[[2, 0, 3, 1]], v[[2, 0, 3, 1]]), object)
        gap = max(abs(moved[::-1] - out).ravel())
        require(gap < mpmath.mpf(10) ** -35, f"reordered tokens move the output by {gap}")
    return "3 queries, 4 keys, 40 digits"


# -- The rank of the scores -----------------------------------------------------------------------


def additive_matrix(n: int) -> list[list[Fraction]]:
    """tanh((i + j) ln 2) = (4^(i+j) - 1) / (4^(i+j) + 1): one hidden unit, n tokens."""
    power = [[Fraction(4) ** (i + j) for j in range(n)] for i in range(n)]
    return [[(p - 1) / (p + 1) for p in row] for row in power]


def rank_grows() -> Proof:
    """tanh(a_i + b_j) = 1 - 2 C_ij, C_ij = 1/(1 + x_i y_j), x = e^2a, y = e^2b; C has rank n.

    What elimination of row and column 0 leaves of C is C with each row and column scaled, by
    factors other than 0 where the x differ and the y differ: rank n by induction (Cauchy).
    The 1 changes the rank by at most 1.
    """
    x, y, x0, y0 = sp.symbols("x y x_0 y_0", positive=True)

    def entry(row: Any, column: Any) -> Any:
        return 1 / (1 + row * column)

    left = entry(x, y) - entry(x, y0) * entry(x0, y) / entry(x0, y0)
    scaled = (x0 - x) / (1 + x * y0) * entry(x, y) * (y - y0) / (1 + x0 * y)
    tanh = (x * y - 1) / (x * y + 1)
    sums = [[Fraction(i + j) for j in range(3)] for i in range(3)]
    return Proof(
        steps=(
            scalars("tanh = 1 - 2C", tanh, 1 - 2 * entry(x, y)),
            scalars("C after elimination is C, scaled by row and by column", left, scaled),
            Step(
                "tanh((i + j) ln 2), 2 to 8 tokens: det ≠ 0, so rank n itself",
                lambda: all(determinant(additive_matrix(n)) != 0 for n in range(2, 9)),
            ),
        ),
        mutations={
            "without tanh": Step("det (i + j) ≠ 0, 3 tokens", lambda: determinant(sums) != 0),
            "nothing is left": scalars("C after elimination is 0", left, 0),
            "nothing is scaled": scalars("C after elimination is C", left, entry(x, y)),
        },
    )


def wide_products_give_any_scores() -> str:
    """d_k = n: Q = S and K = I."""
    scores = np.array(additive_matrix(4), object)
    require(same(scores @ identity_matrix(4).T, scores), "Q Kᵀ differs from the scores")
    return "4 tokens, d_k = 4: Q = S and K = I give the additive scores S exactly"


STATEMENTS = (
    Statement(
        id="sys.bahdanau",
        where="Bahdanau et al. 2015; chapter 11, research perspective",
        says="Scores vᵀtanh(Wq + Uk) are averaged with as well as products are, but one "
        "hidden unit gives n tokens scores of rank n - 1 at least, so that no one d_k lets Q Kᵀ "
        "give them for every n.",
        formula=r"s_{ij} = v^\top \tanh(W q_i + U k_j), \quad "
        r"\mathrm{rank}\,[\tanh(a_i + b_j)] \ge n - 1, \quad \mathrm{rank}\, Q K^\top \le d_k",
        verdict="conditional",
        hypotheses={
            "d_k does not grow with n": wide_products_give_any_scores,
            "the a_i = Wq_i differ from each other, and the b_j = Uk_j": None,
        },
        proof=rank_grows,
        check=Check(
            run=additive_is_an_average,
            subject=lambda q, k, v: averaged(additive_scores(q, k), v),
            mutations={
                "weights that are not normalised": lambda q, k, v: [
                    [mpmath.fdot(map(mpmath.exp, row), map(int, c)) for c in v.T]
                    for row in additive_scores(q, k)
                ],
                "a code of the key's place": lambda q, k, v: averaged(
                    [[s + j for j, s in enumerate(row)] for row in additive_scores(q, k)], v
                ),
            },
        ),
    ),
)
