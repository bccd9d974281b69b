"""The scale: scores divided by √d_k."""

from __future__ import annotations

from typing import Any

import mpmath
import sympy as sp

from attnspec.spec.chapter11.variance import INDEPENDENT, second_moment
from attnspec.spec.evidence.expressions import matrices
from attnspec.spec.evidence.statement import Check, Proof, Statement, require
from attnspec.spec.evidence.sums import identity
from attnspec.spec.evidence.symbols import size as d_k

__all__ = ["STATEMENTS"]

delta = sp.KroneckerDelta


def scaled_variance() -> Proof:
    """Var(α S) = α² Σ_lm δ_lm = 1 for α = 1/√d_k."""

    def variance(scale: Any) -> Any:
        return scale**2 * second_moment(delta, delta)

    return Proof(
        steps=(
            identity("Var(S / √d_k) = 1", variance(1 / sp.sqrt(d_k)), 1),
            identity(
                "Var(α S) = α² d_k", variance(sp.Symbol("alpha")), sp.Symbol("alpha") ** 2 * d_k
            ),
        ),
        mutations={
            "divided by d_k": identity("Var(S / d_k) = 1", variance(1 / d_k), 1),
            "not divided": identity("Var S = 1", variance(1), 1),
            "multiplied": identity("Var(S √d_k) = 1", variance(sp.sqrt(d_k)), 1),
        },
    )


def moved_scale() -> Proof:
    """The scale can be part of W_Q, or of W_K, or a root of it of each."""
    n, d, k = sp.symbols("n d k", integer=True, positive=True)
    scale = sp.Symbol("alpha", positive=True)
    X = sp.MatrixSymbol("X", n, d)
    W_Q, W_K = sp.MatrixSymbol("W_Q", d, k), sp.MatrixSymbol("W_K", d, k)

    def scores(of_q: Any, of_k: Any) -> Any:
        return (X * (of_q * W_Q)) * (X * (of_k * W_K)).T

    scaled = scale * X * W_Q * W_K.T * X.T
    return Proof(
        steps=(
            matrices("(X αW_Q)(X W_K)ᵀ = α S", scores(scale, 1), scaled),
            matrices("(X √α W_Q)(X √α W_K)ᵀ = α S", scores(sp.sqrt(scale), sp.sqrt(scale)), scaled),
        ),
        mutations={
            "in both": matrices("(X αW_Q)(X αW_K)ᵀ = α S", scores(scale, scale), scaled),
            "in neither": matrices("(X W_Q)(X W_K)ᵀ = α S", scores(1, 1), scaled),
        },
    )


def greatest_of(deviation: float) -> str:
    """E max of n standard normal scores grows with n, below √(2 ln n), by quadrature."""
    with mpmath.workdps(20):
        means = []
        for n in (2, 32, 1024):
            mean = mpmath.quad(
                lambda x, n=n: x * n * mpmath.npdf(x) * mpmath.ncdf(x) ** (n - 1),
                [-8, -2, 0, 2, 4, 8, 12],
            )
            means.append(deviation * mean)
            bound = mpmath.sqrt(2 * mpmath.log(n))
            require(means[-1] <= bound, f"E max of {n} is {mpmath.nstr(means[-1], 6)} > √(2 ln n)")
        require(means[0] > 0.5 and means[2] > 3, f"E max {mpmath.nstr(means[2], 6)} does not grow")
    shown = ", ".join(mpmath.nstr(mean, 6) for mean in means)
    return f"n = 2, 32, 1024 standard normal scores: E max = {shown}, by quadrature"


STATEMENTS = (
    Statement(
        id="ch11.def6",
        where="Definition 6, equation (7)",
        says="Scores divided by √d_k have variance 1.",
        formula=r"\tilde S = S / \sqrt{d_k}, \quad \mathrm{Var}\, \tilde S_{ij} = 1",
        verdict="conditional",
        hypotheses=INDEPENDENT,
        proof=scaled_variance,
        properties=("scale-multiplies-queries", "scale-of-any-sign", "gradients-follow-scale"),
    ),
    Statement(
        id="ch11.def6.essential",
        where="after Definition 6",
        says="The scale keeps softmax well conditioned whatever the head dimension, and training "
        "needs it.",
        formula=r"\alpha\,(X W_Q)(X W_K)^\top = (X\,\alpha W_Q)(X W_K)^\top",
        verdict="imprecise",
        exact="At initialisation, and per score. The scale is the same as W_Q divided by √d_k, so "
        "smaller initial weights do as well; and over n keys the greatest score still grows, as "
        "√(2 ln n).",
        proof=moved_scale,
        check=Check(
            run=greatest_of,
            subject=1.0,
            mutations={"of variance 4": 2.0, "of variance 1/16": 0.25},
        ),
        properties=("scale-multiplies-queries",),
    ),
)
