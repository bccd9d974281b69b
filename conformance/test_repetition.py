"""Repetition: what a kernel was asked before does not change what it answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attnspec.adapters import CallFailed
from attnspec.adapters.declaration import NEUTRAL
from attnspec.conformance.case import draw
from attnspec.conformance.question import Question
from attnspec.conformance.trials import EVERY, Outputs, agree, asked_under, gradients, right, wanted
from attnspec.oracle.problem import Problem
from attnspec.spec.derived import take_batch, take_keys, take_queries

STATEFUL = (
    *("mask:full", "bias:full", "", "causal", "window:both", "key_lengths:ragged"),
    *("sinks:normal", "alibi:standard"),
)

_every = asked_under(*EVERY, smoke=len(EVERY))
_one = asked_under("", "causal", smoke=1)


@pytest.mark.attnspec("same-bits-again", cases=_every)
def test_same_bits_again(question: Question) -> None:
    """The same call gives the same bits, where the kernel declares so."""
    _again(question, ("out",))


@pytest.mark.attnspec("same-bits-again-lse", cases=asked_under("", "sinks:normal", "mask:full"))
def test_same_lse_again(question: Question) -> None:
    """The same call gives the same bits of lse, where the kernel declares so."""
    _again(question, ("out", "lse"))


@pytest.mark.attnspec(
    "same-bits-again-gradients", cases=asked_under("", "mask:full", "gqa:grouped")
)
def test_same_gradients_again(question: Question) -> None:
    """The same call gives the same bits of gradients, where the kernel declares so."""
    _again(question, wanted(question))


def _again(question: Question, want: tuple[str, ...]) -> None:
    if not question.kernel.deterministic:
        raise CallFailed("not claimed", "declared deterministic=False")
    problem = question.problem
    first = question.ask(problem, want=want)
    question.ask(problem.replace(q=problem.q[..., ::-1].copy()), want=want)
    second = question.ask(problem, want=want)
    for name in want:
        what = "the second run" if name == "out" else f"{name} of the second run"
        question.same(second[name], first[name], what=what)


@pytest.mark.attnspec("eleven-calls", cases=_one)
def test_eleven_calls(question: Question) -> None:
    """The eleventh call gives what the first gave, bit for bit where that is declared."""
    problem = question.problem
    first = question.ask(problem)
    for number in range(2, 12):
        _unchanged(question, problem, question.ask(problem), first, f"call {number} of eleven")


@pytest.mark.attnspec("other-values-between", cases=asked_under(*STATEFUL))
def test_other_values_between(question: Question) -> None:
    """Other values of the same shapes, options' too: nothing is kept by shape."""
    diagonal: Any = question.kernel.diagonal
    other = draw(question.case, dtype=question.dtype, diagonal=diagonal, seed=question.seed + 1)
    _between(question, {"other values": other})


@pytest.mark.attnspec("other-shapes-between", cases=asked_under("", "mask:full", "causal"))
def test_other_shapes_between(question: Question) -> None:
    """Shapes A, B, A, C, A: no workspace of another shape shows."""
    problem = question.problem
    fewer = take_keys(
        take_queries(problem, np.arange(problem.query_count - 7)),
        np.arange(problem.key_count - 9),
    )
    _between(
        question, {"fewer rows and keys": fewer, "one entry": take_batch(problem, np.array([0]))}
    )


@pytest.mark.attnspec("other-options-between", cases=asked_under(*STATEFUL, least=1))
def test_other_options_between(question: Question) -> None:
    """With an option, without it, and with it again."""
    names = [name for name, _ in question.case.settings]
    neutral = {name: NEUTRAL[name] for name in names if name in NEUTRAL}
    _between(question, {f"no {' or '.join(names)}": question.problem.replace(**neutral)})


def _between(question: Question, others: dict[str, Problem]) -> None:
    """Each of the others is answered rightly, and then the problem as before."""
    problem = question.problem
    first = question.ask(problem)
    right(question, problem, first, what="the first call")
    for name, other in others.items():
        right(question, other, question.ask(other), what=f"a call with {name} after another")
        again = question.ask(problem)
        _unchanged(question, problem, again, first, f"the call after one with {name}")


@pytest.mark.attnspec("forward-after-backward", cases=asked_under("", "mask:full"))
def test_forward_after_backward(question: Question) -> None:
    """Forward, backward, forward: the backward pass leaves nothing behind."""
    problem, every = question.problem, gradients(question)
    first = question.ask(problem)
    before = question.ask(problem, want=every)
    _unchanged(question, problem, question.ask(problem), first, "forward after backward")
    after = question.ask(problem, want=every)
    agree(question, problem, after, before, what="backward after forward")


def _unchanged(
    question: Question, problem: Problem, got: Outputs, first: Outputs, what: str
) -> None:
    """The same bits, where that is declared; otherwise within two allowances."""
    if not question.kernel.deterministic:
        agree(question, problem, got, first, what=what)
        return
    for name, x in got.items():
        question.same(x, first[name], what=f"{what}, {name}")
