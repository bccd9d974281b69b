"""Saturation in the random model: derivatives of softmax, averaged over Gaussian q and k."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import mpmath
import numpy as np

from attnspec.spec.evidence.statement import Check, Statement, require

__all__ = ["STATEMENTS", "greatest_weights"]

DIGITS = 30


# -- Two keys, exactly: the mean and the median derivative ----------------------------------------


def logistic_slope(x: Any) -> Any:
    """σ'(x), for which e^-|x| does not overflow."""
    e = mpmath.exp(-abs(x))
    return e / (1 + e) ** 2


def density(x: Any, size: int) -> Any:
    """Of S = q·k for Gaussian q and k: |x/2|^ν K_ν(|x|) / (√π Γ(d_k/2)), ν = (d_k - 1)/2."""
    order = mpmath.mpf(size - 1) / 2
    scale = mpmath.sqrt(mpmath.pi) * mpmath.gamma(mpmath.mpf(size) / 2)
    return (x / 2) ** order * mpmath.besselk(order, x) / scale


def mean_slope(scale: Any, size: int) -> Any:
    """E ∂A_1/∂S_1 = scale · E σ'(scale (S_1 - S_2)), by Fourier: σ' has πt / sinh πt."""

    def integrand(t: Any) -> Any:
        decay = (1 + 2 * (scale * t) ** 2) ** (-mpmath.mpf(size) / 2)
        return decay * t / mpmath.sinh(mpmath.pi * t)

    return scale * mpmath.quad(integrand, [0, 0.25, 1, 2, 4, 8, 24])


def mean_slope_by_density(scale: Any, size: int) -> Any:
    """The same by the density of S: S_1 - S_2 = q·(k_1 - k_2) is √2 times an S."""
    return (
        2 * scale * mpmath.quad(
            lambda x: logistic_slope(scale * mpmath.sqrt(2) * x) * density(x, size),
            [0, 1, 4, 10, 20, 40, 80, 160],
        )
    )  # fmt: skip


def median_slope(scale: Any, size: int) -> Any:
    """σ' falls with |x|: its median is at the median of |S_1 - S_2|."""
    middle = mpmath.findroot(
        lambda x: mpmath.quad(partial(density, size=size), [0, x / 2, x]) - mpmath.mpf(1) / 4,
        mpmath.sqrt(size) * 0.67,
    )
    return scale * logistic_slope(scale * mpmath.sqrt(2) * middle)


def two_keys(mean: Callable[[Any, int], Any]) -> str:
    """Unscaled, the mean derivative by S is larger; its median is smaller."""
    with mpmath.workdps(DIGITS):
        eighth = mpmath.mpf(1) / 8
        raw, scaled = mean(mpmath.mpf(1), 64), mean(eighth, 64)
        for found, scale in ((raw, mpmath.mpf(1)), (scaled, eighth)):
            gap = abs(found - mean_slope_by_density(scale, 64))
            require(gap < mpmath.mpf(10) ** -20, f"the density gives another mean, by {gap}")
        require(raw > scaled, "scaling makes the mean larger")
    with mpmath.workdps(15):
        medians = [median_slope(mpmath.mpf(scale), 64) for scale in (1, 0.125)]
        require(medians[0] < medians[1] / 20, "scaling does not make the median larger")
        shown = [mpmath.nstr(x, 12) for x in (raw, scaled)], [mpmath.nstr(x, 4) for x in medians]
    return (
        f"d_k = 64, by two integrals: mean {shown[0][0]} raw, {shown[0][1]} scaled; "
        f"median {shown[1][0]} raw, {shown[1][1]} scaled"
    )


# -- Many keys: a seeded sample -------------------------------------------------------------------

SAMPLES = 300


def sampled_scores(keys: int, size: int) -> Any:
    """(SAMPLES, keys): q·k_j, which given q are Gaussian, of standard deviation |q|."""
    rng = np.random.default_rng(20170612)
    length = np.sqrt(rng.chisquare(size, (SAMPLES, 1)))
    return length * rng.standard_normal((SAMPLES, keys))


def softmax(scores: Any) -> Any:
    """Rows of float64 weights."""
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def trace_and_norm(weights: Any) -> tuple[Any, Any]:
    """tr J = 1 - Σ a² and ‖J‖_F² = Σ a² - 2 Σ a³ + (Σ a²)², of J = diag(a) - a aᵀ."""
    square, cube = (weights**2).sum(-1), (weights**3).sum(-1)
    return 1 - square, np.sqrt(np.maximum(square - 2 * cube + square**2, 0))


def beyond_chance(larger: Any, smaller: Any, what: str) -> None:
    """The mean of the paired differences is positive by 5 standard errors."""
    gap = np.asarray(larger - smaller)
    error = gap.std(ddof=1) / np.sqrt(len(gap))
    require(gap.mean() > 5 * error, f"not 5σ: {what} ({gap.mean():.3g} ± {error:.2g})")


def many_keys(scale: float) -> str:
    """What `scale` does to tr J and ‖J‖_F at n = 1024, d_k = 64, by S̃ and by the same S."""
    scores = sampled_scores(1024, 64)
    raw_trace, raw_norm = trace_and_norm(softmax(scores))
    trace, norm = trace_and_norm(softmax(scores * scale))
    beyond_chance(trace, raw_trace, "by its own scores, tr J is larger scaled")
    beyond_chance(raw_norm, norm, "by its own scores, the norm of J is larger unscaled")
    beyond_chance(raw_trace, scale * trace, "by the same S, tr ∂A/∂S is larger unscaled")
    return (
        f"{SAMPLES} seeded rows of 1024 scores, d_k = 64, differences beyond 5σ: tr J "
        f"{raw_trace.mean():.3f} raw, {trace.mean():.4f} scaled ({scale * trace.mean():.3f} by "
        f"the same S); ‖J‖_F {raw_norm.mean():.3f} raw, {norm.mean():.3f} scaled"
    )


def typical_row() -> str:
    """Two keys: the derivative by the same S is smaller unscaled in most rows, by a sign test."""
    scores = sampled_scores(2, 64)
    raw, _ = trace_and_norm(softmax(scores))
    scaled, _ = trace_and_norm(softmax(scores / 8))
    smaller = int((raw < scaled / 8).sum())
    require(smaller > SAMPLES / 2 + 5 * np.sqrt(SAMPLES) / 2, f"only in {smaller} of {SAMPLES}")
    return (
        f"2 keys, d_k = 64: unscaled, tr ∂A/∂S is smaller in {smaller} of {SAMPLES} rows "
        f"(median {np.median(raw):.2g}, scaled {np.median(scaled) / 8:.2g})"
    )


def greatest_weights(scale: Callable[[int], float], size: int = 64) -> str:
    """The greatest weight of 1024, unscaled and scaled: beyond 5σ, more than 10 times as large."""
    scores = sampled_scores(1024, size)
    raw, scaled = (softmax(s).max(-1) for s in (scores, scores * scale(size)))
    beyond_chance(raw, 10 * scaled, "unscaled, the greatest weight is 10 times that of the scaled")
    return (
        f"{SAMPLES} seeded rows of 1024 scores, d_k = {size}: greatest weight "
        f"{raw.mean():.3f} raw, {scaled.mean():.4f} scaled, beyond 5σ"
    )


STATEMENTS = (
    Statement(
        id="ch11.cor1.mean",
        where="beside Corollary 1: two keys",
        says="For two keys and d_k = 64, the mean derivative of a weight by a raw score is larger "
        "without the scale; the typical one (the median) is 48 times smaller.",
        formula=r"\mathbb{E}\,\tfrac{\partial A_1}{\partial S_1} = c \int_0^\infty"
        r"\frac{t\,dt}{\sinh \pi t\,(1 + 2c^2t^2)^{d_k/2}}, \quad c = 1, \tfrac{1}{\sqrt{d_k}}",
        verdict="conditional",
        hypotheses={"independent standard normal entries": None},
        check=Check(
            run=two_keys,
            subject=mean_slope,
            mutations={
                "by the scaled score": lambda scale, size: mean_slope(scale, size) / scale,
                "independent queries": lambda scale, size: mean_slope(scale, 2 * size),
            },
        ),
    ),
    Statement(
        id="ch11.cor1.norm",
        where="beside Corollary 1: many keys",
        says="For 1024 keys and d_k = 64, leaving out the scale lowers tr J but raises its norm, "
        "and by the same raw scores the derivative is larger unscaled: it does not vanish.",
        formula=r"\mathrm{tr}\, J = 1 - \textstyle\sum_j a_j^2",
        verdict="conditional",
        hypotheses={
            "independent standard normal entries": None,
            "the mean over rows, not the typical row of few keys (d_k >> 2 ln n)": typical_row,
        },
        check=Check(
            run=many_keys,
            subject=1 / 8,
            mutations={"no scale": 1.0, "scores twice as large": 2.0},
        ),
    ),
)
