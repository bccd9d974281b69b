"""What several contracts do: their cases, and comparisons of several outputs at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy.typing as npt

from attnspec.adapters import CallFailed
from attnspec.conformance.case import Case, Shape, parse_settings
from attnspec.conformance.cases import OPTION, Turn
from attnspec.conformance.certify import certified
from attnspec.conformance.question import Question
from attnspec.oracle.problem import Problem

__all__ = ["EVERY", "Outputs", "agree", "asked_under", "gradients", "right", "wanted"]

Outputs = Mapping[str, npt.NDArray[Any]]
Cases = Callable[..., list[Case]]

EVERY = (
    *("", "causal", "mask:full", "bias:neg-inf", "window:both", "key_lengths:ragged"),
    *("bias:full", "sinks:normal", "alibi:standard", "gqa:grouped"),
)
"""Settings of every option that has arrays, and what causality and windows add."""


def asked_under(
    *settings: str, shapes: Sequence[Shape] = (OPTION,), smoke: int = 2, least: int = 0
) -> Cases:
    """Cases of normal numbers, shape by shape under each of the settings that are claimed.

    At level smoke the first few alone. `least`: options that a case must have.
    """

    def cases(claim: str, *, level: str, options: Collection[str], turn: Turn) -> list[Case]:
        chosen = [parse_settings(text) for text in settings]
        chosen = [s for s in chosen if {name for name, _ in s} <= set(options) and len(s) >= least]
        found = [Case("normal", shape, s) for s in chosen for shape in shapes]
        return found[:smoke] if level == "smoke" else found

    return cases


def wanted(question: Question) -> tuple[str, ...]:
    """The output, or all gradients, as the claim's name says."""
    return gradients(question) if question.claim.endswith("gradients") else ("out",)


def gradients(question: Question) -> tuple[str, ...]:
    """All gradients of the case; `CallFailed` where there are none."""
    gradients = question.gradients()
    if not gradients:
        raise CallFailed("not claimed", "no gradients of this case")
    return gradients


def agree(question: Question, problem: Problem, got: Outputs, first: Outputs, *, what: str) -> None:
    """Two answers to questions with the exact result of `problem` lie within two allowances."""
    for name, x in got.items():
        within = 2 * question.allowance(problem, output=name)
        question.close(x, first[name], within, what=f"{what}, {name}")


def right(question: Question, problem: Problem, got: Outputs, *, what: str) -> None:
    """The answer lies within its allowance of the certified result."""
    arithmetic = question.kernel.arithmetic_for(problem.dtype_name)
    found = certified(problem, arithmetic, tuple(got))
    for name, x in got.items():
        exact = found[name].exact
        within = question.allowance(problem, output=name) + exact.bound
        question.close(x, exact.value, within, what=f"{what}, {name}")
