"""Each lemma of the float64 engine against exact rationals, at the corners of its balls.

Radii that are large test how errors propagate; radii of 0 (or the least that the lemma allows)
test the rounding of the operation itself.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest

from attnspec.oracle import Problem, float64_softmax
from attnspec.oracle import float64_gradients as sharp
from attnspec.oracle.float64_softmax import scores, softmax
from attnspec.oracle.heads import Heads, stacked, transposed
from attnspec.oracle.running_error import (
    FLOOR,
    Ball,
    Total,
    gamma,
    operand_product,
    product,
    scaled,
)

TRIES = range(12)
TERMS = 64
RADII = [0.0, 2.0**-52, 1e-9, 0.01]
exactly = np.frompyfunc(Fraction, 1, 1)


def magnitudes(rng: np.random.Generator, *shape: int) -> Any:
    """Numbers of mixed size; now and then so small that products underflow."""
    spread = rng.choice([0, 3, 40])
    shift = rng.choice([0, 0, 0, -520, -1040])
    return rng.standard_normal(shape) * 2.0 ** (rng.integers(-spread, spread + 1, shape) + shift)


def ball(rng: np.random.Generator, radius: float, *shape: int) -> tuple[Ball, Any]:
    """A ball, and an exact point on its surface."""
    value = magnitudes(rng, *shape)
    around = np.abs(value) * radius
    return Ball(value, around), exactly(value) + exactly(around) * rng.choice([-1, 1], shape)


def operand(rng: np.random.Generator, radius: float, *shape: int) -> tuple[Ball, Any]:
    """A ball whose radius has the gamma_TERMS |value| and floor that its point makes no use of."""
    inner, point = ball(rng, radius, *shape)
    around = (inner.radius + gamma(TERMS) * np.abs(inner.value)) * (1 + 2.0**-50) + FLOOR
    return Ball(inner.value, around), point


def check(result: Ball, exact: Any) -> None:
    error = abs(exactly(result.value) - exact)
    assert np.all(error <= exactly(result.radius)), (error / exactly(result.radius)).max()


@pytest.mark.parametrize("seed", TRIES)
def test_product(seed: int) -> None:
    rng = np.random.default_rng(seed)
    k = int(rng.choice([1, 2, 7]))
    a, b = magnitudes(rng, 3, k), magnitudes(rng, k, 4)
    check(product(a, b), exactly(a) @ exactly(b))


@pytest.mark.parametrize("radius", RADII)
@pytest.mark.parametrize("seed", TRIES)
def test_operand_product(seed: int, radius: float) -> None:
    rng = np.random.default_rng(seed)
    a, point = operand(rng, radius, 3, 7)
    b = magnitudes(rng, 7, 4)
    check(operand_product(a, b), point @ exactly(b))


@pytest.mark.parametrize("radius", RADII)
@pytest.mark.parametrize("seed", TRIES)
def test_scaled(seed: int, radius: float) -> None:
    rng = np.random.default_rng(seed)
    a, point = ball(rng, radius, 9)
    scale = float(magnitudes(rng, 1)[0])
    check(scaled(a, scale), point * Fraction(scale))


@pytest.mark.parametrize("radius", RADII)
@pytest.mark.parametrize("seed", TRIES)
def test_total(seed: int, radius: float) -> None:
    rng = np.random.default_rng(seed)
    total, exact = Total((2, 5)), exactly(np.zeros(5))
    for _ in range(2):
        term, point = ball(rng, radius, 3, 5)  # three heads, and all of them at one place
        total.add((np.array([1, 1, 1]),), term)
        exact = exact + point.sum(axis=0)
    enclosure = total.enclosure((2, 5))
    check(Ball(enclosure.value[1], enclosure.bound[1]), exact)
    assert not enclosure.bound[0].any()


def check_operand(result: Ball, exact: Any, *, terms: int = TERMS) -> None:
    """The radius has room for the error and for gamma_terms |value|."""
    error = abs(exactly(result.value) - exact)
    room = exactly(result.radius) - Fraction(gamma(terms)) * abs(exactly(result.value))
    assert np.all(error <= room)
    assert np.all(result.radius >= FLOOR)


# -- scores and softmax ------------------------------------------------------------------------


def one_head(rng: np.random.Generator, *, rows: int = 3, keys: int = 4, **options: Any) -> Heads:
    problem = Problem(
        q=rng.standard_normal((1, 1, rows, 2)),
        k=rng.standard_normal((1, 1, keys, 2)),
        v=rng.standard_normal((1, 1, keys, 2)),
        scale=float(rng.standard_normal()),
        **options,
    )
    return next(stacked(problem))


@pytest.mark.parametrize("seed", TRIES)
def test_scores(seed: int) -> None:
    rng = np.random.default_rng(seed)
    h = one_head(rng, bias=magnitudes(rng, 3, 4), alibi=magnitudes(rng, 1))
    result, _ = scores(h, h.query, ~h.visible)
    exact = exactly(h.query) @ exactly(transposed(h.key)) * Fraction(h.scale) + exactly(h.bias)
    check(result, exact - exactly(np.abs(h.ahead).astype(np.float64)) * exactly(h.slope))


def rational(x: mpmath.mpf) -> Fraction:
    mantissa, exponent = x.man_exp  # of |x|
    return int(mpmath.sign(x)) * int(mantissa) * Fraction(2) ** int(exponent)


to_fraction = np.frompyfunc(rational, 1, 1)


@pytest.mark.parametrize("radius", RADII)
@pytest.mark.parametrize("seed", TRIES)
def test_softcap(seed: int, radius: float) -> None:
    rng = np.random.default_rng(seed)
    value = rng.standard_normal(8) * rng.choice([0.1, 1, 10, 40])
    around = np.abs(value) * radius
    cap = float(rng.choice([0.3, 1.0, 7.0]))
    capped, slope = float64_softmax._capped(Ball(value, around), cap)
    with mpmath.workprec(300):
        point = [
            mpmath.mpf(v) + s * mpmath.mpf(r)
            for v, r, s in zip(
                value.tolist(), around.tolist(), rng.choice([-1, 1], 8).tolist(), strict=True
            )
        ]
        tanh = np.array([mpmath.tanh(x / mpmath.mpf(cap)) for x in point])
        check(capped, to_fraction(tanh * mpmath.mpf(cap)))
        check(slope, to_fraction(1 - tanh * tanh))


@pytest.mark.parametrize("radius", [0.0, 2.0**-52, 1e-9, 0.01, 0.3])
@pytest.mark.parametrize("seed", TRIES)
def test_softmax(seed: int, radius: float) -> None:
    """Some corners have the winner's error opposite to all others': the worst case."""
    rng = np.random.default_rng(seed)
    value = rng.standard_normal((6, 5)) * rng.choice([0.1, 3, 30, 300, 1e4])
    around = radius * rng.uniform(0, 1, (6, 5)) * rng.choice([0, 1], (6, 5))
    signs = rng.choice([-1, 1], (6, 5))
    winner = value.argmax(axis=1)
    signs[::2] = 1
    signs[np.arange(6), winner] = -1
    hidden = rng.random((6, 5)) < 0.2
    hidden[np.arange(6), winner] = False
    masked = Ball(np.where(hidden, -np.inf, value), np.where(hidden, 0.0, around))
    with np.errstate(all="ignore"):
        weights, lse = softmax(masked, hidden, terms=5000)
    with mpmath.workprec(300):
        for i in range(6):
            seen = np.flatnonzero(~hidden[i])
            point = [
                mpmath.mpf(value[i, j]) + int(signs[i, j]) * mpmath.mpf(around[i, j]) for j in seen
            ]
            exact = mpmath.log(mpmath.fsum(mpmath.exp(x) for x in point))
            known = np.isfinite(weights.radius[i]).all()
            assert known or radius >= 0.01
            if known:
                p = to_fraction(np.array([mpmath.exp(x - exact) for x in point]))
                seen_weights = Ball(weights.value[i, seen], weights.radius[i, seen])
                check_operand(seen_weights, p, terms=5000)
                check(Ball(lse.value[i], lse.radius[i]), to_fraction(exact))
            assert not weights.radius[i, hidden[i]].any()


@pytest.mark.parametrize("gap, radius", [(2.0, 1.0), (10.0, 4.0), (710.0, 20.0)])
def test_scores_whose_error_exceeds_one_are_not_known(gap: float, radius: float) -> None:
    """Not even those of little weight: exp(8 - 10) and exp(40 - 710) are not negligible."""
    ball = Ball(np.array([[0.0, -gap]]), np.full((1, 2), radius))
    with np.errstate(all="ignore"):
        weights, _ = softmax(ball, np.zeros((1, 2), np.bool_), terms=2)
    assert not np.isfinite(weights.radius).any()


def test_scores_that_cannot_matter_may_err() -> None:
    ball = Ball(np.array([[0.0, -800.0]]), np.full((1, 2), 20.0))
    with np.errstate(all="ignore"):
        weights, lse = softmax(ball, np.zeros((1, 2), np.bool_), terms=2)
    assert np.all(weights.radius < 1e-12)
    assert lse.radius[0] >= 20


# -- gradients ---------------------------------------------------------------------------------


@pytest.mark.parametrize("radius", RADII)
@pytest.mark.parametrize("seed", TRIES)
def test_gradients_of_the_scores(seed: int, radius: float) -> None:
    """D from out's ball, dS from the weights' ball, then cap, sink and the sums of dbias."""
    rng = np.random.default_rng(seed)
    h = one_head(
        rng, dout=magnitudes(rng, 1, 1, 3, 2), dlse=magnitudes(rng, 1, 1, 3), sinks=np.zeros(1)
    )
    assert h.dout is not None
    assert h.dlse is not None
    weights, exact_weights = operand(rng, radius, 1, 3, 4)
    weights, exact_weights = Ball(np.abs(weights.value), weights.radius), abs(exact_weights)
    sink, exact_sink = operand(rng, radius, 1, 3, 1)
    sink, exact_sink = Ball(np.abs(sink.value), sink.radius), abs(exact_sink)
    out, exact_out = ball(rng, radius, 1, 3, 2)
    slope, exact_slope = ball(rng, max(radius, 2.0**-50), 1, 3, 4)
    forward = sharp.Forward(h, h.query, weights, sink, out, slope, TERMS)

    shift = sharp.row_shift(h, h.dout, out)
    exact_shift = exactly(h.dlse) - (exactly(h.dout) * exact_out).sum(axis=-1)
    check(shift, exact_shift)
    dscores = sharp._score_gradient(forward, h.dout, shift)
    exact_dp = exactly(h.dout) @ exactly(transposed(h.value))
    exact = exact_weights * (exact_dp + exact_shift[..., None])
    check_operand(dscores, exact)
    _check_rounding_alone(forward, shift)
    check(
        sharp.sink_gradient(sink, shift, TERMS),
        (exact_sink[..., 0] * exact_shift).sum(axis=-1),
    )
    check(sharp._folded(dscores, (1, 1)), exact.sum(axis=(1, 2), keepdims=True))
    check(sharp._folded(dscores, (3, 1)), exact.sum(axis=2, keepdims=True))
    check_operand(sharp._through_cap(dscores, slope, TERMS), exact * exact_slope)


def _check_rounding_alone(forward: sharp.Forward, shift: Ball) -> None:
    """dS of weights and rows that are exact: nothing hides the roundings of its own formula."""
    heads, weights = forward.heads, Ball(forward.weights.value, np.zeros((1, 3, 4)))
    assert heads.dout is not None
    exact_shift = Ball(shift.value, np.zeros((1, 3)))
    result = sharp._score_gradient(replace(forward, weights=weights), heads.dout, exact_shift)
    inner = exactly(heads.dout) @ exactly(transposed(heads.value)) + exactly(shift.value)[..., None]
    check_operand(result, exactly(weights.value) * inner)
