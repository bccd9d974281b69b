"""The double-double tier on numbers at the ends of its proof, against balls of 240 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attnspec.oracle import Problem, Reference
from attnspec.oracle.double_double.exponential import LARGEST, TICKS

Check = Callable[[Problem], Reference]
LARGEST_FLOAT = float(np.finfo(np.float64).max)
OCTAVE = float(np.log(2.0))


def known(reference: Reference, *names: str) -> bool:
    return all(np.all(np.isfinite(reference[n].bound)) for n in names or reference.outputs)


def one(q: Any, k: Any, v: Any, **options: Any) -> Problem:
    """A problem of one head, with all cotangents 1."""
    q, k, v = (np.asarray(x, np.float64)[None, None] for x in (q, k, v))
    dout = np.ones((*q.shape[:3], v.shape[3]))
    return Problem(**{"q": q, "k": k, "v": v, "scale": 1.0, "dout": dout} | options)


def dense(seed: int, *, rows: int = 4, keys: int = 6, **options: Any) -> Problem:
    rng = np.random.default_rng(seed)
    shapes = {"q": (2, rows, 5), "k": (1, keys, 5), "v": (1, keys, 3), "dout": (2, rows, 3)}
    arrays: dict[str, Any] = {n: rng.standard_normal((1, *s)) for n, s in shapes.items()}
    arrays["dlse"] = rng.standard_normal((1, 2, rows))
    return Problem(**{"scale": 0.5} | arrays | options)


def keys_bias(*numbers: float) -> Any:
    return np.array(numbers)[None, None, None]


# -- added terms -------------------------------------------------------------------------------


@pytest.mark.parametrize("slope", [1e3, 1.23456789e10, 1e13])
def test_a_bias_that_cancels_alibi(check: Check, slope: float) -> None:
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((1, 2)), rng.standard_normal((4, 2)), rng.standard_normal((4, 3))
    bias = keys_bias(*(slope * np.arange(3, -1, -1)))
    check(one(q, k, v, alibi=np.array([slope]), bias=bias))


@pytest.mark.parametrize("far", [2.0**70, 2.0**85, 2.0**125, 2.0**300])
def test_far_terms_that_cancel_in_part(check: Check, far: float) -> None:
    """The first key is out of reach, though its terms would cancel if both were cut alike."""
    for bias in (keys_bias(-1.5 * far, 0.0, -far - 1), keys_bias(-far, -far, -0.5 * far)):
        for alibi in (-far, far, -2 * far):
            p = one([[1.0]], np.zeros((3, 1)), [[1.0], [2.0], [4.0]], bias=bias, diagonal=1)
            check(p.replace(alibi=np.array([alibi])))


@pytest.mark.parametrize("far", [2.0**75, 2.0**80, 2.0**119, 2.0**121, 2.0**180])
def test_a_far_term_beside_a_far_product(check: Check, far: float) -> None:
    for bias in (-(2.0**15) * far, -far, -far * (1 - 2.0**-40), -0.5 * far):
        check(one([[far]], [[1.0], [0.0]], [[1.0], [2.0]], bias=keys_bias(bias, 0.0)))
        p = one([[far]], [[1.0], [0.0]], [[1.0], [2.0]], bias=keys_bias(bias, 0.0))
        check(p.replace(softcap=far))


def test_a_mask_of_large_negative_biases_costs_nothing(check: Check) -> None:
    p = dense(1)
    bias = np.where(np.arange(6) % 2, 0.0, [[-1e9], [-1e30], [-LARGEST_FLOAT], [-1e300]])
    fast, plain = check(p.replace(bias=bias)), check(p)
    assert np.all(fast["out"].bound <= 4 * plain["out"].bound.max())


def test_distances_that_float64_does_not_hold(check: Check) -> None:
    p = one([[1.0]], [[0.1], [0.2]], [[1.0], [2.0]], alibi=np.array([2.0**-50]), diagonal=2**60 + 1)
    check(p)
    assert known(check(p.replace(diagonal=2**53)))


# -- the soft-cap ------------------------------------------------------------------------------


def test_a_slope_of_unknown_scores_is_not_known(check: Check) -> None:
    """q k is 0 of products of 2^130, and what they lose more than saturates the cap."""
    unknown = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        n, m = (float(x) for x in rng.integers(2**52, 2**53 - 2, 2))
        a = 2.0 ** float(rng.integers(0, 40))
        q = [[n * a, (n - 1) * a, m * a, (m - 1) * a]]
        k = [[n, -(n + 1), -m, m + 1], [-n, n + 1, m, -m - 1], [n, -(n + 1), -m, m + 1]]
        cap = 2.0**-100
        fast = check(one(q, k, rng.standard_normal((3, 2)), softcap=cap, scale=cap))
        assert known(fast, "out", "lse", "dv")
        unknown += not known(fast, "dq", "dk")
    assert unknown > 0


@pytest.mark.parametrize("score", [1e-300, 1e-20, 1.0, 18.0, 40.0, 299.0, 301.0, 1e6, 1e30])
@pytest.mark.parametrize("cap", [1e-3, 1.0, 50.0, 1e4])
def test_caps_from_linear_to_saturated(check: Check, cap: float, score: float) -> None:
    p = dense(2, softcap=cap)
    fast = check(p.replace(q=p.q * score * cap))
    assert known(fast, "out", "lse") == (score < 1e30)


@pytest.mark.parametrize("cap", [5e-324, 1e-300, 1e-8, 1e12, 1e300])
def test_caps_of_any_size(check: Check, cap: float) -> None:
    check(dense(3, softcap=cap, sinks=np.array([0.5, -0.5])))


# -- scores ------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.0, 5e-324, 1e-300, -1e-5, 1e5, 1e10, 1e80, 1e300])
def test_scales_of_any_size(check: Check, scale: float) -> None:
    fast = check(dense(4, scale=scale, sinks=np.array([0.5, -0.5])))
    assert known(fast) == (abs(scale) <= 1e5)


@pytest.mark.parametrize("octaves", [855.0, 899.0, 899.9, 900.1, 901.0, 1000.0, 1100.0, 1e6])
@pytest.mark.parametrize("sink", [None, 0.0])
def test_keys_that_hardly_count(check: Check, octaves: float, sink: float | None) -> None:
    below = -octaves * OCTAVE
    k = np.array([[0.0 if sink is None else below], [below], [below - 1]])
    sinks = None if sink is None else np.array([sink])
    for v in ([[1.0], [2.0], [3.0]], [[1.0], [1e300], [-1e300]], [[0.0], [2.0], [3.0]]):
        assert known(check(one([[1.0]], k, v, sinks=sinks)))


@pytest.mark.parametrize("octaves", [855.0, 899.9, 900.1, 905.0, 1000.0])
def test_sinks_that_hardly_count(check: Check, octaves: float) -> None:
    sinks = np.array([-octaves * OCTAVE])
    p = one([[1.0]], [[0.0], [0.5]], [[1.0], [3.0]], sinks=sinks, dlse=np.ones((1, 1, 1)))
    assert known(check(p))


@pytest.mark.parametrize("sign", [-1, 1])
def test_the_largest_scores(check: Check, sign: int) -> None:
    limit = sign * LARGEST / TICKS * OCTAVE
    v = [[1.0], [2.0]]
    assert known(check(one([[1.0]], [[limit * 0.999], [limit * 0.999 - 3]], v)))
    fast = check(one([[1.0]], [[limit * 1.001], [limit * 1.001 - 3]], v))
    assert not known(fast, "out")


@pytest.mark.parametrize("sink", [-LARGEST_FLOAT, -1e6, -1e3, 1e3, 1e6, LARGEST_FLOAT])
def test_sinks_of_any_size(check: Check, sink: float) -> None:
    fast = check(dense(5, sinks=np.array([sink, 0.1])))
    assert known(fast) == (sink < 1e10)


def test_channels_of_any_spread_stay_sharp(check: Check) -> None:
    p = dense(6)
    spread = 2.0 ** np.random.default_rng(6).integers(-300, 300, 5)
    fast = check(p.replace(q=p.q * spread, k=p.k / spread))
    assert np.all(fast["out"].bound <= 2.0**-67 * np.abs(p.v).max())


# -- values and cotangents ---------------------------------------------------------------------


@pytest.mark.parametrize("exponent", [-1074, -1060, -1022, -900, 900, 1019])
def test_values_of_any_magnitude(check: Check, exponent: int) -> None:
    p = dense(7)
    fast = check(p.replace(v=np.ldexp(p.v, exponent)))
    most = np.ldexp(np.abs(p.v).max(), exponent)
    assert np.all(fast["out"].bound <= 2.0**-68 * most + 8 * 2.0**-1074)


def test_values_at_the_largest_float(check: Check) -> None:
    p = dense(8)
    check(p.replace(v=np.sign(p.v) * LARGEST_FLOAT))
    same = check(p.replace(v=np.full_like(p.v, LARGEST_FLOAT), dout=p.dout * 1e-10))
    assert np.all(same["out"].bound <= 2.0**-67 * LARGEST_FLOAT)


@pytest.mark.parametrize("exponent", [-1070, -1022, -600, 600, 1000])
@pytest.mark.parametrize("other", [-1070, -300, 0, 1000])
def test_cotangents_of_any_magnitude(check: Check, exponent: int, other: int) -> None:
    p = dense(9, sinks=np.array([0.5, -0.5]), bias=np.zeros(6))
    dout, dlse = np.ldexp(p.dout, exponent), np.ldexp(p.dlse, other)
    assert known(check(p.replace(dout=dout, dlse=dlse))) or max(exponent, other) == 1000
    spread = np.ldexp(p.dout, np.array([exponent, other, 0]))
    check(p.replace(dout=spread))
    check(p.replace(dout=np.ldexp(p.dout, np.array([exponent, other, 0, 0])[:, None])))


@pytest.mark.parametrize("names", [("dout",), ("dlse",), ("dout", "dlse")])
def test_missing_and_zero_cotangents(check: Check, names: tuple[str, ...]) -> None:
    p = dense(10, sinks=np.array([0.5, -0.5]), bias=np.zeros(6))
    assert known(check(p.replace(**{name: None for name in ("dout", "dlse") if name not in names})))
    fast = check(p.replace(**{name: np.zeros_like(getattr(p, name)) for name in names}))
    assert known(fast)
    assert len(names) == 1 or fast["dq"].bound.max() < 2.0**-800


def test_queries_and_keys_of_any_magnitude(check: Check) -> None:
    p = dense(11)
    for a, b in ((1000, -1000), (-1070, 1020), (500, -1070), (1020, -1020)):
        fast = check(p.replace(q=np.ldexp(p.q, a), k=np.ldexp(p.k, b)))
        assert known(fast, "out", "lse")
    mixed = np.ldexp(p.k, np.array([0, -1070, 3, -900, 0, 1])[:, None])
    assert known(check(p.replace(k=mixed, v=np.ldexp(p.v, np.array([900, 0, -1070])))), "out")
