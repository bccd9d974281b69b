"""Forward, lse and gradients against the certified result, within the declared arithmetic."""

from __future__ import annotations

import pytest

from attnspec.conformance.cases import gradient_cases, reference_cases
from attnspec.conformance.question import Question

GRADIENTS = ("dq", "dk", "dv", "dbias", "dsinks")


def _gradients_of(question: Question) -> tuple[str, ...]:
    """What the problem can be differentiated by: q, k, v, and bias and sinks where present."""
    extra = {"dbias": question.problem.bias, "dsinks": question.problem.sinks}
    return tuple(name for name in GRADIENTS if name not in extra or extra[name] is not None)


@pytest.mark.attention("out", cases=reference_cases)
def test_out(question: Question) -> None:
    """out = softmax(scores) v."""
    question.compare("out", want=("out",))


@pytest.mark.attention("lse", cases=reference_cases, options=("return_lse",))
def test_lse(question: Question) -> None:
    """lse = log of the sum of exp(score), the sink included."""
    question.compare("lse", want=("out", "lse"))


@pytest.mark.attention(*GRADIENTS, cases=gradient_cases, differentiable=True)
def test_gradient(question: Question) -> None:
    """dq, dk, dv, dbias and dsinks of <dout, out>."""
    question.compare(question.claim, want=("out", *_gradients_of(question)))
