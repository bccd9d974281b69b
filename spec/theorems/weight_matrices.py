"""Weight matrices as a whole: rank, determinant, powers."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import sympy as sp

from attnspec.spec.evidence import exact
from attnspec.spec.evidence.binary import causal, exponentials, integers
from attnspec.spec.evidence.exact import Matrix, matrix
from attnspec.spec.evidence.expressions import scalars
from attnspec.spec.evidence.linear import determinant, powers, product, rank
from attnspec.spec.evidence.statement import Check, Proof, Statement, require
from attnspec.spec.evidence.sums import identity

__all__ = ["STATEMENTS"]


# -- Rank ------------------------------------------------------------------------------------------


def log_weights_have_low_rank() -> Proof:
    """log A_ij = Σ_c Q_ic K_jc - L_i · 1: a product over d_k + 1 channels."""
    i, j, c = sp.symbols("i j c", integer=True)
    d = sp.Symbol("d_k", integer=True, positive=True)
    q, k, lse = (sp.IndexedBase(name) for name in ("Q", "K", "L"))
    dot = sp.Sum(q[i, c] * k[j, c], (c, 0, d - 1))
    last = sp.KroneckerDelta(c, d)
    left = (1 - last) * q[i, c] - last * lse[i]
    right = (1 - last) * k[j, c] + last
    # The two halves of Σ_(c ≤ d): below d the delta is 0, at d it is 1.
    below = sp.Sum((left * right).subs(last, 0), (c, 0, d - 1))
    at_d = (left * right).subs(last, 1)
    return Proof(
        steps=(identity("S - L 1ᵀ = [Q | -L] [K | 1]ᵀ", dot - lse[i], below + at_d),),
        mutations={
            "no column for L": identity("Q Kᵀ", dot - lse[i], below),
            "L of the key": identity("S - 1 Lᵀ", dot - lse[j], below + at_d),
        },
    )


def ranks(bound: Any) -> str:
    """rank S ≤ min(d_k, rank X); log₂ A, up to a number a row, ≤ d_k + 1; A itself full."""
    for n, d, d_k in ((5, 3, 2), (6, 2, 3), (4, 4, 1)):
        x = integers((n, d), seed=n)
        q, k = x @ integers((d, d_k), seed=1), x @ integers((d, d_k), seed=2)
        s = q @ k.T
        limit = bound(d_k, rank(x))
        require(rank(s) <= limit, f"n = {n}: rank S = {rank(s)} above {limit}")
        odds = s - s[:, :1]
        require(rank(odds) <= d_k, f"n = {n}: log A less its first column")
    line = matrix([[x] for x in range(5)])
    require(rank(line @ line.T) == bound(1, 1), "d_k = 1: the bound is not reached")
    a = exact.weights(exponentials(line, line))
    require(rank(a) == 5, f"A has rank {rank(a)}")
    return "3 shapes, and d_k = 1 with n = 5: rank S = 1, rank A = 5, exactly"


# -- Determinant -----------------------------------------------------------------------------------


def triangular_determinants() -> Proof:
    """Lower triangular with positive entries."""

    def entry(row: Any, column: Any) -> Any:
        return sp.Symbol(f"A_{row}{column}", positive=True)

    steps = []
    for n in range(1, 6):
        lower = sp.Matrix(n, n, lambda row, column: entry(row, column) if column <= row else 0)
        steps.append(scalars(f"n = {n}: det A = Π A_ii", lower.det(), sp.prod(lower.diagonal())))
    full = sp.Matrix(3, 3, entry)
    return Proof(
        sizes="n = 1 to 5 (determinants are expanded)",
        steps=tuple(steps),
        mutations={
            "not triangular": scalars("det A = Π A_ii", full.det(), sp.prod(full.diagonal())),
            "the trace": scalars("det A = tr A", lower.det(), lower.trace()),
        },
    )


def causal_is_invertible(visible: Any) -> str:
    """n = 1..6."""
    for n in range(1, 7):
        q, k = integers((n, 2), seed=n), integers((n, 2), seed=n + 7)
        a = exact.weights(exponentials(q, k, visible=visible(n)))
        require(determinant(a) == product(np.diagonal(a)) > 0, f"n = {n}: det A")
        require(a[0, 0] == 1, f"n = {n}: A_11 = {a[0, 0]}")
    return "n = 1..6: det A = Π A_ii > 0, A_11 = 1, exactly"


def equal_rows() -> str:
    """Without a mask, equal queries make equal rows."""
    a = exact.weights(exponentials(matrix([[1], [1]]), matrix([[0], [2]])))
    require(determinant(a) == 0, "it is invertible")
    return "no mask, two equal queries: det A = 0"


# -- Powers ----------------------------------------------------------------------------------------


def dobrushin(a: Matrix) -> Fraction:
    """1 - the least overlap of two rows."""
    overlaps = [np.minimum(one, two).sum() for one in a for two in a]
    return 1 - Fraction(min(overlaps))


def spread(columns: Matrix) -> Fraction:
    """The largest difference within a column."""
    return Fraction((columns.max(0) - columns.min(0)).max())


def what_two_rows_share() -> Proof:
    """m_j the smaller of A_ij and A_kj: both rows keep m, and differ in parts of mass τ each."""
    i, j, k = sp.symbols("i j k", integer=True)
    n = sp.Symbol("n", integer=True, positive=True)
    a, m, v = sp.IndexedBase("A"), sp.IndexedBase("m"), sp.IndexedBase("v")
    every = (j, 0, n - 1)

    def row(index: Any) -> Any:
        return sp.Sum(a[index, j] * v[j], every)

    def part(index: Any, value: Any) -> Any:
        return sp.Sum((a[index, j] - m[j]) * value, every)

    mass = 1 - sp.Sum(m[j], every)
    difference = row(i) - row(k)
    return Proof(
        steps=(
            identity(
                "o_i - o_k = Σ (A_ij - m_j) v_j - Σ (A_kj - m_j) v_j",
                difference,
                part(i, v[j]) - part(k, v[j]),
            ),
            identity("Σ (A_ij - m_j) = 1 - Σ m ≤ τ", part(i, 1), mass, stochastic=[a]),
        ),
        mutations={
            "what they share counts": identity("Σ (A_ij - m_j) = 1", part(i, 1), 1, stochastic=[a]),
            "added": identity("o_i - o_k = Σ … + Σ …", difference, part(i, v[j]) + part(k, v[j])),
        },
    )


def contraction(coefficient: Any) -> str:
    """osc(A V) ≤ τ osc(V), τ < 1, reached by some V; powers of A flatten as τ^k."""
    for seed in range(1, 7):
        n = 2 + seed % 4
        a = exact.weights(
            exponentials(integers((n, 2), seed=seed), integers((n, 2), seed=seed + 9))
        )
        tau, v = coefficient(a), integers((n, 3), seed=seed)
        require(0 <= tau < 1, f"τ = {tau}")
        require(spread(a @ v) <= tau * spread(v), "the spread shrinks by less than τ")
        sets = [matrix([[b >> x & 1] for x in range(n)]) for b in range(1, 2**n - 1)]
        require(max(spread(a @ s) for s in sets) == tau, "τ is not reached")
        require(spread(powers(a, 6)) <= tau**6, "A⁶ is not within τ⁶ of equal rows")
    return "6 matrices of 2..5 tokens, all 0-1 values, A⁶, exactly"


def blocks_do_not_mix() -> str:
    """A mask that keeps two groups apart."""
    visible = np.kron(np.eye(2, dtype=bool), np.ones((2, 2), dtype=bool))
    a = exact.weights(
        exponentials(integers((4, 2), seed=1), integers((4, 2), seed=2), visible=visible)
    )
    require(dobrushin(a) == 1, f"τ = {dobrushin(a)}")
    require(spread(powers(a, 8) @ matrix([[1], [1], [0], [0]])) == 1, "the groups mix")
    return "two blocks of two tokens: τ = 1, and A⁸ still tells the blocks apart"


STATEMENTS = (
    Statement(
        id="ext.rank",
        where="Bhojanapalli et al. 2020; beside chapter 11, equation (3)",
        says="Scores have rank d_k at most, and log A one more; A itself may have full rank.",
        formula=r"\mathrm{rank}\,S \le \min(d_k, \mathrm{rank}\,X), \quad "
        r"\mathrm{rank} \log A \le d_k + 1",
        verdict="true",
        proof=log_weights_have_low_rank,
        check=Check(
            run=ranks,
            subject=min,
            mutations={
                "one less": lambda d_k, of_x: min(d_k, of_x) - 1,
                "the larger": lambda d_k, of_x: max(d_k, of_x) + 1,
            },
        ),
    ),
    Statement(
        id="ext.causaldet",
        where="folklore; from chapter 11, equation (14)",
        says="Causal weights are always invertible.",
        formula=r"\det A = \prod_i A_{ii} > 0, \quad A_{11} = 1",
        verdict="conditional",
        hypotheses={"a causal mask": equal_rows},
        proof=triangular_determinants,
        check=Check(
            run=causal_is_invertible,
            subject=causal,
            mutations={
                "no mask": lambda n: np.ones((n, n), dtype=bool),
                "itself hidden": lambda n: np.tri(n, n, -1, dtype=bool),
            },
        ),
    ),
    Statement(
        id="ext.positive",
        where="Perron 1907, Dobrushin 1956; Dong et al. 2021 for attention; none of the documents",
        says="Without a mask, weights mix: outputs are closer together than values, by a factor "
        "below 1, and powers of A tend to equal rows.",
        formula=r"\mathrm{osc}(AV) \le \tau(A)\, \mathrm{osc}(V), \quad "
        r"\tau = 1 - \min_{i,k} \textstyle\sum_j \min(A_{ij}, A_{kj}) < 1",
        verdict="conditional",
        hypotheses={"all weights positive": blocks_do_not_mix},
        proof=what_two_rows_share,
        check=Check(
            run=contraction,
            subject=dobrushin,
            mutations={
                "half of it": lambda a: dobrushin(a) / 2,
                "1 minus the least weight": lambda a: 1 - Fraction(a.min()),
                "the largest difference of weights": spread,
            },
        ),
    ),
)
