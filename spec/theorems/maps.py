"""Maps: of the values, of queries and keys together, of the scale."""

from __future__ import annotations

from typing import Any

import sympy as sp

from attnspec.spec.evidence import exact
from attnspec.spec.evidence.binary import attention, causal, exponentials, integers, same
from attnspec.spec.evidence.exact import matrix
from attnspec.spec.evidence.expressions import matrices
from attnspec.spec.evidence.statement import Check, Proof, Statement, require
from attnspec.spec.evidence.sums import identity
from attnspec.spec.evidence.symbols import (
    A,
    G,
    K,
    Q,
    V,
    alpha,
    channels,
    keys,
    queries,
    score_gradient,
    values,
)

__all__ = ["STATEMENTS"]

i, j, other, c, e, a, b = sp.symbols("i j l c e a b", integer=True)
n, m, d, w = sp.symbols("n m d w", integer=True, positive=True)
E, u, B, T = (sp.IndexedBase(name) for name in ("E", "u", "B", "T"))
"""Exponentials of scores, a vector added to each key or value, a map of values, scaled scores."""


# -- Values, gauge, scale --------------------------------------------------------------------------


def affine_in_values() -> Proof:
    """Each value v becomes v B + u."""
    mapped = sp.Sum(V[j, c] * B[c, e], values(c)) + u[e]
    left = sp.Sum(A[i, j] * mapped, keys(j))
    out = sp.Sum(sp.Sum(A[i, j] * V[j, c], keys(j)) * B[c, e], values(c))
    crossed = sp.Sum(sp.Sum(A[i, j] * V[j, c], keys(j)) * B[e, c], values(c))
    return Proof(
        steps=(identity("A (V B + 1uᵀ) = (A V) B + 1uᵀ", left, out + u[e], stochastic=[A]),),
        mutations={
            "the shift is lost": identity("(A V) B", left, out, stochastic=[A]),
            "rows that do not sum to 1": identity("(A V) B + 1uᵀ", left, out + u[e]),
            "B transposed": identity("(A V) Bᵀ + 1uᵀ", left, crossed + u[e], stochastic=[A]),
        },
    )


def affine_outputs(mapped: Any) -> str:
    """With and without a causal mask, B = [[2, 1], [0, -1]], u = (3, -2)."""
    q, k, v = (integers((4, 2), seed=s) for s in (1, 2, 3))
    b_map, shift = matrix([[2, 1], [0, -1]]), matrix([3, -2])
    for visible in (None, causal(4)):
        found = attention(q, k, v @ b_map + shift, visible=visible)
        out = attention(q, k, v, visible=visible)
        require(same(found, mapped(out, b_map, shift)), "not the affine map of the output")
    return "4 tokens, with and without a causal mask, exactly"


def gauge_and_its_conserved_product() -> Proof:
    """Q G and K G⁻ᵀ have the same scores; along G = 1 + εM, dL = 0 gives QᵀdQ = dKᵀK."""
    q, k = sp.MatrixSymbol("Q", n, d), sp.MatrixSymbol("K", m, d)
    g = sp.MatrixSymbol("G", d, d)
    dQ = alpha * sp.Sum(score_gradient(i, j) * K[j, b], keys(j))
    dK = alpha * sp.Sum(score_gradient(i, j) * Q[i, a], queries(i))
    left, right = sp.Sum(Q[i, a] * dQ, queries(i)), sp.Sum(dK * K[j, b], keys(j))
    other_way = sp.Sum(
        alpha * sp.Sum(score_gradient(i, j) * Q[i, b], queries(i)) * K[j, a], keys(j)
    )
    return Proof(
        steps=(
            matrices("(Q G)(K G⁻ᵀ)ᵀ = Q Kᵀ", q * g * (k * g.I.T).T, q * k.T),
            identity("Qᵀ dQ = dKᵀ K", left, right),
        ),
        mutations={
            "K meets G": matrices("(Q G)(K G)ᵀ = Q Kᵀ", q * g * (k * g).T, q * k.T),
            "transposed": identity("Qᵀ dQ = Kᵀ dK", left, other_way),
        },
    )


def same_layer(of_keys: Any) -> str:
    """G = [[1, 1], [0, 1]]: outputs, and QᵀdQ = dKᵀK (both over α)."""
    q, k, v, dout = (integers((3, 2), seed=s) for s in (1, 2, 3, 4))
    g = matrix([[1, 1], [0, 1]])
    inverse = matrix([[1, -1], [0, 1]])
    found = attention(q @ g, k @ of_keys(g, inverse), v)
    require(same(found, attention(q, k, v)), "the output changes")
    ds = exact.gradients(exponentials(q, k), v, dout).ds
    require(same(q.T @ (ds @ k), (ds.T @ q).T @ k), "QᵀdQ is not dKᵀK")
    require(not same(q.T @ (ds @ k), k.T @ (ds.T @ q)), "nor need it be transposed")
    return "3 tokens, G = [[1, 1], [0, 1]], exactly"


def scale_is_in_the_queries() -> Proof:
    """And the slope of the loss in log α: scaled scores T = αS move by T dlog α."""
    factor = sp.Symbol("c_0")
    scaled = alpha * sp.Sum(factor * Q[i, c] * K[j, c], channels(c))
    dA = A[i, j] * (T[i, j] - sp.Sum(A[i, other] * T[i, other], keys(other)))
    slope = sp.Sum(G[i, c] * sp.Sum(dA * V[j, c], keys(j)), queries(i), values(c))
    product = sp.Sum(score_gradient(i, j) * T[i, j], queries(i), keys(j))
    dot = sp.Sum(Q[i, c] * K[j, c], channels(c))
    weighed = sp.Sum(A[i, j] * T[i, j], queries(i), keys(j))
    return Proof(
        steps=(
            identity("α (c q_i)·k_j = (c α) q_i·k_j", scaled, factor * alpha * dot),
            identity("∂L/∂log α = Σ dT ∘ T", slope, product),
        ),
        mutations={
            "in queries and keys": identity("c² α", scaled, factor**2 * alpha * dot),
            "weights for their gradients": identity("Σ A ∘ T", slope, weighed),
        },
    )


def asymmetric_gauge() -> str:
    """A matrix without an inverse loses scores."""
    q, k = integers((3, 2), seed=1), integers((3, 2), seed=2)
    g = matrix([[1, 1], [1, 1]])
    require(not same((q @ g) @ (k @ g).T, q @ k.T), "the scores are the same")
    return "G = [[1, 1], [1, 1]]: no G⁻¹ gives the scores back"


def scaled_queries(rescaled: Any) -> str:
    """Queries times 1..4 under α, and queries under the scale times 1..4: e^(cαs) = (e^(αs))^c."""
    q, k, v = (integers((4, 2), seed=s) for s in (1, 2, 3))
    for factor in range(1, 5):
        found = exact.output(exponentials(q, k) ** factor, v)
        q_new, k_new = rescaled(q, k, factor)
        require(same(attention(q_new, k_new, v), found), f"a factor of {factor}")
    return "4 tokens, factors 1 to 4, exactly"


STATEMENTS = (
    Statement(
        id="ext.valueaffine",
        where="folklore; behind the convex combination of chapter 11 and lesson 3",
        says="An affine map of the values is the affine map of the output.",
        formula=r"A (VB + \mathbf{1}u^\top) = (AV) B + \mathbf{1}u^\top",
        verdict="true",
        proof=affine_in_values,
        check=Check(
            run=affine_outputs,
            subject=lambda out, b_map, shift: out @ b_map + shift,
            mutations={
                "the shift is lost": lambda out, b_map, shift: out @ b_map,
                "B transposed": lambda out, b_map, shift: out @ b_map.T + shift,
            },
        ),
        properties=("output-is-affine-in-values", "weights-sum-to-one"),
    ),
    Statement(
        id="ext.gauge",
        where="folklore; Noether 1918 for the conserved product; chapter 11, Proposition 4",
        says="W_Q G and W_K G⁻ᵀ give the same layer; what this conserves ties dQ and dK together.",
        formula=r"(QG)(KG^{-\top})^\top = QK^\top, \qquad Q^\top dQ = dK^\top K",
        verdict="conditional",
        hypotheses={"G has an inverse": asymmetric_gauge},
        proof=gauge_and_its_conserved_product,
        check=Check(
            run=same_layer,
            subject=lambda g, inverse: inverse.T,
            mutations={
                "G": lambda g, inverse: g,
                "G⁻¹, not transposed": lambda g, inverse: inverse,
            },
        ),
        properties=("dq-and-dk-share-scores",),
    ),
    Statement(
        id="ext.scale",
        where="folklore; chapter 11, equation (10), for the scale",
        says="A factor of the queries is a factor of the scale; the loss's slope in log α is "
        "what scores and their gradients have in common.",
        formula=r"\mathrm{Attn}(cQ, K; \alpha) = \mathrm{Attn}(Q, K; c\alpha), \quad "
        r"\partial L / \partial \log\alpha = \textstyle\sum_{ij} d\tilde S_{ij} \tilde S_{ij}",
        verdict="true",
        proof=scale_is_in_the_queries,
        check=Check(
            run=scaled_queries,
            subject=lambda q, k, factor: (factor * q, k),
            mutations={
                "keys as well": lambda q, k, factor: (factor * q, factor * k),
                "added": lambda q, k, factor: (q + factor - 1, k),
            },
        ),
        properties=("scale-multiplies-queries", "scale-of-any-sign", "gradients-follow-scale"),
    ),
)
