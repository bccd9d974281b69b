"""The climb keeps the better of each element, and says which engine was asked for what."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from attnspec.oracle import Enclosure, Problem, ProblemError, Reference, Uncertified, float64
from attnspec.oracle import reference as ask
from attnspec.oracle.climb import Reach, Step, explained


def problem(**options: Any) -> Problem:
    rng = np.random.default_rng(5)
    shapes = {"q": (1, 2, 4, 3), "k": (1, 1, 5, 3), "v": (1, 1, 5, 2), "dout": (1, 2, 4, 2)}
    arrays = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    return Problem(**{"scale": 0.5, **arrays, **options})


def test_one_engine_that_reaches_is_the_whole_climb() -> None:
    answer = ask(problem(), want=("out", "dq"))
    (step,) = answer.climb
    assert (step.tier, step.bits, step.enough) == ("float64", None, True)
    assert [(r.output, r.short, r.size, r.worst) for r in step.outputs] == [
        ("out", 0, 16, 0.0),
        ("dq", 0, 24, 0.0),
    ]
    assert step.seconds > 0
    assert answer.explain().startswith("float64 (")
    assert answer.explain().endswith("enough")


def test_the_climb_counts_what_fell_short_and_by_how_much() -> None:
    p = problem()
    bound = float64.enclose(p)["out"].bound
    limit = np.full(bound.shape, np.inf)
    limit[0, 0, 0, 0], limit[0, 1, 3, 1] = bound[0, 0, 0, 0] / 8, bound[0, 1, 3, 1] / 2
    answer = ask(p, want=("out", "lse"), within={"out": limit})
    first, second = answer.climb
    assert first.outputs == (Reach("out", 2, 0, 16, 8.0), Reach("lse", 0, 0, 8, 0.0))
    assert not first.enough
    assert second.enough
    assert [reach.output for reach in second.outputs] == ["out"]
    assert second.tier == answer.tier
    assert "out 2 of 16 elements short, worst 8x the wanted bound\n-> " in answer.explain()


def test_what_no_engine_knows_is_counted_apart() -> None:
    p = problem(q=np.full((1, 2, 4, 3), 1e20), k=np.ones((1, 1, 5, 3)))
    first = ask(p).climb[0]
    assert first.outputs[0] == Reach("out", 16, 16, 16, 0.0)
    assert "out 16 of 16 elements short, 16 without a finite bound" in str(first)


def test_uncertified_carries_the_climb() -> None:
    with pytest.raises(Uncertified) as caught:
        ask(problem(), within={"out": 1e-300}, tier="float64")
    (step,) = caught.value.climb
    assert step.outputs[0].short == 16
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.climb) == (str(caught.value), caught.value.climb)


def test_double_double_stands_between_float64_and_the_balls() -> None:
    p = problem()
    assert ask(p, within={"out": 1e-19}).tier == "double-double"
    answer = ask(p, within={"out": 1e-36})
    assert [(step.tier, step.bits) for step in answer.climb] == [
        ("float64", None),
        ("double-double", None),
        ("balls", 106),
        ("balls", 240),
    ]
    assert [step.enough for step in answer.climb] == [False, False, False, True]


@pytest.mark.parametrize(
    "reach, text",
    [
        (Reach("dk", 3, 0, 512, 14.2), "dk 3 of 512 elements short, worst 14.2x the wanted bound"),
        (
            Reach("dk", 3, 0, 512, np.inf),
            "dk 3 of 512 elements short, worst over 1e308x the wanted bound",
        ),
        (Reach("dk", 0, 0, 512, 0.0), "dk enough"),
        (Reach("dk", 2, 2, 9, 0.0), "dk 2 of 9 elements short, 2 without a finite bound"),
    ],
)
def test_the_reach_in_words(reach: Reach, text: str) -> None:
    assert str(reach) == text


def test_the_climb_fits_a_hundred_columns() -> None:
    names = ("out", "lse", "dq", "dk", "dv", "dbias", "dsinks")
    worst = tuple(Reach(n, 10**9 - 1, 10**8, 10**10, 1.23e300) for n in names)
    steps = [Step("double-double", None, worst, 1234.5), Step("balls", 3840, worst, 0.000123)]
    lines = explained([*steps, Step("balls", 7680, (Reach("out", 0, 0, 1, 0.0),), 1.0)]).split("\n")
    assert max(map(len, lines)) < 100
    assert [line.split()[0] for line in lines if line.startswith(" " * 6 + "d")] == 2 * list(
        names[2:]
    )
    assert lines[-1] == "-> balls at 7680 bits (1 s): enough"
    assert sum(line.startswith("-> balls at 3840 bits (0.00012 s): out ") for line in lines) == 1


def test_a_sharper_bound_is_never_replaced_by_a_looser_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A higher engine that knows some elements better and others worse."""
    from attnspec.oracle import double_double

    p = problem()
    first = float64.enclose(p)["out"]
    better = np.zeros(first.bound.shape, np.bool_)
    better[0, 0] = True
    bound = np.where(better, first.bound / 100, first.bound * 100)
    bound[0, 1, 0, 0] = np.nan  # which knows nothing

    def enclose(p: Problem, *, want: Sequence[str]) -> Reference:
        return Reference("double-double", {"out": Enclosure.of(first.value + 1, bound)})

    monkeypatch.setattr(double_double, "enclose", enclose)
    answer = ask(p, want=("out",), within={"out": np.where(better, first.bound / 2, np.inf)})["out"]
    assert np.array_equal(answer.value, np.where(better, first.value + 1, first.value))
    assert np.array_equal(answer.bound, np.where(better, bound, first.bound))


# -- bits --------------------------------------------------------------------------------------

ALL = ("out", "lse", "dq", "dk", "dv")


@pytest.mark.parametrize("bits", [20, 53, 106, 107, 300, 1000])
def test_bits_bound_the_error_by_the_magnitudes_that_add_up(bits: int) -> None:
    """2^-bits of the conditioning, and the least float64: nothing smaller can be stated."""
    answer = ask(problem(), want=ALL, bits=bits)
    finer = ask(problem(), want=ALL, bits=bits + 60)
    for name in ALL:
        most = np.ldexp(1 + answer.conditioning(name), -bits)
        assert np.all(answer[name].bound <= np.maximum(most, 2.0**-1074)), name
        assert np.all(answer[name].bound >= 0)
        distance = abs(answer[name].centre() - finer[name].centre())
        assert np.all(distance <= answer[name].bound + finer[name].bound), name
        assert (len(answer[name].rest) > 0) == (bits > 106)


def test_thousands_of_bits_end_where_float64_does() -> None:
    """v of 2^-900: no more than 174 bits lie above 2^-1074, and the bound says so."""
    v = np.full((1, 1, 5, 2), 2.0**-900) * (1 + np.arange(10).reshape(1, 1, 5, 2))
    answer = ask(problem(v=v), want=("out",), bits=5000)["out"]
    assert np.all(answer.bound >= 2.0**-1074)
    assert np.all(answer.bound <= 2.0**-1073)
    assert 1 <= len(answer.rest) <= 3


def test_the_parts_do_not_overlap_and_add_up_to_the_definition() -> None:
    import mpmath

    answer = ask(problem(), want=("out",), bits=500)["out"]
    exact = ask(problem(), want=("out",), tier="definition", bits=700)["out"].centre()
    with mpmath.workprec(2000):
        assert np.all(abs(answer.centre() - exact) <= answer.bound + mpmath.mpf(2) ** -690)
    for larger, smaller in zip(answer.parts, answer.parts[1:], strict=False):
        assert np.all(np.abs(smaller) <= np.spacing(np.abs(larger)))


def test_without_bits_there_is_no_more_than_was_needed() -> None:
    p = problem()
    assert ask(p, tier="balls")["out"].rest == ()
    fine = ask(p, want=("out",), within={"out": 1e-60})
    assert len(fine["out"].rest) > 0
    assert np.all(fine["out"].bound <= 1e-60)


def test_without_its_rest_an_enclosure_holds_as_much() -> None:
    fine = ask(problem(), want=("out",), bits=400)["out"]
    two = fine.in_two()
    assert two.rest == ()
    missed = abs(fine.centre() - two.centre())
    assert np.all(two.bound >= missed + fine.bound)
    assert np.all(two.bound <= 1.001 * missed.astype(np.float64))


def test_a_visible_nan_clears_the_rest() -> None:
    v = problem().v.copy()
    v[0, 0, 2, 0] = np.nan
    answer = ask(problem(v=v), want=("out",), bits=300)["out"]
    assert np.isnan(answer.value[..., 0]).all()
    assert not any(part[..., 0].any() for part in answer.rest)
    assert any(part[..., 1].any() for part in answer.rest)


# -- rows --------------------------------------------------------------------------------------


def test_rows_are_asked_about_alone() -> None:
    p = problem(causal=True)
    whole, some = ask(p, want=("out", "dq")), ask(p, want=("out", "dq"), rows=[2, 0])
    for name in ("out", "dq"):
        assert some[name].value.shape == (1, 2, 2, p.shape_of(name)[-1])
        far = np.abs(some[name].value - whole[name].value[:, :, [2, 0]])
        assert np.all(far <= some[name].bound + whole[name].bound[:, :, [2, 0]])
    assert np.array_equal(ask(p, rows=slice(1, 3))["lse"].value, ask(p.at([1, 2]))["lse"].value)


@pytest.mark.parametrize("rows", [[4], [-5], [0.5], 3])
def test_rows_that_are_not_there_are_refused(rows: Any) -> None:
    with pytest.raises(ProblemError, match="rows: "):
        ask(problem(), rows=rows)


def test_limits_are_for_the_rows_asked_about() -> None:
    with pytest.raises(ProblemError, match=r"broadcasts to \(1, 2, 2, 2\)"):
        ask(problem(), rows=[0, 1], within={"out": np.ones((1, 2, 4, 2))})
