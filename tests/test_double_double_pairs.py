"""Pairs against exact rationals, on operands that meet, cancel and lean on every rounding."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest

from attnspec.oracle.double_double import blocks, pairs
from attnspec.oracle.double_double.pairs import ERROR, Pair
from attnspec.oracle.double_double.scratch import Scratch

U = 2.0**-53
COUNT = 200


def numbers(rng: np.random.Generator, count: int = COUNT) -> Any:
    """Full mantissas, few bits, powers of two and their neighbours, over forty octaves."""
    full = rng.uniform(1, 2, count)
    few = rng.integers(1, 2**20, count) * 2.0**-19
    near = rng.choice([1 - U, 1.0, 1 + 2 * U], count)
    kind = rng.integers(0, 3, count)
    return rng.choice([-1.0, 1.0], count) * np.ldexp(
        np.choose(kind, [full, few, near]), rng.integers(-20, 20, count)
    )


def drawn(rng: np.random.Generator, high: Any = None) -> Pair:
    """Pairs with low parts from 0 to the most that high allows."""
    high = numbers(rng) if high is None else high
    half = np.abs(np.spacing(high)) / 2 * (np.abs(np.frexp(high)[0]) != 0.5) * (1 - 2 * U)
    low = half * rng.choice([-1.0, 0.0, 1.0, 2.0**-30, 0.3], high.shape)
    assert np.all(high + low == high)
    return Pair(high, low)


def opposite(rng: np.random.Generator, x: Pair) -> Pair:
    """Pairs that nearly cancel x: neighbours of -x in each part."""
    high = -x.high * (1 + 2 * U * rng.integers(-2, 3, x.high.shape))
    return drawn(rng, high)


def exact(x: Pair) -> list[Fraction]:
    flat = zip(np.ravel(x.high).tolist(), np.ravel(x.low).tolist(), strict=True)
    return [Fraction(high) + Fraction(low) for high, low in flat]


def worst(found: Pair, wanted: list[Fraction], per: list[Fraction] | None = None) -> float:
    """The largest error, relative to the exact result (or to `per`)."""
    scale = wanted if per is None else per
    errors = [abs(f - w) for f, w in zip(exact(found), wanted, strict=True)]
    assert all(e == 0 for e, s in zip(errors, scale, strict=True) if s == 0)
    return max(float(e / abs(s)) for e, s in zip(errors, scale, strict=True) if s)


def in_place(operation: Callable[..., None]) -> Callable[[Pair, Pair], Pair]:
    def apply(x: Pair, y: Pair) -> Pair:
        result = Pair(x.high.copy(), x.low.copy())
        operation(result, y, work=Scratch())
        return result

    return apply


def check_normal(x: Pair) -> None:
    assert np.all(np.abs(x.low) <= U * np.abs(x.high))


def test_sums_and_products_of_numbers_are_exact() -> None:
    rng = np.random.default_rng(0)
    a, b = numbers(rng), numbers(rng)
    for other in (b, opposite(rng, Pair.of(a)).high):
        x, y = (list(map(Fraction, z.tolist())) for z in (a, other))
        assert exact(pairs.two_sum(a, other)) == [i + j for i, j in zip(x, y, strict=True)]
        assert exact(pairs.two_product(a, other)) == [i * j for i, j in zip(x, y, strict=True)]
        larger = np.where(np.abs(a) >= np.abs(other), a, other)
        smaller = a + other - larger
        wanted = [Fraction(i) + Fraction(j) for i, j in zip(larger, smaller, strict=True)]
        assert exact(pairs.fast_two_sum(larger, smaller)) == wanted


@pytest.mark.parametrize("operation", [pairs.add, in_place(blocks.add_to)], ids=["add", "add_to"])
@pytest.mark.parametrize("cancels", [False, True])
def test_a_sum(operation: Callable[[Pair, Pair], Pair], cancels: bool) -> None:
    """`add` errs relatively to the sum even where it cancels, `add_to` to what it adds."""
    rng = np.random.default_rng(1)
    x = drawn(rng)
    y = opposite(rng, x) if cancels else drawn(rng)
    terms = list(zip(exact(x), exact(y), strict=True))
    per = None if operation is pairs.add else [abs(i) + abs(j) for i, j in terms]
    found = operation(x, y)
    observed = worst(found, [i + j for i, j in terms], per)
    assert 2.0**-110 < observed <= ERROR / 4 or (cancels and observed <= ERROR / 4)
    check_normal(found)


@pytest.mark.parametrize(
    "operation", [pairs.multiply, in_place(blocks.multiply_by)], ids=["multiply", "multiply_by"]
)
def test_a_product(operation: Callable[[Pair, Pair], Pair]) -> None:
    rng = np.random.default_rng(2)
    x, y = drawn(rng), drawn(rng)
    found = operation(x, y)
    wanted = [i * j for i, j in zip(exact(x), exact(y), strict=True)]
    assert ERROR / 2**10 < worst(found, wanted) <= ERROR / 4
    check_normal(found)


def test_a_product_with_a_number_and_a_quotient() -> None:
    rng = np.random.default_rng(3)
    x, y = drawn(rng), drawn(rng)
    found = pairs.times(x, y.high)
    wanted = [i * Fraction(j) for i, j in zip(exact(x), y.high.tolist(), strict=True)]
    assert ERROR / 2**10 < worst(found, wanted) <= ERROR / 4
    check_normal(found)
    found = pairs.divide(x, y)
    wanted = [i / j for i, j in zip(exact(x), exact(y), strict=True)]
    assert ERROR / 2**10 < worst(found, wanted) <= ERROR / 4
    check_normal(found)


@pytest.mark.parametrize("exponent", [-520, -537, -1000])
def test_underflow_adds_less_than_it_says(exponent: int) -> None:
    rng = np.random.default_rng(4)
    x, y = drawn(rng), drawn(rng)
    small = pairs.scaled(x, np.asarray(exponent))
    other = pairs.scaled(y, np.asarray(exponent + 10))
    tiny = Fraction(2) ** -1070

    def check(found: Pair, wanted: list[Fraction], lost: Fraction = tiny) -> None:
        for f, w in zip(exact(found), wanted, strict=True):
            assert abs(f - w) <= Fraction(ERROR) * abs(w) + lost

    e, f = exact(small), exact(other)
    check(pairs.multiply(small, other), [i * j for i, j in zip(e, f, strict=True)])
    number = other.high
    check(pairs.times(small, number), [i * Fraction(j) for i, j in zip(e, number, strict=True)])
    lost = tiny / Fraction(np.abs(y.high).min())
    check(pairs.divide(small, y), [i / j for i, j in zip(e, exact(y), strict=True)], lost)


@pytest.mark.parametrize("exponent", [-1000, -999, 0, 999, 1000, 1001, -1010])
def test_scaling_is_exact(exponent: int) -> None:
    x = drawn(np.random.default_rng(5))
    x = pairs.scaled(x, np.asarray(-exponent // 2))
    found = pairs.scaled(x, np.asarray(exponent))
    assert exact(found) == [i * Fraction(2) ** exponent for i in exact(x)]


def test_scaling_by_many_powers_of_two() -> None:
    x = np.array([1.5, -3.0, 2.0**-1070, 5e-324, 1e300])
    exponent = np.array([1023, -1080, 2000, 1074, -2100], np.int64)
    found = pairs.scale(x, exponent)
    assert found.tolist() == [1.5 * 2.0**1023, np.ldexp(-3.0, -1080), 2.0**930, 1.0, 0.0]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 64, 129])
def test_sums_along_an_axis(count: int) -> None:
    rng = np.random.default_rng(6)
    high = numbers(rng, 4 * count).reshape(2, count, 2)
    x = drawn(rng, high)
    found = pairs.sum_pairs(x, axis=1)
    assert found.high.shape == (2, 2)
    terms = np.array(exact(x), dtype=object).reshape(2, count, 2)
    wanted = np.ravel(terms.sum(1)).tolist()
    most = np.ravel(np.abs(terms).sum(1)).tolist()
    for f, w, m in zip(exact(found), wanted, most, strict=True):
        assert abs(f - w) <= max(0, count - 1) * Fraction(ERROR) * m / 4


@pytest.mark.parametrize("bits", [15, 53, 300])
def test_constants_do_not_depend_on_the_precision_of_mpmath(bits: int) -> None:
    with mpmath.workprec(300):
        number = mpmath.pi * 2**20
    with mpmath.workprec(bits):
        found = Pair.constant(number)
    with mpmath.workprec(400):
        error = abs(number - mpmath.mpf(float(found.high)) - mpmath.mpf(float(found.low)))
        assert 0 < error <= number * mpmath.mpf(2) ** -106
