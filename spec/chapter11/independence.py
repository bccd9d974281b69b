"""Beyond the theorem: what dependence makes of the variance, and what initialisation does."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import sympy as sp

from attnspec.spec.chapter11.variance import second_moment
from attnspec.spec.evidence.laws import RARE, SIGNS, Law, moments
from attnspec.spec.evidence.statement import Check, Proof, Statement, require
from attnspec.spec.evidence.sums import identity
from attnspec.spec.evidence.symbols import channels
from attnspec.spec.evidence.symbols import size as d_k

__all__ = ["STATEMENTS", "initial_score", "initialised"]

s, t, a, b, c, e = sp.symbols("s t a b c e", integer=True)
delta = sp.KroneckerDelta
d = sp.Symbol("d", integer=True, positive=True)
of_x, of_y = sp.IndexedBase("M"), sp.IndexedBase("N")
kappa, sigma = sp.symbols("kappa sigma", positive=True)


# -- Dependence -----------------------------------------------------------------------------------


def own_key_variance() -> Proof:
    """S = |q|² with E q_l² = 1, E q_l⁴ = κ."""
    fourth = sp.Sum(1 + (kappa - 1) * delta(s, t), channels(s), channels(t))
    mean = sp.Sum(delta(s, s), channels(s))
    variance = fourth - d_k**2
    return Proof(
        steps=(
            identity("E |q|² = d_k", mean, d_k),
            identity("Var |q|² = d_k (κ - 1): 2 d_k for Gaussian entries", variance,
                     d_k * (kappa - 1)),
        ),
        mutations={
            "as for independent vectors": identity("Var |q|² = d_k", variance, d_k),
            "mean as for independent vectors": identity("E |q|² = 0", mean, 0),
        },
    )  # fmt: skip


def equal_channels_variance() -> Proof:
    """q_l = x and k_l = y in every channel."""
    variance = second_moment(lambda s, t: 1, lambda s, t: 1)
    return Proof(
        steps=(identity("Var S = Σ_lm 1 · 1 = d_k²", variance, d_k**2),),
        mutations={
            "as for independent channels": identity("Var S = d_k", variance, d_k),
            "only one of the two is repeated": identity(
                "Var S = d_k² with δ for k", second_moment(lambda s, t: 1, delta), d_k**2
            ),
        },
    )


# -- Initialisation -------------------------------------------------------------------------------


def over_features(body: Any) -> Any:
    """Σ over two channels and four features."""
    features = ((index, 0, d - 1) for index in (a, b, c, e))
    return sp.Sum(body, channels(s), channels(t), *features)


def initial_second_moment(inputs: Any, weights: Any) -> Any:
    """E S² = Σ E[x_a x_b y_c y_e] E[W_al W_bm U_cl U_em], S = Σ x_a W_al U_cl y_c."""
    return over_features(inputs * weights)


def initial_variance() -> dict[str, tuple[Any, Any]]:
    """Var S at initialisation, entries of variance σ²: (from the moments, closed form)."""
    white = delta(a, b) * delta(c, e)
    apart = sigma**4 * white * delta(s, t)
    own = white * (1 + (kappa - 1) * delta(a, c))
    wick = delta(s, t) + delta(a, c) + delta(a, c) * delta(s, t)
    plain = d_k * (d * sigma**2) ** 2
    traces = [sp.Sum(of[a, a], (a, 0, d - 1)) for of in (of_x, of_y)]
    return {
        "different tokens": (initial_second_moment(white, apart), plain),
        "a token and itself": (
            initial_second_moment(own, apart),
            plain * (1 + (kappa - 1) / d),
        ),
        "different tokens, W_Q = W_K Gaussian": (
            initial_second_moment(white, sigma**4 * wick),
            plain * (1 + (d_k + 1) / d),
        ),
        "tokens of any second moments M, N: d_k σ⁴ tr M tr N": (
            initial_second_moment(of_x[a, b] * of_y[c, e], apart),
            d_k * sigma**4 * traces[0] * traces[1],
        ),
    }


def initialised() -> Proof:
    """The four cases, and some with the closed form of another."""
    cases = initial_variance()
    (apart, plain), (own, with_kappa), (shared, with_size), _ = cases.values()
    return Proof(
        steps=tuple(identity(f"Var S, {text}", *sides) for text, sides in cases.items()),
        mutations={
            "own token as another": identity("Var S_ii as Var S_ij", own, plain),
            "shared weights as separate": identity("W_Q = W_K as W_Q ≠ W_K", shared, plain),
            "no fan-in": identity("Var S = d_k σ⁴", apart, d_k * sigma**4),
            "kappa for the width": identity("cases exchanged", shared, with_kappa),
            "width for kappa": identity("cases exchanged", own, with_size),
        },
    )


def initial_score(d: int, *drawn: Fraction) -> Fraction:
    """(x·w)(u·y), d_k = 1: x, y of d entries, then w and u."""
    x, y, w, u = (drawn[part * d : (part + 1) * d] for part in range(4))
    query = sum((p * q for p, q in zip(x, w, strict=True)), Fraction(0))
    key = sum((p * q for p, q in zip(y, u, strict=True)), Fraction(0))
    return query * key


def weights_with_mean() -> str:
    """Weights ±1 + 1/2 in two channels of input that are equal."""
    _, variance = moments(
        lambda x, y, *w: initial_score(2, x, x, y, y, *(weight + Fraction(1, 2) for weight in w)),
        SIGNS,
        6,
    )
    require(variance != 4, "the mean of the weights does not matter")
    return f"weights ±1 + 1/2, d = 2 equal inputs ±1, d_k = 1: Var S = {variance}, not 4"


def one_token_and_kurtosis() -> str:
    """x = y of entries -2, 0, 2 (κ = 4), weights ±1, d = 2."""
    outcomes = [
        initial_score(2, *x, *x, *w, *u) ** 2 * p
        for x, p in drawn_pairs(RARE)
        for w, _ in drawn_pairs(SIGNS)
        for u, _ in drawn_pairs(SIGNS)
    ]
    variance = sum(outcomes, Fraction(0)) / 16
    require(variance != 4, "a token and itself are as two tokens")
    require(variance == 4 * (1 + Fraction(3, 2)), "not d² (1 + (κ - 1)/d)")
    return f"a token and itself, κ = 4, d = 2, d_k = 1: Var S = {variance}, not 4"


def drawn_pairs(law: Law) -> list[tuple[tuple[Fraction, Fraction], Fraction]]:
    """Two independent entries, and the probability of each outcome."""
    return [((x, y), p * r) for x, p in law for y, r in law]


# -- Enumeration ----------------------------------------------------------------------------------


def own_key_enumerated(claimed: Callable[[int, Fraction], tuple[Any, Any]]) -> str:
    """(mean, variance) of |q|² as claimed of (d_k, κ), over every outcome."""
    laws: dict[Fraction, Law] = {Fraction(1): SIGNS, Fraction(4): RARE}
    for fourth, law in laws.items():
        for size in (1, 2, 4):
            found = moments(lambda *x: sum((v * v for v in x), Fraction(0)), law, size)
            require(found == claimed(size, fourth), f"E, Var = {found} at d_k = {size}")
    return "every outcome of entries ±1 (κ = 1) and -2, 0, 2 (κ = 4), d_k = 1, 2, 4, exactly"


def equal_channels_enumerated(claimed: Callable[[int], int]) -> str:
    """Var S for d_k equal channels of ±1."""
    for size in (1, 2, 3, 8):
        _, variance = moments(lambda q, k, size=size: size * q * k, SIGNS, 2)
        require(variance == claimed(size), f"Var S = {variance} at d_k = {size}")
    return "every outcome of ±1, d_k = 1, 2, 3, 8, exactly"


STATEMENTS = (
    Statement(
        id="ch11.thm1.neg1",
        where="beside Theorem 1: q = k",
        says="Where W_Q = W_K, the score of a token with itself is |q|²: of mean d_k, not 0, and "
        "of variance d_k (κ - 1), which is 2 d_k for Gaussian entries and 0 for entries ±1.",
        formula=r"\mathbb{E}\,|q|^2 = d_k, \quad \mathrm{Var}\, |q|^2 = d_k(\kappa - 1)",
        verdict="true",
        proof=own_key_variance,
        check=Check(
            run=own_key_enumerated,
            subject=lambda size, kurtosis: (size, size * (kurtosis - 1)),
            mutations={
                "as for independent vectors": lambda size, kurtosis: (0, size),
                "always 2 d_k": lambda size, kurtosis: (size, 2 * size),
            },
        ),
    ),
    Statement(
        id="ch11.thm1.neg2",
        where="beside Theorem 1: equal channels",
        says="Where all channels of q are one number, and all of k, the variance is d_k².",
        formula=r"\mathrm{Var}\, S = d_k^2",
        verdict="true",
        proof=equal_channels_variance,
        check=Check(
            run=equal_channels_enumerated,
            subject=lambda size: size**2,
            mutations={
                "as for independent channels": lambda size: size,
                "cubed": lambda size: size**3,
            },
        ),
    ),
    Statement(
        id="ch11.thm1.init",
        where="beside Theorem 1: at initialisation",
        says="With independent weights of variance 1/d and inputs of |x|² = d in the mean, the "
        "variance is d_k between different tokens, d_k (1 + (κ - 1)/d) between a token and "
        "itself, and d_k (1 + (d_k + 1)/d) between different tokens where W_Q = W_K is Gaussian.",
        formula=r"\mathrm{Var}\, S_{ij} = d_k\,(d\sigma^2)^2, \quad"
        r"\mathrm{Var}\, S_{ii} = d_k\,(d\sigma^2)^2\bigl(1 + \tfrac{\kappa-1}{d}\bigr)",
        verdict="conditional",
        hypotheses={
            "for d_k itself: tokens independent of each other, E |x|² = d": one_token_and_kurtosis,
            "for a token and itself, E x_a² x_b² = 1 for a ≠ b": None,
            "with W_Q = W_K, entries of x uncorrelated, of variance 1": None,
            "weights of mean 0, independent of each other and of the inputs": weights_with_mean,
        },
        proof=initialised,
    ),
)
