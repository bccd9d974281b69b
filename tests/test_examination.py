"""A question can be asked again outside pytest, from its verdict alone."""

from attnspec.adapters import load
from attnspec.conformance.case import Case, Shape
from attnspec.conformance.examination import checks, examine, question_of, questions
from attnspec.conformance.session import Session

FAULTY = "faulty:causal-top-left"


def test_a_case_is_read_from_its_id() -> None:
    case = Case("needle", Shape(2, 6, 2, 24, 40, 16, 8), (("causal", "on"), ("bias", "full")))
    assert Case.parse(case.id) == case
    plain = Case("normal", Shape(1, 1, 1, 0, 5, 16, 16))
    assert Case.parse(plain.id) == plain


def test_a_verdict_is_reached_again() -> None:
    session = Session({FAULTY: load(FAULTY)}, "smoke", 0, ("out/float32/*causal:on",), "")
    question = next(q for q in questions(session) if "b2" in q.id)
    verdict = session.settle(question, examine(question), 0.0)
    again = question_of(verdict, load(FAULTY), seed=0)
    error = examine(again)
    assert again.asked[0].outputs["out"].shape == again.problem.shape_of("out")
    assert (verdict.status, verdict.message) == ("fail", str(error))


def test_every_claim_has_its_check() -> None:
    found = checks()
    assert {"out", "lse", "dq", "dk", "dv", "dbias", "dsinks", "hidden-nan"} < set(found)
    assert len(found) > 75
