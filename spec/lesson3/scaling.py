"""Why the scores are divided by √d_k: their variance, and what large scores do to gradients."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import sympy as sp

from attnspec.spec.evidence import digits
from attnspec.spec.evidence.expressions import matrices
from attnspec.spec.evidence.laws import SIGNS, moments
from attnspec.spec.evidence.statement import Check, Proof, Statement, require
from attnspec.spec.evidence.sums import identity
from attnspec.spec.evidence.symbols import channels

__all__ = ["STATEMENTS"]

a, b = sp.symbols("a b", integer=True)
delta = sp.KroneckerDelta

# -- the variance ---------------------------------------------------------------------------------


def variance_of_scores() -> Proof:
    """Var = Σ_ab E[q_a q_b] E[k_a k_b], for any d_k: q and k independent, E[q_a q_b] = δ_ab."""
    size = channels(a)[2] + 1

    def double_sum(covariance: Any) -> Any:
        return sp.Sum(delta(a, b) * covariance, channels(a), channels(b))

    uncorrelated, variance = double_sum(delta(a, b)), sp.Symbol("v")
    return Proof(
        steps=(
            identity("Σ_ab δ_ab δ_ab = d_k", uncorrelated, size),
            identity("after division by √d_k: 1", uncorrelated / size, 1),
            identity(
                "entries of variance v: v² d_k", variance**2 * uncorrelated, variance**2 * size
            ),
        ),
        mutations={
            "d_k squared": identity("Σ_ab δ_ab δ_ab = d_k²", uncorrelated, size**2),
            "entries that are all alike": identity(
                "Σ_ab 1 · 1 = d_k", sp.Sum(1, channels(a), channels(b)), size
            ),
            "divided by d_k": identity("Σ_ab δ_ab δ_ab / d_k² = 1", uncorrelated / size**2, 1),
        },
    )


def dot(*entries: Fraction) -> Fraction:
    """q·k of the two halves."""
    half = len(entries) // 2
    return sum((q * k for q, k in zip(entries[:half], entries[half:], strict=True)), Fraction(0))


def with_itself(*entries: Fraction) -> Fraction:
    """q·q of the first half: q = k."""
    return dot(*entries[: len(entries) // 2], *entries[: len(entries) // 2])


def repeated(*entries: Fraction) -> Fraction:
    """All entries of q are the first, all of k the last."""
    return entries[0] * entries[-1] * (len(entries) // 2)


def has_mean_0_and_variance_size(score: Callable[..., Fraction]) -> str:
    """Signs ±1, all of them, d_k = 1, 2, 3, 4."""
    for size in (1, 2, 3, 4):
        mean, variance = moments(score, SIGNS, 2 * size)
        require(mean == 0 and variance == size, f"mean {mean}, variance {variance} at d_k = {size}")
    return "all 2^(2 d_k) signs for d_k = 1 … 4: mean 0 and variance d_k, exactly"


def query_that_is_the_key() -> str:
    """q = k of 3 signs."""
    mean, variance = moments(with_itself, SIGNS, 6)
    require(mean != 0 and variance != 3, "still mean 0, variance 3")
    return f"with q = k of 3 signs, mean {mean} and variance {variance}, not 0 and 3"


def channels_all_alike() -> str:
    """Each vector one sign, three times."""
    _, variance = moments(repeated, SIGNS, 6)
    require(variance != 3, "still variance 3")
    return f"three equal entries in each vector: variance {variance}, not 3"


def entries_with_a_mean() -> str:
    """Signs shifted by 1/2: 1 + μ² + μ² for each channel."""
    law = [(value + Fraction(1, 2), p) for value, p in SIGNS]
    _, variance = moments(dot, law, 4)
    require(variance != 2, "still variance 2")
    return f"entries of mean 1/2 and variance 1, d_k = 2: variance {variance}, not 2"


# -- saturation -----------------------------------------------------------------------------------


def density(size: int, x: Any) -> Any:
    """Of q·k, standard Gaussian entries: |x|^ν K_ν(|x|) / (√π 2^ν Γ(d_k/2)), ν = (d_k - 1)/2."""
    order = mpmath.mpf(size - 1) / 2
    scale = mpmath.sqrt(mpmath.pi) * 2**order * mpmath.gamma(mpmath.mpf(size) / 2)
    return abs(x) ** order * mpmath.besselk(order, abs(x)) / scale


def slope(x: Any) -> Any:
    """σ'(x): ∂A₁/∂s₁ for two keys whose scores differ by x."""
    return mpmath.sech(x / 2) ** 2 / 4


def mean_slope(size: int, scale: Any) -> Any:
    """E ∂A₁/∂S₁ by the raw score, two keys; S₁ - S₂ is distributed as √2 q·k."""

    def integrand(x: Any) -> Any:
        return 2 * density(size, x) * scale * slope(scale * mpmath.sqrt(2) * x)

    with mpmath.workdps(20):
        return mpmath.quad(integrand, [0, 1, 4, 10, 20, 40, 120])


def typical_slope(size: int, scale: Any) -> Any:
    """The slope at a score of 0.6745 √d_k, near the median: not a mean."""
    return scale * slope(scale * mpmath.sqrt(2) * mpmath.mpf("0.6745") * mpmath.sqrt(size))


def mean_is_greater_unscaled(gradient: Callable[[int, Any], Any]) -> str:
    """Two keys, d_k = 64: the mean derivative by the same raw scores, with and without 1/8."""
    raw, scaled = gradient(64, mpmath.mpf(1)), gradient(64, mpmath.mpf(1) / 8)
    require(raw > scaled, f"{mpmath.nstr(raw, 6)} unscaled, {mpmath.nstr(scaled, 6)} scaled")
    return (
        f"mean ∂A₁/∂S₁, two Gaussian keys, d_k = 64: {mpmath.nstr(raw, 12)} unscaled, "
        f"{mpmath.nstr(scaled, 12)} scaled; near the median score "
        f"{mpmath.nstr(typical_slope(64, mpmath.mpf(1)), 3)} and "
        f"{mpmath.nstr(typical_slope(64, mpmath.mpf(1) / 8), 3)}"
    )


def ties_do_not_saturate() -> str:
    """Scores 100, 100."""
    first, _ = digits.softmax([100, 100])
    require(first * (1 - first) == mpmath.mpf(1) / 4, "the derivative is not 1/4")
    return "scores (100, 100) keep ∂A₁/∂S₁ = 1/4, its greatest value, at any size"


# -- a constant -----------------------------------------------------------------------------------


def scale_moves_into_queries() -> Proof:
    """α (X W_Q)(X W_K)ᵀ for any sizes."""
    n, d, dk = sp.symbols("n d d_k", integer=True, positive=True)
    X, scale = sp.MatrixSymbol("X", n, d), sp.Symbol("alpha", positive=True)
    WQ, WK = sp.MatrixSymbol("W_Q", d, dk), sp.MatrixSymbol("W_K", d, dk)
    scaled, moved = scale * (X * WQ) * (X * WK).T, (X * (scale * WQ)) * (X * WK).T
    both = (X * (scale * WQ)) * (X * (scale * WK)).T
    return Proof(
        steps=(matrices("α (X W_Q)(X W_K)ᵀ = (X (α W_Q))(X W_K)ᵀ", scaled, moved),),
        mutations={
            "in both": matrices("α S = (X (α W_Q))(X (α W_K))ᵀ", scaled, both),
            "lost": matrices("α S = S", scaled, (X * WQ) * (X * WK).T),
        },
    )


STATEMENTS = (
    Statement(
        id="lesson3.sec3.var",
        where="Section 3, variance of the raw score",
        says="A raw score is a sum of d_k independent products: mean 0, variance d_k.",
        formula=r"\mathrm{E}[q^\top k] = 0,\qquad \mathrm{Var}[q^\top k] = d_k",
        verdict="conditional",
        hypotheses={
            "queries independent of keys": query_that_is_the_key,
            "uncorrelated channels": channels_all_alike,
            "means of 0": entries_with_a_mean,
            "variances of 1": None,
        },
        proof=variance_of_scores,
        check=Check(
            run=has_mean_0_and_variance_size,
            subject=dot,
            mutations={"q = k": with_itself, "channels all alike": repeated},
        ),
    ),
    Statement(
        id="lesson3.sec3.saturate",
        where="Section 3, saturation",
        says="Large logits make softmax one-hot and its Jacobian 0; the divisor keeps gradients "
        "high.",
        formula=r"\|J\|_\infty = 2\max_i a_i(1-a_i) \le 2(n-1)e^{-\Delta},\quad "
        r"\Delta = s_{(1)} - s_{(2)}",
        verdict="imprecise",
        exact="What counts is the gap to the second score, not the size: ties never saturate. And "
        "for random scores it is the typical (median) gradient that vanishes without the divisor; "
        "the mean one, by the same raw scores, is larger without it.",
        hypotheses={"a gap between the two greatest scores": ties_do_not_saturate},
        check=Check(
            run=mean_is_greater_unscaled,
            subject=mean_slope,
            mutations={
                "near the median score": typical_slope,
                "by the scaled scores": lambda size, scale: mean_slope(size, scale) / scale,
            },
        ),
    ),
    Statement(
        id="lesson3.sec3.config",
        where="Section 3, the divisor",
        says="The divisor is a fixed constant, not learned.",
        formula=r"\mathrm{Attn}(Q, K; \alpha) = \mathrm{Attn}(\alpha Q, K; 1)",
        verdict="true",
        proof=scale_moves_into_queries,
        properties=("scale-multiplies-queries", "gradients-follow-scale", "scale-of-any-sign"),
    ),
)
