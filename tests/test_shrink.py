"""A failing case is made small, and fails for the same reason as before."""

from __future__ import annotations

import numpy as np
import pytest

from attnspec.adapters import kernel, load
from attnspec.conformance import reductions
from attnspec.conformance.case import Case
from attnspec.conformance.question import Asked, Question
from attnspec.conformance.reason import Failure, asked_again, subject_of
from attnspec.conformance.shrink import Shrunk, shrink
from attnspec.conformance.symptom import Symptom, symptoms
from attnspec.conformance.trace import Subject, Trace
from attnspec.oracle.problem import Problem

MANY = 2000
"""Attempts that a fault may need; the time is not counted, as the machine may be busy."""


def shrunk(spec: str, question: str, *, fresh=None, seconds: float = 300.0) -> Shrunk:
    claim, dtype, case = question.split("/", 2)
    again = fresh or (lambda: load(spec))
    failure = asked_again(lambda: Question(spec, again(), claim, dtype, Case.parse(case), 0))
    assert isinstance(failure, Failure), failure
    found = subject_of(failure, again)
    assert found is not None
    return shrink(*found, seconds=seconds)


def sizes(problem: Problem) -> tuple[int, ...]:
    """B, Hq, Hkv, Nq, Nk, D, Dv."""
    heads = (problem.query_heads, problem.kv_heads)
    lengths = (problem.query_count, problem.key_count)
    return (problem.batch, *heads, *lengths, problem.head_size, problem.value_size)


PLAIN = "float32/normal/b2h2g2q33k65d40v40/plain"
OPTION = "float32/normal/b2h2g2q24k40d16v16/"

SMALLEST = {
    ("causal-top-left", f"out/{OPTION}causal:on"): (1, 1, 1, 1, 2, 1, 1),
    ("causal-sees-the-next-token", f"dv/{OPTION}causal:on"): (1, 1, 1, 2, 2, 1, 1),
    ("mask-inverted", f"out/{OPTION}mask:full"): (1, 1, 1, 1, 2, 1, 1),
    ("window-left-edge-exclusive", f"out/{OPTION}window:sliding"): (1, 1, 1, 1, 2, 1, 1),
    ("scale-one-percent-off", f"lse/{PLAIN}"): (1, 1, 1, 1, 1, 1, 1),
    ("softcap-after-bias", f"out/{OPTION}bias:full+softcap:tight"): (1, 1, 1, 1, 2, 1, 1),
    ("dk-without-scale", f"dk/{PLAIN}"): (1, 1, 1, 1, 2, 1, 1),
    ("no-centring", f"dq/{PLAIN}"): (1, 1, 1, 1, 1, 1, 1),
    ("dq-rows-reversed", f"dq/{PLAIN}"): (1, 1, 1, 2, 2, 1, 1),
    ("dsinks-of-the-wrong-sign", f"dsinks/{OPTION}sinks:normal"): (1, 1, 1, 1, 1, 1, 1),
    ("lse-cotangent-ignored", f"dk/{OPTION}return_lse:differentiated"): (1, 1, 1, 1, 1, 1, 1),
    ("gradients-divided-by-batch", f"dq/{PLAIN}"): (2, 1, 1, 1, 2, 1, 1),
    ("empty-row-is-mean-of-values", f"out/{OPTION}mask:empty-rows"): (1, 1, 1, 1, 1, 1, 1),
    ("hidden-infinity-leaks", f"hidden-nan/{OPTION}causal:on"): (1, 1, 1, 2, 2, 1, 1),
    ("mask-of-the-first-head", f"out/{OPTION}mask:full"): (1, 2, 2, 1, 2, 1, 1),
}
"""The largest that may be left: the smallest at which the fault can show."""


@pytest.mark.parametrize(("name", "question"), SMALLEST, ids=[name for name, _ in SMALLEST])
def test_a_fault_of_the_catalogue_becomes_as_small_as_it_can_be(name, question):
    found = shrunk(f"faulty:{name}", question)
    problem = found.trace.problem
    assert found.finished
    assert found.attempts < MANY
    assert len(found.trace.calls) == 1
    assert np.all(np.array(sizes(problem)) <= SMALLEST[name, question])
    for operand in ("q", "k", "v"):
        numbers = getattr(problem, operand).astype(np.float64)
        whole = numbers[np.isfinite(numbers)]
        assert np.array_equal(whole, np.rint(whole)), operand
        assert np.abs(whole).max(initial=0) <= 1, operand


def test_what_the_fault_does_not_need_is_gone():
    found = shrunk("faulty:causal-top-left", f"out/{OPTION}causal:on+bias:full+sinks:normal")
    problem = found.trace.problem
    assert problem.causal
    assert problem.bias is problem.sinks is problem.mask is problem.dout is None
    assert (problem.scale, found.trace.want) == (1.0, ("out",))


def test_options_become_small_numbers():
    found = shrunk("faulty:window-sides-swapped", f"out/{OPTION}window:sliding")
    assert found.trace.problem.window in ((0, None), (None, 0), (1, 0), (0, 1))
    found = shrunk("faulty:length-of-the-longest-entry", f"out/{OPTION}key_lengths:ragged")
    assert sorted(found.trace.problem.key_lengths.tolist()) == [1, 2]


def test_the_same_again_and_again():
    def result() -> tuple[object, ...]:
        found = shrunk("faulty:softcap-before-scale", f"out/{OPTION}softcap:tight")
        problem = found.trace.problem
        return found.attempts, problem.q.tobytes(), problem.k.tobytes(), problem.v.tobytes()

    assert result() == result()


# -- the same reason ---------------------------------------------------------------------------


def softmax_of(s, v):
    p = np.exp(s - s.max(-1, keepdims=True))
    return (p @ v / p.sum(-1, keepdims=True)).astype(v.dtype)


@kernel
def two_faults(q, k, v, *, scale):
    """A scale that is too large, and NaN in rows beyond the twentieth."""
    out = softmax_of(q @ k.swapaxes(-1, -2) * q.dtype.type(1.2 * scale), v)
    out[:, :, 20:] = np.nan
    return out


def test_shrinking_does_not_slide_into_another_fault():
    nan = shrunk("two", "out/float32/normal/b1h1g1q24k40d16v16/plain", fresh=lambda: two_faults)
    assert (nan.symptom.kind, nan.trace.problem.query_count) == ("nan", 21)
    off = shrunk("two", "out/float32/normal/b1h1g1q16k40d16v16/plain", fresh=lambda: two_faults)
    assert (off.symptom.kind, off.trace.problem.query_count) == ("beyond", 1)


def test_a_weaker_symptom_is_another_one():
    large = Symptom("beyond", "out", 1e5)
    assert large.is_again(Symptom("beyond", "out", 101.0))
    assert not large.is_again(Symptom("beyond", "out", 99.0))
    assert not large.is_again(Symptom("nan", "out"))
    assert not large.is_again(Symptom("beyond", "lse", 1e5))
    assert Symptom("beyond", "out", 1.5).is_again(Symptom("beyond", "out", 1.3))
    assert not Symptom("beyond", "out", 1.5).is_again(Symptom("beyond", "out", 1.1))


def test_rows_that_see_nothing_are_not_made():
    found = shrunk("faulty:mask-ignored", f"out/{OPTION}mask:full")
    assert found.trace.problem.mask.any(axis=-1).all()


# -- what takes more than one call, and what is no number ----------------------------------------


@pytest.mark.parametrize(
    ("name", "question", "calls", "problems"),
    [
        ("answer-cached-by-shape", f"hidden-keys-may-be-left-out/{OPTION}window:sliding", 2, 2),
        ("right-for-ten-calls", f"parts-merge-by-lse/{OPTION}plain", 11, 1),
        ("last-bits-of-the-output-change", f"same-bits-again/{OPTION}plain", 2, 1),
    ],
)
def test_the_calls_that_matter_are_kept(name, question, calls, problems):
    found = shrunk(f"faulty:{name}", question)
    assert found.finished
    assert (len(found.trace.calls), len(found.trace.problems)) == (calls, problems)
    assert np.prod(sizes(found.trace.problem)) <= 2


def test_a_layout_that_matters_is_kept():
    found = shrunk("faulty:read-in-the-order-of-memory", f"layout-q/{PLAIN}")
    problem = found.trace.problem
    assert not problem.q.flags.c_contiguous
    assert problem.k.flags.c_contiguous
    assert problem.v.flags.c_contiguous
    assert sizes(problem) <= (1, 2, 2, 2, 2, 1, 1)


@kernel
def writes(q, k, v, *, scale, causal=False):
    """Scales q where it stands."""
    q *= q.dtype.type(scale)
    return softmax_of(q @ k.swapaxes(-1, -2), v)


@kernel
def refuses(q, k, v, *, scale, causal=False):
    """Raises for more than nine keys."""
    if k.shape[2] > 9:
        raise ValueError(f"at most 9 keys, got {k.shape[2]}")
    return softmax_of(q @ k.swapaxes(-1, -2) * q.dtype.type(scale), v)


@kernel
def widens(q, k, v, *, scale, causal=False):
    """Returns float64."""
    return softmax_of(q @ k.swapaxes(-1, -2) * q.dtype.type(scale), v).astype(np.float64)


@pytest.mark.parametrize(
    ("function", "claim", "kind", "smallest"),
    [
        (writes, "inputs-unchanged", "writes", (1, 1, 1, 1, 1, 2, 1)),
        (refuses, "out", "raises", (1, 1, 1, 1, 10, 1, 1)),
        (widens, "out", "returns", (1, 1, 1, 1, 1, 1, 1)),
    ],
)
def test_what_is_wrong_besides_numbers(function, claim, kind, smallest):
    found = shrunk("own", f"{claim}/{OPTION}plain", fresh=lambda: function)
    assert found.symptom.kind == kind
    assert sizes(found.trace.problem) <= smallest


# -- parts -------------------------------------------------------------------------------------


def test_the_kind_of_layout_outlives_a_cut():
    whole = np.arange(240.0, dtype=np.float32).reshape(2, 3, 5, 8)
    base = np.zeros((2, 3, 5, 16), np.float32)
    base[..., ::2] = whole
    layouts = {
        "heads inside": np.ascontiguousarray(whole.swapaxes(1, 2)).swapaxes(1, 2),
        "gaps": base[..., ::2],
        "backwards": whole[:, :, ::-1].copy()[:, :, ::-1],
        "odd": np.zeros(241, np.float32)[1:].reshape(whole.shape),
    }
    layouts["odd"][...] = whole
    for name, array in layouts.items():
        part = reductions.relaid(array[:1, :2, :3], array)
        assert np.array_equal(part, whole[:1, :2, :3]), name
        order = np.argsort(np.abs(array.strides), kind="stable")
        assert np.all(np.diff(np.abs(np.array(part.strides))[order]) >= 0), name
        assert np.array_equal(np.sign(part.strides), np.sign(array.strides)), name
        assert not reductions.is_plain(part), name
    assert reductions.is_plain(reductions.relaid(whole[:, :2], whole))


def test_lengths_count_the_slots_that_remain():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 1, 5, 4)).astype(np.float32)
    problem = Problem(q=x, k=x, v=x, scale=0.5, key_lengths=np.array([2, 5], np.int32))
    part = reductions.cut(problem, "key", np.array([0, 3]))
    assert part.key_lengths.tolist() == [1, 2]
    assert reductions.cut(problem, "size", np.array([1])).scale == 1.0  # it was 1/sqrt(D)
    assert reductions.axis_size(problem, "token") == 5
    assert reductions.axis_size(part, "token") == 0


def test_what_is_judged_where_infinities_are_seen():
    """A row that sees one may be anything; one that does not is judged."""
    x = np.ones((1, 1, 2, 1), np.float32)
    v = np.array([[[[1], [np.inf]]]], np.float32)
    problem = Problem(q=x, k=x, v=v, scale=1.0, causal=True)
    right = np.array([[[[1], [np.inf]]]], np.float32)
    asked = Asked(problem, ("out",), {"out": right})
    assert symptoms(load("numpy"), asked) == []
    wrong = Asked(problem, ("out",), {"out": right + 1})
    found = symptoms(load("numpy"), wrong)
    assert [(s.kind, s.where) for s in found] == [("beyond", (0, 0, 0, 0))]


def test_calls_of_equal_problems_are_calls_of_one():
    x = np.ones((1, 1, 2, 2), np.float32)
    one = Problem(q=x, k=x, v=x, scale=1.0)
    same = Problem(q=x.copy(), k=x, v=x, scale=1.0)
    other = Problem(q=np.asfortranarray(x), k=x, v=x, scale=1.0)  # another layout
    trace = Trace.of(*(Asked(p, ("out",), {}) for p in (one, other, same)))
    assert [index for index, _ in trace.calls] == [0, 1, 0]
    assert [index for index, _ in trace.alike(1).calls] == [0, 0, 0]
    assert [index for index, _ in trace.without(range(1)).calls] == [1, 0]


def test_a_search_that_runs_out_of_time_says_so():
    found = shrunk("faulty:causal-top-left", f"out/{OPTION}causal:on", seconds=0.0)
    assert not found.finished
    assert Subject(lambda: load("faulty:causal-top-left"), found.symptom).found(found.trace)
