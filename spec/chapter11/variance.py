"""Variance of a score: what the scale 1/√d_k is derived from, and what the derivation assumes."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import sympy as sp

from attnspec.spec.evidence.laws import RARE, SIGNS, Law, moments
from attnspec.spec.evidence.statement import Check, Proof, Statement, require
from attnspec.spec.evidence.sums import identity
from attnspec.spec.evidence.symbols import channels
from attnspec.spec.evidence.symbols import size as d_k

__all__ = ["INDEPENDENT", "STATEMENTS", "VARIANCE_CHECK", "score_variance", "second_moment"]

s, t = sp.symbols("s t", integer=True)
delta = sp.KroneckerDelta
mean_q, mean_k = sp.IndexedBase("mu"), sp.IndexedBase("nu")
cov_q, cov_k = sp.IndexedBase("C"), sp.IndexedBase("D")


# -- The score of random vectors: E and Var of Σ_l q_l k_l ----------------------------------------


def second_moment(of_q: Callable[..., Any], of_k: Callable[..., Any]) -> Any:
    """E S² = Σ_l Σ_m E[q_l q_m] E[k_l k_m], as q and k are independent."""
    return sp.Sum(of_q(s, t) * of_k(s, t), channels(s), channels(t))


def dot(left: Any, right: Any) -> Any:
    """Σ_l left_l right_l."""
    return sp.Sum(left[s] * right[s], channels(s))


def general_variance() -> Any:
    """Var S for any means μ, ν and covariances C, D of q and k."""
    moments = second_moment(
        lambda s, t: cov_q[s, t] + mean_q[s] * mean_q[t],
        lambda s, t: cov_k[s, t] + mean_k[s] * mean_k[t],
    )
    return moments - dot(mean_q, mean_k) ** 2


def spread(covariance: Any, mean: Any) -> Any:
    """meanᵀ covariance mean."""
    return sp.Sum(covariance[s, t] * mean[s] * mean[t], channels(s), channels(t))


def score_variance() -> Proof:
    """Var S in general, and for unit covariances and zero means."""
    trace = sp.Sum(cov_q[s, t] * cov_k[s, t], channels(s), channels(t))
    spreads = spread(cov_q, mean_k) + spread(cov_k, mean_q)
    white = second_moment(delta, delta)
    return Proof(
        steps=(
            identity("Var S = tr(CD) + νᵀCν + μᵀDμ", general_variance(), trace + spreads),
            identity("Var S = Σ_lm δ_lm δ_lm = d_k for C = D = I, μ = ν = 0", white, d_k),
        ),
        mutations={
            "the means are forgotten": identity("Var S = tr(CD)", general_variance(), trace),
            "the channels are one channel": identity(
                "Var S = d_k without δ", second_moment(lambda s, t: 1, lambda s, t: 1), d_k
            ),
            "standard deviations add": identity("Var S = d_k²", white, d_k**2),
        },
    )


def mean_of_products() -> Proof:
    """E S = Σ_l E[q_l k_l], and E[q_l k_l] = E q_l E k_l + cov(q_l, k_l)."""
    between = sp.IndexedBase("B")

    def mean(covariance: Any, of_q: Any) -> Any:
        return sp.Sum(covariance + of_q * mean_k[s], channels(s))

    apart = mean(0, mean_q[s])
    return Proof(
        steps=(
            identity("E S = μ·ν where q_l and k_l are uncorrelated", apart, dot(mean_q, mean_k)),
            identity("E S = 0 where q has mean 0 besides", mean(0, 0), 0),
        ),
        mutations={
            "correlated": identity(
                "E S = μ·ν always", mean(between[s], mean_q[s]), dot(mean_q, mean_k)
            ),
            "correlated, of mean 0": identity("E S = 0 for means 0", mean(between[s], 0), 0),
            "not centred": identity("E S = 0 for any means", apart, 0),
        },
    )


def variance_of_product() -> Proof:
    """Equation (6): channels add, and Var(q_l k_l) for variances C, D and means μ, ν."""
    C, D, mu, nu = sp.symbols("C D mu nu")
    general = (C + mu**2) * (D + nu**2) - (mu * nu) ** 2
    centred = general.subs({mu: 0, nu: 0})
    diagonal = second_moment(
        lambda s, t: delta(s, t) * cov_q[s, s], lambda s, t: delta(s, t) * cov_k[s, s]
    )
    added = sp.Sum(cov_q[s, s] * cov_k[s, s], channels(s))
    return Proof(
        steps=(
            identity("Var Σ_l q_l k_l = Σ_l Var q_l Var k_l, zero means", diagonal, added),
            identity("Var(q k) = C D + C ν² + D μ²", general, C * D + C * nu**2 + D * mu**2),
            identity("Var(q k) = 1 + μ² + ν² for C = D = 1", general.subs({C: 1, D: 1}),
                     1 + mu**2 + nu**2),
        ),
        mutations={
            "means do not matter": identity("Var(q k) = C D", general, C * D),
            "variances are added": identity("Var(q k) = C + D", centred, C + D),
            "one channel only": identity("Var S = C_00 D_00", diagonal, cov_q[0, 0] * cov_k[0, 0]),
        },
    )  # fmt: skip


# -- Every outcome of entries of finitely many values ---------------------------------------------

SHIFTED: Law = tuple((v + Fraction(1, 2), p) for v, p in SIGNS)


def product_of_halves(*x: Fraction) -> Fraction:
    """q·k, q the first half of x and k the second."""
    half = len(x) // 2
    return sum((q * k for q, k in zip(x[:half], x[half:], strict=True)), Fraction(0))


def enumerated(claimed: Callable[[int], Any]) -> str:
    """Mean 0 and the claimed variance, over every outcome of two laws."""
    for size in (1, 2, 3):
        for law in (SIGNS, RARE):
            mean, variance = moments(product_of_halves, law, 2 * size)
            require(mean == 0, f"E S = {mean} at d_k = {size}")
            require(variance == claimed(size), f"Var S = {variance} at d_k = {size}")
    return "every outcome of entries ±1, and -2, 0, 2 (variance 1), d_k = 1, 2, 3, exactly"


VARIANCE_CHECK = Check(
    run=enumerated,
    subject=lambda size: size,
    mutations={
        "grows with the square": lambda size: size**2,
        "does not grow": lambda size: 1,
        "counts the degrees of freedom": lambda size: size - 1,
    },
)


def own_key(kind: str, law: Law, size: int) -> str:
    """q = k: the score is |q|²."""
    mean, variance = moments(lambda *x: sum((v * v for v in x), Fraction(0)), law, size)
    require(mean != 0 or variance != size, "the theorem holds with q = k")
    return f"q = k, {kind}, d_k = {size}: E S = {mean}, Var S = {variance}"


def same_channels() -> str:
    """All channels of q equal, and all of k."""
    _, variance = moments(lambda q, k: 3 * q * k, SIGNS, 2)
    require(variance != 3, "the theorem holds with equal channels")
    return f"d_k = 3 equal channels of ±1: Var S = {variance}, not 3"


def shifted_entries() -> str:
    """Entries of mean 1/2 and variance 1."""
    _, variance = moments(product_of_halves, SHIFTED, 4)
    require(variance != 2, "the theorem holds with means")
    return f"means 1/2, d_k = 2: Var S = {variance}, not 2"


def doubled_entries() -> str:
    """Entries ±2."""
    _, variance = moments(product_of_halves, [(2 * v, p) for v, p in SIGNS], 4)
    require(variance != 2, "the theorem holds with variance 4")
    return f"entries ±2 (variance 4), d_k = 2: Var S = {variance}, not 2"


INDEPENDENT = {
    "q and k are independent of each other": lambda: own_key("±1", SIGNS, 3),
    "the entries of q, and of k, are uncorrelated": same_channels,
    "every entry has mean 0": shifted_entries,
    "every entry has variance 1": doubled_entries,
}

STATEMENTS = (
    Statement(
        id="ch11.thm1",
        where="Theorem 1, equation (4)",
        says="The score of random independent q and k has mean 0 and variance d_k. (Independence "
        "inside q and inside k can be weakened to uncorrelated entries.)",
        formula=r"\mathbb{E}\,S = 0, \quad \mathrm{Var}\, S = d_k;"
        r"\qquad \text{in general}\quad \mathrm{Var}\, S = \mathrm{tr}(\Sigma_q\Sigma_k)"
        r" + \nu^\top\Sigma_q\nu"
        r" + \mu^\top\Sigma_k\mu",
        verdict="conditional",
        hypotheses=INDEPENDENT,
        proof=score_variance,
        check=VARIANCE_CHECK,
    ),
    Statement(
        id="ch11.thm1.proof5",
        where="Proof of Theorem 1, equation (5)",
        says="The mean of a product is the product of the means, channel by channel: 0 in sum.",
        formula=r"\mathbb{E}\,S = \textstyle\sum_l \mathbb{E}[q_l]\,\mathbb{E}[k_l] = 0",
        verdict="true",
        proof=mean_of_products,
    ),
    Statement(
        id="ch11.thm1.proof6",
        where="Proof of Theorem 1, equation (6)",
        says="The variance of the sum is the sum of the variances, and the variance of each "
        "product is the product of the variances.",
        formula=r"\mathrm{Var}\, S = \textstyle\sum_l \mathrm{Var}\, q_l"
        r" \mathrm{Var}\, k_l; \qquad \mathrm{Var}(q k) = \sigma_q^2\sigma_k^2"
        r" + \sigma_q^2\nu^2 + \sigma_k^2\mu^2",
        verdict="conditional",
        hypotheses={
            "the means are 0 (independence is not enough)": shifted_entries,
            "the products of different channels are uncorrelated": same_channels,
        },
        proof=variance_of_product,
    ),
)
