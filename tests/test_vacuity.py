"""What cannot fail is not counted: the probe sees a vacuous check, and no sound one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from attnspec.adapters import load
from attnspec.conformance.case import Case, Shape, parse_settings
from attnspec.conformance.examination import checks, examine
from attnspec.conformance.question import Question, Violation
from attnspec.conformance.session import Session
from attnspec.conformance.vacuity import moved, vacuity
from attnspec.oracle.formats import FORMATS

KERNEL = load("numpy")
SHAPE = Shape(2, 2, 2, 9, 17, 8, 8)

Check = Callable[[Question], None]


def asked(check: Check, claim: str = "weights-sum-to-one", **fields: object) -> Question:
    """A question of the NumPy kernel, examined by a check that passes."""
    given = {"dtype": "float32", "case": Case("normal", SHAPE), "seed": 0}
    question = Question("numpy", KERNEL, claim, **(given | fields))
    check(question)
    assert question.findings, "a check that compares nothing is not claimed"
    return question


def within(factor: float, *, rows: slice = slice(None)) -> Check:
    """The same call twice, compared within a multiple of its allowance."""

    def check(question: Question) -> None:
        problem = question.problem
        first, second = (question.ask(problem)["out"][:, :, rows] for _ in range(2))
        bound = factor * question.allowance(problem)[:, :, rows]
        question.close(second, first, bound, what="the second call")

    return check


@pytest.mark.parametrize(
    "factor, noticed", [(1.0, True), (2.0, True), (9.0, False), (np.inf, False)]
)
def test_a_bound_that_grants_more_than_it_combines_is_vacuous(factor, noticed):
    check = within(factor)
    assert bool(vacuity(asked(check), check)) is not noticed


def test_a_check_of_its_own_expectation_is_vacuous():
    def check(question: Question) -> None:
        out = question.ask(question.problem)["out"]
        question.close(out, out.copy(), question.allowance(question.problem), what="itself")

    assert "could not have failed" in vacuity(asked(check), check)


def test_what_is_asked_and_not_looked_at_is_vacuous():
    def check(question: Question) -> None:
        out = question.ask(question.problem)["out"]
        question.same(np.zeros(3), np.zeros(3), what=f"nothing of {out.shape}")

    assert vacuity(asked(check), check)


def test_equal_bits_notice_a_change_of_one_bit():
    def check(question: Question) -> None:
        first, second = (question.ask(question.problem)["out"] for _ in range(2))
        question.same(second, first, what="the second call")

    assert not vacuity(asked(check), check)


def test_sums_notice_moves_that_do_not_cancel():
    def check(question: Question) -> None:
        problem = question.problem
        out, bound = question.ask(problem)["out"], question.allowance(problem)
        signs = np.where(out < 0, -1.0, 1.0)
        total = (signs * out.astype(np.float64)).sum(2)
        question.close(total, total.round(12) + 0 * total, bound.sum(2), what="a sum")

    def against_the_first(question: Question) -> None:
        problem = question.problem
        first, second = (question.ask(problem)["out"].astype(np.float64) for _ in range(2))
        signs = np.where(np.arange(first.shape[2]) % 2 == 0, 1.0, -1.0)[:, None]
        bound = question.allowance(problem).sum(2)
        question.close((signs * second).sum(2), (signs * first).sum(2), bound, what="a sum")

    assert vacuity(asked(check), check)  # of itself
    assert vacuity(asked(against_the_first), against_the_first) == ""


def test_writing_into_an_input_is_what_its_claim_notices():
    question = asked(checks()["inputs-unchanged"].examine, "inputs-unchanged")
    assert not vacuity(question, checks()["inputs-unchanged"].examine)
    assert vacuity(question, lambda q: q.call(q.problem).outputs and q.note(question.findings[0]))


def test_a_comparison_that_the_mean_of_the_values_passes_is_vacuous(monkeypatch):
    check = checks()["out"].examine
    case = Case("normal", SHAPE, parse_settings("causal"))
    assert not vacuity(asked(check, "out", case=case), check)
    assert not vacuity(asked(check, "out", case=Case("uniform", SHAPE)), check)  # it is exact there
    wide = asked(lambda q: loose(monkeypatch, q, check), "out", case=case)
    assert "the mean of the visible values would have passed" in vacuity(wide, check)


def loose(monkeypatch: pytest.MonkeyPatch, question: Question, check: Check) -> None:
    """Judged as if nothing were known: every finite number passes."""
    from attnspec.conformance import question as module

    judge = module.judge

    def lenient(actual, **known):
        found = judge(actual, **known)
        return found if not np.isfinite(actual.astype(np.float64)).all() else type(found)(
            0.0, "hard", (), "")  # fmt: skip

    monkeypatch.setattr(module, "judge", lenient)
    check(question)


@pytest.mark.parametrize("claim", ["dq", "dk", "dv"])
def test_a_gradient_of_zero_does_not_pass(claim):
    check = checks()[claim].examine
    assert not vacuity(asked(check, claim), check)
    zero = Case("normal", SHAPE, parse_settings("scale:zero"))
    assert not vacuity(asked(check, claim, case=zero), check)  # dq and dk are exactly 0


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("by", [0.0, 1e-30, 1e-3, 2.0])
def test_an_answer_is_moved_at_least_so_far_in_its_own_type(dtype, by):
    form = FORMATS[dtype]
    x = form.round([0.0, 1.0, -3.0, 1e-6, form.largest, -np.inf, np.nan])
    for sign in (1.0, -1.0):
        new = moved(x, np.full(x.shape, by), np.full(x.shape, sign))
        assert new.dtype == x.dtype
        old, distance = x.astype(np.float64), None
        with np.errstate(invalid="ignore"):
            distance = np.abs(new.astype(np.float64) - old)
        assert np.all(distance[:4] >= by)
        assert np.all(new[:4] != x[:4]), "any change, where no bound is granted"
    unknown = moved(x, np.full(x.shape, np.inf), np.ones(x.shape))
    assert unknown.tobytes() == x.tobytes(), "an infinite bound forbids nothing"


def test_the_repetition_asks_no_kernel(monkeypatch):
    check = checks()["batch-entries-are-independent"].examine
    question = asked(check, "batch-entries-are-independent")
    calls = []
    monkeypatch.setattr("attnspec.conformance.question.call", lambda *a, **k: calls.append(a))
    assert not vacuity(question, check)
    assert not calls


def test_the_verdict_says_so_and_counts_for_nothing():
    session = Session({"numpy": KERNEL}, "smoke", 0, (), "conformance", probe=True)
    question = asked(within(np.inf))
    verdict = question.settle(None, reproduce="", seconds=0.0, vacuity="it could not have failed")
    assert (verdict.status, verdict.message) == ("vacuous", "it could not have failed")
    assert "out" in session.unjudged("numpy", [verdict])
    failed = asked(within(1.0))
    error = Violation("no")
    assert failed.settle(error, reproduce="", seconds=0.0, vacuity="x").status == "fail"


@pytest.mark.parametrize(
    "claim",
    ["lse-between-max-and-max-plus-log-n", "output-in-hull-of-values", "dq-and-dk-share-scores",
     "parts-merge-by-lse", "dbias-and-dsinks-sum-to-zero", "doubled-key-is-a-bias-of-log-2",
     "same-bits-again", "hidden-nan", "layout-k", "other-values-between", "degenerate-sizes"],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_the_suite_asks_what_can_fail(claim, dtype):
    session = Session({"numpy": KERNEL}, "smoke", 0, (), "conformance", probe=True)
    found = [
        session.settle(question, examine(question), 0.0)
        for question in session.questions(claim, cases=checks()[claim].cases)
        if question.dtype == dtype
    ]
    assert {verdict.status for verdict in found} == {"pass"}
