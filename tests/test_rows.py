"""Some rows of a problem: each sees what it saw in the whole one, and nothing else changes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from attnspec.oracle import Problem, ProblemError, reference
from attnspec.oracle.heads import stacked
from attnspec.oracle.problem import OUTPUTS

F32 = np.float32
ROWS, KEYS = 7, 9
CHOSEN = [5, 0, 5, -1]


def problem(**options: Any) -> Problem:
    rng = np.random.default_rng(1)

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(F32)

    arrays = {
        "q": normal(2, 4, ROWS, 3),
        "k": normal(2, 2, KEYS, 3),
        "v": normal(2, 2, KEYS, 5),
        "dout": normal(2, 4, ROWS, 5),
        "dlse": normal(2, 4, ROWS),
    }
    return Problem(**arrays | {"scale": 0.7} | options)


RNG = np.random.default_rng(2)
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"causal": True},
    "top-left": {"causal": True, "diagonal": "top-left"},
    "shifted": {"causal": True, "diagonal": -3},
    "window": {"window": (2, 1)},
    "left": {"window": (1, None), "diagonal": "top-left"},
    "mask": {"mask": RNG.random((2, 1, ROWS, KEYS)) < 0.6},
    "row mask": {"mask": RNG.random((ROWS, 1)) < 0.6},
    "bias": {"bias": RNG.standard_normal((4, ROWS, KEYS)).astype(F32)},
    "key bias": {"bias": np.where(RNG.random(KEYS) < 0.3, -np.inf, 1.5).astype(F32)},
    "lengths": {"key_lengths": np.array([4, 9]), "query_lengths": np.array([6, 3])},
    "alibi": {"alibi": np.array([0.1, 0.2, 0.3, 0.4], F32)},
    "sinks": {"sinks": np.array([0.1, 0.2, 0.3, 0.4], F32)},
}
PAIRS = [*((name, name) for name in OPTIONS), *itertools.combinations(OPTIONS, 2)]


@pytest.mark.parametrize("first, second", PAIRS)
def test_rows_see_what_they_saw_and_answer_alike(first: str, second: str) -> None:
    whole = problem(**OPTIONS[first] | OPTIONS[second])
    some = whole.at(CHOSEN)
    for batch, head in itertools.product(range(2), range(4)):
        np.testing.assert_array_equal(some.visible(batch, head), whole.visible(batch, head)[CHOSEN])
        np.testing.assert_array_equal(some.ahead(batch), whole.ahead(batch)[CHOSEN])
    want = ("out", "lse", "dq")
    exact, found = (reference(p, want=want, tier="balls") for p in (whole, some))
    for name in want:
        np.testing.assert_array_equal(found[name].value, exact[name].value[:, :, CHOSEN])


@pytest.mark.parametrize("name", OPTIONS)
def test_sums_over_rows_are_those_of_a_cotangent_that_is_zero_elsewhere(name: str) -> None:
    rows = [1, 4]
    others = np.setdiff1d(np.arange(ROWS), rows)
    whole = problem(**OPTIONS[name])
    assert whole.dout is not None
    assert whole.dlse is not None
    whole.dout[:, :, others] = 0
    whole.dlse[:, :, others] = 0
    sums = [n for n in ("dk", "dv", "dsinks") if n != "dsinks" or whole.sinks is not None]
    exact, found = (reference(p, want=sums, tier="balls") for p in (whole, whole.at(rows)))
    for output in sums:
        distance = np.abs(found[output].value - exact[output].value)
        assert np.all(distance <= found[output].bound + exact[output].bound + 1e-30)
        assert np.any(exact[output].value != 0)


def test_rows_of_rows() -> None:
    once = problem(causal=True).at([2, 4, 6])
    twice, same = once.at(slice(1, None)), problem(causal=True).at([4, 6])
    np.testing.assert_array_equal(twice.visible(0, 0), same.visible(0, 0))
    np.testing.assert_array_equal(twice.q, same.q)
    assert problem().at([]).query_count == 0


def test_one_row_taken_several_times() -> None:
    one = problem(**OPTIONS["bias"] | OPTIONS["lengths"]).at([3])
    assert one.at([0, 0, 0]).shape_of("dq") == (2, 4, 3, 3)
    np.testing.assert_array_equal(one.at([0, 0, 0]).dout, np.repeat(one.dout, 3, axis=2))


@pytest.mark.parametrize(
    "rows, says", [([ROWS], "the 7 that"), ([-8], "the 7 that"), ([0.5], "integers"), (3, "3")]
)
def test_rows_that_are_not_there(rows: Any, says: str) -> None:
    with pytest.raises(ProblemError, match=f"rows: .*{says}"):
        problem().at(rows)


@pytest.mark.parametrize(
    "fields, says",
    [
        ({"positions": np.arange(ROWS)}, "query_lengths"),
        ({"positions": np.arange(3), "query_lengths": np.full(2, 9)}, r"\(7,\)"),
        ({"positions": np.arange(ROWS) - 1, "query_lengths": np.full(2, 9)}, "from 0 on"),
        ({"positions": np.ones(ROWS), "query_lengths": np.full(2, 9)}, "float64"),
    ],
)
def test_positions_that_make_no_sense(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ProblemError, match=says):
        problem(**fields)


@pytest.mark.parametrize("step", [1, 3, ROWS, 100])
@pytest.mark.parametrize("name", OPTIONS)
def test_tiles_are_the_problem_cut_into_rows(name: str, step: int) -> None:
    whole = problem(**OPTIONS[name])
    seen = np.zeros((2, 4, ROWS, KEYS), np.bool_)
    ahead = np.zeros((2, 4, ROWS, KEYS), np.int64)
    for tile in stacked(whole, rows=step):
        assert tile.rows.stop - tile.rows.start <= step
        for i, (batch, head) in enumerate(zip(tile.batch, tile.index, strict=True)):
            seen[batch, head, tile.rows, tile.keys] = tile.visible[i]
            ahead[batch, head, tile.rows, tile.keys] = tile.ahead[i]
            part = whole.k[batch, tile.kv_index[i], tile.keys]
            used = tile.visible[i].any(0)
            np.testing.assert_array_equal(tile.key[i][used], part[used])
    expected = [[whole.visible(b, h) for h in range(4)] for b in range(2)]
    np.testing.assert_array_equal(seen, expected)
    visible_ahead = np.where(seen, ahead, 0)
    exact = [[whole.ahead(b)] * 4 for b in range(2)]
    np.testing.assert_array_equal(visible_ahead, np.where(seen, exact, 0))


def test_keys_that_no_row_sees_are_zero_whatever_they_hold() -> None:
    for name in ("causal", "mask", "key bias", "lengths", "window"):
        whole = problem(**OPTIONS[name], dlse=None).at([1, 2])
        used = np.array([[whole.visible(b, h).any(0) for h in range(4)] for b in range(2)])
        (stack,) = stacked(whole)
        flat = used.reshape(8, KEYS)
        assert not flat.all()
        np.testing.assert_array_equal(stack.key.any(-1), flat)
        np.testing.assert_array_equal(stack.value.any(-1), flat)


@pytest.mark.parametrize("output", [name for name in OUTPUTS if name[0] == "d"])
def test_the_restricted_problem_has_gradients_of_its_own_shapes(output: str) -> None:
    some = problem(**OPTIONS["bias"] | OPTIONS["sinks"]).at([1, 2, 3])
    assert reference(some, want=(output,))[output].value.shape == some.shape_of(output)


@pytest.mark.parametrize("first, second", PAIRS)
def test_a_key_is_used_where_a_row_sees_it(first: str, second: str) -> None:
    whole = problem(**OPTIONS[first] | OPTIONS[second])
    for some, batch, head in itertools.product((whole, whole.at([1, 4])), range(2), range(4)):
        seen = some.visible(batch, head).any(axis=0)
        np.testing.assert_array_equal(some.used(batch, head), seen)
