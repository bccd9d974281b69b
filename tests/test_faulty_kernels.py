"""Faults of the catalogue are caught for the right reason: the claims that they must fail.

Each is asked here at level smoke, on the claims in its `shows` alone, until one of them fails;
what needs more than that is left to the suite's own test (`attnspec selftest`).
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from attnspec.adapters import load
from attnspec.adapters.catalogue import Fault, catalogue
from attnspec.conformance.examination import checks, examine
from attnspec.conformance.question import Question
from attnspec.conformance.session import Session
from attnspec.conformance.verdict import Verdict
from attnspec.oracle.problem import OUTPUTS

FAULTS: dict[str, Fault] = dict(catalogue("faulty"))
ASKED = [name for name, f in FAULTS.items() if f.level == "standard" and not f.beyond_smoke]
SLOW = {"memory-grows-as-declared"}
"""Claims that run the kernel in a process of its own."""

MOST = 60
"""Questions of each claim that are asked here at most."""

OPTION = "b2h2g2q24k40d16v16"


def asked(fault: str, claim: str, *, pattern: str = "") -> list[Question]:
    """The questions of a claim at level smoke, or those that a pattern selects at any level."""
    entry = FAULTS[fault]
    patterns = (pattern,) if pattern else ()
    session = Session({fault: entry.kernel(dtypes=entry.dtypes)}, "smoke", 0, patterns, "")
    return session.questions(claim, cases=checks()[claim].cases)


def verdict(question: Question) -> Verdict:
    """The verdict on a question, and no warnings of faulty arithmetic."""
    with np.errstate(all="ignore"):
        return question.settle(examine(question), reproduce="", seconds=0.0)


def caught(found: Verdict) -> bool:
    """Whether the implementation was found to be wrong."""
    return found.status in ("fail", "error")


@pytest.mark.parametrize("fault", ASKED)
def test_a_fault_is_caught_by_a_claim_that_it_must_fail(fault: str) -> None:
    claims = [claim for claim in FAULTS[fault].shows if claim not in SLOW]
    questions = itertools.chain(*(asked(fault, claim)[:MOST] for claim in claims))
    if not any(caught(verdict(question)) for question in questions):
        pytest.skip(f"needs more than {MOST} questions of each claim at level smoke")


@pytest.mark.parametrize("fault", ["dq-rows-reversed", "dk-without-scale", "dv-negated"])
def test_a_fault_in_one_gradient_is_not_held_against_the_others(fault: str) -> None:
    for claim in ("out", "dq", "dk", "dv"):
        pattern = f"{claim}/float32/normal/{OPTION}/gqa:grouped"
        found = [verdict(question) for question in asked(fault, claim, pattern=pattern)]
        assert [caught(v) for v in found] == [claim in FAULTS[fault].spoils]


WORDS = {
    "causal-top-left": ("out", "*causal:on", "hard bound"),
    "zeros": ("out", "*plain", "got 0"),
    "nan-everywhere": ("out", "*plain", "got nan"),
    "float64-output": ("out", "*plain", "float64"),
    "raises": ("out", "*plain", "no attention today"),
    "scales-the-queries-in-place": ("inputs-unchanged", "*plain", "wrote into q"),
    "tiles-in-any-order": ("same-bits-again", "*plain", "run"),
    "innermost-stride-ignored": ("layout-q", "*plain", "laid out as"),
    "declares-the-mean-for-empty-rows": ("out", "*mask:empty-rows", "got 0"),
}
"""fault -> a claim, cases of it, and a word of the message on one of them."""


@pytest.mark.parametrize("fault", WORDS)
def test_the_message_says_what_is_wrong(fault: str) -> None:
    claim, cases, words = WORDS[fault]
    questions = asked(fault, claim, pattern=f"{claim}/float32/normal/{OPTION[:4]}{cases}")
    messages = [v.message for v in map(verdict, questions[:MOST]) if caught(v)]
    assert any(words in message for message in messages), messages


def test_every_fault_says_what_it_must_fail_and_what_it_spoils() -> None:
    for name, fault in FAULTS.items():
        assert fault.says.endswith((".", "…")), name
        assert fault.shows, name
        assert set(fault.shows) <= set(checks()), name
        assert set(fault.spoils) <= set(OUTPUTS), name
        assert {claim for claim in fault.shows if claim in OUTPUTS} <= set(fault.spoils), name


def test_a_kernel_without_a_fault_passes_where_faults_are_caught() -> None:
    kernel = load("numpy-flash")
    session = Session({"numpy-flash": kernel}, "smoke", 0, (), "")
    for claim in {claim for fault in FAULTS.values() for claim in fault.shows} - SLOW:
        for question in session.questions(claim, cases=checks()[claim].cases)[:MOST]:
            if question.dtype == "float32":
                assert not caught(verdict(question)), question.id
