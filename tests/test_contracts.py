"""Every contract has its record, its check and a fault of the catalogue that breaks it."""

from __future__ import annotations

import numpy as np
import pytest

from attnspec.adapters import kernel, load
from attnspec.adapters.catalogue import catalogue
from attnspec.conformance.case import Case
from attnspec.conformance.cases import OPTION
from attnspec.conformance.contracts import CONTRACTS
from attnspec.conformance.examination import checks, examine
from attnspec.conformance.question import Question, Violation
from attnspec.conformance.session import Session
from attnspec.oracle.problem import OUTPUTS
from attnspec.spec.claim import all_claims

BY_FRAMEWORK = ("gradient-subsets", "out-beside-gradients")
"""What a NumPy kernel cannot get wrong: its backward pass does not know what is asked."""

FAULTS = [fault for fault in catalogue("faulty").values() if fault.group == "hygiene"]


def test_what_is_asked_has_its_record() -> None:
    asked = set(checks()) - set(OUTPUTS) - {claim.id for claim in all_claims()}
    assert asked == set(CONTRACTS)


def test_every_contract_has_a_fault_that_shows_it() -> None:
    shown = {claim for fault in catalogue("faulty").values() for claim in fault.shows}
    assert set(CONTRACTS) - shown <= set(BY_FRAMEWORK)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_breaks_what_it_shows(fault) -> None:
    for claim in fault.shows:
        session = Session({fault.name: fault.kernel()}, "standard", 0, (), "conformance")
        questions = session.questions(claim, cases=checks()[claim].cases)
        asked = (q for q in questions if q.dtype in fault.dtypes)
        assert any(isinstance(examine(question), Violation) for question in asked), claim


def test_a_gradient_that_is_wrong_alone_is_seen() -> None:
    torch = pytest.importorskip("torch")

    @kernel(framework="torch", dtypes=("float32",))
    def attention(q, k, v, *, scale):
        out = torch.softmax(scale * q @ k.transpose(-1, -2), -1) @ v
        return out if q.requires_grad else out.detach() + (out - out.detach()) * 1.5

    case = Case("normal", OPTION)
    question = Question("mine", attention, "gradient-subsets", "float32", case, 0)
    assert "asked for dk alone" in str(examine(question))


@pytest.mark.parametrize("claim", ["layout-q", "layout-packed"])
def test_a_framework_without_strides_is_not_asked_about_them(claim: str) -> None:
    pytest.importorskip("jax")
    question = Question("jax", load("jax"), claim, "float32", Case("normal", OPTION), 0)
    assert "have no strides" in str(examine(question))


def test_a_kernel_that_is_not_deterministic_may_change_within_its_bounds() -> None:
    rng = np.random.default_rng(0)

    @kernel(deterministic=False, dtypes=("float32",))
    def attention(q, k, v, *, scale):
        out = load("numpy")(q, k, v, scale=scale)
        return np.nextafter(out, np.where(rng.random(out.shape) < 0.5, -9, 9).astype(out.dtype))

    case = Case("normal", OPTION)
    question = Question("mine", attention, "eleven-calls", "float32", case, 0)
    assert examine(question) is None
    again = Question("mine", attention, "same-bits-again", "float32", case, 0)
    assert "deterministic=False" in str(examine(again))


@pytest.mark.parametrize("claim", [c for c in CONTRACTS if "gradients" in CONTRACTS[c].needs])
def test_a_kernel_without_gradients_is_not_asked_for_them(claim: str) -> None:
    @kernel(dtypes=("float32",))
    def attention(q, k, v, *, scale, bias=None):
        return load("numpy")(q, k, v, scale=scale, bias=bias)

    session = Session({"mine": attention}, "smoke", 0, (), "conformance")
    for question in session.questions(claim, cases=checks()[claim].cases):
        verdict = session.settle(question, examine(question), 0.0)
        assert verdict.status == "not claimed", verdict.message
