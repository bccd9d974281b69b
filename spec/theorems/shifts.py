"""Shifts: a number added to a row of scores, a vector added to every key."""

from __future__ import annotations

from typing import Any

import numpy as np
import sympy as sp

from attnspec.spec.evidence import exact
from attnspec.spec.evidence.binary import attention, integers, power_of_two, same
from attnspec.spec.evidence.exact import matrix
from attnspec.spec.evidence.statement import Check, Proof, Statement, require
from attnspec.spec.evidence.sums import identity
from attnspec.spec.evidence.symbols import (
    A,
    K,
    Q,
    alpha,
    channels,
    keys,
    queries,
    score_gradient,
)
from attnspec.spec.systems.positions import rotated

__all__ = ["STATEMENTS"]

i, j, other, c, e, a, b = sp.symbols("i j l c e a b", integer=True)
n, m, d, w = sp.symbols("n m d w", integer=True, positive=True)
E, u, B, T = (sp.IndexedBase(name) for name in ("E", "u", "B", "T"))
"""Exponentials of scores, a vector added to each key or value, a map of values, scaled scores."""


# -- Shifts ----------------------------------------------------------------------------------------


def scores_may_shift() -> Proof:
    """e^(s + c) = t e^s with t = e^c; both sides times both denominators."""
    t = sp.Symbol("t")
    shifted, plain = sp.Sum(t * E[j], keys(j)), sp.Sum(E[j], keys(j))
    return Proof(
        steps=(identity("t E_i / Σ t E = E_i / Σ E", t * E[i] * plain, E[i] * shifted),),
        mutations={
            "the numerator is not shifted": identity(
                "E_i / Σ t E = E_i / Σ E", E[i] * plain, E[i] * shifted
            ),
            "a shift of one score": identity("t E_i / Σ E", t * E[i] * plain, E[i] * plain),
        },
    )


def keys_may_shift() -> Proof:
    """One vector u added to each key adds q_i·u to the scores of row i; its gradient is 0."""
    dot = sp.Sum(Q[i, c] * K[j, c], channels(c))
    moved = sp.Sum(Q[i, c] * (K[j, c] + u[c]), channels(c))
    row = sp.Sum(Q[i, c] * u[c], channels(c))
    bias = sp.Sum(alpha * sp.Sum(score_gradient(i, j) * Q[i, b], queries(i)), keys(j))
    by_query = sp.Sum((Q[i, c] + u[c]) * K[j, c], channels(c))
    return Proof(
        steps=(
            identity("q_i·(k_j + u) = q_i·k_j + q_i·u", moved, dot + row),
            *scores_may_shift().steps,
            identity("∂L/∂u = Σ_j dK_j = 0", bias, 0, stochastic=[A]),
        ),
        mutations={
            "the scores do not move at all": identity("q_i·(k_j + u) = q_i·k_j", moved, dot),
            "u added to the queries": identity(
                "(q_i + u)·k_j = q_i·k_j + q_i·u", by_query, dot + row
            ),
            "rows that do not sum to 1": identity("Σ_j dK_j = 0", bias, 0),
        },
    )


def shifted_keys(move: Any) -> str:
    """Attn(Q, K + 1uᵀ, V) = Attn(Q, K, V)."""
    q, k, v = integers((3, 2), seed=1), integers((5, 2), seed=2), integers((5, 2), seed=3)
    q_new, k_new = move(q, k, matrix([2, -1]))
    require(same(attention(q_new, k_new, v), attention(q, k, v)), "the shift is seen")
    require(not same(q_new @ k_new.T, q @ k.T), "nothing was shifted")
    return "3 queries, 5 keys, u = (2, -1), exactly"


def shifted_queries() -> str:
    """One vector added to each query."""
    q, k, v = integers((3, 2), seed=1), integers((5, 2), seed=2), integers((5, 2), seed=3)
    require(not same(attention(q + matrix([2, -1]), k, v), attention(q, k, v)), "it is not seen")
    return "u added to the queries: another output"


def shifted_before_rotation() -> str:
    """With RoPE after the bias, the row's scores move by q_i·R_j u."""
    q, k = integers((1, 2), seed=1), integers((3, 2), seed=2)
    q = q + 1
    old, new = (rotated(q, [2]) @ rotated(x, range(3)).T for x in (k, k + matrix([1, 2])))
    require(len(set((new - old)[0])) > 1, "all scores of the row move alike")
    return f"scores move by {', '.join(map(str, (new - old)[0]))}: not alike"


def scores_of_a_row(shift: Any) -> str:
    """softmax(s + c) = softmax(s), c from -9 to 9, in base 2."""
    s = integers((4, 5), seed=1)
    before = exact.weights(power_of_two(s))
    for step in range(-9, 10):
        after = exact.weights(power_of_two([shift(row, step) for row in s]))
        require(same(after, before), f"a shift by {step} is seen")
    return "4 rows of 5 scores, shifts -9..9, exactly"


STATEMENTS = (
    Statement(
        id="ext.shift",
        where="folklore; behind the maximum that every listing subtracts",
        says="One number added to all scores of a row leaves its weights.",
        formula=r"\mathrm{softmax}(s + c\mathbf{1}) = \mathrm{softmax}(s)",
        verdict="true",
        proof=scores_may_shift,
        check=Check(
            run=scores_of_a_row,
            subject=lambda row, step: row + step,
            mutations={
                "multiplied": lambda row, step: row * step,
                "added to one score": lambda row, step: np.append(row[:-1], row[-1] + step),
            },
        ),
        properties=("constant-bias-changes-nothing", "constant-bias-adds-to-lse"),
    ),
    Statement(
        id="ext.keyshift",
        where="folklore; the bias of a key projection, which the documents leave out",
        says="One vector added to every key changes nothing, so a key bias is inert and its "
        "gradient is 0.",
        formula=r"\mathrm{Attn}(Q, K + \mathbf{1}u^\top, V) = \mathrm{Attn}(Q, K, V), \quad "
        r"\textstyle\sum_j dK_j = 0",
        verdict="conditional",
        hypotheses={
            "it is added to the keys, not the queries": shifted_queries,
            "no rotation comes after it": shifted_before_rotation,
        },
        proof=keys_may_shift,
        check=Check(
            run=shifted_keys,
            subject=lambda q, k, u: (q, k + u),
            mutations={
                "added to the queries": lambda q, k, u: (q + u, k),
                "added to one key": lambda q, k, u: (q, np.concatenate([k[:1] + u, k[1:]])),
            },
        ),
        properties=("constant-key-changes-nothing", "dk-sums-to-zero"),
    ),
)
