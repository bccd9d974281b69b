"""Intuition and projections: who attends to whom, and why queries and keys are two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy as sp

from attnspec.spec.evidence import binary, exact
from attnspec.spec.evidence.statement import Check, Proof, Statement, require
from attnspec.spec.evidence.sums import identity
from attnspec.spec.evidence.symbols import Q, channels

__all__ = ["STATEMENTS"]

WQ, WK, WV = (binary.integers((4, width), seed=seed) for seed, width in enumerate((2, 2, 3)))
X, Y = binary.integers((3, 4), seed=5), binary.integers((5, 4), seed=6)

# -- self and cross -------------------------------------------------------------------------------


def cross(x: Any, y: Any) -> exact.Matrix:
    """Queries from x, keys and values from y."""
    return binary.attention(x @ WQ, y @ WK, y @ WV)


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


# -- projections ----------------------------------------------------------------------------------


def projects(projection: Any) -> str:
    """x_i W, row by row, in all three widths."""
    for w in (WQ, WK, WV):
        whole = projection(X, w)
        require(whole.shape == (3, w.shape[1]), f"the shape is {whole.shape}")
        for i in range(3):
            row = [sum(X[i, a] * w[a, b] for a in range(4)) for b in range(w.shape[1])]
            require(binary.same(whole[i], row), f"row {i} is not x_{i} W")
    return "3 tokens of width 4 to widths 2, 2, 3: the matrix form is the form token by token"


def with_one_matrix(claim: Any) -> str:
    """W_Q = W_K: which queries and keys are equal, and what the scores look like."""
    x = exact.matrix([[1, 0], [3, 0], [0, 1]])
    q = k = x @ exact.matrix([[1, 1], [0, 1]])
    pairs = [(i, j) for i in range(3) for j in range(3) if binary.same(q[i], k[j])]
    require(set(pairs) == set(claim(3)), f"equal are q_i and k_j for {pairs}")
    s = q @ k.T
    require(binary.same(s, s.T), "S is not symmetric")
    require(s.max() in s.diagonal(), "the greatest score is not on the diagonal")
    require(s[0].argmax() != 0, "every row has its greatest score on the diagonal")
    return "W_Q = W_K, 3 tokens: q_i = k_j only for i = j; S symmetric; token 1 prefers token 2"


def distance_of_queries() -> Proof:
    """S_ii + S_jj - 2 S_ij for S = Q Qᵀ, any sizes: so S_ij is at most the mean of the two."""
    i, j, a = sp.symbols("i j a", integer=True)

    def score(row: Any, column: Any) -> Any:
        return sp.Sum(Q[row, a] * Q[column, a], channels(a))

    square = sp.Sum((Q[i, a] - Q[j, a]) ** 2, channels(a))
    return Proof(
        steps=(
            identity(
                "S_ii + S_jj - 2 S_ij = |q_i - q_j|²",
                score(i, i) + score(j, j) - 2 * score(i, j),
                square,
            ),
            identity("S_ij = S_ji", score(i, j), score(j, i)),
        ),
        mutations={
            "the other sign": identity(
                "S_ii + S_jj + 2 S_ij = |q_i - q_j|²",
                score(i, i) + score(j, j) + 2 * score(i, j),
                square,
            ),
            "all queries equal": identity("S_ij = S_ii", score(i, j), score(i, i)),
        },
    )


STATEMENTS = (
    Statement(
        id="heart.learn.cross",
        where="What one learns; Intuition, first lines",
        says="Self-attention works on one sequence; cross-attention asks one of the other.",
        formula=r"\mathrm{softmax}\bigl(XW_Q (YW_K)^\top/\sqrt{d_k}\bigr)\, YW_V",
        verdict="true",
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
    Statement(
        id="heart.proj",
        where="The three projection matrices",
        says="Each token makes a query, a key and a value; the matrix form makes all at once.",
        formula=r"q_i = x_i W_Q,\quad k_i = x_i W_K,\quad v_i = x_i W_V",
        verdict="true",
        check=Check(
            run=projects,
            subject=lambda x, w: x @ w,
            mutations={
                "tokens are mixed": lambda x, w: x.cumsum(0) @ w,
                "with a bias": lambda x, w: x @ w + 1,
            },
        ),
    ),
    Statement(
        id="heart.sepqk",
        where="The three projection matrices, why two",
        says="With one matrix for both, every token would have the same query and key.",
        formula=r"W_Q = W_K \Rightarrow q_i = k_i,\ S = S^\top,\ S_{ij} \le (S_{ii}+S_{jj})/2",
        verdict="imprecise",
        exact="Each token's query equals its own key, not that of others. The scores become "
        "symmetric and positive semidefinite, with the greatest on the diagonal; a row may still "
        "prefer another token.",
        proof=distance_of_queries,
        check=Check(
            run=with_one_matrix,
            subject=lambda n: [(i, i) for i in range(n)],
            mutations={
                "the same for every token": lambda n: [(i, j) for i in range(n) for j in range(n)],
                "never equal": lambda n: [],
            },
        ),
    ),
)
