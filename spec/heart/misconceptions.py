"""Misconceptions: order, places, weights as importance."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import sympy as sp

from attnspec.spec.evidence import binary, exact
from attnspec.spec.evidence.statement import Check, Proof, Statement, require
from attnspec.spec.evidence.sums import identity
from attnspec.spec.evidence.symbols import A, V, keys
from attnspec.spec.lesson3.recap import (
    attend,
    attend_at_places,
    attend_causally,
    equivariant,
    scores_are_reordered,
    tokens_of_size,
)

__all__ = ["STATEMENTS"]

ORDERS = [list(order) for order in itertools.permutations(range(4))]

# -- order ----------------------------------------------------------------------------------------


def moves_with_its_tokens(operator: Any) -> str:
    """Equivariant; not invariant; and a repeated token counts twice."""
    told = equivariant(operator)
    x = tokens_of_size(4)
    out = operator(x)
    moved = sum(not binary.same(operator(x[order]), out) for order in ORDERS)
    require(moved > 0, "no order changes the output")
    twice = operator(np.concatenate([x, x[:1]]))
    require(not binary.same(twice[1], out[1]), "a repeated token counts once")
    pooled = {tuple(operator(x[order]).sum(0)) for order in ORDERS}
    require(len(pooled) == 1, "the sum over the tokens depends on their order")
    return (
        f"{told}; {moved} of 23 change the output, none its sum; a token given twice counts twice"
    )


def pooled_everywhere(x: Any) -> exact.Matrix:
    """The mean of the outputs in every row: this is invariant."""
    out = attend(x)
    return np.asarray(np.stack([out.sum(0) / Fraction(len(x))] * len(x)))


def scores_are_the_same(scores: Any) -> str:
    """The 16 scores of 4 tokens in all orders, as a multiset, and at which places."""
    x = tokens_of_size(4)
    before = scores(x)
    for order in ORDERS:
        after = scores(x[order])
        require(sorted(after.ravel()) == sorted(before.ravel()), "the numbers change")
        require(binary.same(after, before[np.ix_(order, order)]), "they move otherwise")
    return "all 24 orders of 4 tokens: the same 16 scores, moved with their tokens, exactly"


def raw_scores(x: Any) -> exact.Matrix:
    """Q Kᵀ."""
    wq, wk = (binary.integers((3, 2), seed=seed) for seed in (11, 12))
    return np.asarray((x @ wq) @ (x @ wk).T)


def places_matter(operator: Any) -> str:
    """Some order changes more than the order of the rows; pairs of token and place may move."""
    x, p = tokens_of_size(4), np.array([[0, 0, 0], [1, 0, 2], [0, 3, 1], [2, 1, 0]], object)
    out = operator(x, p)
    broken = sum(not binary.same(operator(x[order], p), out[order]) for order in ORDERS)
    require(broken > 0, "still equivariant")
    for order in ORDERS:
        require(binary.same(operator(x[order], p[order]), out[order]), "pairs may not move")
    return f"{broken} of 23 orders are told apart; tokens moved with their places are not"


def one_code_for_all() -> str:
    """All places have the same code."""
    x, p = tokens_of_size(4), np.array([[1, 2, 3]] * 4, object)
    out = attend(x + p)
    for order in ORDERS:
        require(binary.same(attend(x[order] + p), out[order]), "the orders are told apart")
    return "with the same code at every place, all orders stay equivalent"


# -- weights --------------------------------------------------------------------------------------


def response_to_a_score() -> Proof:
    """∂o/∂s_j for a row of any length: a_l moves by a_l (δ_lj - a_j)."""
    r, j, l, c = sp.symbols("r j l c", integer=True)  # noqa: E741
    moved = sp.Sum(A[r, l] * (sp.KroneckerDelta(l, j) - A[r, j]) * V[l, c], keys(l))
    out = sp.Sum(A[r, l] * V[l, c], keys(l))

    def claim(text: str, value: Any) -> Any:
        return identity(text, moved, value, stochastic=(A,))

    return Proof(
        steps=(claim("∂o_c/∂s_j = a_j (v_jc - o_c)", A[r, j] * (V[j, c] - out)),),
        mutations={
            "the weight alone": claim("∂o_c/∂s_j = a_j", A[r, j]),
            "its own value alone": claim("∂o_c/∂s_j = a_j v_jc", A[r, j] * V[j, c]),
        },
    )


def small_values_count_little(share: Any) -> str:
    """Weight 9/10 on a value of 1/100, 1/10 on a value of 1."""
    a, v = exact.matrix(["9/10", "1/10"]), exact.matrix(["1/100", 1])
    parts = share(a, v)
    require(parts.sum() == a @ v, "the parts do not make the output")
    require(parts[0] < parts[1] / 10, "the key of weight 9/10 contributes most")
    return f"of the output {a @ v}, weight 9/10 contributes {parts[0]}, weight 1/10 {parts[1]}"


STATEMENTS = (
    Statement(
        id="heart.misc.perm",
        where="Misconceptions, permutation",
        says="Attention is permutation-invariant by default: it takes the input as a set.",
        formula=r"\mathrm{Attn}(PX) = P\,\mathrm{Attn}(X)",
        verdict="false",
        exact="It is equivariant: outputs move with their tokens. Invariant is what is pooled from "
        "them. And the input is a multiset: a token given twice counts twice.",
        proof=scores_are_reordered,
        check=Check(
            run=moves_with_its_tokens,
            subject=attend,
            mutations={
                "pooled, so invariant": pooled_everywhere,
                "a causal mask": attend_causally,
            },
        ),
        properties=("queries-in-any-order", "keys-in-any-order", "doubled-keys-change-nothing"),
    ),
    Statement(
        id="heart.misc.perm.scores",
        where="Misconceptions, permutation, the example",
        says="A reordered sentence has the same interactions but different scores.",
        formula=r"S(PX) = P\,S(X)\,P^\top",
        verdict="false",
        exact="It has the same scores, at the places of the moved tokens.",
        proof=scores_are_reordered,
        check=Check(
            run=scores_are_the_same,
            subject=raw_scores,
            mutations={
                "with places": lambda x: raw_scores(x + np.arange(len(x), dtype=object)[:, None]),
                "of neighbours": lambda x: raw_scores(x) + raw_scores(np.roll(x, 1, 0)),
            },
        ),
    ),
    Statement(
        id="heart.misc.pe",
        where="Misconceptions, positional encodings",
        says="Positional encodings break the symmetry.",
        formula=r"\mathrm{Attn}(PX + E) \ne P\,\mathrm{Attn}(X + E)",
        verdict="conditional",
        hypotheses={"different codes at different places": one_code_for_all},
        check=Check(
            run=places_matter,
            subject=lambda x, p: attend(x + p),
            mutations={
                "not added": lambda x, p: attend(x),
                "added after attention, by place": lambda x, p: attend_at_places(x + p),
            },
        ),
    ),
    Statement(
        id="heart.misc.weights",
        where="Misconceptions, weights and importance",
        says="A high weight on a small value contributes little.",
        formula=r"o = \textstyle\sum_j a_j v_j,\qquad \partial o/\partial s_j = a_j (v_j - o)",
        verdict="true",
        proof=response_to_a_score,
        check=Check(
            run=small_values_count_little,
            subject=lambda a, v: a * v,
            mutations={
                "weights are the contributions": lambda a, v: a * (a @ v),
                "values are": lambda a, v: v,
            },
        ),
        properties=("output-averages-values", "equal-values-have-no-score-gradient"),
    ),
    Statement(
        id="heart.misc.grad",
        where="Misconceptions, attribution",
        says="Attribution by gradients is more reliable than attention weights.",
        verdict="undecided",
        reason="Reliable is not defined; studies of trained models disagree.",
    ),
)
