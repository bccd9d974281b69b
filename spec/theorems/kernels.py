"""Kernels: attention as regression by distance, and scores of one projection."""

from __future__ import annotations

from typing import Any

import sympy as sp

from attnspec.spec.evidence import exact
from attnspec.spec.evidence.binary import attention, exponentials, integers, power_of_two, same
from attnspec.spec.evidence.exact import Matrix, matrix
from attnspec.spec.evidence.linear import determinant
from attnspec.spec.evidence.statement import Check, Proof, Statement, require
from attnspec.spec.evidence.sums import identity
from attnspec.spec.evidence.symbols import K, Q, channels

__all__ = ["STATEMENTS"]


# -- Distances -------------------------------------------------------------------------------------


def squares_completed() -> Proof:
    """q·k from |q - k|²: the query's norm is common to a row, the key's is not."""
    c = sp.Symbol("c", integer=True)
    dot = sp.Sum(Q[0, c] * K[0, c], channels(c))
    distance = sp.Sum((Q[0, c] - K[0, c]) ** 2, channels(c))
    norms = sp.Sum(Q[0, c] ** 2, channels(c)) + sp.Sum(K[0, c] ** 2, channels(c))
    return Proof(
        steps=(identity("q·k = (|q|² + |k|² - |q - k|²)/2", dot, (norms - distance) / 2),),
        mutations={
            "norms forgotten": identity("-|q - k|²/2", dot, -distance / 2),
            "the other sign": identity("(|q|² + |k|² + |q - k|²)/2", dot, (norms + distance) / 2),
        },
    )


RING = matrix([[3, 4], [4, 3], [-3, 4], [5, 0], [0, -5]])
"""Keys of norm 5."""


def by_distance(q: Matrix, k: Matrix, v: Matrix) -> Matrix:
    """A Gaussian kernel: weights 2^(-|q - k|²), at the scale 2 ln 2."""
    return exact.output(power_of_two(-((q[:, None] - k[None]) ** 2).sum(-1)), v)


def regression(kernel: Any) -> str:
    """5 keys of norm 5, 4 queries."""
    q, v = integers((4, 2), seed=1), integers((5, 2), seed=2)
    require(same(kernel(q, RING, v), attention(2 * q, RING, v)), "not the kernel regression")
    return "4 queries, 5 keys of norm 5, exactly"


def keys_of_other_norms() -> str:
    """The key's norm stays in the weights."""
    q, k, v = integers((4, 2), seed=1), integers((5, 2), seed=3), integers((5, 2), seed=2)
    require(not same(by_distance(q, k, v), attention(2 * q, k, v)), "they agree")
    return "keys of several norms: another output"


# -- Kernels ---------------------------------------------------------------------------------------


def squares_of_sums() -> Proof:
    """W_Q = W_K: zᵀ S z = Σ_c (Σ_i z_i K_ic)²."""
    i, j, c = sp.symbols("i j c", integer=True)
    n = sp.Symbol("n", integer=True, positive=True)
    z = sp.IndexedBase("z")
    rows, columns = (i, 0, n - 1), (j, 0, n - 1)

    def form(left: Any) -> Any:
        dot = sp.Sum(left[i, c] * K[j, c], channels(c))
        return sp.Sum(z[i] * z[j] * dot, rows, columns)

    along = sp.Sum(sp.Sum(z[i] * K[i, c], rows) ** 2, channels(c))
    apart = sp.Sum(z[i] ** 2 * K[i, c] ** 2, rows, channels(c))
    return Proof(
        steps=(identity("zᵀ K Kᵀ z = Σ_c (Σ_i z_i K_ic)² ≥ 0", form(K), along),),
        mutations={
            "queries of their own": identity("zᵀ Q Kᵀ z", form(Q), along),
            "no cross terms": identity("Σ_ic z_i² K_ic²", form(K), apart),
        },
    )


def minors(build: Any) -> str:
    """Leading principal minors: positive for e^(x·y) at distinct points, in all dimensions."""
    points = [matrix([[x] for x in range(-2, 3)]), matrix([[0, 1], [1, 0], [1, 1], [-1, 2]])]
    for x in points:
        gram = build(x)
        for size in range(1, len(x) + 1):
            value = determinant(gram[:size, :size])
            require(value > 0, f"a minor of {size} points is {float(value):.3g}")
    return "5 points on a line, 4 in the plane: all leading minors of 2^(x·y) positive, exactly"


def two_projections() -> str:
    """W_Q ≠ W_K: a negative direction."""
    q, k, z = matrix([[1, 0], [0, 1]]), matrix([[-1, 0], [0, 1]]), matrix([1, 0])
    value = z @ (q @ k.T) @ z
    require(value < 0, f"{value}")
    return f"X = I, W_Q = I, W_K = diag(-1, 1): zᵀ S z = {value} at z = (1, 0)"


def points_that_agree() -> str:
    """Equal points make the matrix singular: only semidefinite."""
    value = determinant(exponentials(matrix([[1], [1]]), matrix([[1], [1]])))
    require(value == 0, f"{value}")
    return "two equal points: the determinant is 0"


STATEMENTS = (
    Statement(
        id="ext.nadaraya",
        where="Nadaraya 1964, Watson 1964; Tsai et al. 2019 for attention; none of the documents",
        says="With keys of one norm, attention is the regression of the values on the keys with a "
        "Gaussian kernel.",
        formula=r"e^{\alpha q^\top k} \propto e^{-\alpha \|q - k\|^2 / 2}",
        verdict="conditional",
        hypotheses={"keys of one norm": keys_of_other_norms},
        proof=squares_completed,
        check=Check(
            run=regression,
            subject=by_distance,
            mutations={
                "the distance itself": lambda q, k, v: exact.output(
                    power_of_two(-abs(q[:, None] - k[None]).sum(-1)), v
                ),
                "half the width": lambda q, k, v: by_distance(2 * q, 2 * k, v),
            },
        ),
    ),
    Statement(
        id="ext.expkernel",
        where="Schur 1911; beside chapter 11, Proposition 4 (similarity kernel)",
        says="With one projection for queries and keys, scores are positive semidefinite and their "
        "exponentials a positive definite kernel on distinct tokens.",
        formula=r"W_Q = W_K \Rightarrow z^\top S z = \|K^\top z\|^2 \ge 0, \quad "
        r"[e^{x_i^\top x_j}]_{ij} \succ 0",
        verdict="conditional",
        hypotheses={
            "W_Q = W_K": two_projections,
            "distinct points, to be definite": points_that_agree,
        },
        proof=squares_of_sums,
        check=Check(
            run=minors,
            subject=lambda x: exponentials(x, x),
            mutations={
                "against negated keys": lambda x: exponentials(x, -x),
                "the scores themselves": lambda x: x @ x.T,
                "queries shifted": lambda x: exponentials(x[::-1], x),
            },
        ),
    ),
)
