"""The variance of a score, for any covariances."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import sympy as sp

from attnspec.spec.evidence.binary import integers
from attnspec.spec.evidence.exact import Matrix, matrix
from attnspec.spec.evidence.statement import Check, Proof, Statement, require
from attnspec.spec.evidence.sums import identity
from attnspec.spec.evidence.symbols import channels

__all__ = ["STATEMENTS"]


# -- Variance --------------------------------------------------------------------------------------


def trace_of_the_product() -> Proof:
    """q = L r, k = M t with E r_a r_b = E t_a t_b = δ_ab, r and t independent, means 0."""
    a, b, x, y = sp.symbols("a b x y", integer=True)
    L, M = sp.IndexedBase("L"), sp.IndexedBase("M")

    def covariance(factor: Any, row: Any, column: Any) -> Any:
        return sp.Sum(factor[row, a] * factor[column, a], channels(a))

    other, also = sp.symbols("a' b'", integer=True)
    moment = sp.Sum(
        sp.KroneckerDelta(a, other)
        * sp.KroneckerDelta(b, also)
        * L[x, a]
        * L[y, other]
        * M[x, b]
        * M[y, also],
        *(channels(index) for index in (x, y, a, other, b, also)),
    )
    trace = sp.Sum(covariance(L, x, y) * covariance(M, y, x), channels(x), channels(y))
    traces = sp.Sum(covariance(L, x, x), channels(x)) * sp.Sum(covariance(M, y, y), channels(y))
    diagonal = sp.Sum(covariance(L, x, x) * covariance(M, x, x), channels(x))
    return Proof(
        steps=(identity("E (q·k)² = tr(Σ_q Σ_k)", moment, trace),),
        mutations={
            "a product of traces": identity("tr Σ_q tr Σ_k", moment, traces),
            "the diagonals": identity("Σ_l Var q_l Var k_l", moment, diagonal),
        },
    )


def signs(size: int) -> list[Matrix]:
    """All vectors of ±1: independent, of mean 0 and variance 1."""
    return [matrix(list(s)) for s in itertools.product((-1, 1), repeat=size)]


def variance_is_the_trace(closed_form: Any) -> str:
    """q = L r and k = M t over all signs r and t, d_k = 1, 2, 3."""
    for size in (1, 2, 3):
        left, right = integers((size, size), seed=size), integers((size, size), seed=size + 5)
        scores = [(left @ r) @ (right @ t) for r in signs(size) for t in signs(size)]
        require(sum(scores) == 0, "the mean is not 0")
        variance = Fraction(sum(s * s for s in scores), len(scores))
        claimed = closed_form(left @ left.T, right @ right.T)
        require(variance == claimed, f"d_k = {size}: {variance}, not {claimed}")
    return "d_k = 1, 2, 3, all 4, 16, 64 pairs of signs, exactly"


def one_vector_twice() -> str:
    """q = k: the score is |q|², of other moments."""
    scores = [(r @ r) for r in signs(3)]
    variance = Fraction(sum(s * s for s in scores), 8) - Fraction(sum(scores), 8) ** 2
    require(variance != 3, f"{variance}")
    return f"q = k of signs, d_k = 3: variance {variance}, not 3"


def means_of_one_half() -> str:
    """Means that are not 0 add μ_qᵀΣ_k μ_q + μ_kᵀΣ_q μ_k."""
    half = Fraction(1, 2)
    scores = [(half + r[0]) * (half + t[0]) for r in signs(1) for t in signs(1)]
    mean = Fraction(sum(scores), 4)
    variance = Fraction(sum(s * s for s in scores), 4) - mean**2
    require(variance == Fraction(3, 2), f"{variance}")
    return "d_k = 1, means ½, variances 1: Var(q k) = 3/2, not 1"


STATEMENTS = (
    Statement(
        id="ext.var.trace",
        where="folklore; chapter 11, Theorem 1, for identity covariances",
        says="For any covariances the variance of a score is the trace of their product.",
        formula=r"\mathrm{Var}(q^\top k) = \mathrm{tr}(\Sigma_q \Sigma_k)",
        verdict="conditional",
        hypotheses={"q and k independent": one_vector_twice, "means of 0": means_of_one_half},
        proof=trace_of_the_product,
        check=Check(
            run=variance_is_the_trace,
            subject=lambda one, two: np.trace(one @ two),
            mutations={
                "a product of traces": lambda one, two: np.trace(one) * np.trace(two),
                "the diagonals": lambda one, two: np.diagonal(one) @ np.diagonal(two),
            },
        ),
    ),
)
