"""Orders: tokens rearranged, and keys with their values."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import sympy as sp

from attnspec.spec.evidence.binary import attention, causal, integers, same
from attnspec.spec.evidence.expressions import matrices
from attnspec.spec.evidence.statement import Check, Proof, Statement, require

__all__ = ["STATEMENTS"]

i, j, other, c, e, a, b = sp.symbols("i j l c e a b", integer=True)
n, m, d, w = sp.symbols("n m d w", integer=True, positive=True)
E, u, B, T = (sp.IndexedBase(name) for name in ("E", "u", "B", "T"))
"""Exponentials of scores, a vector added to each key or value, a map of values, scaled scores."""


# -- Orders of tokens and keys ---------------------------------------------------------------------


def tokens_in_any_order() -> Proof:
    """P a permutation, Pᵀ = P⁻¹, P 1 = 1; e^(P S Pᵀ) = P e^S Pᵀ, as P only relabels entries."""
    P, S, X, M, W = (
        sp.MatrixSymbol(name, *shape)
        for name, shape in (
            ("P", (n, n)),
            ("S", (n, n)),
            ("X", (n, d)),
            ("M", (d, d)),
            ("W", (d, w)),
        )
    )
    one = sp.MatrixSymbol("one", n, 1)
    relabelled = P * S * P.I
    return Proof(
        steps=(
            matrices(
                "(P X) M (P X)ᵀ = P (X M Xᵀ) Pᵀ", P * X * M * (P * X).T, P * X * M * X.T * P.T
            ),
            matrices(
                "numerators: P E Pᵀ (P X) W = P (E X W)", relabelled * P * X * W, P * S * X * W
            ),
            matrices("denominators: P E Pᵀ (P 1) = P (E 1)", relabelled * P * one, P * S * one),
        ),
        mutations={
            "invariant": matrices("P E Pᵀ P X W = E X W", relabelled * P * X * W, S * X * W),
            "only the queries move": matrices("P E X W = E X W", P * S * X * W, S * X * W),
        },
    )


def keys_in_any_order() -> Proof:
    """The scores' columns move as the rows of K: e^(S Pᵀ) = e^S Pᵀ."""
    P, S = sp.MatrixSymbol("P", m, m), sp.MatrixSymbol("E", n, m)
    Y, one = sp.MatrixSymbol("V", m, w), sp.MatrixSymbol("one", m, 1)
    moved = S * P.I
    return Proof(
        steps=(
            matrices("numerators: E Pᵀ P V = E V", moved * P * Y, S * Y),
            matrices("denominators: E Pᵀ P 1 = E 1", moved * P * one, S * one),
        ),
        mutations={
            "values stay": matrices("E Pᵀ V = E V", moved * Y, S * Y),
            "keys stay": matrices("E P V = E V", S * P * Y, S * Y),
        },
    )


def all_orders(layer: Any) -> str:
    """Attn(PX) = P Attn(X) for the 24 orders of 4 tokens."""
    x = integers((4, 2), seed=1)
    for order in itertools.permutations(range(4)):
        index = list(order)
        require(same(layer(x[index]), layer(x)[index]), f"order {order} is told apart")
    return "24 orders of 4 tokens, exactly"


def all_key_orders(attend: Any) -> str:
    """The 120 orders of 5 keys, for 3 queries."""
    q, k, v = integers((3, 2), seed=1), integers((5, 2), seed=2), integers((5, 2), seed=3)
    for order in itertools.permutations(range(5)):
        index = list(order)
        require(same(attend(q, k[index], v[index]), attend(q, k, v)), f"order {order} matters")
    return "120 orders of 5 keys with their values, exactly"


def reordered_under_causality() -> str:
    """Two tokens exchanged under a causal mask."""
    x, index = integers((4, 2), seed=1), [1, 0, 2, 3]
    moved, still = (attention(t, t, t, visible=causal(4)) for t in (x[index], x))
    require(not same(moved, still[index]), "the mask keeps the symmetry")
    return "tokens 0 and 1 exchanged under a causal mask: the rows are not the exchanged rows"


def keys_without_values() -> str:
    """Keys reordered, values not."""
    q, k, v = integers((3, 2), seed=1), integers((5, 2), seed=2), integers((5, 2), seed=3)
    require(not same(attention(q, k[::-1], v), attention(q, k, v)), "values need not move")
    return "5 keys reversed without their values: another output"


STATEMENTS = (
    Statement(
        id="ext.equivariance",
        where="folklore; lesson 3, section 2; the third document's misconceptions (as invariance)",
        says="Reordered tokens give the reordered output.",
        formula=r"\mathrm{Attn}(PX) = P\,\mathrm{Attn}(X)",
        verdict="conditional",
        hypotheses={"no mask and no code of the places": reordered_under_causality},
        proof=tokens_in_any_order,
        check=Check(
            run=all_orders,
            subject=lambda x: attention(x, x, x),
            mutations={
                "a causal mask": lambda x: attention(x, x, x, visible=causal(len(x))),
                "codes of the places": lambda x: attention(
                    x, x + np.arange(len(x), dtype=object)[:, None], x
                ),
            },
        ),
        properties=("queries-in-any-order", "keys-in-any-order"),
    ),
    Statement(
        id="ext.keyperm",
        where="folklore; a part of equivariance that the documents do not set apart",
        says="Keys and values reordered together change nothing.",
        formula=r"\mathrm{Attn}(Q, PK, PV) = \mathrm{Attn}(Q, K, V)",
        verdict="conditional",
        hypotheses={"values move with their keys": keys_without_values},
        proof=keys_in_any_order,
        check=Check(
            run=all_key_orders,
            subject=attention,
            mutations={
                "a causal mask": lambda q, k, v: attention(q, k, v, visible=causal(3, 5)),
                "values sorted": lambda q, k, v: attention(q, k, v[np.argsort(v[:, 0])]),
            },
        ),
        properties=("keys-in-any-order",),
    ),
)
