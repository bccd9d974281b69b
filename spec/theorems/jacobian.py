"""The Jacobian of softmax, J = diag(a) - a aᵀ: symmetric, positive, zero on constants."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import sympy as sp

from attnspec.spec.evidence import exact
from attnspec.spec.evidence.exact import Matrix, matrix
from attnspec.spec.evidence.linear import rank
from attnspec.spec.evidence.statement import Check, Proof, Statement, require
from attnspec.spec.evidence.sums import identity

__all__ = ["STATEMENTS", "a", "delta", "distribution", "jacobian_of", "over"]

i, j, other = sp.symbols("i j l", integer=True)
n = sp.Symbol("n", integer=True, positive=True)
a, x, y = (sp.IndexedBase(name) for name in ("a", "x", "y"))
delta = sp.KroneckerDelta


def over(index: Any) -> tuple[Any, Any, Any]:
    """The range of an index, for `Sum`."""
    return index, 0, n - 1


def jacobian(row: Any, column: Any) -> Any:
    """J_ij, symbolic."""
    return a[row] * (delta(row, column) - a[column])


def jacobian_of(weights: Matrix) -> Matrix:
    """J, exactly."""
    return np.asarray(np.diag(weights) - np.outer(weights, weights))


def distribution(size: int, *, seed: int) -> Matrix:
    """Positive weights that sum to 1."""
    return np.asarray(exact.weights(exact.positive((1, size), seed=seed))[0])


# -- J1 = 0, symmetric, positive -------------------------------------------------------------------


def rows_symmetry_trace() -> Proof:
    """For any vectors x and y: xᵀJy = yᵀJx is symmetry."""
    form, transposed = (
        sp.Sum(left[i] * jacobian(i, j) * right[j], over(i), over(j))
        for left, right in ((x, y), (y, x))
    )
    row = sp.Sum(jacobian(i, j), over(j))
    trace = sp.Sum(a[i] * (1 - a[i]), over(i))
    squares = sp.Sum(a[i] ** 2, over(i))
    return Proof(
        steps=(
            identity("J 1 = 0", row, 0, stochastic=[a]),
            identity("xᵀ J y = yᵀ J x", form, transposed),
            identity("tr J = 1 - Σ a²", trace, 1 - squares, stochastic=[a]),
        ),
        mutations={
            "weights that do not sum to 1": identity("J 1 = 0", row, 0),
            "no outer product": identity("diag(a) 1 = 0", sp.Sum(a[i] * delta(i, j), over(j)), 0),
            "the trace of diag(a)": identity("tr J = 1", trace, 1, stochastic=[a]),
        },
    )


def finite_steps(build: Any) -> str:
    """A score raised by log t, exactly: a moves by J e_j (t - 1) / (1 + a_j (t - 1))."""
    for size in range(1, 6):
        e = exact.positive((1, size), seed=size)
        w = exact.weights(e)[0]
        for key, t in itertools.product(
            range(size), (Fraction(1, 3), Fraction(5), Fraction(99, 98))
        ):
            raised = e.copy()
            raised[0, key] = raised[0, key] * t
            step = (exact.weights(raised)[0] - w) * (1 + w[key] * (t - 1))
            column = build(w)[:, key] * (t - 1)
            require(all(step == column), f"n = {size}: weights do not move along J")
    return "n = 1..5, each score raised by log 1/3, log 5 and log 99/98, exactly"


def form_is_a_variance() -> Proof:
    """Half the mean squared difference; zero only for constant x if all a > 0."""
    form = sp.Sum(x[i] * jacobian(i, j) * x[j], over(i), over(j))
    pairs = sp.Sum(a[i] * a[j] * (x[i] - x[j]) ** 2, over(i), over(j))
    mean = sp.Sum(a[j] * x[j], over(j))
    centred = sp.Sum(a[i] * (x[i] - mean) ** 2, over(i))
    return Proof(
        steps=(
            identity("xᵀ J x = ½ Σ_ij a_i a_j (x_i - x_j)²", form, pairs / 2, stochastic=[a]),
            identity("xᵀ J x = Σ a (x - Σ a x)²", form, centred, stochastic=[a]),
        ),
        mutations={
            "not halved": identity("Σ_ij a_i a_j (x_i - x_j)²", form, pairs, stochastic=[a]),
            "not centred": identity(
                "Σ a x²", form, sp.Sum(a[i] * x[i] ** 2, over(i)), stochastic=[a]
            ),
            "sums": identity(
                "½ Σ_ij a_i a_j (x_i + x_j)²",
                form,
                sp.Sum(a[i] * a[j] * (x[i] + x[j]) ** 2, over(i), over(j)) / 2,
                stochastic=[a],
            ),
        },
    )


def kernel_is_constant(build: Any) -> str:
    """Rank n - 1 and J 1 = 0 for positive weights, n = 1..6."""
    for size in range(1, 7):
        j_matrix = build(distribution(size, seed=size))
        require(rank(j_matrix) == size - 1, f"n = {size}: rank {rank(j_matrix)}")
        require(all(j_matrix.sum(1) == 0), f"n = {size}: J 1 is not 0")
    return "n = 1..6: rank n - 1, J 1 = 0, exactly"


def zero_weight() -> str:
    """A weight of 0 adds its own direction to the kernel."""
    found = rank(jacobian_of(matrix(["1/2", "1/2", "0"])))
    require(found == 1, f"rank {found}")
    return "a = (1/2, 1/2, 0): rank 1, not 2"


STATEMENTS = (
    Statement(
        id="ext.jac",
        where="folklore; chapter 11, equation (9), for J itself",
        says="J is symmetric, its rows sum to 0, its trace is 1 - Σa².",
        formula=r"J\mathbf{1} = 0, \quad J^\top = J, \quad \mathrm{tr}\,J = 1 - \sum_i a_i^2",
        verdict="true",
        proof=rows_symmetry_trace,
        check=Check(
            run=finite_steps,
            subject=jacobian_of,
            mutations={
                "diag(a) alone": np.diag,
                "the outer product added": lambda w: np.diag(w) + np.outer(w, w),
            },
        ),
    ),
    Statement(
        id="ext.psd",
        where="folklore; chapter 11, equation (9), for J itself",
        says="J is the covariance of an index drawn by a: positive semidefinite, and 0 only along "
        "constants if no weight is 0.",
        formula=r"x^\top J x = \tfrac12 \sum_{ij} a_i a_j (x_i - x_j)^2 = \mathrm{Var}_a(x) \ge 0",
        verdict="conditional",
        hypotheses={"all weights positive, for the kernel": zero_weight},
        proof=form_is_a_variance,
        check=Check(
            run=kernel_is_constant,
            subject=jacobian_of,
            mutations={
                "diag(a) alone": np.diag,
                "the outer product alone": lambda w: np.outer(w, w),
            },
        ),
    ),
)
