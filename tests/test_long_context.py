"""Long contexts: what is drawn and judged, and that faults which need length are caught.

The faults are asked at a thousand keys, with a limit that scales along: what catches them is the
same as at 131,072.
"""

from __future__ import annotations

import gc
import itertools
import weakref
from collections import Counter

import numpy as np
import pytest

from attnspec.adapters import kernel
from attnspec.adapters.catalogue import catalogue
from attnspec.adapters.faulty.long_rows import Long
from attnspec.adapters.kernel import Kernel
from attnspec.adapters.pipeline import kernel_of
from attnspec.conformance import certify, fitting
from attnspec.conformance.case import (
    Case,
    Shape,
    _stored,
    draw,
    has_gradients,
    parse_settings,
    rows_of,
)
from attnspec.conformance.cases import LEVELS, reference_cases
from attnspec.conformance.long_inputs import LONG_FAMILIES, judged_rows, needles
from attnspec.conformance.options import OPTIONS
from attnspec.conformance.question import Question, Violation
from attnspec.oracle.formats import FORMATS
from attnspec.oracle.reference import TIERS, reference
from attnspec.oracle.rounding import EAGER, FLOAT32_INSIDE

LIMIT = 512
FEW = Shape(1, 1, 1, 2, 1037, 16, 16)
MANY = Shape(1, 1, 1, 40, 1037, 16, 16)
GRID = {
    level: reference_cases("out", level=level, options=OPTIONS, turn=("float32", ("float32",)))
    for level in LEVELS
}


def long(family: str, settings: str = "", shape: Shape = FEW) -> Case:
    return Case(f"long-{family}", shape, parse_settings(settings))


def shortened(fault: str) -> Kernel:
    """A long fault, or `honest`, with the limit at which these tests ask it."""
    pipeline = Long if fault == "honest" else LONG_FAULTS[fault].pipeline
    return kernel_of(type(fault, (pipeline,), {"limit": LIMIT, "state": {}}), name=fault)


def asked(fault: str, claim: str, case: Case, dtype: str = "float32") -> Question:
    """The question after it was put, whatever came of it."""
    question = Question(fault, shortened(fault), claim, dtype, case, seed=0)
    with np.errstate(all="ignore"):
        try:
            question.compare(claim)
        except Violation:
            assert not question.findings[-1].passed
    return question


# -- faults ------------------------------------------------------------------------------------

LONG_FAULTS = {name: fault for name, fault in catalogue("faulty").items() if fault.level == "full"}
EXPECTED = {
    "long-index-wraps": ("out", long("needle"), "float32"),
    "long-last-tile-dropped": ("out", long("uniform"), "float32"),
    "long-sum-in-storage": ("out", long("positive"), "bfloat16"),
    "long-maximum-stops": ("out", long("rising"), "float32"),
    "long-rescale-stops": ("out", long("rising"), "bfloat16"),
    "long-causal-offset-saturates": ("out", long("sharp", "causal", MANY), "float32"),
    "long-key-length-saturates": ("lse", long("uniform", "key_lengths:long"), "float32"),
    "long-mask-wraps": ("out", long("needle", "mask:keys"), "float16"),
    "long-window-is-lost": ("out", long("sharp", "window:long"), "float32"),
    "long-dk-and-dv-stop": ("dv", long("normal"), "float32"),
    "long-dq-stops": ("dq", long("sharp"), "float32"),
}
"""fault -> the claim that it violates, a case that shows it, and in which type."""


@pytest.mark.parametrize("fault", EXPECTED)
def test_a_fault_beyond_some_length_is_caught(fault: str) -> None:
    found = asked(fault, *EXPECTED[fault])
    assert found.findings[-1].fraction > 1


@pytest.mark.parametrize("fault", EXPECTED)
def test_the_honest_kernel_passes_where_a_fault_is_caught(fault: str) -> None:
    _, case, _ = EXPECTED[fault]
    for claim, dtype in itertools.product(
        ("out", "lse", "dq", "dk", "dv"), ("float32", "float16", "bfloat16")
    ):
        found = asked("honest", claim, case, dtype)
        assert found.findings[-1].passed, (claim, dtype, found.findings[-1])


def test_every_fault_has_its_expectation() -> None:
    assert set(LONG_FAULTS) == set(EXPECTED)


def test_a_fault_is_not_there_below_its_length() -> None:
    short = Shape(1, 1, 1, 2, LIMIT, 16, 16)
    for fault, (claim, case, dtype) in EXPECTED.items():
        settings = "+".join(f"{option}:{variant}" for option, variant in case.settings)
        family = case.family.removeprefix("long-")
        assert asked(fault, claim, long(family, settings, short), dtype).findings[-1].passed


def test_the_place_of_a_fault_is_a_row_of_the_whole_problem() -> None:
    case = long("sharp", "causal", MANY)
    inner = shortened("honest").function
    for row in (0, 39):

        def spoilt(q, k, v, *, scale, causal=False, row=row):
            out = inner(q, k, v, scale=scale, causal=causal)
            out[:, :, row, 3] += 1
            return out

        changed = kernel(dtypes=("float32",), accumulate="float32")(spoilt)
        question = Question("spoilt", changed, "out", "float32", case, seed=0)
        with pytest.raises(Violation):
            question.compare("out")
        assert question.findings[-1].where == (0, 0, row, 3)


@pytest.mark.parametrize("scores", [None, "storage"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_stored_scores_repeat_in_a_long_row_so_their_roundings_are_not_independent(
    dtype: str, scores: str | None
) -> None:
    inner = shortened("honest").function
    declared = kernel(dtypes=("float32", "float16"), accumulate="float32", scores=scores)
    for case, repeats in ((long("positive"), True), (Case("positive", FEW), False)):
        question = Question("stored", declared(inner), "out", dtype, case, seed=0)
        assert question.generic == (not (repeats and scores and dtype == "float16"))


# -- what is drawn and judged ------------------------------------------------------------------


def test_only_the_level_full_has_long_contexts_and_all_families() -> None:
    assert not [case for level in ("smoke", "standard") for case in GRID[level] if case.is_long]
    cases = [case for case in GRID["full"] if case.is_long]
    assert {case.family for case in cases} == set(LONG_FAMILIES)
    assert {case.shape.keys for case in cases} >= {2**17, 2**20}


def test_a_kernel_may_hold_all_scores_of_any_case() -> None:
    for case in GRID["full"]:
        shape = case.shape
        scores = shape.batch * shape.heads * shape.queries * shape.keys
        assert scores * 8 < 2**29, case.id


def test_gradients_are_asked_at_128k_keys_and_at_a_million() -> None:
    lengths = {case.shape.keys for case in GRID["full"] if case.is_long and has_gradients(case)}
    assert lengths >= {2**17, 2**20}


@pytest.mark.parametrize("square", [False, True])
@pytest.mark.parametrize("size", [None, 64, 128])
def test_a_case_made_to_fit_keeps_its_gradients(size: int | None, square: bool) -> None:
    fit = fitting._fit(size, square=square)
    for case in GRID["full"]:
        assert has_gradients(fit(case)) or not has_gradients(case)


def test_few_rows_are_all_judged_of_many_the_first_the_last_and_a_tile_edge() -> None:
    rng = np.random.default_rng(0)
    assert judged_rows(8, rng) is None
    for queries in (9, 40, 385, 4096):
        rows = judged_rows(queries, rng)
        assert rows is not None
        edge = min(128, queries // 2)
        assert {0, edge - 1, edge, queries - 1} <= set(rows) <= set(range(queries))
        assert list(rows) == sorted(set(rows))
    case = long("normal", shape=MANY)
    assert rows_of(case, seed=0) == rows_of(case, seed=0) != rows_of(case, seed=1)
    assert rows_of(Case("normal", MANY), seed=0) is None


@pytest.mark.parametrize("dtype", FORMATS)
def test_the_cotangent_is_zero_in_rows_that_are_not_judged(dtype: str) -> None:
    case = long("normal", shape=MANY)
    problem = draw(case, dtype=dtype, diagonal="top-left", seed=0)
    judged = np.zeros(MANY.queries, np.bool_)
    judged[list(rows_of(case, seed=0) or ())] = True
    np.testing.assert_array_equal(problem.dout.astype(np.float64).any(-1)[0, 0], judged)


@pytest.mark.parametrize("dtype", FORMATS)
def test_numbers_drawn_in_float32_are_rounded_once(dtype: str) -> None:
    form = FORMATS[dtype]
    rng = np.random.default_rng(3)
    bits = rng.integers(2**32, size=100_000, dtype=np.uint32).view(np.float32)
    drawn = np.concatenate([rng.standard_normal(100_000, np.float32), bits[np.isfinite(bits)]])
    with np.errstate(over="ignore"):
        stored = _stored(drawn, form)
    assert stored.tobytes() == form.round(drawn).tobytes()


def test_needles_lie_where_an_index_of_16_bits_does_not_reach() -> None:
    assert needles(2**20)[:5] == [2**20 - 1, 2**19 + 1, 2**18 + 1, 2**17 + 1, 2**16 + 1]
    assert needles(2**17)[:2] == [2**17 - 1, 2**16 + 1]
    assert needles(5) == [4]


@pytest.mark.parametrize("family", LONG_FAMILIES)
@pytest.mark.parametrize("keys", [1, 2, 65])
def test_families_can_be_drawn_at_any_length(family: str, keys: int) -> None:
    case = Case(family, Shape(2, 4, 4, 3, keys, 2, 3), parse_settings("gqa:grouped"))
    problem = draw(case, dtype="float16", diagonal="bottom-right", seed=0)
    assert problem.k.shape == (2, 4, keys, 2)
    assert problem.q.shape == (2, 12, 3, 2)


def test_each_region_of_equal_weights_has_its_channel() -> None:
    problem = draw(long("uniform"), dtype="float32", diagonal="bottom-right", seed=0)
    value = problem.v[0, 0]
    np.testing.assert_array_equal(np.unique(value), [0, 1])
    np.testing.assert_array_equal(value.sum(1), 2)
    assert value[:, 0].nonzero()[0].tolist() == [FEW.keys - 1]
    assert value[:, -1].nonzero()[0].tolist() == [0]


# -- what is kept ------------------------------------------------------------------------------


def test_answers_go_with_their_problem() -> None:
    def answers(seed: int) -> weakref.ref:
        problem = draw.__globals__["_drawn"](long("normal"), "float32", "top-left", seed)
        want = ("out", "dk")
        certify.certified(problem, FLOAT32_INSIDE, want)
        certify.allowance(problem, FLOAT32_INSIDE, "out")
        return weakref.ref(problem)

    first, _ = answers(1), answers(2)  # the last one's statistics are kept
    gc.collect()
    assert first() is None


def test_each_tier_is_asked_once_and_only_for_what_is_left(monkeypatch) -> None:
    tiers: Counter[str] = Counter()

    def counted(problem, *, want, tier, within):
        tiers[tier] += 1
        return reference(problem, want=want, tier=tier, within=within)

    monkeypatch.setattr(certify, "reference", counted)
    small = Case("normal", Shape(1, 1, 1, 3, 5, 4, 4))
    for dtype, tier in (("float32", "float64"), ("float64", TIERS[1])):
        problem = draw(small, dtype=dtype, diagonal="top-left", seed=11)
        for arithmetic in (FLOAT32_INSIDE, EAGER, FLOAT32_INSIDE):
            found = certify.certified(problem, arithmetic, ("out", "lse"))
            assert {answer.tier for answer in found.values()} == {tier}
    assert tiers == {"float64": 2, TIERS[1]: 2}
