"""The claims that need no reference: what is true of every attention implementation."""

from __future__ import annotations

import pytest

from attnspec.conformance.cases import CLAIMS, claim_cases
from attnspec.conformance.question import Question


@pytest.mark.attnspec(*CLAIMS, cases=claim_cases)
def test_claim(question: Question) -> None:
    """The claim's own check, from its record in the spec."""
    CLAIMS[question.claim].check(question, question.problem)
