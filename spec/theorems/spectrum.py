"""How large the Jacobian of softmax is: at most ½, with eigenvalues between the weights."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import sympy as sp

from attnspec.spec.evidence import exact
from attnspec.spec.evidence.exact import matrix
from attnspec.spec.evidence.expressions import polynomials, scalars
from attnspec.spec.evidence.linear import determinant, identity_matrix
from attnspec.spec.evidence.statement import Check, Proof, Statement, Step, require
from attnspec.spec.evidence.sums import identity
from attnspec.spec.theorems.jacobian import a, delta, distribution, jacobian_of, over

__all__ = ["STATEMENTS"]

i, j = sp.symbols("i j", integer=True)


# -- At most one half ------------------------------------------------------------------------------


def absolute_row_sums() -> Proof:
    """Σ_j |J_ij| = 2 a_i (1 - a_i) ≤ ½; by symmetry the columns too, so ‖J‖_p ≤ ½ between."""
    off = sp.Sum(a[i] * (1 - delta(i, j)) * a[j], over(j))
    w = sp.Symbol("a_i", real=True)
    return Proof(
        steps=(
            identity(
                "|J_ii| + Σ_(j≠i) |J_ij| = 2 a_i (1 - a_i)",
                a[i] * (1 - a[i]) + off,
                2 * a[i] * (1 - a[i]),
                stochastic=[a],
            ),
            scalars(
                "½ - 2 a (1 - a) = 2 (a - ½)² ≥ 0",
                sp.Rational(1, 2) - 2 * w * (1 - w),
                2 * (w - sp.Rational(1, 2)) ** 2,
            ),
        ),
        mutations={
            "one part alone": identity(
                "a_i (1 - a_i)", a[i] * (1 - a[i]) + off, a[i] * (1 - a[i]), stochastic=[a]
            ),
            "a bound of ¼": scalars(
                "¼ - 2 a (1 - a)",
                sp.Rational(1, 4) - 2 * w * (1 - w),
                2 * (w - sp.Rational(1, 2)) ** 2,
            ),
        },
    )


def largest_stretch(bound: Fraction) -> str:
    """p = 1, 2, ∞ over random weights and vectors; n = 2, a = ½ reaches the bound."""
    for seed in range(40):
        size = 2 + seed % 5
        j_matrix, v = jacobian_of(distribution(size, seed=seed)), exact.rational((size,), seed=seed)
        w = j_matrix @ v
        require(abs(w).sum() <= bound * abs(v).sum(), f"p = 1: seed {seed}")
        require((w * w).sum() <= bound**2 * (v * v).sum(), f"p = 2: seed {seed}")
        require(abs(w).max() <= bound * abs(v).max(), f"p = ∞: seed {seed}")
    tight = jacobian_of(matrix(["1/2", "1/2"])) @ matrix([1, -1])
    require(all(abs(tight) == bound), f"J (1, -1) = {tight[0]} (1, -1) at a = ½, not {bound}")
    return "40 weights of 2..6, p = 1, 2, ∞, exactly; a = ½ doubles nothing: eigenvalue ½"


# -- Eigenvalues between the weights ---------------------------------------------------------------


def characteristic_polynomial() -> Proof:
    """det(J - λ) = Π (a_k - λ) - Σ_k a_k² Π_(l≠k) (a_l - λ): its sign alternates at the a_k."""
    lam = sp.Symbol("lambda")
    steps: list[Step] = []
    for size in (2, 3, 4, 5):
        w = sp.symbols(f"a_1:{size + 1}")
        update = -sp.Matrix(w) * sp.Matrix(w).T
        found = sp.expand((sp.diag(*(x - lam for x in w)) + update).det(method="berkowitz"))
        every = sp.prod(x - lam for x in w)
        others = [sp.prod(x - lam for x in w if x != y) for y in w]
        lemma = every - sum(y**2 * rest for y, rest in zip(w, others, strict=True))
        value = -(w[0] ** 2) * sp.prod(x - w[0] for x in w[1:])
        steps += [
            polynomials(f"n = {size}: determinant of the rank-one update", found, lemma),
            polynomials(
                f"n = {size}: at a_1, -a_1² Π_(l≠1) (a_l - a_1)", found.subs(lam, w[0]), value
            ),
        ]
    return Proof(
        sizes="n = 2 to 5 (determinants are expanded)",
        steps=tuple(steps),
        mutations={
            "no update": polynomials("Π (a_k - λ)", found, every),
            "the other sign": polynomials("at a_1: a_1² Π", found.subs(lam, w[0]), -value),
        },
    )


def one_between_neighbours(build: Any) -> str:
    """The sign of det(J - a_(k)) is (-1)^k at the k-th smallest of n distinct weights."""
    for size in range(2, 7):
        w = matrix([Fraction(2 * k + 1) for k in range(size)]) / Fraction(size**2)
        j_matrix = build(w)
        require(determinant(j_matrix) == 0, f"n = {size}: 0 is no eigenvalue")
        for k, weight in enumerate(w):
            value = determinant(j_matrix - weight * identity_matrix(size))
            sign = -1 if k % 2 == 0 else 1
            require(value * sign > 0, f"n = {size}: no change of sign at weight {k}")
    return "n = 2..6 distinct weights: one eigenvalue between neighbours, and 0, exactly"


def tied_weights() -> str:
    """Weights that agree pin an eigenvalue between them: not strictly between."""
    w = matrix(["1/4", "1/4", "1/2"])
    value = determinant(jacobian_of(w) - w[0] * identity_matrix(3))
    require(value == 0, f"det = {value}")
    return "a = (1/4, 1/4, 1/2): 1/4 is an eigenvalue itself"


STATEMENTS = (
    Statement(
        id="ext.half",
        where="Popoviciu 1935 and Riesz-Thorin; folklore for softmax; beside chapter 11, "
        "Proposition 5",
        says="Softmax stretches no vector to more than half its length, in any p-norm; two equal "
        "weights reach it.",
        formula=r"\|J\|_{p \to p} \le \tfrac12, \quad 1 \le p \le \infty",
        verdict="true",
        proof=absolute_row_sums,
        check=Check(
            run=largest_stretch,
            subject=Fraction(1, 2),
            mutations={"0.45": Fraction(9, 20), "1, which is not reached": Fraction(1)},
        ),
    ),
    Statement(
        id="ext.interlace",
        where="Golub 1973 (rank-one update); beside chapter 11, Proposition 5",
        says="J has the eigenvalue 0, and one between each two neighbouring weights.",
        formula=r"0 = \lambda_1 \le a_{(1)} \le \lambda_2 \le a_{(2)} \le \dots \le \lambda_n "
        r"\le a_{(n)}",
        verdict="conditional",
        hypotheses={"distinct weights, to be strictly between": tied_weights},
        proof=characteristic_polynomial,
        check=Check(
            run=one_between_neighbours,
            subject=jacobian_of,
            mutations={
                "the update added": lambda w: np.diag(w) + np.outer(w, w),
                "no update": np.diag,
            },
        ),
    ),
)
