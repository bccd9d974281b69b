"""The selective scan of state-space models."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import sympy as sp

from attnspec.spec.evidence.binary import causal, masked, same
from attnspec.spec.evidence.exact import Matrix, matrix, rational
from attnspec.spec.evidence.expressions import scalars
from attnspec.spec.evidence.linear import product, rank
from attnspec.spec.evidence.statement import Check, Proof, Statement, require

__all__ = ["STATEMENTS"]


# -- The selective scan ---------------------------------------------------------------------------


def compose(first: Any, second: Any) -> Any:
    """h ↦ a h + b, then h ↦ a' h + b'."""
    (a, b), (a2, b2) = first, second
    return a2 * a, a2 * b + b2


def scan_is_associative() -> Proof:
    """Three steps with scalar gates; a diagonal state is many of them."""
    steps = [sp.symbols(f"a_{i} b_{i}") for i in range(3)]
    h = sp.Symbol("h")
    left = compose(compose(steps[0], steps[1]), steps[2])
    right = compose(steps[0], compose(steps[1], steps[2]))
    by_step = h
    for a, b in steps:
        by_step = a * by_step + b
    swapped = compose(compose(steps[1], steps[0]), steps[2])
    return Proof(
        steps=(
            scalars("gates: (x ∘ y) ∘ z = x ∘ (y ∘ z)", left[0], right[0]),
            scalars("inputs: (x ∘ y) ∘ z = x ∘ (y ∘ z)", left[1], right[1]),
            scalars("the composition applied to h = three steps", left[0] * h + left[1], by_step),
            scalars("(1, 0) is neutral", compose((1, 0), steps[0])[1], steps[0][1]),
        ),
        mutations={
            "in another order": scalars("y ∘ x ∘ z", left[1], swapped[1]),
            "the gate is forgotten": scalars("b + b' + b''", left[1], sum(b for _, b in steps)),
        },
    )


def scanned(a: Matrix, b: Matrix, c: Matrix, x: Matrix) -> Matrix:
    """h_t = a_t h_(t-1) + b_t x_t, y_t = c_t·h_t; a scalar gate a token, N states."""
    h, rows = b[0] * 0, []
    for gate, write, read, value in zip(a, b, c, x, strict=True):
        h = gate * h + write * value
        rows.append(read @ h)
    return np.array(rows, object)


def semiseparable(a: Matrix, b: Matrix, c: Matrix) -> Matrix:
    """M_ij = (c_i·b_j) a_(j+1) … a_i for j ≤ i: attention without softmax, with decay."""
    n = len(a)
    m: Matrix = np.full((n, n), Fraction(0), object)
    for i, j in itertools.product(range(n), range(n)):
        if j <= i:
            m[i, j] = (c[i] @ b[j]) * product(a[j + 1 : i + 1])
    return m


def scan_is_a_matrix(build: Any) -> str:
    """Scan = matrix; blocks below the diagonal of rank ≤ N; constant gates: a convolution."""
    for n, states in ((1, 1), (4, 1), (5, 2), (6, 3)):
        a, x = rational((n,), seed=n), rational((n,), seed=n + 1)
        b, c = rational((n, states), seed=n + 2), rational((n, states), seed=n + 3)
        m = build(a, b, c)
        require(same(m @ x, scanned(a, b, c, x)), f"n = {n}: the matrix is not the scan")
        for cut in range(1, n):
            require(rank(m[cut:, :cut]) <= states, f"a block of rank above {states}")
        still = build(a * 0 + a[0], b * 0 + b[0], c * 0 + c[0])
        diagonals = [{still[i, i - lag] for i in range(lag, n)} for lag in range(n)]
        require(all(len(values) == 1 for values in diagonals), "constant gates: no convolution")
    return "n = 1, 4, 5, 6 with N = 1, 1, 2, 3 states, exactly"


def gates_that_see_the_input() -> str:
    """Gates that differ: not constant along diagonals."""
    one = matrix([[1]] * 3)
    m = semiseparable(matrix(["1", "1/2", "1/3"]), one, one)
    require(m[1, 0] != m[2, 1], "the first subdiagonal is constant")
    return f"gates that differ: M_10 = {m[1, 0]}, M_21 = {m[2, 1]}: no convolution"


STATEMENTS = (
    Statement(
        id="sys.mamba",
        where="Gu and Dao 2023, Dao and Gu 2024; chapter 11, modern developments (state-space "
        "models)",
        says="A state-space model with N states is an associative scan, whatever its gates a, and "
        "the product with a lower triangular matrix whose blocks below the diagonal have rank at "
        "most N; it is a convolution where nothing changes from token to token.",
        formula=r"(a, b) \circ (a', b') = (a' a, a' b + b'), \quad "
        r"M_{ij} = c_i^\top b_j \textstyle\prod_{l=j+1}^{i} a_l \ (j \le i)",
        verdict="conditional",
        hypotheses={
            "the same a, b and c at every token, for the convolution": gates_that_see_the_input
        },
        proof=scan_is_associative,
        check=Check(
            run=scan_is_a_matrix,
            subject=semiseparable,
            mutations={
                "no decay": lambda a, b, c: masked(c @ b.T, causal(len(a))),
                "decay from one token too early": lambda a, b, c: (
                    semiseparable(a, b, c) * a[None, :]
                ),
            },
        ),
    ),
)
