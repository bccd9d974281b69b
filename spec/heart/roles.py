"""Intuition: self and cross, and what is within reach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy as sp

from attnspec.spec.evidence import binary, exact
from attnspec.spec.evidence.shapes import shaped
from attnspec.spec.evidence.statement import Check, Proof, Statement, require
from attnspec.spec.evidence.sums import identity
from attnspec.spec.evidence.symbols import A, keys

__all__ = ["STATEMENTS"]

WQ, WK, WV = (binary.integers((4, width), seed=seed) for seed, width in enumerate((2, 2, 3)))
X, Y = binary.integers((3, 4), seed=5), binary.integers((5, 4), seed=6)

# -- self and cross -------------------------------------------------------------------------------


def cross(x: Any, y: Any) -> exact.Matrix:
    """Queries from x, keys and values from y."""
    return binary.attention(x @ WQ, y @ WK, y @ WV)


def shapes_of_cross_attention() -> Proof:
    """n queries over m keys, for all sizes."""
    n, m, d, dk, dv = sp.symbols("n m d d_k d_v", integer=True, positive=True)
    x, y, weights = (sp.MatrixSymbol(*parts) for parts in (("X", n, d), ("Y", m, d), ("A", n, m)))
    w, wv = sp.MatrixSymbol("W", d, dk), sp.MatrixSymbol("W_V", d, dv)
    return Proof(
        steps=(
            shaped("(X W_Q)(Y W_K)ᵀ: n × m", (x, w, w.T, y.T), (n, m)),
            shaped("A (Y W_V): n × d_v", (weights, y, wv), (n, dv)),
        ),
        mutations={
            "values of its own": shaped("A (X W_V)", (weights, x, wv), (n, dv)),
            "square scores": shaped("n × n", (x, w, w.T, y.T), (n, n)),
        },
    )


def asks_of_the_other(attention: Any) -> str:
    """Row i reads x_i and all of y; x = y is self-attention."""
    out = attention(X, Y)
    require(out.shape == (3, 3), f"the output is {out.shape}, not n_q × d_v")
    for i in range(3):
        row = binary.attention(X[i : i + 1] @ WQ, Y @ WK, Y @ WV)
        require(binary.same(out[i : i + 1], row), f"row {i} is not query {i} over the keys of y")
    require(binary.same(attention(Y, Y), cross(Y, Y)), "x = y is not self-attention")
    return "3 queries over 5 keys: each row by itself; with one sequence, self-attention"


# -- what is within reach -------------------------------------------------------------------------

CLAUSE = ("street", "because", "it", "was", "too", "tired")
"""The end of the example, from the candidate that it does not mean."""


def precedes(find: Any) -> str:
    """The word that a network reading word by word has just read when it comes to "it"."""
    word = find(CLAUSE)
    require(word == CLAUSE[CLAUSE.index("it") - 1], f"{word!r} does not stand before 'it'")
    gap = CLAUSE.index("tired") - CLAUSE.index("it")
    return f"before 'it' stands {word!r}; 'tired' comes {gap} words after it"


def word_before(words: Sequence[str]) -> str:
    """The word before "it"."""
    return words[words.index("it") - 1]


def response_to_a_value() -> Proof:
    """∂o_ib/∂v_jc for any number of keys: v_l moves by δ_lj δ_bc."""
    i, j, l, b, c = sp.symbols("i j l b c", integer=True)  # noqa: E741
    delta = sp.KroneckerDelta
    moved = sp.Sum(A[i, l] * delta(l, j) * delta(b, c), keys(l))
    return Proof(
        steps=(identity("∂o_ib/∂v_jc = A_ij δ_bc", moved, A[i, j] * delta(b, c)),),
        mutations={
            "transposed": identity("A_ji δ_bc", moved, A[j, i] * delta(b, c)),
            "channels mixed": identity("A_ij", moved, A[i, j]),
        },
    )


def all_within_reach(weights: Any) -> str:
    """∂o_i/∂v_j = A_ij is positive for every pair."""
    a = weights(X @ WQ, X @ WK)
    require((a > 0).all(), "some token does not reach some other in one layer")
    return "3 tokens: all 9 weights are positive"


def causal_weights(q: Any, k: Any) -> exact.Matrix:
    """With the future hidden."""
    return exact.weights(binary.exponentials(q, k, visible=binary.causal(len(q), len(k))))


def masked_pairs() -> str:
    """Under a causal mask."""
    hidden = int((causal_weights(X @ WQ, X @ WK) == 0).sum())
    require(hidden > 0, "all pairs are still connected")
    return f"under a causal mask {hidden} of 9 pairs have weight 0"


STATEMENTS = (
    Statement(
        id="heart.learn.cross",
        where="What one learns; Intuition, first lines",
        says="Self-attention works on one sequence; cross-attention asks one of the other.",
        formula=r"\mathrm{softmax}\bigl(XW_Q (YW_K)^\top/\sqrt{d_k}\bigr)\, YW_V",
        verdict="true",
        proof=shapes_of_cross_attention,
        check=Check(
            run=asks_of_the_other,
            subject=cross,
            mutations={
                "asked the other way": lambda x, y: cross(y, x),
                "keys of its own": lambda x, y: cross(x, x),
            },
        ),
    ),
    Statement(
        id="heart.intuition.it",
        where="Intuition, the example",
        says="A trained model gives 'animal' the weight when it encodes 'it'.",
        verdict="undecided",
        reason="It depends on the weights of a model that the document does not name.",
    ),
    Statement(
        id="heart.intuition.rnn",
        where="Intuition, after the example",
        says="At 'it', a recurrent network sees 'tired' immediately before.",
        verdict="false",
        exact="Before 'it' stands 'because'; 'tired' comes three words after 'it'.",
        check=Check(
            run=precedes,
            subject=word_before,
            mutations={
                "printed": lambda words: "tired",
                "the word after": lambda words: words[words.index("it") + 1],
            },
        ),
    ),
    Statement(
        id="heart.intuition.direct",
        where="Intuition, last sentence",
        says="Every token has direct access to every other in a single layer.",
        formula=r"\partial o_i/\partial v_j = A_{ij} I,\quad A_{ij} > 0",
        verdict="conditional",
        hypotheses={"no mask, finite scores": masked_pairs},
        proof=response_to_a_value,
        check=Check(
            run=all_within_reach,
            subject=lambda q, k: exact.weights(binary.exponentials(q, k)),
            mutations={
                "causal": causal_weights,
                "the greatest only": lambda q, k: (q @ k.T) == (q @ k.T).max(1, keepdims=True),
            },
        ),
        properties=("output-averages-values",),
    ),
)
