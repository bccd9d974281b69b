"""What a wrong kernel does instead: named where a known fault does the same, and only there."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import cache
from types import MappingProxyType

import ml_dtypes
import numpy as np
import pytest

from attnspec.adapters import kernel, load
from attnspec.adapters.catalogue import catalogue
from attnspec.adapters.fault_classes import CLASSES
from attnspec.conformance import diagnosis as module
from attnspec.conformance.case import Case, parse_settings
from attnspec.conformance.cases import OPTION, SMALL, Shape
from attnspec.conformance.diagnosis import diagnose, examined
from attnspec.conformance.diagnosis_candidates import Likeness, Profile, candidates, consistency
from attnspec.conformance.diagnosis_class import RULES, Evidence, reasons, tally
from attnspec.conformance.diagnosis_evidence import chosen, cost
from attnspec.conformance.diagnosis_said import Diagnosis, Suspect
from attnspec.conformance.diagnosis_score import Score
from attnspec.conformance.examination import examine
from attnspec.conformance.question import Question
from attnspec.conformance.verdict import Verdict

FAULTS = (
    *("causal-top-left", "causal-sees-the-next-token", "causal-reversed", "scale-by-head-size"),
    *("scale-missing", "dk-without-scale", "scale-one-percent-off"),
)

CASES = (
    *(Case("normal", Shape(1, 2, 2, n, m, 16, 16)) for n, m in ((9, 17), (16, 16), (17, 9))),
    *(
        Case("normal", Shape(1, 2, 2, n, m, 16, 16), parse_settings("causal"))
        for n, m in ((9, 17), (16, 16), (17, 9))
    ),
    *(Case("normal", OPTION, parse_settings(text)) for text in ("", "causal")),
    Case("needle", SMALL),
)


def verdicts_of(one, claims=("out",), cases=CASES):
    """The verdicts of a few questions, without the suite's own choice of them."""
    found = []
    for claim in claims:
        for case in cases:
            question = Question("mine", one, claim, one.dtypes[0], case, 0)
            found.append(question.settle(examine(question), reproduce="", seconds=0.0))
    return found


def attention(q, k, v, scale, causal, weights=lambda p: p, top_left=False):
    s = (q @ k.swapaxes(-1, -2)) * np.float32(scale)
    rows, keys = s.shape[-2:]
    if causal:
        ahead = np.arange(rows)[:, None] - np.arange(keys) + (0 if top_left else keys - rows)
        s = np.where(ahead >= 0, s, -np.inf)
    largest = s.max(-1, keepdims=True)
    p = np.exp(s - np.where(np.isinf(largest), 0, largest))
    total = p.sum(-1, keepdims=True)
    return ((weights(p) @ v) / np.where(total == 0, 1, total)).astype(np.float32)


@kernel(dtypes=("float32",))
def top_left(q, k, v, *, scale, causal=False):
    return attention(q, k, v, scale, causal, top_left=True)


@kernel(dtypes=("float32",))
def scale_by_size(q, k, v, *, scale, causal=False):
    return attention(q, k, v, scale**2, causal)


@kernel(dtypes=("float32",))
def bfloat16_weights(q, k, v, *, scale, causal=False):
    return attention(
        q, k, v, scale, causal, lambda p: p.astype(ml_dtypes.bfloat16).astype(np.float32)
    )


@kernel(dtypes=("float32",))
def nan_under_causal_and_negative_scale(q, k, v, *, scale, causal=False):
    return attention(q, k, v, np.nan if causal and scale < 0 else scale, causal)


@kernel(dtypes=("float32",))
def a_little_too_large(q, k, v, *, scale, causal=False):
    return attention(q, k, v, scale, causal) * np.float32(1.003)


@kernel(dtypes=("float32",))
def sines(q, k, v, *, scale, causal=False):
    return np.sin(7 * attention(q, k, v, scale, causal)).astype(np.float32)


@cache
def faults():
    return MappingProxyType({name: catalogue("faulty")[name] for name in FAULTS})


@cache
def said_of(one):
    return examined(one, verdicts_of(one), seed=0, faults=faults).diagnosis()


@pytest.mark.parametrize("name", ["causal-top-left", "scale-by-head-size", "causal-reversed"])
def test_a_fault_of_the_catalogue_is_named_number_by_number(name):
    said = said_of(catalogue("faulty")[name].kernel())
    assert [one.name for one in said.likely] == [name]
    assert said.likely[0].ways == {"numbers": said.asked}
    assert (said.likely[0].fraction, said.likely[0].refuted) == (0.0, 0)


@pytest.mark.parametrize(
    ("one", "name"), [(top_left, "causal-top-left"), (scale_by_size, "scale-by-head-size")]
)
def test_a_kernel_of_other_roundings_is_recognised(one, name):
    said = said_of(one)
    assert [suspect.name for suspect in said.likely] == [name]
    assert said.likely[0].fraction < 1


def test_gradients_alone():
    one = catalogue("faulty")["dk-without-scale"].kernel()
    verdicts = verdicts_of(one, claims=("out", "dq", "dk"))
    said = examined(one, verdicts, seed=0, faults=faults).diagnosis()
    assert said.likely[0].name == "dk-without-scale"
    assert said.outputs == "dk wrong, out, dq right on the same cases"
    assert "the exact result times 1/scale" in said.places


def test_what_no_fault_does_is_unexplained():
    said = said_of(sines)
    assert said.likely == ()
    assert said.lines()[0] == "unexplained: no known fault does this"


def test_nan_is_no_evidence_for_what_fails_where_the_implementation_passes():
    said = examined(
        nan_under_causal_and_negative_scale,
        verdicts_of(nan_under_causal_and_negative_scale, claims=("out", "scale-of-any-sign")),
        seed=0,
        faults=lambda: {"root-of-negative-scale": catalogue("faulty")["root-of-negative-scale"]},
    )
    suspect = next(said._suspect(one) for one in said.suspects)
    assert (suspect.ways, suspect.finite) == ({"numbers": suspect.asked}, False)
    assert suspect.refuted > 0
    lines = said.diagnosis().lines()
    assert lines[0] == "unexplained: no known fault does this"
    assert "which fails in the same places" not in " ".join(lines)
    assert any(line.startswith("where: ") for line in lines)


def test_without_the_fault_itself_it_is_not_claimed():
    one = catalogue("faulty")["causal-top-left"].kernel()
    found = examined(one, verdicts_of(one), seed=0, faults=faults)
    said = found.diagnosis(without=["causal-top-left"])
    assert said.likely == ()
    assert said.nearest[0].group == "causality"
    assert said.class_name == "visible set"
    assert said.lines()[1] == "likely class: visible set (only causal calls fail)"


def verdict(claim, status="fail", case="normal/b1h2g2q9k17d16v16/plain", message=""):
    return Verdict(
        impl="mine",
        claim=claim,
        dtype="float32",
        case=case,
        generic=True,
        status=status,
        message=message,
    )


WINDOW = "normal/b1h2g2q9k17d16v16/window:sliding"


@pytest.mark.parametrize(
    ("failed", "passed", "name"),
    [
        ([verdict("lse")], ["out", "dq"], "lse, splits, sinks"),
        ([verdict("dq"), verdict("dk")], ["out", "lse"], "backward alone"),
        ([verdict("inputs-unchanged")], ["out", "lse"], "state"),
        ([verdict("layout-k"), verdict("layout-v")], [*9 * ["out"], "layout-q"], "layout"),
        ([verdict("row-without-keys-returns-zero")], 9 * ["out"], "empty rows"),
        ([verdict("out", case=WINDOW), verdict("lse", case=WINDOW)], 5 * ["out"], "visible set"),
        ([verdict("hidden-nan", message="got nan")], 9 * ["out"], "empty rows"),
        ([verdict("memory-grows-as-declared")], ["out"], "memory"),
    ],
)
def test_what_failed_speaks_for_a_class(failed, passed, name):
    evidence = Evidence([*failed, *(verdict(claim, "pass") for claim in passed)])
    assert next(iter(tally(evidence, []))) == name
    assert reasons(evidence, name)


def test_where_nothing_speaks_the_nearest_faults_do():
    evidence = Evidence([verdict("odds-are-exponential"), *3 * [verdict("out", "pass")]])
    assert tally(evidence, []) == {}
    near = [("tails", 1.0), ("cheats", 0.6), ("cheats", 0.6), ("cheats", -1.0)]
    assert list(tally(evidence, near)) == ["tails", "cheats"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, "as faulty:near, which fails in the same places"),
        ({"refuted": 1}, "of it, faulty:near comes nearest"),
        ({"overlap": 0.1}, "of it, faulty:near comes nearest"),
        ({"kind": "gqa-map"}, ""),
    ],
)
def test_a_fault_is_named_beside_its_class_only_for_what_it_does(changes, why):
    suspect = replace(
        Suspect(
            name="near",
            says="It is near.",
            kind="window",
            group="tests",
            explained=0,
            asked=3,
            refuted=0,
            passes=3,
            fraction=0.0,
            overlap=0.6,
            finite=False,
            ways={},
            score=0.5,
            nearness=1.0,
        ),
        **changes,
    )
    said = Diagnosis(nearest=(suspect,), asked=3, class_name="visible set")
    assert said.lines()[1] == "likely class: visible set" + (f" ({why})" if why else "")


def test_what_is_not_asked_again_has_a_class_too():
    verdicts = [verdict("memory-grows-as-declared"), verdict("out", "pass")]
    lines = diagnose(load("numpy-flash"), verdicts, seed=0, impl="mine").lines()
    assert lines[0] == "likely class: memory (memory grows otherwise than declared)"


def test_every_rule_speaks_for_a_class_that_there_is():
    assert {rule.speaks_for for rule in RULES} <= set(CLASSES)


def test_a_score_without_the_fault_is_of_the_class_that_is_said():
    left_out = Diagnosis(class_name="visible set")
    score = Score(
        name="x", kind="window", group="g", failures=1, said=left_out, left_out=left_out, seconds=0
    )
    assert score.classed
    assert not replace(score, kind="gqa-map").classed


def test_a_lost_precision_is_named_by_the_arithmetic_that_excuses_it():
    said = said_of(bfloat16_weights)
    assert said.as_if == "the probabilities were rounded to bfloat16"
    assert said.likely == ()
    assert "as if the probabilities were rounded to bfloat16" in " ".join(said.lines()[:2])


def test_a_wrong_result_is_not_excused_by_any_arithmetic():
    assert said_of(top_left).as_if == ""
    assert said_of(sines).as_if == ""


@pytest.mark.parametrize(("unstable", "way"), [(False, ""), (True, "failure")])
def test_wrong_numbers_are_put_down_to_chance_only_where_they_change(unstable, way):
    failures = examined(top_left, verdicts_of(top_left), seed=0, faults=faults).failures
    fault = replace(catalogue("faulty")["causal-reversed"], kind="nondeterminism")
    (one,) = candidates({fault.name: fault}, top_left)
    one.fails_alike(0, failures[0], unstable=unstable)
    assert one.likeness.get(0, Likeness("")).way == way


def test_one_factor_is_no_lost_precision():
    said = said_of(a_little_too_large)
    assert "1.003 times the exact result" in said.places
    assert said.as_if == ""
    assert said.class_name != "arithmetic"


def test_where_is_found_beside_the_cause():
    lines = " ".join(said_of(top_left).lines())
    assert "all 3 failures of out, and none of 6 passes, have causal and Nq != Nk" in lines


def test_a_conforming_kernel_has_nothing_to_diagnose():
    good = load("numpy-flash")
    assert diagnose(good, verdicts_of(good), seed=0, impl="mine").lines() == []


def test_trouble_is_one_line_and_no_traceback(monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("out of order\nand more")

    monkeypatch.setattr(module, "examined", broken)
    said = diagnose(sines, [], seed=0, impl="mine")
    assert said.lines() == ["no diagnosis: RuntimeError: out of order"]


def test_every_line_fits():
    for one in (top_left, sines, bfloat16_weights, scale_by_size):
        assert all(len(line) <= 100 for line in said_of(one).lines())
    assert Diagnosis().lines() == []


def test_questions_are_asked_again_from_small_ones_and_of_every_kind():
    verdicts = verdicts_of(top_left)
    again = chosen(verdicts, most=4)
    assert [cost(one) for one in again] == sorted(cost(one) for one in again)
    assert len({one.case.rpartition("/")[2] for one in again}) == 2


def test_claims_that_fail_count_for_the_faults_that_are_known_to_fail_them():
    one = catalogue("faulty")["dk-without-scale"]
    other = catalogue("faulty")["causal-top-left"]
    verdicts = verdicts_of(one.kernel(), claims=("out", "dq", "dk"))
    profile = Profile.of(verdicts)
    assert consistency(one, profile) > consistency(other, profile)


def test_passes_are_chosen_where_the_failed_claim_passes():
    verdicts = verdicts_of(load("numpy-flash"), claims=("scale-of-any-sign", "out"))
    near = {"scale-of-any-sign", "option causal"}
    again = chosen(verdicts, most=6, near=near)
    assert {one.claim for one in again[:6]} >= {"scale-of-any-sign"}
    assert sum(one.claim == "scale-of-any-sign" for one in again) >= 3


FILE = """
import numpy as np

def attention(q, k, v, *, scale, causal=False):
    s = q @ k.swapaxes(-1, -2) * q.dtype.type(scale)
    if causal:
        s = np.where(np.tri(*s.shape[-2:], dtype=bool), s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    return p @ v / p.sum(-1, keepdims=True)
"""


def test_the_report_says_it_also_with_xdist_and_not_where_it_is_off(tmp_path):
    (tmp_path / "mine.py").write_text(FILE)
    cases = [f"--attn-case=out/float32/*q15k17d16v16/{x}" for x in ("causal:on", "plain")]
    command = [sys.executable, "-m", "pytest", "--pyargs", "attnspec.conformance", "-q"]
    command += ["-p", "no:cacheprovider", "--impl=mine.py", *cases]
    said = {}
    for option in ("-n1", "--attn-diagnose=off"):
        run = subprocess.run(
            [*command, option], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert "mine.py: does not conform" in run.stdout, run.stdout + run.stderr
        said[option] = "The causal mask is aligned top-left." in run.stdout
    assert said == {"-n1": True, "--attn-diagnose=off": False}
