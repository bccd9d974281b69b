"""The conclusion: the lesson in one paragraph, held against one exact problem."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import sympy as sp

from attnspec.spec.evidence import binary, exact
from attnspec.spec.evidence.statement import Check, Proof, Statement, require
from attnspec.spec.evidence.sums import identity
from attnspec.spec.evidence.symbols import A, keys
from attnspec.spec.lesson3.complexity import short_sequences
from attnspec.spec.lesson3.heads import grouped_keys
from attnspec.spec.lesson3.masks import causal_attention, one_token_ahead

__all__ = ["STATEMENTS"]

Q, K, V = (binary.integers((5, 3), seed=seed) for seed in (4, 5, 6))


def within_its_values() -> Proof:
    """Any bound M of the values bounds the average: M - o is a sum of A_ij (M - v_j) >= 0."""
    i, j, c = sp.symbols("i j c", integer=True)
    bound, slope, shift = sp.symbols("M b c_0")
    v = sp.IndexedBase("V")
    out = sp.Sum(A[i, j] * v[j, c], keys(j))
    rest = sp.Sum(A[i, j] * (bound - v[j, c]), keys(j))
    moved = sp.Sum(A[i, j] * (slope * v[j, c] + shift), keys(j))
    affine = slope * out + shift
    return Proof(
        steps=(
            identity("M - o_i = Σ_j A_ij (M - v_j)", bound - out, rest, stochastic=(A,)),
            identity("o_i of b v + c is b o_i + c", moved, affine, stochastic=(A,)),
        ),
        mutations={
            "rows of any sum": identity("M - o_i = Σ_j A_ij (M - v_j)", bound - out, rest),
            "the other side": identity("o_i - M", out - bound, rest, stochastic=(A,)),
        },
    )


def averages_the_visible(attention: Any) -> str:
    """Each output between the least and the greatest visible value of its channel, and affine."""
    out = attention(Q, K, V)
    for i in range(5):
        seen = V[: i + 1]
        inside = (seen.min(0) <= out[i]).all() and (out[i] <= seen.max(0)).all()
        require(inside, f"row {i} leaves the values that it sees")
    moved = attention(Q, K, 3 * V + 7)
    require(binary.same(moved, 3 * out + 7), "not affine in the values")
    return "5 causal rows: inside the visible values, and affine in them, exactly"


def unnormalised(q: Any, k: Any, v: Any) -> exact.Matrix:
    """Wrong: a weighted sum whose weights do not sum to 1."""
    return np.asarray(binary.exponentials(q, k, visible=binary.causal(len(q))) @ v)


def future_tokens_do_not_matter(attention: Any) -> str:
    """Every edit of a later key or value, for each row; and all rows from one call."""
    out = attention(Q, K, V)
    for i in range(4):
        k, v = K.copy(), V.copy()
        k[i + 1 :] = k[i + 1 :] + 2
        v[i + 1 :] = v[i + 1 :] * Fraction(-7, 3)
        edited = attention(Q, k, v)
        require(binary.same(edited[: i + 1], out[: i + 1]), f"row {i} reads the future")
        require(not binary.same(edited[i + 1 :], out[i + 1 :]), "the edit reaches no row at all")
    return "5 tokens, one call: rows 1 … i are unchanged by any edit after i, exactly"


STATEMENTS = (
    Statement(
        id="lesson3.concl",
        where="Conclusion",
        says="Convex combinations of values, a variance normaliser, a mask, heads of width d/h, "
        "4d² parameters, O(n²d) operations and O(n²) memory.",
        formula=r"o_i \in \mathrm{conv}\{v_j : j \le i\}",
        verdict="conditional",
        hypotheses={
            "as many key heads as heads, h·d_k = h·d_v = d (for 4d²)": grouped_keys,
            "projections counted elsewhere (for O(n²d))": short_sequences,
        },
        proof=within_its_values,
        check=Check(
            run=averages_the_visible,
            subject=causal_attention,
            mutations={"not normalised": unnormalised, "one token ahead": one_token_ahead},
        ),
        properties=("output-in-hull-of-values", "output-is-affine-in-values"),
    ),
    Statement(
        id="lesson3.concl.parallel",
        where="Conclusion, the mask",
        says="A mask of -∞ makes attention autoregressive, and all places still train at once.",
        formula=r"\partial o_i/\partial x_j = 0 \quad (j > i)",
        verdict="true",
        check=Check(
            run=future_tokens_do_not_matter,
            subject=causal_attention,
            mutations={
                "one token ahead": one_token_ahead,
                "without a mask": lambda q, k, v: binary.attention(q, k, v),
            },
        ),
        properties=(
            "later-tokens-have-no-influence",
            "later-tokens-have-no-influence-self-attention",
            "prefix-equals-first-rows",
        ),
    ),
)
