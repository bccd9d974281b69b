"""What the statements' models stand on: exact linear algebra, masks, and sympy's decisions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import sympy as sp

from attnspec.spec.evidence import binary, linear
from attnspec.spec.evidence.exact import matrix, rational
from attnspec.spec.evidence.expressions import matrices, polynomials, scalars


@pytest.mark.parametrize("seed", range(5))
def test_rank_and_determinant_are_those_of_sympy(seed: int) -> None:
    square = rational((4, 4), seed=seed)
    if seed % 2:
        square[3] = square[0] - 2 * square[1]
    theirs = sp.Matrix(4, 4, [sp.Rational(x.numerator, x.denominator) for x in square.ravel()])
    assert linear.rank(square) == theirs.rank()
    found = linear.determinant(square)
    assert sp.Rational(found.numerator, found.denominator) == theirs.det()


def test_a_zero_pivot_changes_the_sign_of_the_determinant() -> None:
    assert linear.determinant([[0, 1], [1, 0]]) == -1


def test_a_null_vector_is_mapped_to_zero_and_there_is_none_at_full_rank() -> None:
    wide = rational((3, 5), seed=1)
    x = linear.null_vector(wide)
    assert x is not None
    assert any(x != 0)
    assert all(wide @ x == 0)
    assert linear.null_vector(linear.identity_matrix(3)) is None


def test_powers_and_empty_products() -> None:
    turn = matrix([[0, -1], [1, 0]])
    assert (linear.powers(turn, 4) == linear.identity_matrix(2)).all()
    assert (linear.powers(turn, 0) == linear.identity_matrix(2)).all()
    assert linear.product([]) == 1


def test_nan_equals_nothing_and_spoils_what_reads_it() -> None:
    q, k, v = matrix([[1]]), matrix([[1], [2]]), matrix([[1], [3]])
    poisoned = v.astype(object)
    poisoned[1, 0] = float("nan")
    assert not binary.same(poisoned, poisoned)
    assert not binary.same(binary.attention(q, k, poisoned), binary.attention(q, k, v))
    assert not binary.same([1, 2], [[1, 2]])


def test_weights_are_powers_of_two_over_their_sum() -> None:
    out = binary.attention(matrix([[1]]), matrix([[0], [1], [-1]]), matrix([[1], [0], [0]]))
    assert out[0, 0] == Fraction(2, 7)  # 1 / (1 + 2 + 1/2)


def test_the_last_query_stands_at_the_last_key() -> None:
    assert binary.causal(2, 4).tolist() == [[True, True, True, False], [True] * 4]
    hidden = binary.masked(matrix([[1, 2]]), np.array([[True, False]]))
    assert hidden.tolist() == [[1, 0]]


def test_steps_tell_equal_from_unequal() -> None:
    x = sp.Symbol("x", positive=True)
    assert scalars("", sp.exp(sp.log(x)), x).holds()
    assert not scalars("", sp.exp(x), x).holds()
    assert polynomials("", (x + 1) ** 2, x**2 + 2 * x + 1).holds()
    assert not polynomials("", (x + 1) ** 2, x**2 + 1).holds()
    A, B = sp.MatrixSymbol("A", 2, 3), sp.MatrixSymbol("B", 3, 2)
    assert matrices("", (A * B).T, B.T * A.T).holds()
    assert not matrices("", (A * B).T, A * B).holds()
