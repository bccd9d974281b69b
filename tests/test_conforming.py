"""Implementations that conform raise no alarm, where the model once forgot an error."""

from __future__ import annotations

import pytest

from attnspec.adapters import load
from attnspec.adapters.catalogue import catalogue
from attnspec.conformance.case import Case
from attnspec.conformance.examination import examine
from attnspec.conformance.question import Question


@pytest.mark.parametrize(
    "name, claim, case",
    [
        # D as the sum of P dP, which the lse's rounding enters: up to 1.05 of 6 sigma.
        ("inner-from-weights", "dq", "peaked/b2h2g2q33k65d40v40/plain"),
        # q and dout rounded as operands, once for all keys: 1.22 and 1.01 of 6 sigma.
        ("products-of-tensor-float32", "lse", "positive/b2h2g2q33k65d40v40/plain"),
        ("products-of-tensor-float32", "dq", "positive/b2h2g2q33k65d40v40/plain"),
    ],
)
def test_errors_that_a_row_shares_are_in_the_model(name: str, claim: str, case: str) -> None:
    kernel = load(f"conforming:{name}")
    question = Question(name, kernel, claim, "float32", Case.parse(case), seed=1)
    assert examine(question) is None
    assert question.generic
    assert 0 < max(finding.fraction for finding in question.findings) < 0.8


def test_there_are_enough_variants_and_each_says_what_it_does() -> None:
    variants = catalogue("conforming")
    assert len(variants) >= 16
    assert all(variant.says.endswith(".") for variant in variants.values())
