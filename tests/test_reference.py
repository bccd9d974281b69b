"""The dispatcher climbs as far as it must, says so, and refuses to guess."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from attnspec.oracle import (
    FORMATS,
    Enclosure,
    Problem,
    ProblemError,
    Reference,
    Uncertified,
    float64,
)
from attnspec.oracle import reference as ask
from attnspec.oracle.reference import TIERS


def problem(seed: int = 0, **options: Any) -> Problem:
    rng = np.random.default_rng(seed)
    arrays = {
        "q": rng.standard_normal((1, 2, 4, 3)),
        "k": rng.standard_normal((1, 1, 5, 3)),
        "v": rng.standard_normal((1, 1, 5, 2)),
        "dout": rng.standard_normal((1, 2, 4, 2)),
    }
    return Problem(**{"scale": 0.5, **arrays, **options})


TIED = {"q": np.full((1, 2, 4, 3), 1e20), "k": np.ones((1, 1, 5, 3))}


def test_ordinary_problems_are_answered_in_float64() -> None:
    answer = ask(problem())
    assert answer.tier == "float64"
    assert set(answer.outputs) == {"out", "lse"}
    assert all(np.all(e.bound < 1e-12) for e in answer.outputs.values())


def test_it_climbs_for_what_float64_does_not_know() -> None:
    p = problem(**TIED)
    assert np.all(np.isinf(float64.enclose(p)["out"].bound))
    answer = ask(p)
    assert answer.tier == "balls"
    mean = np.broadcast_to(p.v.mean(axis=2, keepdims=True), answer["out"].value.shape)
    np.testing.assert_allclose(answer["out"].value, mean, rtol=1e-15)


def test_it_climbs_for_the_outputs_that_need_it_only() -> None:
    p = problem()
    within = {"out": np.full((1, 2, 4, 2), 1e-25), "lse": np.asarray(1e-9)}
    answer, first = ask(p, within=within), float64.enclose(p)
    assert answer.tier == "balls"
    assert list(answer.outputs) == ["out", "lse"]
    assert np.all(answer["out"].bound <= 1e-25)
    assert np.array_equal(answer["lse"].bound, first["lse"].bound)


def test_more_bits_are_asked_for_until_they_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnspec.oracle import balls

    asked: list[int] = []

    def enclose(p: Problem, *, want: tuple[str, ...], bits: int) -> Reference:
        asked.append(bits)
        bound = np.full((1, 2, 4, 2), np.inf if bits < 900 else 0.0)
        return Reference("balls", {"out": Enclosure.of(np.zeros_like(bound), bound)})

    monkeypatch.setattr(balls, "enclose", enclose)
    ask(problem(**TIED), want=("out",))
    assert asked == [106, 240, 480, 960]


def test_uncertified_says_what_where_and_by_how_much() -> None:
    limit = np.ones((1, 2, 4, 2))
    limit[0, 1, 2, 0] = 1e-300
    with pytest.raises(Uncertified, match=r"out has 1 of 16 .* \(0, 1, 2, 0\): bound .* 1e-300"):
        ask(problem(), within={"out": limit}, tier="float64")
    with pytest.raises(Uncertified, match="a finite one"):
        ask(problem(**TIED), tier="float64")


def test_a_limit_of_zero_is_reached_where_the_result_is_exact_only() -> None:
    with pytest.raises(Uncertified, match=r"at most 0$") as caught:
        ask(problem(), within={"out": 0}, tier="float64")
    assert "inf" not in str(caught.value.climb[0])


@pytest.mark.parametrize("tier", TIERS)
def test_a_tier_can_be_forced_and_all_agree(tier: str) -> None:
    p = problem(sinks=np.zeros(2), bias=np.ones((4, 5)), dlse=np.ones((1, 2, 4)))
    want = ("out", "lse", "dq", "dk", "dv", "dbias", "dsinks")
    forced, sure = ask(p, want=want, tier=tier), ask(p, want=want, tier="balls", bits=300)
    assert forced.tier == tier
    for name in want:
        error = np.abs(forced[name].value - sure[name].value + (forced[name].low - sure[name].low))
        assert np.all(error <= forced[name].bound + sure[name].bound), name


def test_the_definition_knows_an_empty_row_and_an_overflow() -> None:
    p = problem(key_lengths=np.array([0]))
    lse = ask(p, tier="definition")["lse"]
    assert np.all(np.isneginf(lse.value))
    assert not lse.bound.any()
    huge = problem(q=np.full((1, 2, 4, 3), 1e200), k=np.full((1, 1, 5, 3), 1e200))
    with pytest.raises(Uncertified, match="lse"):
        ask(huge, want=("lse",), tier="definition")


def test_the_slow_engines_are_imported_when_needed_only() -> None:
    import subprocess

    code = (
        "import sys, attnspec.oracle as o, numpy as np; x = np.ones((1, 1, 2, 2));"
        "o.reference(o.Problem(q=x, k=x, v=x, scale=1.0));"
        "print([m for m in ('flint', 'mpmath', 'torch', 'sympy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# -- NaN and infinity --------------------------------------------------------------------------


def poisoned(p: Problem, field: str, index: tuple[int, ...], content: float = np.nan) -> Problem:
    array = getattr(p, field).copy()
    array[index] = content
    return p.replace(**{field: array})


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(
    "field, index, rows, channels",
    [
        ("q", (0, 1, 2, 0), {(1, 2)}, None),
        ("k", (0, 0, 3, 2), {(0, 2), (0, 3), (1, 2), (1, 3)}, None),
        ("v", (0, 0, 3, 1), {(0, 2), (0, 3), (1, 2), (1, 3)}, 1),
        ("bias", (0, 2, 3), {(0, 2), (1, 2)}, None),
        ("bias", (0, 2, 4), set(), None),  # hidden
        ("v", (0, 0, 4, 1), {(0, 3), (1, 3)}, 1),
    ],
)
def test_a_nan_reaches_exactly_what_sees_it(
    tier: str, field: str, index: tuple[int, ...], rows: set[tuple[int, int]], channels: int | None
) -> None:
    """Causal, bottom-right: row i of 4 sees keys 0 to i + 1 of 5."""
    p = problem(causal=True, bias=np.zeros((1, 4, 5)))
    clean, answer = ask(p, tier=tier), ask(poisoned(p, field, index), tier=tier)
    expected = np.zeros((2, 4, 2), np.bool_)
    for head, row in rows:
        expected[head, row, slice(None) if channels is None else channels] = True
    assert np.array_equal(np.isnan(answer["out"].value[0]), expected)
    lse = expected.all(axis=2) if channels is None else np.zeros((2, 4), np.bool_)
    assert np.array_equal(np.isnan(answer["lse"].value[0]), lse)
    assert not answer["out"].bound[0][expected].any()
    untouched = ~expected.any(axis=2)
    assert np.array_equal(answer["out"].value[0][untouched], clean["out"].value[0][untouched])


def test_a_limit_counts_for_nothing_where_the_result_is_nan() -> None:
    p = poisoned(problem(), "v", (0, 0, 1, 0))
    limit = np.where(np.isnan(ask(p)["out"].value), 0.0, 1e-9)
    assert ask(p, within={"out": limit}).tier == "float64"


@pytest.mark.parametrize("content", [np.nan, np.inf])
def test_hidden_nan_and_infinity_are_harmless(content: float) -> None:
    p = problem(key_lengths=np.array([3]), query_lengths=np.array([2]), sinks=np.zeros(2))
    want = ("out", "lse", "dq", "dk", "dv", "dsinks")
    filled = p
    for field, index in (("k", (0, 0, 3)), ("v", (0, 0, 4)), ("q", (0, 0, 2))):
        filled = poisoned(filled, field, index, content)
    clean, answer = ask(p, want=want), ask(filled, want=want)
    for name in want:
        assert np.array_equal(clean[name].value, answer[name].value), name


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_a_nan_is_seen_in_every_format(name: str) -> None:
    p = problem()
    rounded = {n: FORMATS[name].round(getattr(p, n)) for n in ("q", "k", "v")}
    answer = ask(poisoned(p.replace(**rounded), "q", (0, 0, 0, 0)))
    assert np.isnan(answer["lse"].value).sum() == 1


@pytest.mark.parametrize("field", ["q", "k", "v"])
def test_a_visible_infinity_is_refused(field: str) -> None:
    with pytest.raises(ProblemError, match=f"{field}: an infinity is visible"):
        ask(poisoned(problem(), field, (0, 0, 0, 0), -np.inf))


@pytest.mark.parametrize("field", ["q", "k", "v"])
def test_gradients_with_a_visible_nan_are_refused(field: str) -> None:
    with pytest.raises(ProblemError, match="gradients are not defined"):
        ask(poisoned(problem(), field, (0, 0, 0, 0)), want=("out", "dv"))


# -- requests that have no answer --------------------------------------------------------------


@pytest.mark.parametrize(
    "options, message",
    [
        ({"want": ("outs",)}, "'outs' is not defined.*out, lse, dq"),
        ({"want": ()}, "want: expected a sequence of out, lse"),
        ({"want": "out"}, "want: expected a sequence of out, lse"),
        ({"want": ("dbias",)}, "dbias a bias"),
        ({"want": ("dsinks",)}, "dsinks sinks"),
        ({"tier": "float32"}, "tier: expected one of float64, double-double, balls"),
        ({"within": {"dq": 1.0}}, "dq is not in want"),
        ({"tier": "float64", "bits": 100}, "bits: float64 has its own; expected bits with balls"),
        ({"tier": "double-double", "bits": 100}, "bits: double-double has its own"),
        ({"bits": 0}, "bits: expected an integer of at least 2 or None, got 0$"),
        ({"bits": "x"}, "bits: expected an integer .* got 'x'$"),
        ({"bits": 2.5}, "bits: expected an integer .* got 2.5$"),
        ({"bits": np.float64(200)}, r"bits: expected an integer .* got np.float64\(200.0\)$"),
        ({"bits": True}, "bits: expected an integer .* got True$"),
        ({"want": 1}, "want: expected a sequence of out, lse.*; got 1$"),
        ({"want": (1, "out")}, r"want: expected a sequence of out, lse.*; got \(1, 'out'\)$"),
        ({"within": 1e-5}, "within: expected a mapping from outputs to numbers.* got 1e-05$"),
        ({"within": {"out": "a"}}, "within.'out'.: expected numbers >= 0, got 'a'$"),
        ({"within": {"out": "1e-5"}}, "within.'out'.: expected numbers >= 0, got '1e-5'$"),
        ({"within": {"out": None}}, "within.'out'.: expected numbers >= 0, got None$"),
        ({"within": {"out": True}}, "within.'out'.: expected numbers >= 0, got True$"),
        ({"within": {"out": 1j}}, "within.'out'.: expected numbers >= 0, got 1j$"),
        ({"within": {"out": 10**400}}, r"within.'out'.: expected numbers >= 0, got 10+\.\.\.$"),
        (
            {"within": {"out": [[1.0], [1.0, 2.0]]}},
            r"within.'out'.: expected numbers >= 0, got \[\[1.0\], \[1.0, 2.0\]\]$",
        ),
        ({"within": {"out": -1}}, "within.'out'.: expected numbers >= 0, got -1.0$"),
        ({"within": {"out": np.nan}}, "within.'out'.: expected numbers >= 0, got nan$"),
        ({"within": {"out": [1.0, -2.0]}}, "within.'out'.: expected numbers >= 0, got -2.0$"),
        ({"within": {"out": np.ones(3)}}, "within.'out'.: expected an array that broadcasts"),
    ],
)
def test_a_request_without_an_answer_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ProblemError, match=message) as caught:
        ask(problem(), **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given", [None, {"q": 1}])
def test_what_is_asked_about_is_a_problem(given: Any) -> None:
    with pytest.raises(ProblemError, match=f"expected a Problem, got {type(given).__name__}$"):
        ask(given)


def test_an_output_that_was_not_asked_for_is_refused() -> None:
    with pytest.raises(ProblemError, match=r"'dq' was not asked for: expected one of out, lse$"):
        ask(problem())["dq"]


def test_limits_and_bits_may_be_of_any_real_type() -> None:
    for limit in (1, 1e-9, [1e-9, 1.0], np.float32(1e-9), np.full((4, 1), 1e-9), np.inf):
        assert ask(problem(), within={"out": limit}).tier == "float64"
    assert ask(problem(), want=("lse",), bits=np.int32(60)).climb[0].bits == 60


def test_a_gradient_needs_a_cotangent() -> None:
    with pytest.raises(ProblemError, match="gradients need dout or dlse"):
        ask(problem(dout=None), want=("dq",))
