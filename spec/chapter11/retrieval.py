"""Retrieval by content: weights, and the convex combination that they make of values."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import sympy as sp

from attnspec.spec.evidence import binary, digits, exact
from attnspec.spec.evidence.statement import Check, Proof, Statement, Step, require
from attnspec.spec.evidence.sums import identity
from attnspec.spec.evidence.symbols import A, V, keys, values

__all__ = ["STATEMENTS", "convex_combination", "row_sums"]

i, j, other, c = sp.symbols("i j l c", integer=True)
e, f = sp.IndexedBase("e"), sp.IndexedBase("f")


# -- Equation (1): weights, and the convex combination --------------------------------------------


def characterised(retrieve: Callable[..., Any]) -> str:
    """Weights sum to 1 and have the ratios e^(q·(k_j - k_l)): these two facts determine them."""
    q = np.array([0.5, -1.25, 2.0])
    k = np.array([[1, 0.25, -0.5], [0.75, -1, 1.5], [-2, 0.5, 0.125], [0, 0, 1]])
    w = retrieve(q, k, np.eye(4))
    with mpmath.workdps(digits.DIGITS):
        require(abs(mpmath.fsum(w) - 1) < mpmath.mpf(10) ** -45, "the weights do not sum to 1")
        for j in range(1, 4):
            odds = mpmath.exp(mpmath.fsum(x * y for x, y in zip(q, k[j] - k[0], strict=True)))
            require(abs(w[j] / w[0] / odds - 1) < mpmath.mpf(10) ** -45, f"the odds of key {j}")
    return "4 keys of 3 channels: the sum and every ratio to 45 digits"


def row_sums() -> Proof:
    """e_ij over their sum: the sum is 1, no weight is negative, a constant added drops out."""
    total = sp.Sum(e[i, other], keys(other))
    score, shift = sp.IndexedBase("s"), sp.Symbol("c", real=True)
    plain, shifted = sp.exp(score[i, j]), sp.exp(score[i, j] + shift)
    real = sp.Symbol("x", real=True)

    def summed(of: Any) -> Any:
        return sp.Sum(of.subs(j, other), keys(other))

    return Proof(
        steps=(
            identity("Σ_j e_ij = Z_i, so that Σ_j e_ij / Z_i = 1", sp.Sum(e[i, j], keys(j)), total),
            Step("e^x > 0 for real x", lambda: bool(sp.exp(real).is_positive)),
            identity(
                "e^(s_ij + c) Σ_l e^s_il = e^s_ij Σ_l e^(s_il + c): a shift drops out",
                shifted * summed(plain),
                plain * summed(shifted),
            ),
        ),
        mutations={
            "columns": identity("Σ_i e_ij = Z_i", sp.Sum(e[j, i], keys(j)), total),
            "squares": identity("Σ_j e_ij² = Z_i²", sp.Sum(e[i, j] ** 2, keys(j)), total**2),
            "a shift of one score": identity(
                "e^(s_ij + c) Σ_l e^s_il = e^s_ij Σ_l e^s_il",
                shifted * summed(plain),
                plain * summed(plain),
            ),
        },
    )


def convex_combination() -> Proof:
    """b - f·o_i = Σ_j A_ij (b - f·v_j): what holds for all values (<= b) holds for the output."""
    bound = sp.Symbol("b")

    def along(vector: Callable[[Any], Any]) -> Any:
        return bound - sp.Sum(f[c] * vector(c), values(c))

    def combined(power: int) -> Any:
        return sp.Sum(A[i, j] ** power * along(lambda c: V[j, c]), keys(j))

    left = along(lambda c: sp.Sum(A[i, j] * V[j, c], keys(j)))
    weight, gap = sp.symbols("A g", nonnegative=True)
    any_gap = sp.Symbol("g", real=True)
    return Proof(
        steps=(
            identity("b - f·o_i = Σ_j A_ij (b - f·v_j), where Σ_j A_ij = 1", left, combined(1),
                     stochastic=[A]),
            Step("A (b - f·v) >= 0 for A >= 0 and f·v <= b",
                 lambda: bool((weight * gap).is_nonnegative)),
        ),
        mutations={
            "values on both sides of b": Step("A (b - f·v) >= 0 for any v",
                                              lambda: bool((weight * any_gap).is_nonnegative)),
            "rows do not sum to 1": identity("without Σ_j A_ij = 1", left, combined(1)),
            "squared weights": identity("with A²", left, combined(2), stochastic=[A]),
            "the plain mean": identity("with 1 for every A_ij", left, combined(0), stochastic=[A]),
        },
    )  # fmt: skip


def odds() -> Proof:
    """w_i Z = e^s_i: the ratio of two weights is e^(s_i - s_j), whatever the other keys are."""
    s, t, z = sp.symbols("s t Z", positive=True)
    ratio = (sp.exp(s) / z) / (sp.exp(t) / z)
    exact_form = Step("w_i / w_j = e^(s_i - s_j)",
                      lambda: bool(sp.simplify(ratio - sp.exp(s - t)) == 0))  # fmt: skip
    return Proof(
        steps=(exact_form,),
        mutations={
            "linear": Step("w_i / w_j = s_i / s_j", lambda: bool(sp.simplify(ratio - s / t) == 0)),
            "upside down": Step(
                "w_i / w_j = e^(s_j - s_i)", lambda: bool(sp.simplify(ratio - sp.exp(t - s)) == 0)
            ),
        },
    )


def large_but_light(gap: int) -> str:
    """A score of 20 beside one of 20 + gap, in base 2: the weight is 1 / (1 + 2^gap)."""
    weight = exact.weights(binary.power_of_two([[20, 20 + gap]]))[0, 0]
    small = exact.weights(binary.power_of_two([[-20, -20 + gap]]))[0, 0]
    require(weight == small, "the weight depends on more than the difference")
    require(weight < Fraction(1, 1000), f"the weight is {weight}, not small")
    return (
        f"scores 20 and {20 + gap} (base 2): the first has weight {weight}, as -20 and {gap - 20}"
    )


# -- Self-attention: one source, rows apart -------------------------------------------------------


def rows_apart(attend: Callable[..., Any]) -> str:
    """Row i is unchanged by any edit of the other queries."""
    q, k, v = (binary.integers((4, size), seed=size) for size in (3, 3, 2))
    edited = q + 1 - np.eye(4, 3, dtype=int)
    before, after = attend(q, k, v), attend(np.vstack([q[:1], edited[1:]]), k, v)
    require(binary.same(before[0], after[0]), "row 0 changed with the other queries")
    require(not binary.same(before[1:], after[1:]), "the edit was none")
    require(binary.same(attend(q[:1], k, v)[0], before[0]), "row 0 alone differs")
    return "4 rows, three of them edited, and row 0 alone: row 0 is the same, exactly"


def columns_normalised(q: Any, k: Any, v: Any) -> Any:
    """Softmax over the queries."""
    e = binary.exponentials(q, k)
    return (e / e.sum(0)) @ v


def jointly_normalised(q: Any, k: Any, v: Any) -> Any:
    """Softmax over the whole matrix."""
    e = binary.exponentials(q, k)
    return (e / e.sum()) @ v


STATEMENTS = (
    Statement(
        id="ch11.def3",
        where="Definition 3, equation (1)",
        says="A query retrieves the values, weighted by the softmax of its products with the keys. "
        "(Without a scale: this is equation (10) with a scale of 1.)",
        formula=r"\sum_j w_j v_j, \quad w_j = e^{q\cdot k_j} / \textstyle\sum_l e^{q\cdot k_l}",
        verdict="true",
        check=Check(
            run=characterised,
            subject=lambda q, k, v: digits.attention(q[None], k, v, scale=1)[0],
            mutations={
                "scaled as in (10)": lambda q, k, v: digits.attention(q[None], k, v)[0],
                "base 2": lambda q, k, v: digits.attention(q[None], k, v, scale=mpmath.log(2))[0],
                "products, not exponentials": lambda q, k, v: (k @ q) / (k @ q).sum() @ v,
            },
        ),
        properties=("odds-are-exponential",),
    ),
    Statement(
        id="ch11.def3.prop",
        where="after Definition 3",
        says="The weights are nonnegative and sum to 1: the result is a convex combination.",
        formula=r"w_j > 0, \quad \textstyle\sum_j w_j = 1",
        verdict="true",
        proof=row_sums,
        properties=("weights-are-probabilities", "weights-sum-to-one"),
    ),
    Statement(
        id="ch11.def3.high",
        where="after Definition 3, interpretation",
        says="A weight is high where the product of query and key is large.",
        formula=r"w_i / w_j = e^{s_i - s_j}",
        verdict="imprecise",
        exact="Only relative to the other keys: weights depend on differences of scores alone.",
        proof=odds,
        check=Check(
            run=large_but_light,
            subject=10,
            mutations={"no larger score beside it": 0, "a gap of 2": 2},
        ),
        properties=("odds-are-exponential",),
    ),
    Statement(
        id="ch11.self",
        where="after Definition 3",
        says="All n queries retrieve in parallel, each by itself, from one source.",
        formula=r"o_i = o(q_i; K, V)",
        verdict="true",
        check=Check(
            run=rows_apart,
            subject=binary.attention,
            mutations={
                "softmax over the queries": columns_normalised,
                "softmax over the whole matrix": jointly_normalised,
            },
        ),
        properties=("decoding-equals-prefill", "queries-in-any-order"),
    ),
)
