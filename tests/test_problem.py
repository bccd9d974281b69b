from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnspec.oracle.problem import OUTPUTS, Problem, ProblemError


def problem(
    q_shape: tuple[int, ...] = (2, 4, 3, 2), *, kv_heads: int = 2, keys: int = 5, **options
):
    batch, _, _, size = q_shape
    kv = (batch, kv_heads, keys, size)
    operands = {"q": np.ones(q_shape), "k": np.ones(kv), "v": np.ones(kv), "scale": 1.0}
    return Problem(**(operands | options))


# -- who sees whom: the rule, said once more for a single pair ---------------------------------


def element(array: np.ndarray, *slot: int) -> Any:
    """The element that NumPy's broadcasting would bring to the slot."""
    aligned = slot[len(slot) - array.ndim :]
    return array[tuple(0 if n == 1 else x for x, n in zip(aligned, array.shape, strict=True))]


def sees(p: Problem, b: int, h: int, i: int, j: int) -> bool:
    queries = p.q.shape[2] if p.query_lengths is None else int(p.query_lengths[b])
    keys = p.k.shape[2] if p.key_lengths is None else int(p.key_lengths[b])
    if i >= queries or j >= keys:
        return False
    if p.diagonal == "bottom-right":
        meets = keys - 1 - (queries - 1 - i)  # the last query meets the last key
    else:
        meets = i if p.diagonal == "top-left" else i + p.diagonal
    if p.causal and j > meets:
        return False
    left, right = p.window or (None, None)
    if left is not None and j < meets - left:
        return False
    if right is not None and j > meets + right:
        return False
    if p.mask is not None and not element(p.mask, b, h, i, j):
        return False
    return p.bias is None or element(p.bias, b, h, i, j) != -math.inf


@st.composite
def masked_problems(draw: st.DrawFn) -> Problem:
    batch, group, kv_heads = (draw(st.integers(1, 2)) for _ in range(3))
    queries, keys = draw(st.integers(0, 6)), draw(st.integers(0, 6))
    scores = (batch, group * kv_heads, queries, keys)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))

    def choose(density: float) -> np.ndarray | None:
        axes = draw(st.none() | st.integers(0, 4))
        if axes is None:
            return None
        shape = [draw(st.sampled_from((1, n))) for n in scores[4 - axes :]]
        return np.asarray(rng.random(shape) < density)

    hidden = choose(0.3)
    reach = st.none() | st.integers(0, 7)
    lengths = [
        draw(st.none() | st.lists(st.integers(0, n), min_size=batch, max_size=batch))
        for n in (queries, keys)
    ]
    return problem(
        (batch, group * kv_heads, queries, 1),
        kv_heads=kv_heads,
        keys=keys,
        diagonal=draw(st.sampled_from(("bottom-right", "top-left")) | st.integers(-8, 8)),
        causal=draw(st.booleans()),
        window=draw(st.none() | st.tuples(reach, reach)),
        mask=choose(0.7),
        bias=None if hidden is None else np.where(hidden, -np.inf, 0.0),
        query_lengths=None if lengths[0] is None else np.array(lengths[0]),
        key_lengths=None if lengths[1] is None else np.array(lengths[1]),
    )


@settings(derandomize=True, max_examples=400, deadline=None)
@given(masked_problems())
def test_visible_is_the_rule_applied_to_each_pair(p: Problem) -> None:
    batch, heads, queries, keys = p.q.shape[0], p.q.shape[1], p.q.shape[2], p.k.shape[2]
    for b in range(batch):
        for h in range(heads):
            pairs = [[sees(p, b, h, i, j) for j in range(keys)] for i in range(queries)]
            expected = np.array(pairs, bool).reshape(queries, keys)
            np.testing.assert_array_equal(p.visible(b, h), expected)


def test_the_last_query_meets_the_last_key_at_the_bottom_right() -> None:
    p = problem((1, 1, 2, 1), kv_heads=1, keys=4, causal=True)
    np.testing.assert_array_equal(p.visible(0, 0), [[1, 1, 1, 0], [1, 1, 1, 1]])
    np.testing.assert_array_equal(p.ahead(0), [[2, 1, 0, -1], [3, 2, 1, 0]])
    p = p.replace(diagonal="top-left")
    np.testing.assert_array_equal(p.visible(0, 0), [[1, 0, 0, 0], [1, 1, 0, 0]])
    p = p.replace(diagonal=-1)
    np.testing.assert_array_equal(p.visible(0, 0), [[0, 0, 0, 0], [1, 0, 0, 0]])


def test_both_ends_of_a_window_are_inclusive() -> None:
    p = problem((1, 1, 5, 1), kv_heads=1, keys=5, window=(1, 2))
    np.testing.assert_array_equal(p.visible(0, 0)[2], [0, 1, 1, 1, 1])
    np.testing.assert_array_equal(p.visible(0, 0)[4], [0, 0, 0, 1, 1])


# -- what a head hands to the engines ----------------------------------------------------------


def test_query_heads_read_key_heads_in_consecutive_groups() -> None:
    k = np.arange(4.0).reshape(2, 2, 1, 1)
    p = Problem(q=np.ones((2, 6, 1, 1)), k=k, v=k + 10, scale=1.0)
    heads = list(p.heads())
    assert [(h.batch, h.index) for h in heads] == [(b, a) for b in range(2) for a in range(6)]
    assert [h.kv_index for h in heads] == [0, 0, 0, 1, 1, 1] * 2
    assert [h.key.item() for h in heads] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert [h.value.item() for h in heads] == [10, 10, 10, 11, 11, 11, 12, 12, 12, 13, 13, 13]


def test_a_head_reads_its_own_slope_sink_bias_and_cotangents() -> None:
    rng = np.random.default_rng(0)
    extras = {
        "sinks": np.arange(4.0),
        "alibi": np.arange(4.0) + 10,
        "bias": rng.normal(size=(4, 1, 5)),
        "dout": rng.normal(size=(2, 4, 3, 2)),
        "dlse": rng.normal(size=(2, 4, 3)),
    }
    for head in problem(**extras).heads():
        assert (head.sink, head.slope) == (head.index, head.index + 10)
        np.testing.assert_array_equal(head.bias, [extras["bias"][head.index, 0]] * 3)
        np.testing.assert_array_equal(head.dout, extras["dout"][head.batch, head.index])
        np.testing.assert_array_equal(head.dlse, extras["dlse"][head.batch, head.index])


def test_the_options_reach_a_head_as_float64() -> None:
    (head, *_) = problem(scale=np.float32(0.1), softcap=np.float32(0.3)).heads()
    assert (type(head.scale), type(head.softcap)) == (float, float)
    assert (head.scale, head.softcap) == (np.float32(0.1), np.float32(0.3))


def test_keys_that_no_row_sees_are_zero_and_others_are_not() -> None:
    keys = np.array([[[[1.0], [np.inf], [3.0], [np.nan]]]])
    mask = np.array([[True, False, False, False], [False, False, True, False]])
    bias = np.array([1.0, np.nan, 2.0, -np.inf])
    (head,) = Problem(
        q=np.ones((1, 1, 2, 1)), k=keys, v=keys, scale=1.0, mask=mask, bias=bias
    ).heads()
    np.testing.assert_array_equal(head.key.ravel(), [1, 0, 3, 0])
    np.testing.assert_array_equal(head.value.ravel(), [1, 0, 3, 0])
    np.testing.assert_array_equal(head.bias, [[1, 0, 0, 0], [0, 0, 2, 0]])


def test_low_precision_operands_are_read_exactly() -> None:
    x = np.array([[[[1.0078125, 3.0e38]]]]).astype(ml_dtypes.bfloat16)
    (head,) = Problem(q=x, k=x, v=x, scale=1.0).heads()
    assert head.query.dtype == np.float64
    assert head.query.ravel().tolist() == [1.0078125, float(x.ravel()[1])]


# -- what a problem defines, and what it refuses -----------------------------------------------


def test_outputs_have_the_shapes_of_what_they_differentiate() -> None:
    p = problem(bias=np.ones((3, 1)), sinks=np.ones(4), dlse=np.ones((2, 4, 3)))
    shapes = [(2, 4, 3, 2), (2, 4, 3), (2, 4, 3, 2), (2, 2, 5, 2), (2, 2, 5, 2), (3, 1), (4,)]
    assert [p.shape_of(output) for output in OUTPUTS] == shapes


@pytest.mark.parametrize("output", ["dq", "dk", "dv", "dbias", "dsinks", "weights"])
def test_an_output_that_is_not_defined_is_refused(output: str) -> None:
    with pytest.raises(ProblemError, match=f"'{output}' is not defined.*expected one of out, lse"):
        problem().shape_of(output)
    if output in ("dbias", "dsinks"):
        with pytest.raises(ProblemError, match="expected one of out, lse, dq, dk, dv "):
            problem(dout=np.ones((2, 4, 3, 2))).shape_of(output)


REFUSALS = {
    "q: expected a NumPy array, got list$": {"q": [1.0]},
    "q: expected a NumPy array, got Tensor; use .numpy\\(\\), for bfloat16 .*ml_dtypes$": {
        "q": type("Tensor", (), {})()
    },
    "causal: expected a bool, got 'no'": {"causal": "no"},
    "causal: expected a bool, got 1": {"causal": 1},
    r"q: expected shape \(batch, heads, length, size\), got \(3, 2\)": {"q": np.ones((3, 2))},
    "q: expected dtype bfloat16 or .* got int64": {"q": np.ones((2, 4, 3, 2), np.int64)},
    "k: expected q's dtype float64, got float32": {"k": np.ones((2, 2, 5, 2), np.float32)},
    r"k: expected \(B=2, Hkv, Nk, D=2\), got \(2, 2, 5, 3\)": {"k": np.ones((2, 2, 5, 3))},
    r"v: expected \(B=2, Hkv=2, Nk=5, Dv\), got \(2, 2, 4, 2\)": {"v": np.ones((2, 2, 4, 2))},
    "batch, heads and sizes must be at least 1": {"q": np.ones((2, 4, 3, 0))},
    "q has 3 heads: expected a multiple of k's 2": {"q": np.ones((2, 3, 3, 2))},
    "scale: expected a finite number, got inf": {"scale": np.inf},
    "scale: expected a finite number, got None": {"scale": None},
    "softcap: expected a positive number, got 0": {"softcap": 0.0},
    "softcap: expected a finite number, got nan": {"softcap": np.nan},
    "diagonal: expected 'bottom-right', 'top-left' or an int, got 'left'": {"diagonal": "left"},
    "diagonal: .* got True": {"diagonal": True},
    r"diagonal: .* got array\(\[1\]\)": {"diagonal": np.array([1])},
    r"window: expected \(left, right\), each an int >= 0 or None, got 3": {"window": 3},
    r"window: .* got \(-1, 0\)": {"window": (-1, 0)},
    r"window: .* got \(1.5, 0\)": {"window": (1.5, 0)},
    r"window: .* got \(True, None\)": {"window": (True, None)},
    r"window: .* got \(None, np.False_\)": {"window": (None, np.False_)},
    r"window: .* got \[3, None\]": {"window": [3, None]},
    "mask: expected dtype bool, got float64": {"mask": np.ones((3, 5))},
    r"mask: expected a shape that broadcasts to \(2, 4, 3, 5\), got \(5, 3\)": {
        "mask": np.ones((5, 3), bool)
    },
    "mask: expected a NumPy array, got list": {"mask": [True]},
    "bias: expected dtype bfloat16 or .* got bool": {"bias": np.ones((3, 5), bool)},
    r"bias: expected a shape that broadcasts .* got \(1, 2, 4, 3, 5\)": {
        "bias": np.ones((1, 2, 4, 3, 5))
    },
    r"bias: \+inf has no meaning": {"bias": np.full((3, 5), np.inf)},
    r"sinks: expected shape \(4,\), got \(2,\)": {"sinks": np.ones(2)},
    "sinks: expected finite values": {"sinks": np.full(4, np.nan)},
    r"alibi: expected shape \(4,\), got \(4, 1\)": {"alibi": np.ones((4, 1))},
    "alibi: expected dtype .* got int64": {"alibi": np.ones(4, np.int64)},
    r"key_lengths: expected integers of shape \(2,\), got float64": {"key_lengths": np.ones(2)},
    r"key_lengths: expected values from 0 to 5, got \[6, 1\]": {"key_lengths": np.array([6, 1])},
    r"query_lengths: expected values from 0 to 3, got \[0, -1\]": {
        "query_lengths": np.array([0, -1])
    },
    r"query_lengths: expected integers .* shape \(3,\)": {"query_lengths": np.array([1, 1, 1])},
    r"dout: expected shape \(2, 4, 3, 2\), got \(2, 2, 5, 2\)": {"dout": np.ones((2, 2, 5, 2))},
    r"dlse: expected shape \(2, 4, 3\), got \(2, 4, 3, 1\)": {"dlse": np.ones((2, 4, 3, 1))},
    "dlse: expected finite values": {"dlse": np.full((2, 4, 3), np.inf)},
}


@pytest.mark.parametrize("message", REFUSALS)
def test_a_wrong_field_is_refused_with_what_was_expected(message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        problem(**REFUSALS[message])


def test_integers_and_bools_of_numpy_are_kept_as_plain_ones() -> None:
    p = problem(window=(np.int64(3), None), diagonal=np.int32(1), causal=np.True_)
    assert (p.window, p.diagonal, p.causal) == ((3, None), 1, True)
    assert p.window is not None
    assert [type(x) for x in (p.window[0], p.diagonal, p.causal)] == [int, int, bool]


def test_a_changed_copy_is_checked_again() -> None:
    with pytest.raises(ProblemError, match="scale"):
        problem().replace(scale=np.nan)
