"""The balls must hold the definition's numbers: two engines that share only `Problem`."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from flint import arb, ctx
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mpf

from attnspec.oracle import balls
from attnspec.oracle.ball_outputs import split
from attnspec.oracle.balls import enclose
from attnspec.oracle.definition import attention
from attnspec.oracle.enclosure import Reference
from attnspec.oracle.problem import OUTPUTS, Problem, ProblemError

LARGEST = float(np.finfo(np.float64).max)


def defined(problem: Problem) -> tuple[str, ...]:
    gradients = problem.dout is not None or problem.dlse is not None
    extra = [f"d{f}" for f in ("bias", "sinks") if getattr(problem, f) is not None]
    return ("out", "lse", *(("dq", "dk", "dv", *extra) if gradients else ()))


def check_holds(problem: Problem, reference: Reference, *, bits: int) -> None:
    """The definition, at far more bits than the bounds need, lies within every bound.

    Its own last bits are allowed for, far below what the enclosures resolve: some balls are
    exact. They weigh 2^-bits in lse = log Z where Z is near 1.
    """
    exact = attention(problem, want=tuple(reference.outputs), bits=bits)
    for output, answer in exact.items():
        enclosure = reference[output]
        planes = (*enclosure.parts, enclosure.bound)
        assert {plane.shape for plane in planes} == {problem.shape_of(output)}
        centres, bounds = enclosure.centre().flat, enclosure.bound.flat
        with mpmath.workprec(bits + 5000):  # differences of sums of float64 and `bits`-bit numbers
            for x, centre, bound in zip(answer.flat, centres, bounds, strict=True):
                if x == mpf("-inf"):
                    assert (centre, bound) == (mpf("-inf"), 0)
                else:
                    own = abs(x) * mpf(2) ** -200 + (output == "lse") * mpf(2) ** (8 - bits)
                    assert abs(x - centre) <= mpf(float(bound)) + own


def check_narrow(reference: Reference, *, bits: int = 95) -> None:
    """Every bound is below 2^-bits of the largest value of its output (or a subnormal's step)."""
    for output, enclosure in reference.outputs.items():
        finite = np.abs(enclosure.value[np.isfinite(enclosure.value)])
        largest = finite.max(initial=0.0)
        assert np.all(enclosure.bound <= max(largest * 2.0**-bits, 5e-324)), output


# -- all options, crossed at random ------------------------------------------------------------


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    batch, group, kv_heads = (draw(st.integers(1, 2)) for _ in range(3))
    heads = group * kv_heads
    queries, keys = draw(st.integers(0, 6)), draw(st.integers(0, 6))
    size, value_size = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    scores = (batch, heads, queries, keys)

    def normal(*shape: int, maybe: bool = False) -> np.ndarray | None:
        return None if maybe and draw(st.booleans()) else rng.normal(size=shape)

    def broadcast(array: np.ndarray) -> np.ndarray | None:
        axes = draw(st.none() | st.integers(0, 4))
        if axes is None:
            return None
        kept = [slice(None) if draw(st.booleans()) else slice(1) for _ in range(axes)]
        return array[(0,) * (4 - axes) + tuple(kept)] if array.size else None

    bias = rng.normal(size=scores) * draw(st.sampled_from((1.0, 1e6)))
    hidden = np.where(rng.random(scores) < draw(st.sampled_from((0.0, 0.3))), -np.inf, bias)
    reach = st.none() | st.integers(0, 6)
    magnitude = 2.0 ** draw(st.sampled_from((0, -600, 5, 12, 40)))
    options: dict[str, Any] = {
        "mask": broadcast(rng.random(scores) < 0.7),
        "bias": broadcast(hidden),
        "sinks": normal(heads, maybe=True),
        "alibi": normal(heads, maybe=True),
        "dout": normal(batch, heads, queries, value_size, maybe=True),
        "dlse": normal(batch, heads, queries, maybe=True),
    }
    for name, count in (("query_lengths", queries), ("key_lengths", keys)):
        options[name] = rng.integers(0, count + 1, batch) if draw(st.booleans()) else None
    return Problem(
        q=rng.normal(size=(batch, heads, queries, size)) * magnitude,
        k=rng.normal(size=(batch, kv_heads, keys, size)),
        v=rng.normal(size=(batch, kv_heads, keys, value_size)),
        scale=draw(st.sampled_from((0.5, -1.3, 0.0))),
        causal=draw(st.booleans()),
        diagonal=draw(st.sampled_from(("bottom-right", "top-left")) | st.integers(-4, 4)),
        window=draw(st.none() | st.tuples(reach, reach)),
        softcap=draw(st.none() | st.sampled_from((0.5, 30.0))),
        **{name: np.asarray(x) for name, x in options.items() if x is not None},
    )


@settings(derandomize=True, max_examples=150, deadline=None)
@given(problems())
def test_the_definition_lies_within_the_balls(problem: Problem) -> None:
    check_holds(problem, enclose(problem, want=defined(problem)), bits=400)


# -- extremes ----------------------------------------------------------------------------------


def normal_problem(**options: Any) -> Problem:
    rng = np.random.default_rng(3)
    shapes = {"q": (1, 4, 4, 4), "k": (1, 2, 5, 4), "v": (1, 2, 5, 3), "dout": (1, 4, 4, 3)}
    operands = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    return Problem(**(operands | {"scale": 0.5, "dlse": rng.normal(size=(1, 4, 4))} | options))


NORMAL = normal_problem()
SPREAD = 2.0 ** np.array([300, -300, 0, 150])
CANCELLING = np.resize([LARGEST, -LARGEST], NORMAL.v.shape)
EXTREMES = {
    "ordinary": NORMAL,
    "scores of 1e4": NORMAL.replace(q=NORMAL.q * 1e4),
    "scores of 1e8": NORMAL.replace(q=NORMAL.q * 1e8),
    "scores of 1e20": NORMAL.replace(q=NORMAL.q * 1e20),
    "scores of 1e20, tied": NORMAL.replace(q=NORMAL.q * 1e20, k=np.ones_like(NORMAL.k)),
    "scores of 1e300": NORMAL.replace(
        q=NORMAL.q * 1e150, k=NORMAL.k * 1e150, query_lengths=np.array([1])
    ),
    "scores of 1e20, capped": NORMAL.replace(q=NORMAL.q * 1e20, softcap=30.0),
    "large scale": NORMAL.replace(scale=-1e20),
    "channels from 2^-300 to 2^300": NORMAL.replace(q=NORMAL.q * SPREAD, k=NORMAL.k / SPREAD),
    "values near the largest": NORMAL.replace(v=CANCELLING, dout=NORMAL.dout * 1e-300),
    "values below the normal": NORMAL.replace(v=NORMAL.v * 2.0**-1070),
    "queries below the normal": NORMAL.replace(q=NORMAL.q * 2.0**-1070),
    "bias of the largest float32": NORMAL.replace(bias=np.full((4, 5), -3.4e38)),
    "sink of 1e20": NORMAL.replace(sinks=np.array([1e20, -1e20, 0.0, 1.0])),
    "steep slopes": NORMAL.replace(alibi=np.array([1e20, -1e20, 1e4, 0.0])),
    "all keys hidden": NORMAL.replace(mask=np.zeros((4, 5), bool)),
    "all keys hidden but the sink": NORMAL.replace(mask=np.zeros((4, 5), bool), sinks=np.ones(4)),
    "lengths of zero": NORMAL.replace(key_lengths=np.array([0])),
    "query lengths of zero": NORMAL.replace(query_lengths=np.array([0]), sinks=np.ones(4)),
    "no keys": NORMAL.replace(k=NORMAL.k[:, :, :0], v=NORMAL.v[:, :, :0], sinks=np.ones(4)),
    "no queries": NORMAL.replace(
        q=NORMAL.q[:, :, :0], dout=NORMAL.dout[:, :, :0], dlse=NORMAL.dlse[:, :, :0]
    ),
}
SATURATED = {"scores of 1e4", "scores of 1e8", "scores of 1e20", "scores of 1e300", "large scale"}


@pytest.mark.parametrize("name", EXTREMES)
def test_extremes_are_enclosed_narrowly(name: str) -> None:
    problem = EXTREMES[name]
    reference = enclose(problem, want=defined(problem))
    check_holds(problem, reference, bits=1400)
    check_narrow(reference if name not in SATURATED else enclose(problem))


def test_scores_beyond_float64() -> None:
    q, k, v = NORMAL.q[:, :1, :1], NORMAL.k[:, :1, :3], NORMAL.v[:, :1, :3]
    problem = Problem(q=q * 1e300, k=k * 1e300, v=v, scale=1.0)
    reference = enclose(problem)  # the weights are known, but the lse, near 1e600, is no float64
    assert np.isinf(reference["lse"].bound).all()
    check_narrow(Reference("balls", {"out": reference["out"]}))
    check_holds(problem, reference, bits=2400)


def test_more_bits_resolve_what_cancels() -> None:
    problem = EXTREMES["scores of 1e4"].replace(
        dlse=None
    )  # dS = P (dP - D) -> 0: one key has P = 1
    for bits, resolved in ((60, False), (2000, True)):
        dq = enclose(problem, want=("dq",), bits=bits)["dq"]
        assert np.all(dq.bound <= np.maximum(np.abs(dq.value) * 2.0**-50, 5e-324)) == resolved


def test_a_result_beyond_float64_is_not_known() -> None:
    problem = NORMAL.replace(dout=np.full(NORMAL.dout.shape, LARGEST))
    dv = enclose(problem, want=("dv",))["dv"]
    unknown = np.isinf(dv.bound)
    assert unknown.any()
    assert not dv.value[unknown].any()
    assert not dv.low[unknown].any()


# -- hidden slots, NaN -------------------------------------------------------------------------


@pytest.mark.parametrize("poison", [np.nan, LARGEST])
def test_hidden_numbers_have_no_influence(poison: float) -> None:
    rows, keys = np.array([True, True, False, True]), np.array([True, True, True, False, True])
    problem = NORMAL.replace(mask=rows[:, None] & keys)
    poisoned = {name: getattr(problem, name).copy() for name in ("q", "k", "v")}
    poisoned["q"][:, :, 2] = poisoned["k"][:, :, 3] = poisoned["v"][:, :, 3] = poison
    want = defined(problem)
    clean, dirty = enclose(problem, want=want), enclose(problem.replace(**poisoned), want=want)
    for output in want:
        for plane in ("value", "low", "bound"):
            expected = getattr(clean[output], plane)
            np.testing.assert_array_equal(getattr(dirty[output], plane), expected)


def test_a_visible_nan_is_not_known() -> None:
    q = NORMAL.q.copy()
    q[0, 1, 2, 0] = np.nan
    bound = enclose(NORMAL.replace(q=q))["out"].bound
    assert np.isinf(bound[0, 1, 2]).all()
    assert np.isfinite(np.delete(bound[0, 1], 2, axis=0)).all()


# -- the engine's own workings -----------------------------------------------------------------


def test_tiles_of_any_height_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    extras = {"sinks": np.ones(4), "bias": np.random.default_rng(4).normal(size=(4, 5))}
    problem = NORMAL.replace(causal=True, diagonal=0, softcap=3.0, **extras)
    for rows in (1, 3):
        monkeypatch.setattr(balls, "TILE_SLOTS", rows * problem.key_count)
        reference = enclose(problem, want=OUTPUTS)
        check_holds(problem, reference, bits=400)
        check_narrow(reference)


def test_blocks_of_keys_of_any_size_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    extras = {"sinks": np.ones(4), "bias": np.random.default_rng(4).normal(size=(4, 5))}
    problem = NORMAL.replace(causal=True, diagonal=1, softcap=3.0, **extras)
    for numbers in (1, 8, 12):  # keys of 4 numbers and values of 3: blocks of 1, 2 and 3 or 4
        monkeypatch.setattr(balls, "BLOCK_NUMBERS", numbers)
        reference = enclose(problem, want=OUTPUTS)
        check_holds(problem, reference, bits=400)
        check_narrow(reference)


def test_the_working_precision_is_restored() -> None:
    with ctx.workprec(77):
        enclose(NORMAL)
        assert ctx.prec == 77
        with pytest.raises(ProblemError):
            enclose(NORMAL, want=("dsinks",))
        with pytest.raises(TypeError):
            enclose(NORMAL, bits="many")  # type: ignore[arg-type]
        assert ctx.prec == 77


def exact(x: arb) -> Fraction:
    mantissa, exponent = x.man_exp()
    return Fraction(int(mantissa)) * Fraction(2) ** int(exponent)


@settings(derandomize=True, max_examples=500, deadline=None)
@given(
    st.integers(-(2**150), 2**150),
    st.integers(-1250, 900),
    st.integers(0, 2**29),
    st.integers(-1300, 900),
)
def test_rounding_outward_loses_no_part_of_the_ball(
    mantissa: int, exponent: int, radius: int, radius_exponent: int
) -> None:
    ball = arb((mantissa, exponent), (radius, radius_exponent))
    value, low, bound = split([ball], 2)[:, 0].tolist()
    middle, spread = exact(ball.mid()), exact(ball.rad())
    if bound == math.inf:
        assert value == 0 or spread + abs(middle) > LARGEST / 4
        return
    missed = abs(middle - Fraction(value) - Fraction(low)) + spread
    assert missed <= Fraction(bound)
    assert Fraction(bound) <= missed * (1 + Fraction(2) ** -25) + Fraction(2) ** -1074


def test_balls_are_rounded_together_as_they_are_alone() -> None:
    some = [arb((3**90 + i, -140 - 40 * i), (1 + i, -200)) for i in range(40)]
    some += [arb(2) ** 2000, arb("nan"), arb(0), arb(0, 1e-320)]
    with ctx.workprec(1000):
        together = split(some, 5)
        for i, ball in enumerate(some):
            np.testing.assert_array_equal(together[:, i], split([ball], 5)[:, 0])


@settings(derandomize=True, max_examples=300, deadline=None)
@given(
    st.integers(-(2**900), 2**900),
    st.integers(-2000, 100),
    st.integers(0, 2**29),
    st.integers(-1300, 0),
    st.integers(1, 20),
)
def test_any_number_of_terms_loses_no_part_of_the_ball(
    mantissa: int, exponent: int, radius: int, radius_exponent: int, terms: int
) -> None:
    ball = arb((mantissa, exponent), (radius, radius_exponent))
    with ctx.workprec(1000):
        *found, bound = split([ball], terms)[:, 0].tolist()
    middle, spread = exact(ball.mid()), exact(ball.rad())
    missed = abs(middle - sum(map(Fraction, found))) + spread
    assert missed <= Fraction(bound)
    assert Fraction(bound) <= missed * (1 + Fraction(2) ** -25) + Fraction(2) ** -1074
    held = max(abs(middle) / 2 ** (52 * terms), Fraction(2) ** -1074)
    assert missed - spread <= held


@pytest.mark.parametrize("ball", [arb("nan"), arb("inf"), arb(2) ** 1100, arb(0, 1) * arb("inf")])
def test_a_ball_beyond_float64_is_zero_give_or_take_infinity(ball: arb) -> None:
    assert split([ball], 2)[:, 0].tolist() == [0.0, 0.0, math.inf]
