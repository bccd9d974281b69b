"""The float64 engine's bound holds against the balls, which prove theirs by other means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnspec.oracle import (
    FORMATS,
    OUTPUTS,
    Arithmetic,
    Problem,
    ProblemError,
    balls,
    definition,
    float64,
    tolerance,
)
from attnspec.oracle.enclosure import Enclosure, Reference

Generator = np.random.Generator
LARGEST = float(np.finfo(np.float64).max)
FORWARD = ("out", "lse")


def defined(problem: Problem) -> tuple[str, ...]:
    def defines(output: str) -> bool:
        try:
            problem.shape_of(output)
        except ProblemError:
            return False
        return True

    return tuple(filter(defines, OUTPUTS))


def check_holds(name: str, fast: Enclosure, sure: Enclosure) -> None:
    """|value1 - value3 - low3| <= bound1 + bound3, wherever both claim something."""
    assert fast.value.shape == fast.bound.shape == sure.value.shape
    assert np.all(fast.bound >= 0), name  # and not NaN
    empty = np.isneginf(sure.value) & (sure.bound == 0)
    assert np.all(np.isneginf(fast.value[empty]) & (fast.bound[empty] == 0)), name
    both = np.isfinite(fast.bound) & np.isfinite(sure.bound) & ~empty
    error = np.abs((fast.value - sure.value)[both] - sure.low[both])
    # The two subtractions round; 1e-12 of the bounds, and of a subnormal nothing, allow for it.
    assert np.all(error <= (fast.bound + sure.bound)[both] * (1 + 1e-12)), name


def check(problem: Problem, *, bits: int = 160) -> Reference:
    want = defined(problem)
    fast = float64.enclose(problem, want=want)
    sure = balls.enclose(problem, want=want, bits=bits)
    with np.errstate(over="ignore", invalid="ignore"):
        for name in want:
            check_holds(name, fast[name], sure[name])
    return fast


# -- a search over every option ----------------------------------------------------------------

NUMBERS: dict[str, Callable[[Generator, tuple[int, ...]], Any]] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "large": lambda rng, shape: rng.standard_normal(shape) * 2.0 ** rng.integers(0, 40),
    "huge": lambda rng, shape: rng.standard_normal(shape) * 2.0 ** rng.integers(200, 1000),
    "largest": lambda rng, shape: rng.uniform(-1, 1, shape) * LARGEST,
    "small": lambda rng, shape: rng.standard_normal(shape) * 2.0 ** rng.integers(-500, -10),
    "subnormal": lambda rng, shape: rng.standard_normal(shape) * 2.0**-1070,
    "spread": lambda rng, shape: rng.standard_normal(shape) * 2.0 ** rng.integers(-300, 300, shape),
    "channels": lambda rng, shape: (
        rng.standard_normal(shape) * 2.0 ** rng.integers(-300, 300, shape[-1:])
    ),
    "zero": lambda rng, shape: np.zeros(shape),
    "integers": lambda rng, shape: rng.integers(-3, 4, shape).astype(np.float64),
    "cancelling": lambda rng, shape: rng.choice([-1e8, 1e8], shape) + rng.standard_normal(shape),
}
families = st.sampled_from([*["normal"] * 4, *NUMBERS])
OPTIONS: dict[str, Callable[[Generator, tuple[int, ...]], Any]] = {
    "causal": lambda rng, shape: True,
    "diagonal": lambda rng, shape: int(rng.integers(-4, 5)),
    "window": lambda rng, shape: (int(rng.integers(0, 4)), [None, 0, 1][rng.integers(3)]),
    "mask": lambda rng, shape: rng.random(shape) < 0.6,
    "softcap": lambda rng, shape: float(10.0 ** rng.uniform(-3, 3)),
    "key_lengths": lambda rng, shape: rng.integers(0, shape[3] + 1, shape[0]),
    "query_lengths": lambda rng, shape: rng.integers(0, shape[2] + 1, shape[0]),
}


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Shapes, options and families are hypothesis's; the numbers follow from a seed."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    batch, kv_heads, group = (draw(st.sampled_from(s)) for s in ((1, 1, 2), (1, 2), (1, 2)))
    rows, keys = draw(st.integers(0, 5)), draw(st.integers(0, 9))
    head_size, value_size = draw(st.sampled_from([1, 2, 7])), draw(st.sampled_from([1, 3]))
    scores = (batch, kv_heads * group, rows, keys)

    def numbers(*shape: int) -> Any:
        return NUMBERS[draw(families)](rng, shape)

    options = {n: OPTIONS[n](rng, scores) for n in draw(st.sets(st.sampled_from([*OPTIONS])))}
    if draw(st.booleans()):
        shape = tuple(size if rng.random() < 0.6 else 1 for size in scores)
        bias = numbers(*shape[int(rng.integers(4)) :])
        options["bias"] = np.where(rng.random(bias.shape) < 0.1, -np.inf, bias)
    for name in draw(st.sets(st.sampled_from(["sinks", "alibi"]))):
        options[name] = numbers(scores[1])
    for name, shape in (("dout", (*scores[:3], value_size)), ("dlse", scores[:3])):
        if draw(st.integers(0, 3)):
            options[name] = numbers(*shape)
    arrays = {
        "q": numbers(*scores[:3], head_size),
        "k": numbers(batch, kv_heads, keys, head_size),
        "v": numbers(batch, kv_heads, keys, value_size),
    }
    name = draw(st.sampled_from(["float64", "float64", "float32", "float16", "bfloat16"]))
    for operand, x in arrays.items():
        limit = FORMATS[name].largest
        arrays[operand] = FORMATS[name].round(np.clip(x, -limit, limit))
    scale = draw(st.sampled_from([1.0, 0.3, -0.5, 0.0, 1e5, 2.0**-1070, 1e300]))
    return Problem(**arrays, scale=scale, **options)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(problem=problems())
def test_the_bound_holds_for_every_option(problem: Problem) -> None:
    check(problem)


# -- attacks -----------------------------------------------------------------------------------


def dense(seed: int = 0, *, rows: int = 6, keys: int = 9, size: int = 8, **options: Any) -> Problem:
    rng = np.random.default_rng(seed)
    arrays = {
        "q": rng.standard_normal((1, 2, rows, size)),
        "k": rng.standard_normal((1, 1, keys, size)),
        "v": rng.standard_normal((1, 1, keys, 3)),
        "dout": rng.standard_normal((1, 2, rows, 3)),
        "dlse": rng.standard_normal((1, 2, rows)),
    }
    return Problem(**{"scale": 0.5, **arrays, **options})


def check_sharp(fast: Reference, *, relative: float, outputs: tuple[str, ...] = ()) -> None:
    """Every bound is below `relative` of the largest value of its output."""
    for name in outputs or fast.outputs:
        value, bound = fast[name].value, fast[name].bound
        finite = np.isfinite(value)
        assert np.all(bound <= relative * np.abs(value[finite]).max(initial=0.0)), name


@pytest.mark.parametrize("score", [1e4, 1e8, 1e14, 1e17, 1e20])
def test_huge_scores_that_one_key_wins_stay_sharp(score: float) -> None:
    p = dense(1)
    fast = check(p.replace(q=p.q * score, dlse=np.zeros_like(p.dlse)))
    check_sharp(fast, relative=1e-12, outputs=("out", "lse", "dv"))


def test_huge_tied_scores_are_not_known() -> None:
    p = dense(2, sinks=np.zeros(2))
    k = np.concatenate([p.k, p.k], axis=2)
    fast = check(p.replace(q=p.q * 1e18, k=k, v=np.concatenate([p.v, -p.v], axis=2)))
    assert np.all(np.isinf(fast["out"].bound) | (fast["out"].bound < 1e-6))
    assert np.any(np.isinf(fast["out"].bound))


def test_channels_of_any_spread_stay_sharp() -> None:
    p = dense(3)
    spread = 2.0 ** np.random.default_rng(3).integers(-300, 300, 8)
    check_sharp(check(p.replace(q=p.q * spread, k=p.k / spread)), relative=1e-11, outputs=FORWARD)


@pytest.mark.parametrize("exponent", [-1074, -1060, -1022, -900, 900, 1019])
def test_values_of_any_magnitude(exponent: int) -> None:
    p = dense(4)
    fast = check(p.replace(v=np.ldexp(p.v, exponent)))
    assert np.all(np.isfinite(fast["out"].bound))
    floor = 1e-300 * 2.0**exponent if exponent > -900 else 64 * 2.0**-1074
    assert np.all(fast["out"].bound <= 1e-12 * np.abs(p.v).max() * 2.0**exponent + floor)


def test_overflow_is_not_known_and_never_wrong() -> None:
    p = dense(5)
    for change in (
        {"v": np.sign(p.v) * LARGEST, "dout": p.dout * 1e10},
        {"q": p.q * 1e200, "k": p.k * 1e200},
        {"q": p.q * 1e200, "k": p.k * 1e200, "softcap": 3.0},
        {"q": p.q * 1e200, "k": p.k * 1e200, "scale": 0.0},
        {"scale": 1e308, "q": p.q * 100},
        {"sinks": np.array([LARGEST, -LARGEST]), "scale": 1e308},
        {"softcap": 1e-308, "scale": 1e10},
        {"alibi": np.array([LARGEST, -LARGEST])},
    ):
        fast = check(p.replace(**change))
        assert any(np.any(np.isinf(e.bound)) for e in fast.outputs.values()), change


@pytest.mark.parametrize("lead", [-14.0, -1.0, 0.0, 1.0, 14.0])
@pytest.mark.parametrize("size", [1e3, 1e6])
def test_a_large_score_beside_an_exact_sink(lead: float, size: float) -> None:
    """Where the key wins, the sink's weight errs by the winner's score error alone; where the
    sink does, by a wide lead, lse errs by its own rounding alone."""
    rng = np.random.default_rng(6)
    q, k = (size + rng.standard_normal((1, 64, 1, 2)) for _ in range(2))
    score = np.einsum("bhid,bhjd->h", q, k)
    ones = np.ones((1, 64, 1, 1))
    check(Problem(q=q, k=k, v=ones, scale=1.0, sinks=score + lead, dout=ones))


@pytest.mark.parametrize("name", ["exp", "log", "tanh"])
@pytest.mark.parametrize("ulps", [-63, 63])
def test_the_bound_covers_all_that_the_assumptions_allow(
    monkeypatch: pytest.MonkeyPatch, name: str, ulps: int
) -> None:
    exact = getattr(np, name)
    off = 1 + ulps * 2.0**-52

    def inexact(x: Any, out: Any = None) -> Any:
        return np.multiply(exact(x), off, out=out)

    problems = [dense(seed, softcap=2.0 if name == "tanh" else None) for seed in range(20)]
    sure = [balls.enclose(p, want=defined(p)) for p in problems]
    float64.enclose(problems[0])  # the assumptions are tested now, and not again
    monkeypatch.setattr(np, name, inexact)
    for p, known in zip(problems, sure, strict=True):
        fast = float64.enclose(p, want=defined(p))
        for output in fast.outputs:
            check_holds(output, fast[output], known[output])


@pytest.mark.parametrize("gap", [1.0, 20.0, 36.0, 40.0, 700.0, 745.0, 760.0])
def test_a_winning_key_whose_score_gradient_cancels(gap: float) -> None:
    """dS of the winner is P (dP - D), where D is nearly its dP."""
    p = dense(7, keys=4, size=1)
    q, k = np.ones_like(p.q), np.array([gap, 0.0, 0.0, -gap]).reshape(1, 1, 4, 1)
    for v in (p.v, p.v * [[1.0], [1e150], [1e150], [1e150]]):
        check(p.replace(q=q, k=k, v=v, scale=1.0, bias=np.zeros((1, 1, 1, 4))))


@pytest.mark.parametrize("score", [0.1, 3.0, 10.0, 18.0, 19.0, 20.0, 40.0, 1e5])
def test_a_saturated_cap(score: float) -> None:
    p = dense(8, softcap=1.0)
    fast = check(p.replace(q=p.q * score))
    check_sharp(fast, relative=1e-8 * max(1.0, score), outputs=("out", "lse", "dv"))


def test_hidden_slots_and_padding_rows_have_no_influence() -> None:
    p = dense(9, rows=5, keys=9, key_lengths=np.array([6]), query_lengths=np.array([4]))
    want = defined(p)
    plain = float64.enclose(p, want=want)
    fills = {}
    for name in ("k", "v"):
        fills[name] = getattr(p, name).copy()
        fills[name][:, :, 6:] = np.nan
    fills["q"] = p.q.copy()
    fills["q"][:, :, 4:] = np.inf
    filled = float64.enclose(p.replace(**fills), want=want)
    for name in want:
        assert np.array_equal(plain[name].value, filled[name].value), name
        assert np.array_equal(plain[name].bound, filled[name].bound), name
    assert not plain["dk"].bound[:, :, 6:].any()
    assert not plain["out"].bound[:, :, 4:].any()


def test_a_key_hidden_from_one_row_only_may_hold_anything_finite() -> None:
    p = dense(10, causal=True)
    k, v = p.k.copy(), p.v.copy()
    k[:, :, -1], v[:, :, -1] = LARGEST, -LARGEST
    fast, plain = check(p.replace(k=k, v=v)), float64.enclose(p)
    for name in FORWARD:
        value, bound = fast[name].value[:, :, :-1], fast[name].bound[:, :, :-1]
        assert np.all(np.abs(value - plain[name].value[:, :, :-1]) < 1e-13)
        assert np.all(bound < 1e-12)


@pytest.mark.parametrize("shape", [(9,), (11, 9), (2, 1, 9), (2, 11, 1)])
def test_tiles_add_up(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]) -> None:
    p = dense(11, rows=11, bias=np.zeros(shape), sinks=np.ones(2), softcap=2.0, causal=True)
    whole = float64.enclose(p, want=defined(p))
    monkeypatch.setattr(float64, "TILE", 9 * 4)
    monkeypatch.setattr(float64, "SHARP_TILE", 9 * 2)
    tiled = check(p)
    for name, enclosure in tiled.outputs.items():
        assert np.all(enclosure.bound <= 4 * whole[name].bound), name


def test_it_is_the_definition() -> None:
    p = dense(12, rows=3, keys=4, sinks=np.array([0.5, -0.5]), bias=np.ones((2, 1, 4)))
    fast = float64.enclose(p, want=OUTPUTS)
    for name, exact in definition.attention(p, want=OUTPUTS).items():
        error = np.abs(fast[name].value - exact)
        assert np.all(error <= fast[name].bound), name
        assert np.all(fast[name].bound < 1e-11), name


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"softcap": 2.0}, {"sinks": np.ones(2)}])
def test_on_ordinary_inputs_it_is_1024_times_sharper_than_any_tolerance(
    name: str, options: dict[str, Any]
) -> None:
    p = dense(13, rows=64, keys=256, size=64, scale=0.125, **options)
    p = p.replace(**{n: FORMATS[name].round(getattr(p, n)) for n in ("q", "k", "v", "dout")})
    want = defined(p)
    fast, allowed = float64.enclose(p, want=want), tolerance(p, arithmetic=Arithmetic(), want=want)
    for output in want:
        within = np.minimum(allowed[output].hard, 6 * allowed[output].sigma)
        assert np.all(fast[output].bound <= 2.0**-10 * within), output
