"""Consequences: places without a code, dropout of weights."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import sympy as sp

from attnspec.spec.evidence import exact
from attnspec.spec.evidence.binary import attention, causal, integers, same
from attnspec.spec.evidence.exact import Matrix, matrix
from attnspec.spec.evidence.statement import Check, Proof, Statement, require
from attnspec.spec.evidence.sums import identity

__all__ = ["STATEMENTS"]


# -- Places without a code -------------------------------------------------------------------------


def place_from_the_mask(attend: Any) -> str:
    """q = 0, the first token marked: row i of n ≤ 6 reads 1/i, the same words or not."""
    for n in range(1, 7):
        k, first = integers((n, 2), seed=n), matrix([[1]] + [[0]] * (n - 1))
        out = attend(k * 0, k, first)
        require(same(out[:, 0], [Fraction(1, i) for i in range(1, n + 1)]), f"n = {n}")
    return "n = 1..6: row i reads 1/i of a mark on the first token, exactly"


def equal_shares() -> Proof:
    """i keys of one exponential x are visible to row i."""
    j, i, n = sp.symbols("j i n", integer=True, positive=True)
    x = sp.Symbol("x", positive=True)
    seen, every = sp.Sum(x, (j, 1, i)), sp.Sum(x, (j, 1, n))
    return Proof(
        steps=(identity("Z_i = i x, so A_i1 = x / Z_i = 1/i", seen, i * x),),
        mutations={
            "no mask": identity("Z_i = i x", every, i * x),
            "itself hidden": identity("Z_i = (i - 1) x", seen, (i - 1) * x),
        },
    )


def no_mask_no_place() -> str:
    """Without the mask every row is the same mean."""
    k, first = integers((4, 2), seed=1), matrix([[1], [0], [0], [0]])
    out = attention(k * 0, k, first)
    require(len(set(out[:, 0])) == 1, "rows differ")
    return "no mask: all 4 rows read 1/4"


def no_mark_no_place() -> str:
    """Where all values are the same, no row knows its place."""
    k = integers((4, 2), seed=1)
    out = attention(k * 0, k, matrix([[1]] * 4), visible=causal(4))
    require(len(set(out[:, 0])) == 1, "rows differ")
    return "four equal values under a causal mask: four equal rows"


# -- Dropout ---------------------------------------------------------------------------------------


def mean_and_variance() -> Proof:
    """Each weight is kept with chance 1 - p and divided by it: factors m_j of mean 1."""
    j, k = sp.symbols("j k", integer=True)
    n = sp.Symbol("n", integer=True, positive=True)
    p = sp.Symbol("p", positive=True)
    a, v = sp.IndexedBase("a"), sp.IndexedBase("v")
    over_j, over_k = (j, 0, n - 1), (k, 0, n - 1)
    mean, excess = (1 - p) * (1 / (1 - p)), sp.cancel((1 - p) / (1 - p) ** 2 - 1)
    delta = sp.KroneckerDelta(j, k)
    # E m_j m_k: 1, and where j = k more, by what (1 - p)/(1 - p)² exceeds 1.
    moment = sp.Sum(a[j] * a[k] * (1 + delta * excess), over_j, over_k)
    squares = sp.Sum(a[j] ** 2, over_j)
    out = sp.Sum(a[j] * v[j], over_j)
    return Proof(
        steps=(
            identity("E O = A V", sp.Sum(a[j] * mean * v[j], over_j), out),
            identity(
                "Var Σ_j = p/(1 - p) Σ A²",
                moment - 1,
                sp.cancel(p / (1 - p)) * squares,
                stochastic=[a],
            ),
        ),
        mutations={
            "not divided": identity(
                "E O = (1 - p) A V", sp.Sum(a[j] * (1 - p) * v[j], over_j), out
            ),
            "rows still sum to 1": identity("Var Σ_j = 0", moment - 1, 0, stochastic=[a]),
        },
    )


def every_mask(kept: Any) -> str:
    """All 32 masks of 5 weights, p = 1/4: the mean output, and the variance of a row's sum."""
    a = exact.weights(exact.positive((1, 5), seed=1))[0]
    v, p = integers((5, 2), seed=2), Fraction(1, 4)
    mean, sums = v[0] * Fraction(0), {1: Fraction(0), 2: Fraction(0)}
    for mask in itertools.product((0, 1), repeat=5):
        chance = (1 - p) ** sum(mask) * p ** (5 - sum(mask))
        row = kept(a, matrix(list(mask)), p)
        mean = mean + chance * (row @ v)
        for power in sums:
            sums[power] += chance * row.sum() ** power
    require(same(mean, a @ v), "the mean output is not A V")
    require(sums[1] == 1, "rows do not sum to 1 in the mean")
    require(sums[2] - 1 == p / (1 - p) * (a * a).sum(), "another variance of the sum")
    return "32 masks of 5 weights, p = 1/4, exactly"


def renormalised(a: Matrix, mask: Matrix, p: Fraction) -> Matrix:
    """The weights that are left, made to sum to 1."""
    return np.asarray(exact.weights((a * mask)[None])[0])


def sums_made_1() -> str:
    """Two weights of 1/4 and 3/4, p = 1/2, what is left made to sum to 1."""
    a, half = matrix(["1/4", "3/4"]), Fraction(1, 2)
    rows = [renormalised(a, matrix(list(m)), half) for m in itertools.product((0, 1), repeat=2)]
    mean = np.sum(rows, axis=0) / Fraction(4)
    require(not same(mean, a), "the mean is kept")
    return f"weights 1/4 and 3/4, p = 1/2: in the mean {mean[0]} and {mean[1]}"


STATEMENTS = (
    Statement(
        id="ext.nope",
        where="Haviv et al. 2022; beside chapter 11, Exercise 8",
        says="Under a causal mask attention tells places apart without any code of them.",
        formula=r"q = 0: \quad A_{i1} = 1/i",
        verdict="conditional",
        hypotheses={
            "a causal mask": no_mask_no_place,
            "a first token that differs": no_mark_no_place,
        },
        proof=equal_shares,
        check=Check(
            run=place_from_the_mask,
            subject=lambda q, k, v: attention(q, k, v, visible=causal(len(q))),
            mutations={
                "no mask": attention,
                "itself hidden": lambda q, k, v: attention(
                    q, k, v, visible=np.tri(len(q), len(k), -1, dtype=bool)
                ),
            },
        ),
        properties=("equal-scores-average-plainly", "every-length-averages-plainly"),
    ),
    Statement(
        id="ext.dropout",
        where="Srivastava et al. 2014, Vaswani et al. 2017; none of the documents",
        says="Weights dropped and divided by the chance to stay give the output in the mean; a "
        "row's sum is 1 only in the mean.",
        formula=r"\mathbb{E}\,O = AV, \qquad \mathrm{Var} \sum_j \tilde A_{ij} = "
        r"\frac{p}{1-p} \sum_j A_{ij}^2",
        verdict="conditional",
        hypotheses={"weights are divided by 1 - p and not made to sum to 1": sums_made_1},
        proof=mean_and_variance,
        check=Check(
            run=every_mask,
            subject=lambda a, mask, p: a * mask / (1 - p),
            mutations={
                "not divided": lambda a, mask, p: a * mask,
                "made to sum to 1": renormalised,
            },
        ),
    ),
)
