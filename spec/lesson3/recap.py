"""What the lesson starts from: embeddings, positions, and the three roles of a token."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import sympy as sp

from attnspec.spec.evidence import binary, exact
from attnspec.spec.evidence.expressions import matrices, scalars
from attnspec.spec.evidence.statement import Check, Proof, Statement, require
from attnspec.spec.evidence.sums import identity
from attnspec.spec.evidence.symbols import G, queries, values

__all__ = ["STATEMENTS"]

# -- the embedding ------------------------------------------------------------------------------


def embedding_gradient(tokens: list[int], dh: exact.Matrix, vocabulary: int) -> exact.Matrix:
    """dE (V, d): row t is the sum of dH over the places where token t stands."""
    dE = exact.matrix(np.zeros((vocabulary, dh.shape[1]), int).tolist())
    for token, row in zip(tokens, dh, strict=True):
        dE[token] = dE[token] + row
    return dE


def gradient_of_lookup() -> Proof:
    """H_ic = Σ_s T_is E_sc with one-hot rows T_i; E_tb moves, <G, H> with it."""
    i, s, t, b, c, size = sp.symbols("i s t b c V", integer=True, positive=True)
    T, delta = sp.IndexedBase("T"), sp.KroneckerDelta
    move = sp.Sum(T[i, s] * delta(s, t) * delta(c, b), (s, 1, size))
    moved = sp.Sum(G[i, c] * move, queries(i), values(c))
    row = sp.Sum(T[i, t] * G[i, b], queries(i))
    return Proof(
        steps=(identity("dE_tb = Σ_i T_it G_ib", moved, row),),
        mutations={
            "dense": identity("dE_tb = Σ_i G_ib", moved, sp.Sum(G[i, b], queries(i))),
            "transposed": identity("Σ_i T_ti G_ib", moved, sp.Sum(T[t, i] * G[i, b], queries(i))),
        },
    )


def overwritten(tokens: list[int], dh: exact.Matrix, vocabulary: int) -> exact.Matrix:
    """Wrong: a token that occurs twice keeps its last gradient only."""
    dE = exact.matrix(np.zeros((vocabulary, dh.shape[1]), int).tolist())
    dE[tokens] = dh
    return dE


def rows_of_tokens(gradient: Any) -> str:
    """dE against the derivative of <dH, H> by each entry of E, H = one-hot · E."""
    tokens, vocabulary, d = [3, 0, 3, 5], 7, 2
    dh = exact.rational((4, d), seed=1)
    one_hot = exact.matrix(np.eye(vocabulary, dtype=int)[tokens].tolist())
    dE = gradient(tokens, dh, vocabulary)
    require(dE.size == vocabulary * d, "E has another number of parameters than V·d")
    require(binary.same(dE, one_hot.T @ dh), "dE is not the derivative")
    touched = {token for token in range(vocabulary) if any(dE[token] != 0)}
    require(touched == set(tokens), "rows of other tokens move")
    return "7 · 2 parameters; 3 of the 7 rows of dE are not 0, as 4 places hold 3 tokens"


def tied_head_is_dense() -> str:
    """Logits h Eᵀ: cross-entropy sends (softmax - target) hᵀ to every row of E."""
    a = exact.weights(exact.positive((1, 7), seed=2))[0]
    a[3] = a[3] - 1
    h = exact.matrix([[1, 2]])
    dense = np.outer(a, h[0])
    require((dense != 0).all(), "some row of dE is still 0")
    return "with E as the output matrix too, all 7 rows of dE are nonzero"


# -- order of the tokens --------------------------------------------------------------------------


def tokens_of_size(n: int) -> exact.Matrix:
    """Different tokens, n × 3."""
    return np.asarray(binary.integers((n, 3), seed=5, within=2) + np.arange(n)[:, None])


def attend(x: exact.Matrix) -> exact.Matrix:
    """Self-attention of x with three projections, without a mask."""
    q, k, v = (x @ binary.integers((3, 2), seed=seed, within=1) for seed in (11, 12, 13))
    return binary.attention(q, k, v)


def attend_causally(x: exact.Matrix) -> exact.Matrix:
    """The same, where row i sees the keys up to i."""
    q, k, v = (x @ binary.integers((3, 2), seed=seed, within=1) for seed in (11, 12, 13))
    return binary.attention(q, k, v, visible=binary.causal(len(x)))


def attend_at_places(x: exact.Matrix) -> exact.Matrix:
    """The same, with the number of its place added to each token."""
    return attend(x + np.arange(len(x), dtype=object)[:, None])


def equivariant(operator: Any) -> str:
    """All 24 orders of 4 tokens, exactly."""
    x = tokens_of_size(4)
    out = operator(x)
    for order in map(list, itertools.permutations(range(4))):
        require(binary.same(operator(x[order]), out[order]), f"order {order} gives other rows")
    return "all 24 orders of 4 tokens reorder the output and change nothing else, exactly"


def causal_is_not_equivariant() -> str:
    """Under the mask a token that is moved sees other tokens."""
    x = tokens_of_size(3)
    swapped = [1, 0, 2]
    moved = attend_causally(x[swapped])
    require(not binary.same(moved, attend_causally(x)[swapped]), "still equivariant")
    return "under a causal mask, swapping tokens 1 and 2 changes their rows"


def scores_are_reordered() -> Proof:
    """The score part, for any number of tokens and any widths; softmax is in the check."""
    n, d, dk = sp.symbols("n d d_k", integer=True, positive=True)
    P, X = sp.MatrixSymbol("P", n, n), sp.MatrixSymbol("X", n, d)
    WQ, WK = sp.MatrixSymbol("W_Q", d, dk), sp.MatrixSymbol("W_K", d, dk)
    scores = X * WQ * WK.T * X.T
    moved = (P * X * WQ) * (P * X * WK).T
    return Proof(
        steps=(matrices("(P X W_Q)(P X W_K)ᵀ = P S Pᵀ", moved, P * scores * P.T),),
        mutations={
            "unchanged": matrices("(P X W_Q)(P X W_K)ᵀ = S", moved, scores),
            "rows only": matrices("(P X W_Q)(P X W_K)ᵀ = P S", moved, P * scores),
        },
    )


# -- positions ------------------------------------------------------------------------------------


def rotation(angle: Any) -> Any:
    """What RoPE applies to a pair of channels."""
    return sp.Matrix([[sp.cos(angle), -sp.sin(angle)], [sp.sin(angle), sp.cos(angle)]])


def relative_positions() -> Proof:
    """One pair of channels of frequency ω; the others are alike."""
    i, j, p, k, w = sp.symbols("i j p k omega", real=True)
    q, key = sp.Matrix(sp.symbols("q_1 q_2")), sp.Matrix(sp.symbols("k_1 k_2"))
    score = ((rotation(i * w) * q).T * (rotation(j * w) * key))[0]
    relative = (q.T * rotation((j - i) * w) * key)[0]
    backwards = (q.T * rotation((i - j) * w) * key)[0]
    code = sp.Matrix([sp.sin(p * w), sp.cos(p * w)])
    later = sp.Matrix([sp.sin((p + k) * w), sp.cos((p + k) * w)])
    moved = (rotation(-k * w) * code - later).applyfunc(sp.simplify)
    wrong = (rotation(k * w) * code - later).applyfunc(sp.simplify)
    return Proof(
        steps=(
            scalars("<R_i q, R_j k> = <q, R_(j-i) k>", score, relative),
            scalars("PE(p+k) = R_(-k) PE(p): sine", moved[0], 0),
            scalars("PE(p+k) = R_(-k) PE(p): cosine", moved[1], 0),
        ),
        mutations={
            "turned the other way": scalars("<R_i q, R_j k> = <q, R_(i-j) k>", score, backwards),
            "the code turned back": scalars("PE(p+k) = R_k PE(p)", wrong[0], 0),
        },
    )


STATEMENTS = (
    Statement(
        id="lesson3.recap.embed",
        where="Recap of the lesson before",
        says="The embedding has V·d parameters, and few rows of its gradient are nonzero.",
        formula=r"E \in \mathbb{R}^{V\times d},\quad dE_t = \textstyle\sum_{i:\,t_i = t} dH_i",
        verdict="conditional",
        hypotheses={"an output matrix that is not tied to E": tied_head_is_dense},
        proof=gradient_of_lookup,
        check=Check(
            run=rows_of_tokens,
            subject=embedding_gradient,
            mutations={
                "a repeated token keeps its last gradient": overwritten,
                "every row moves": lambda tokens, dh, vocabulary: (
                    embedding_gradient(tokens, dh, vocabulary) + Fraction(1, vocabulary)
                ),
            },
        ),
    ),
    Statement(
        id="lesson3.recap.perm",
        where="Recap of the lesson before",
        says="Attention is permutation-equivariant, so places must be told to it in another way.",
        formula=r"\mathrm{Attn}(PX) = P\,\mathrm{Attn}(X)",
        verdict="conditional",
        hypotheses={"no mask, and nothing else that depends on places": causal_is_not_equivariant},
        proof=scores_are_reordered,
        check=Check(
            run=equivariant,
            subject=attend,
            mutations={"a causal mask": attend_causally, "places added": attend_at_places},
        ),
        properties=("queries-in-any-order", "keys-in-any-order"),
    ),
    Statement(
        id="lesson3.recap.pe",
        where="Recap of the lesson before",
        says="Places enter by sines, by learned vectors, or by RoPE, whose scores know only the "
        "distance.",
        formula=r"\langle R_i q, R_j k\rangle = \langle q, R_{j-i}\,k\rangle,\quad "
        r"PE(p+k) = R_{-k}\,PE(p)",
        verdict="true",
        proof=relative_positions,
    ),
    Statement(
        id="lesson3.sec1.roles",
        where="Section 1",
        says="A token asks with its query, offers its key, and hands over its value.",
        verdict="narrative",
        reason="A picture of the definition in Section 2; what it pictures is checked there.",
    ),
)
