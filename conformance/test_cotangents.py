"""Cotangents: each gradient by itself, and cotangents that are large, small or a single number."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from attnspec.conformance.question import Question
from attnspec.conformance.trials import agree, asked_under, gradients, right
from attnspec.spec.derived import cast

_settings = asked_under("", "bias:full+sinks:normal", "bias:full", "gqa:grouped", "causal:on")


@pytest.mark.attnspec(
    "gradient-subsets", cases=asked_under("", "bias:full+sinks:normal", "gqa:grouped", smoke=1)
)
def test_gradient_subsets(question: Question) -> None:
    """Each gradient alone, and each pair, is the one that all together give."""
    problem, every = question.problem, gradients(question)
    together = question.ask(problem, want=every)
    for count in (1, 2):
        for subset in itertools.combinations(every, count):
            got = question.ask(problem, want=subset)
            what = f"asked for {' and '.join(subset)} alone"
            agree(question, problem, got, together, what=what)


@pytest.mark.attnspec("cotangent-scales", cases=_settings)
def test_cotangent_scales(question: Question) -> None:
    """Gradients are linear in the cotangent: a power of two goes through."""
    problem, every = question.problem, gradients(question)
    assert problem.dout is not None
    first = question.ask(problem, want=every)
    for factor in (-1.0, 0.125, 16.0):
        scaled = problem.replace(dout=cast(problem, factor * problem.dout.astype(np.float64)))
        got = question.ask(scaled, want=every)
        for name, x in got.items():
            expected = factor * first[name].astype(np.float64)
            within = abs(factor) * question.allowance(problem, output=name)
            within = within + question.allowance(scaled, output=name)
            question.close(x, expected, within, what=f"{name} for {factor:g} times the cotangent")


@pytest.mark.attnspec("one-hot-cotangent", cases=_settings)
def test_one_hot_cotangent(question: Question) -> None:
    """The gradients of one number of the output are those of the definition."""
    problem, every = question.problem, gradients(question)
    assert problem.dout is not None
    for place in (0, problem.dout.size // 2, problem.dout.size - 1):
        dout = np.zeros_like(problem.dout)
        dout.flat[place] = 1
        asked = problem.replace(dout=dout)
        at = [int(i) for i in np.unravel_index(place, dout.shape)]
        got = question.ask(asked, want=every)
        right(question, asked, got, what=f"gradients of the output at {at}")
