"""Answers are shared by content, and a kernel still gets its own layout."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from attnspec.conformance import kept
from attnspec.conformance.certify import allowance
from attnspec.conformance.kept import Store, content, shared
from attnspec.oracle.formats import FORMATS
from attnspec.oracle.problem import Problem
from attnspec.oracle.rounding import EAGER, FLOAT32_INSIDE


def problem(seed: int = 0, *, keys: int = 5, **fields: Any) -> Problem:
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((1, 1, n, 4)).astype(np.float32) for n in (3, keys, keys))
    return Problem(**{"q": q, "k": k, "v": v, "scale": 0.5, **fields})


def test_the_same_numbers_have_the_same_name_however_they_lie() -> None:
    one = problem()
    turned = np.ascontiguousarray(one.q.swapaxes(2, 3)).swapaxes(2, 3)
    assert turned.strides != one.q.strides
    assert content(one) == content(one.replace(q=turned)) == content(problem())


ONES = np.ones((1, 1, 3, 5))


@pytest.mark.parametrize(
    "fields",
    [
        {"scale": 0.25},
        {"causal": True},
        {"window": (1, None)},
        {"window": (None, 1)},
        {"diagonal": "top-left"},
        {"diagonal": 2},
        {"softcap": 2.0},
        {"mask": ONES > 0},
        {"bias": np.zeros((3, 5), np.float32)},
        {"sinks": np.zeros(1, np.float32)},
        {"alibi": np.zeros(1, np.float32)},
        {"key_lengths": np.array([5])},
        {"query_lengths": np.array([3])},
        {"dout": np.zeros((1, 1, 3, 4), np.float32)},
        {"dlse": np.zeros((1, 1, 3), np.float32)},
    ],
    ids=str,
)
def test_every_field_is_in_the_name(fields: dict[str, Any]) -> None:
    assert content(problem()) != content(problem(**fields))


def test_shape_and_type_are_in_the_name() -> None:
    three = np.ones((1, 1, 3, 3), np.bool_)
    masks = (three[..., :1], three[:, :, :1], three[0, :, :1])
    assert len({content(problem(keys=3, mask=mask)) for mask in masks}) == 3
    halves = (np.zeros(1, dtype) for dtype in (np.float16, FORMATS["bfloat16"].dtype))
    assert len({content(problem(sinks=sink)) for sink in halves}) == 2


def test_zeros_of_either_sign_and_nan_are_told_apart() -> None:
    values = (0.0, -0.0, np.nan, np.inf)
    assert len({content(problem(v=np.full((1, 1, 5, 4), x, np.float32))) for x in values}) == 4


def test_an_answer_is_computed_once_for_equal_problems_and_for_each_argument() -> None:
    asked: list[tuple[float, str]] = []

    @shared
    def answer(problem: Problem, word: str) -> str:
        asked.append((problem.scale, word))
        return word

    for _ in range(2):
        assert [answer(problem(), "a"), answer(problem(), "b")] == ["a", "b"]
        assert answer(problem(scale=2.0), "a") == "a"
    assert asked == [(0.5, "a"), (0.5, "b"), (2.0, "a")]


def test_an_allowance_is_of_its_arithmetic_and_no_one_can_change_it() -> None:
    found = allowance(problem(), FLOAT32_INSIDE, "out")
    assert allowance(problem(), FLOAT32_INSIDE, "out") is found
    assert allowance(problem(), EAGER, "out") is not found
    with pytest.raises(ValueError, match="read-only"):
        found *= 2


def test_a_large_problem_takes_its_answers_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "SMALL", 100)

    @shared
    def answer(problem: Problem) -> object:
        return np.zeros(problem.key_count)

    def once(seed: int) -> weakref.ref[Any]:
        return weakref.ref(answer(problem(seed)))

    assert content(problem()) == b""
    first = once(1)
    gc.collect()
    assert first() is None


def test_the_store_forgets_what_was_not_asked_for_longest() -> None:
    store, made = Store(limit=250), []

    def ask(key: str) -> None:
        def make() -> dict[str, Any]:
            made.append(key)
            return {"x": (np.zeros(12), {"y": np.zeros(1, np.int32)})}  # 100 bytes

        store.get(key, make)

    for key in "abacab":
        ask(key)
    assert made == list("abcb")  # c pushed b out, not a
    assert (len(store), store.held) == (2, 200)
