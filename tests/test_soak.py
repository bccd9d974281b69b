"""The soak catches broken bounds in every engine, and draws the same problem again."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from attnspec.oracle import Enclosure, Problem, Reference, balls

BENCHMARKS = str(Path(__file__).parents[1] / "benchmarks")
FOREVER = float("inf")


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import soak
    import soak_problems

    monkeypatch.setattr(soak_problems, "sizes", st.sampled_from(["tiny"]))
    monkeypatch.setattr(soak, "BATCH", 20)
    yield soak
    for name in ("soak", "soak_checks", "soak_problems", "soak_tiles"):
        sys.modules.pop(name, None)


def changed(engine: Any, change: Callable[[Enclosure], Enclosure]) -> Any:
    def enclose(problem: Problem, want: Sequence[str]) -> Reference:
        answer = engine(problem, want)
        return replace(answer, outputs={n: change(e) for n, e in answer.outputs.items()})

    return enclose


def test_the_engines_do_not_contradict_one_another(soak: Any) -> None:
    tally = soak.soak(12345, 0, FOREVER)
    assert tally.misses == []
    assert tally.problems > 15
    for engine in (*soak.ENGINES, "definition", "all rows"):
        assert tally.compared[f"{engine}/out"] > 50, engine
    assert all(0 <= used <= 1 + 1e-9 for used, *_ in tally.worst.values())


@pytest.mark.parametrize("engine", ["float64", "double-double", "balls", "fine balls"])
def test_a_bound_that_is_too_small_is_caught(
    soak: Any, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lower = changed(soak.ENGINES[engine], lambda e: replace(e, bound=e.bound / 2**10))
    monkeypatch.setitem(soak.ENGINES, engine, lower)
    misses = soak.soak(12345, 0, FOREVER).misses
    assert misses
    assert all(any(name.startswith(engine) for name in miss["engines"]) for miss in misses)


@pytest.mark.parametrize(
    "engine, error", [("float64", 2.0**-44), ("double-double", 2.0**-62), ("balls", 2.0**-100)]
)
def test_a_dropped_rounding_is_caught(
    soak: Any, engine: str, error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value that was rounded once more than its bound knows."""
    rounded = changed(soak.ENGINES[engine], lambda e: replace(e, low=e.low + e.value * error))
    monkeypatch.setitem(soak.ENGINES, engine, rounded)
    assert soak.soak(12345, 0, FOREVER).misses


def test_a_dropped_radius_of_the_balls_is_caught(
    soak: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The midpoint of exp(score) for the ball, at a precision where that is most of the error."""
    matrix = balls._Slots._between
    monkeypatch.setattr(balls._Slots, "_between", lambda *a: matrix(*a).mid())
    assert any(soak.soak(12345, batch, FOREVER).misses for batch in range(3))


def test_an_output_off_by_a_factor_is_caught(soak: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The definition alone differs."""
    from attnspec.oracle import definition

    exact = definition.attention

    def attention(*args: Any, **options: Any) -> Any:
        return {name: x * (1 + 2.0**-40) for name, x in exact(*args, **options).items()}

    monkeypatch.setattr(definition, "attention", attention)
    misses = soak.soak(12345, 0, FOREVER).misses
    assert misses
    assert all("definition" in miss["engines"] for miss in misses)


def test_rows_that_see_other_keys_are_caught(soak: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    at = Problem.at

    def shifted(self: Problem, rows: Any) -> Problem:
        part = at(self, rows)
        return part.replace(positions=part.positions * 0)

    monkeypatch.setattr(Problem, "at", shifted)
    misses = [miss for batch in range(3) for miss in soak.soak(12345, batch, FOREVER).misses]
    assert misses
    assert all(any("all rows" in name for name in miss["engines"]) for miss in misses)


def test_an_engine_that_raises_is_a_miss(soak: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(problem: Problem, want: Sequence[str]) -> Reference:
        raise ValueError("no such thing")

    monkeypatch.setitem(soak.ENGINES, "balls", broken)
    assert soak.soak(12345, 0, FOREVER).misses[0]["raised"] == "ValueError: no such thing"


# -- small tiles -------------------------------------------------------------------------------


def test_small_tiles_show_what_happens_from_tile_to_tile(
    soak: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of several tiles is left out: even batches have one, odd ones several."""
    tiles = balls._tiles
    monkeypatch.setattr(balls, "_tiles", lambda problem: list(tiles(problem))[:1])
    assert not soak.soak(12345, 0, FOREVER).misses
    assert soak.soak(12345, 1, FOREVER).misses


def test_small_tiles_are_small_in_every_engine_and_for_a_while_only(soak: Any) -> None:
    from soak_tiles import SMALL, small_tiles

    def sizes() -> list[int]:
        modules = [(sys.modules[name], names) for name, names in SMALL.items()]
        return [getattr(m, n) for m, names in modules for n in names if hasattr(m, n)]

    usual = sizes()
    with small_tiles():
        assert all(small < size for small, size in zip(sizes(), usual, strict=True))
    assert sizes() == usual


def test_a_constant_that_is_no_more_is_an_error(soak: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import soak_tiles

    monkeypatch.setitem(soak_tiles.SMALL, balls.__name__, {"SHEET": 3})
    with pytest.raises(LookupError, match="SHEET"), soak_tiles.small_tiles():
        pass


# -- distances ---------------------------------------------------------------------------------


def enclosure(value: float, low: float = 0.0, *rest: float, bound: float = 0.0) -> Enclosure:
    parts = [np.array([x]) for x in (value, low, bound, *rest)]
    return Enclosure(parts[0], parts[1], parts[2], tuple(parts[3:]))


@pytest.mark.parametrize(
    "a, b, is_apart",
    [
        (enclosure(1.0), enclosure(1.0), False),
        (enclosure(1.0), enclosure(1.0, 1e-300), True),
        (enclosure(1.0, 1e-300), enclosure(1.0, bound=1e-300), False),
        (enclosure(1.0, 1e-300), enclosure(1.0, bound=9e-301), True),
        (enclosure(1.0, bound=2.0**-53), enclosure(1 + 2.0**-52, bound=2.0**-53), False),
        (enclosure(1.0, bound=2.0**-53), enclosure(1 + 2.0**-52, 5e-324, bound=2.0**-53), True),
        (enclosure(1.0, 2.0**-60), enclosure(1 + 2.0**-52, 2.0**-60 - 2.0**-52), False),
        (enclosure(1.0, 0, 2.0**-200), enclosure(1.0, 2.0**-200), False),
        (enclosure(1.0, bound=np.inf), enclosure(7.0), False),
        (enclosure(np.nan, bound=np.inf), enclosure(7.0), False),
        (enclosure(-np.inf), enclosure(-np.inf), False),
        (enclosure(-np.inf), enclosure(-1e300, bound=1e300), True),
        (enclosure(1.7e308, bound=1e308), enclosure(-1.7e308, bound=1e308), True),
        (enclosure(1.7e308, bound=1.7e308), enclosure(-1.7e308, bound=1.7e308), False),
        (enclosure(5e-324), enclosure(0.0, bound=5e-324), False),
        (enclosure(1e-323), enclosure(0.0, bound=5e-324), True),
    ],
)
def test_enclosures_are_apart_exactly_where_they_share_no_number(
    soak: Any, a: Enclosure, b: Enclosure, is_apart: bool
) -> None:
    import soak_checks

    for first, second in ((a, b), (b, a)):
        assert list(soak_checks.apart(first, second)) == ([(0,)] if is_apart else [])


@pytest.mark.parametrize("exponents", [range(-1074, 900), (-200, -100, -60, 0)])
def test_the_quick_distance_is_never_below_the_exact_one(
    soak: Any, exponents: Sequence[int]
) -> None:
    """Terms far apart, and terms of which the large ones often cancel."""
    import soak_checks

    rng = np.random.default_rng(1)

    def random(count: int) -> Enclosure:
        shape = (count, 5000)
        terms = np.ldexp(rng.integers(-4, 5, shape), rng.choice(exponents, shape))
        value, low, *rest = terms
        return Enclosure(value, low, np.zeros(5000), tuple(rest))

    a, b = random(2), random(4)
    far = soak_checks.distance(a, b)
    for i in range(5000):
        exact = abs(soak_checks.exactly(a, (i,)) - soak_checks.exactly(b, (i,)))
        assert exact <= Fraction(float(far[i]))
        if len(exponents) > 4:
            assert Fraction(float(far[i])) <= 2 * exact + Fraction(2) ** -1000


# -- the command -------------------------------------------------------------------------------


def run(soak: Any, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["soak.py", *arguments])
    return int(soak.main())


def test_the_command_reports_and_succeeds(
    soak: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "soak.json"
    arguments = "--minutes", "0.05", "--seed", "3", "--workers", "1", "--json", str(file)
    assert run(soak, monkeypatch, *arguments) == 0
    printed = capsys.readouterr().out
    assert "seed 3: " in printed
    assert "0 misses in" in printed
    assert max(map(len, printed.splitlines())) <= 100
    found = json.loads(file.read_text())
    assert found["seed"] == 3
    assert found["problems"] > 0
    assert found["misses"] == []


def test_two_workers_draw_what_one_draws(soak: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the workers know nothing of the fixture's sizes
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setattr(soak, "BATCH", 3)
    alone = [soak.soak(3, batch, FOREVER) for batch in range(2)]
    together = [(t.problems, t.compared) for t in soak.tallies(3, minutes=0.15, workers=2)]
    assert len(together) > 2
    assert all((tally.problems, tally.compared) in together for tally in alone)


def test_a_miss_is_printed_with_the_line_that_draws_it_again(
    soak: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lower = changed(soak.ENGINES["float64"], lambda e: replace(e, bound=e.bound / 2**10))
    monkeypatch.setitem(soak.ENGINES, "float64", lower)
    miss = soak.soak(12345, 1, FOREVER).misses[0]
    assert run(soak, monkeypatch, "--minutes", "0.1", "--seed", "12345", "--workers", "1") == 1
    assert "python benchmarks/soak.py --seed 12345 --problem " in capsys.readouterr().out
    again = "--seed", str(miss["seed"]), "--problem", str(miss["problem"])
    assert run(soak, monkeypatch, *again) == 1
    printed = capsys.readouterr().out
    assert f"{miss['output']}[" in printed
    assert "scale: " in printed
