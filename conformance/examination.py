"""The suite without pytest: every claim's check and cases, and one question examined."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from attnspec.conformance import (
    test_contract,
    test_cotangents,
    test_layouts,
    test_poison,
    test_properties,
    test_reference,
    test_repetition,
)
from attnspec.conformance.case import Case
from attnspec.conformance.question import Question
from attnspec.conformance.session import Session
from attnspec.conformance.verdict import Verdict

__all__ = ["Check", "checks", "examine", "question_of", "questions"]


MODULES = (
    test_reference,
    test_properties,
    test_contract,
    test_layouts,
    test_poison,
    test_repetition,
    test_cotangents,
)


@dataclass(frozen=True)
class Check:
    """What is asked for a claim: the function that examines a question, and the cases."""

    examine: Callable[[Question], None]
    cases: Callable[..., list[Case]]


@cache
def checks() -> Mapping[str, Check]:
    """The check of every claim, from the marks of the tests."""
    found: dict[str, Check] = {}
    for module in MODULES:
        for name, test in vars(module).items():
            for mark in getattr(test, "pytestmark", ()) if name.startswith("test_") else ():
                found |= dict.fromkeys(mark.args, Check(test, mark.kwargs["cases"]))
    return found


def questions(session: Session) -> Iterator[Question]:
    """Every question of a session, claim by claim."""
    for claim, check in checks().items():
        yield from session.questions(claim, cases=check.cases)


def examine(question: Question) -> Exception | None:
    """Examine a question; what it raised, if anything, for `Question.settle`.

    The question then holds its findings and, in `asked`, every call.
    """
    try:
        checks()[question.claim].examine(question)
    except Exception as raised:
        return raised
    return None


def question_of(verdict: Verdict, kernel: Any, *, seed: int) -> Question:
    """The question that a verdict answered, to be examined again."""
    case = Case.parse(verdict.case)
    return Question(verdict.impl, kernel, verdict.claim, verdict.dtype, case, seed)
