"""Why a question failed: which of its calls show it, and by what symptom."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from attnspec.adapters import CallFailed, Kernel
from attnspec.conformance.examination import examine
from attnspec.conformance.question import Question, Violation
from attnspec.conformance.symptom import KINDS, Symptom, symptoms
from attnspec.conformance.trace import Subject, Trace, differences
from attnspec.oracle.problem import OUTPUTS

__all__ = ["ATTEMPTS", "Failure", "asked_again", "subject_of"]

ATTEMPTS = 3
"""How often a question is asked to know whether it fails each time."""

TRIES = 8
"""How often a trace is run of a kernel that does not fail each time."""


@dataclass(frozen=True, eq=False)
class Failure:
    """A question that failed, with its calls; what it raised, and how many times of `ATTEMPTS`."""

    question: Question
    error: Exception
    times: int


def asked_again(ask: Callable[[], Question]) -> Failure | Exception | None:
    """The question, asked `ATTEMPTS` times of a fresh kernel; None where it passes each time.

    An exception that is no failure is returned: the case is not claimed, or the suite is wrong.
    """
    failures = []
    for _ in range(ATTEMPTS):
        question = ask()
        error = examine(question)
        if isinstance(error, Violation) or (
            isinstance(error, CallFailed) and error.status != "not claimed"
        ):
            failures.append((question, error))
        elif error is not None:
            return error
    if not failures:
        return None
    question, error = failures[0]
    return Failure(question, error, len(failures))


def subject_of(failure: Failure, fresh: Callable[[], Kernel]) -> tuple[Subject, Trace] | None:
    """The kernel with its symptom, and the calls that show it again; None where nothing does.

    One call alone, if one is enough; else the last wrong call with all before it.
    """
    tries = 1 if failure.times == ATTEMPTS else TRIES
    asked = failure.question.asked
    found = list(_reasons(failure))
    for whole in (False, True):
        for index, symptom in found:
            if symptom.kind == "differs" and not whole:
                continue
            trace = Trace.of(*asked[: index + 1] if whole else asked[index : index + 1])
            subject = Subject(fresh, symptom, tries)
            if subject.found(trace) is not None:
                return subject, trace
    return None


def _reasons(failure: Failure) -> Iterator[tuple[int, Symptom]]:
    """The symptoms of the calls, with the call's number, the best explanation first."""
    question = failure.question
    found: list[tuple[int, Symptom]] = []
    model = bool(question.findings) and question.findings[-1].rule in ("model", "rms")
    for index in range(len(question.asked) - 1, -1, -1):
        asked = question.asked[index]
        for symptom in symptoms(question.kernel, asked, model=model):
            found.append((index, symptom))
    last = Trace.of(*question.asked) if question.asked else None
    if last is not None:
        found += [(len(question.asked) - 1, s) for s in differences(question.asked, last)]
    wanted = _kind(failure.error)
    found = [(i, s) for i, s in found if s.kind != "number" or wanted == "number"]
    order = list(KINDS)
    yield from sorted(
        found,
        key=lambda one: (
            question.claim in OUTPUTS and one[1].about != question.claim,
            one[1].kind != wanted,
            order.index(one[1].kind),
            -one[0],
        ),
    )


def _kind(error: Exception) -> str:
    """The kind of symptom that the message of the failure speaks of."""
    if isinstance(error, CallFailed):
        return {"error": "raises", "fail": "returns"}[error.status]
    said = str(error)
    for words, kind in {
        "expected nan": "number",
        "exact nan": "number",
        "got nan": "nan",
        "got inf": "infinite",
        "got -inf": "infinite",
        "wrote into": "writes",
        "second run": "differs",
    }.items():
        if words in said:
            return kind
    return "beyond"
