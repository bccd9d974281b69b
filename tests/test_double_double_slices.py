"""Sliced products: exact where the proof says so, within their bound in the worst arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from attnspec.oracle.double_double import slices
from attnspec.oracle.double_double.pairs import Pair
from attnspec.oracle.double_double.scratch import Scratch
from attnspec.oracle.double_double.slices import (
    Narrow,
    Wide,
    narrow,
    product,
    product_error,
    unit_of,
    wide,
)

U = 2.0**-53
TERMS = (1, 2, 3, 5, 64, 256, 257, 1000, 4096, 2**15)
ROWS, COLUMNS = 2, 3


def low_of(x: Any, rng: np.random.Generator) -> Any:
    """The largest low parts, of either sign."""
    return np.abs(x) * U * rng.choice([-1.0, 1.0], x.shape) / 2


def sliced(x: Pair) -> tuple[Narrow, Any]:
    size = np.abs(x.high).sum(-1, keepdims=True)
    into = list(np.empty((4, *x.high.shape)))
    unit = unit_of(size * (1 + 2.0**-40))
    return narrow(x, unit, terms=x.high.shape[-1], into=into), size


def ends(rng: np.random.Generator, terms: int, *, second: bool) -> Any:
    """Rows of one sign that fill their unit 1, each number just short of the middle between two
    multiples of a (with `second`), or just beyond it."""
    a = 2.0**-21
    whole = np.floor(2.0**21 / terms) - 1
    x = (np.full((ROWS, terms), max(whole, 0)) + 0.5) * a
    x *= (1 - 2.0**-30) if second else (1 + 2.0**-30)
    x[1] *= rng.choice([-1.0, 1.0], terms)
    return x


def integers(x: Any, unit: Any) -> Any:
    """x as whole numbers of a power of two each: Python's, of any size."""
    quotient = x / unit
    assert np.all(quotient == np.rint(quotient))
    return np.array([[int(i) for i in row] for row in quotient], dtype=object)


def exact_product(a: Any, b: Any, grid: Any) -> Any:
    """A B1 with Python's integers, as float64; fails where that would round."""
    whole = integers(a, grid) @ integers(b, 2.0**-31)
    assert np.max(np.abs(whole)) <= 2**53
    return whole.astype(np.float64) * (grid * 2.0**-31)


@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("second", [False, True])
def test_the_first_products_are_exact(terms: int, second: bool) -> None:
    rng = np.random.default_rng(terms)
    x = ends(rng, terms, second=second)
    a, _ = sliced(Pair(x, low_of(x, rng)))
    b = rng.choice([1 - U, 1.0, 1 - 2.0**-31, 1 - 2.0**-32], (terms, COLUMNS))
    b[:, 1:] *= np.sign(x[:1].T)
    first = wide(b, low_of(b, rng)).first
    grid = a.unit * 2.0**-21
    finer = grid * 2.0 ** (np.ceil(np.log2(terms)) - 22)
    for part, unit in ((a.first, grid), (a.second, finer)):
        wanted = np.concatenate(
            [exact_product(part[i : i + 1], first, float(unit[i, 0])) for i in range(ROWS)]
        )
        assert np.array_equal(part @ first, wanted)


@pytest.mark.parametrize("terms", [3, 256, 1000])
def test_two_bits_more_than_the_budget_are_noticed(
    monkeypatch: pytest.MonkeyPatch, terms: int
) -> None:
    """What the test above would see if slices were too wide."""
    monkeypatch.setattr(slices, "FIRST", slices.FIRST + 2)
    rng = np.random.default_rng(terms)
    x = np.abs(rng.standard_normal((ROWS, terms)))
    a, _ = sliced(Pair.of(x))
    b = 1 - rng.random((terms, COLUMNS)) * 2.0**-8
    first = wide(b).first
    grid = a.unit * 2.0**-23
    with pytest.raises(AssertionError):
        exact_product(a.first[:1], first, float(grid[0, 0]))


@pytest.mark.parametrize("terms", TERMS)
def test_slices_add_up(terms: int) -> None:
    rng = np.random.default_rng(terms)
    for x in (
        ends(rng, terms, second=True),
        rng.standard_normal((ROWS, terms)) * 2.0 ** rng.integers(-80, 1, (ROWS, terms)),
        rng.standard_normal((ROWS, terms)) * 2.0**150,
        np.zeros((ROWS, terms)),
    ):
        low = low_of(x, rng)
        a, _ = sliced(Pair(x, low))
        assert np.array_equal(a.front, a.first + a.second)
        assert np.all(np.abs(a.rest) <= a.loss)
        assert np.all(a.loss <= a.unit * 2.0**-20)
        left = (x - a.first) - a.second  # exact, so that only the low part rounds
        assert np.array_equal(a.rest, left + low)
        if np.any(x):
            assert np.all(a.unit >= np.abs(x).sum(-1, keepdims=True))
            assert np.all(a.unit <= 2.1 * np.abs(x).sum(-1, keepdims=True))


def test_a_low_part_beside_the_largest_rest() -> None:
    middle = 2.0**-21 * 2.0**-22 / 2  # between two multiples of a', for one term and a unit of 1
    x = np.array([[0.75 + middle]])
    for sign in (-1, 1):
        a, _ = sliced(Pair(x, sign * x * U / 2))
        assert a.unit == 1
        assert np.abs(a.rest) <= a.loss
        assert sign * a.rest < 0 or np.abs(a.rest) > middle


def test_the_wide_operand() -> None:
    rng = np.random.default_rng(0)
    b = rng.uniform(-1, 1, (40, 7)) * 2.0 ** rng.integers(-60, 1, (40, 7))
    b[0] = [1.0, -1.0, 2.0**-32, 3 * 2.0**-32, 1 - U, 2.0**-1060, 0.0]
    exact = wide(b)
    assert exact.rest is not None
    assert np.array_equal(exact.first * 2.0**31, np.rint(exact.first * 2.0**31))
    assert np.all(np.abs(exact.rest) <= 2.0**-32)
    assert np.array_equal(exact.first + exact.rest, b)
    low = low_of(b, rng)
    both = wide(b, low).rest
    assert both is not None
    assert np.array_equal(both, exact.rest + low)
    assert wide(np.rint(b * 2.0**31) * 2.0**-31).rest is None
    late = np.zeros((40, 7))
    late[-1, -1] = 2.0**-40
    assert wide(late).rest is not None


def test_units() -> None:
    x = np.array([0.0, 1.0, 1 - U, 1 + 2 * U, 3.0, 2.0**-1074, 2.0**200])
    assert unit_of(x).tolist() == [0.0, 2.0, 1.0, 2.0, 4.0, 2.0**-1073, 2.0**201]


# -- the bound ---------------------------------------------------------------------------------


def operands(kind: str, terms: int, rng: np.random.Generator) -> tuple[Pair, Any, Any]:
    """A, and B with its low part; `kind` says which term of the bound they make the largest."""
    x = rng.uniform(0.5, 1, (ROWS, terms)) * rng.choice([-1.0, 1.0], (ROWS, terms))
    b = rng.uniform(0.5, 1, (terms, COLUMNS)) * rng.choice([-1.0, 1.0], (terms, COLUMNS))
    if kind == "short B":  # no B2
        b = np.rint(b * 2.0**31) * 2.0**-31
        return Pair(x, low_of(x, rng)), b, np.zeros_like(b)
    if kind == "small B":  # B2 as large as it can be, and B as small
        b = (b + np.sign(b)) * 2.0**-31 * 0.75
    if kind == "cancelling":
        x[:, terms // 2 :] = -x[:, : terms - terms // 2]
        b[terms // 2 :] = b[: terms - terms // 2]
    return Pair(x, low_of(x, rng)), b, low_of(b, rng)


def used(x: Pair, b: Any, low: Any) -> float:
    """The error of a product, as a part of its bound."""
    a, size = sliced(x)
    right = wide(b, low)
    out = Pair(*np.empty((2, ROWS, COLUMNS)))
    product(a, right, work=Scratch(), out=out)
    column = np.abs(b).sum(0, keepdims=True)
    bound = product_error(a, right, size, column)
    worst = 0.0
    for i in range(ROWS):
        row = [Fraction(h) + Fraction(w) for h, w in zip(x.high[i], x.low[i], strict=True)]
        for j in range(COLUMNS):
            other = [Fraction(h) + Fraction(w) for h, w in zip(b[:, j], low[:, j], strict=True)]
            exact = sum(p * q for p, q in zip(row, other, strict=True))
            error = abs(Fraction(out.high[i, j]) + Fraction(out.low[i, j]) - exact)
            worst = max(worst, float(error / Fraction(bound[i, j])))
    return worst


KINDS = ("short B", "small B", "full", "cancelling")


@pytest.mark.parametrize("terms", [1, 2, 7, 64, 256])
@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_holds(kind: str, terms: int) -> None:
    for seed in range(3):
        assert used(*operands(kind, terms, np.random.default_rng(seed))) <= 1


@pytest.mark.parametrize("terms", [64, 256])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sign", [-1, 1])
def test_the_bound_holds_and_is_needed_in_the_worst_arithmetic(
    monkeypatch: pytest.MonkeyPatch, kind: str, terms: int, sign: int
) -> None:
    """Each rounding of the bracket in the same direction: gamma_k of the products' magnitudes."""
    plain: Callable[..., None] = slices._multiply
    calls = 0

    def worst(a: Any, b: Any, *, out: Any) -> None:
        nonlocal calls
        plain(a, b, out=out)
        calls += 1
        if calls > 2:
            out += sign * terms * U * (np.abs(a) @ np.abs(b))

    x, b, low = operands(kind, terms, np.random.default_rng(9))
    monkeypatch.setattr(slices, "_multiply", worst)
    share = used(x, b, low)
    assert calls == (3 if kind == "short B" else 4)
    assert 0.1 < share <= 1


def test_long_sums_of_many_middles() -> None:
    """Σ|A1 + A2| may exceed Σ|A|, so that more than k + 8 roundings of the bracket count."""
    terms = 2**16
    x = ends(np.random.default_rng(0), terms, second=True)
    a, size = sliced(Pair.of(x))
    right = Wide(*np.ones((4, terms, 1)))
    gamma = product_error(a, right, size, np.zeros((1, 1))) / size * 2.0**32
    assert np.all(gamma > (terms + 8 + 64) * U)
