"""Forward, lse and gradients against the certified result, within the declared arithmetic."""

from __future__ import annotations

import pytest

from attnspec.conformance.cases import gradient_cases, reference_cases
from attnspec.conformance.question import Question


@pytest.mark.attnspec("out", cases=reference_cases)
def test_out(question: Question) -> None:
    """out = softmax(scores) v."""
    question.compare("out")


@pytest.mark.attnspec("lse", cases=reference_cases)
def test_lse(question: Question) -> None:
    """lse = log of the sum of exp(score), the sink included."""
    question.compare("lse")


@pytest.mark.attnspec("dq", "dk", "dv", "dbias", "dsinks", cases=gradient_cases)
def test_gradient(question: Question) -> None:
    """The gradients of <dout, out>."""
    question.compare(question.claim)
