"""exp, log and tanh of pairs against mpmath, where their error budgets are fullest."""

from __future__ import annotations

import importlib.util
from typing import Any

import mpmath
import numpy as np
import pytest

from attnspec.oracle.double_double import exponential as module
from attnspec.oracle.double_double.exponential import (
    DEAD,
    EXP_ERROR,
    LARGEST,
    LOG_ERROR,
    NATURAL,
    TANH_ERROR,
    TICKS,
    exponential,
    logarithm,
    tanh,
)
from attnspec.oracle.double_double.pairs import Pair
from attnspec.oracle.double_double.scratch import Scratch

BITS = 400


@pytest.fixture(autouse=True)
def _precision() -> Any:
    with mpmath.workprec(BITS):
        yield


def exact(x: Pair, index: int) -> Any:
    return mpmath.mpf(float(x.high[index])) + mpmath.mpf(float(x.low[index]))


def exp_errors(ticks: Pair, below: Any) -> list[Any]:
    found = Pair(ticks.high.copy(), ticks.low.copy())
    exponential(found, np.asarray(below, np.int64), work=Scratch())
    errors = []
    for i in range(ticks.high.size):
        wanted = mpmath.mpf(2) ** ((exact(ticks, i) - int(below[i])) / TICKS)
        errors.append(float(abs(exact(found, i) / wanted - 1)))
    return errors


def halves(rng: np.random.Generator, count: int) -> Any:
    """Fractions of a tick at the ends of every rounding in `exponential`: halves, multiples of
    2^-14 and the middles between them, and anything."""
    grid = rng.integers(-(2**13), 2**13 + 1, count) * 2.0**-14
    middle = grid + rng.choice([-1, 1], count) * (2.0**-15 - 2.0**-50)
    ends = rng.choice([-0.5, 0.5, 0.4999999], count)
    kind = rng.integers(0, 4, count)
    return np.choose(kind, [grid, np.clip(middle, -0.5, 0.5), ends, rng.uniform(-0.5, 0.5, count)])


def test_exponentials_of_any_table_entry_and_fraction() -> None:
    rng = np.random.default_rng(0)
    count = 3000
    whole = rng.integers(-(2**20), 2**20, count)
    high = whole + halves(rng, count)
    low = rng.choice([-1.0, 0.0, 1.0], count) * np.spacing(np.abs(high)) / 2 * (1 - 2.0**-50)
    below = whole + rng.integers(0, 800 * TICKS, count)
    errors = exp_errors(Pair(high, low), below)
    assert EXP_ERROR / 2**3 < max(errors) <= EXP_ERROR


@pytest.mark.parametrize("sign", [-1, 1])
def test_exponentials_of_the_largest_scores_with_the_largest_low_parts(sign: int) -> None:
    rng = np.random.default_rng(1)
    count = 1500
    high = sign * (LARGEST - rng.integers(0, 900 * TICKS, count) - np.abs(halves(rng, count)))
    low = rng.choice([-1.0, 1.0], count) * LARGEST * 2.0**-53
    below = np.ceil(high).astype(np.int64) + rng.integers(0, 899 * TICKS, count)
    errors = exp_errors(Pair(high, low), below)
    assert EXP_ERROR / 2**3 < max(errors) <= EXP_ERROR


def test_the_first_and_last_exponentials() -> None:
    steps = np.arange(-6, 7)
    high = np.concatenate([np.zeros(13), steps, steps - 899.5 * TICKS, [-900.0 * TICKS]])
    low = np.zeros_like(high)
    assert max(exp_errors(Pair(high, low), np.zeros(high.size, np.int64) + 6)) <= EXP_ERROR
    ticks = Pair(np.array([5.0]), np.array([0.0]))
    exponential(ticks, np.array([5]), work=Scratch())
    assert (ticks.high, ticks.low) == (1, 0)
    assert DEAD == 2.0 ** (-900)


def test_nan_stays_nan() -> None:
    ticks = Pair(np.array([np.nan, np.inf]), np.zeros(2))
    with np.errstate(all="ignore"):
        exponential(ticks, np.zeros(2, np.int64), work=Scratch())
    assert np.all(np.isnan(ticks.high))


def test_the_table_is_of_26_bits_and_what_is_left() -> None:
    for j in (0, 1, 77, 2048, 4095):
        high, low = float(module._TABLE_HIGH[j]), float(module._TABLE_LOW[j])
        assert high * 2**25 == int(high * 2**25)
        assert abs(low) <= 2.0**-26
        error = abs(mpmath.mpf(2) ** (mpmath.mpf(j) / TICKS) - high - low)
        assert error <= 2.0**-80
    assert module._TICK_HIGH * 2**26 == int(module._TICK_HIGH * 2**26) < 2**14
    assert abs(module._TICK_LOW) <= 2.0**-27
    assert abs(mpmath.log(2) / TICKS - module._TICK_HIGH - module._TICK_LOW) <= 2.0**-80


def test_the_tables_do_not_depend_on_the_precision_of_mpmath() -> None:
    spec = importlib.util.spec_from_file_location("again", module.__file__)
    assert spec is not None
    assert spec.loader is not None
    again = importlib.util.module_from_spec(spec)
    with mpmath.workprec(20):
        spec.loader.exec_module(again)
    assert np.array_equal(again._TABLE_HIGH, module._TABLE_HIGH)
    assert np.array_equal(again._TABLE_LOW, module._TABLE_LOW)
    assert (again.NATURAL, again._TICK_LOW) == (NATURAL, module._TICK_LOW)


def log_errors(x: Pair) -> list[float]:
    with np.errstate(all="ignore"):
        count, rest = logarithm(x)
    assert np.all(np.abs(rest.high) <= float(NATURAL.high))
    natural = mpmath.log(2) / TICKS
    wanted = [mpmath.log(exact(x, i)) - natural * int(count[i]) for i in range(count.size)]
    return [float(abs(exact(rest, i) - wanted[i])) for i in range(count.size)]


def arguments(rng: np.random.Generator, count: int = 600) -> Pair:
    """From the least to the largest, near 1, and near the middle between two ticks."""
    far = np.ldexp(rng.uniform(1, 2, count), rng.integers(-1000, 999, count))
    sums = np.ldexp(rng.uniform(1, 2, count), rng.integers(-1, 30, count))
    near = 1 + rng.choice([-1, 1], count) * 2.0 ** rng.uniform(-52, 0, count) / 2
    ties = 2.0 ** ((rng.integers(0, 30 * TICKS, count) + 0.5) / TICKS)
    high = np.concatenate([far, sums, near, ties])
    low = high * 2.0**-53 * rng.uniform(-0.5, 0.5, high.shape)
    return Pair(high, low)


def test_logarithms() -> None:
    errors = log_errors(arguments(np.random.default_rng(2)))
    assert LOG_ERROR / 2**6 < max(errors) <= LOG_ERROR  # which allows for a worse log2, see below


@pytest.mark.parametrize("off", [-(2.0**-13), 2.0**-13])
def test_logarithms_correct_what_numpy_gets_wrong(
    monkeypatch: pytest.MonkeyPatch, off: float
) -> None:
    """As far as assumed: then z lies almost 2^-12.4 from 1, and the series has most to do."""
    exact_log = np.log2
    monkeypatch.setattr(np, "log2", lambda x: exact_log(x) + off)
    x = arguments(np.random.default_rng(3), 150)
    with np.errstate(all="ignore"):
        count, rest = logarithm(x)
    natural = mpmath.log(2) / TICKS
    wanted = [mpmath.log(exact(x, i)) - natural * int(count[i]) for i in range(count.size)]
    errors = [float(abs(exact(rest, i) - w)) for i, w in enumerate(wanted)]
    assert LOG_ERROR / 2**5 < max(errors) <= LOG_ERROR


@pytest.mark.parametrize("sign", [-1, 1])
def test_logarithms_and_tanh_allow_for_all_that_exp_claims(
    monkeypatch: pytest.MonkeyPatch, sign: int
) -> None:
    def worse(ticks: Pair, below: Any, *, work: Scratch) -> None:
        exponential(ticks, below, work=work)
        np.add(ticks.low, sign * EXP_ERROR * ticks.high, out=ticks.low)

    monkeypatch.setattr(module, "exponential", worse)
    x, z = arguments(np.random.default_rng(5), 150), cap_arguments(np.random.default_rng(6))
    assert LOG_ERROR / 2.5 < max(log_errors(x)) <= LOG_ERROR
    around, relative = tanh_errors(z)
    assert TANH_ERROR / 5 < max(around) <= TANH_ERROR
    assert TANH_ERROR / 2.5 < max(relative) <= TANH_ERROR


def cap_arguments(rng: np.random.Generator) -> Pair:
    sizes = np.concatenate([rng.uniform(-80, 5, 300), rng.uniform(-6, 3, 300)])
    high = rng.choice([-1.0, 1.0], 600) * 2.0**sizes
    extremes = [0.0, 2.0**-1000, 5e-324, 37.4, 44.0, 299.9, 300.0, -300.0, 0.5493, -18.4]
    high = np.concatenate([high, extremes])
    low = np.abs(high) * 2.0**-53 * rng.uniform(-1, 1, high.shape)
    return Pair(high, low)


def tanh_errors(z: Pair) -> tuple[list[float], list[float]]:
    """Of tanh absolutely, of its derivative relatively."""
    value, slope = tanh(z, work=Scratch())
    around, relative = [], []
    for i in range(z.high.size):
        wanted = mpmath.tanh(exact(z, i))
        around.append(float(abs(exact(value, i) - wanted)))
        derivative = mpmath.sech(exact(z, i)) ** 2
        relative.append(float(abs(exact(slope, i) / derivative - 1)))
    return around, relative


def test_tanh_and_its_derivative() -> None:
    around, relative = tanh_errors(cap_arguments(np.random.default_rng(4)))
    # Of E's relative error, of which exp claims twice, tanh has at most half absolutely.
    assert TANH_ERROR / 2**6 < max(around) <= TANH_ERROR
    assert TANH_ERROR / 2**5 < max(relative) <= TANH_ERROR


@pytest.mark.parametrize("z", [300.1, 345.0, 1e4, 1e20, 2.0**200, -301.0, -(2.0**200)])
def test_tanh_far_out(z: float) -> None:
    value, slope = tanh(Pair(np.array([z]), np.array([z * 2.0**-54])), work=Scratch())
    assert abs(abs(exact(value, 0)) - 1) <= 2.0**-105
    assert np.sign(value.high) == np.sign(z)
    assert 0 <= slope.high <= 2.0**-863
