"""Could a passing verdict have failed? What cannot fail has not been asked.

A question that passed holds the kernel's answers (`Question.asked`) and the bounds that its check
asked for (`Question.granted`). The check is repeated on these answers, without the kernel, with
one of them moved: it must notice. An answer is moved by two of its bounds, everywhere, for each
answer that a comparison combines: two results of one exact number may differ by the sum of both
bounds, a merge of four by four. A sum over keys or rows sees only moves that do not cancel, so
several directions are tried. Where the check grants no bound (equal bits, exact zeros), or a bound
of 0, any change must be noticed: the next number, or an input that was written into.

A comparison with the oracle must moreover tell attention from what ignores the scores: where the
mean of the values that a row sees, or a gradient of 0, passes without being exact, its bound is
too wide to say anything.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from attnspec.adapters import Answer
from attnspec.conformance.certify import expected
from attnspec.conformance.question import Asked, Question, Violation
from attnspec.oracle.enclosure import Enclosure
from attnspec.oracle.formats import Float64Array, format_of
from attnspec.oracle.problem import OUTPUTS, Problem

__all__ = ["moved", "vacuity"]

Array = npt.NDArray[Any]
Check = Callable[[Question], None]

COMBINED = 8
"""No comparison combines more answers than these."""

TRIES = 64
"""Repetitions of a check, at most; almost always the first one is noticed."""


def vacuity(question: Question, check: Check) -> str:
    """Why a question that passed could not have failed, in one line; "" where it could.

    The memory of a kernel is measured in another process: its claim has no answers to be moved.
    """
    if not question.asked:
        return ""
    if not any(x.size for asked in question.asked for x in asked.outputs.values()):
        return "it could not have failed: the outputs are empty"
    with np.errstate(all="ignore"):
        if question.claim in OUTPUTS and (naive := _naive(question, check)):
            return naive
        for changes in itertools.islice(_probes(question), TRIES):
            if _notices(question, check, changes):
                return ""
    return "it could not have failed: answers moved by two bounds would have passed"


# -- the probes --------------------------------------------------------------------------------


def _probes(question: Question) -> Iterator[dict[int, Answer]]:
    """Other answers for one of the calls each."""
    size = 2.0 * min(len(question.asked), COMBINED)
    for number, asked in enumerate(question.asked):
        if not question.granted and asked.outputs:  # what is compared bit for bit, or not at all
            yield {number: Answer(asked.outputs, ("q",))}
    for number, asked in enumerate(question.asked):
        bounds = _bounds(question, asked)
        for direction in DIRECTIONS if bounds else ():
            outputs = dict(asked.outputs)
            for name, bound in bounds.items():
                sign = direction(asked.problem, name, outputs[name])
                outputs[name] = moved(outputs[name], size * bound, sign)
            yield {number: Answer(outputs)}


def _bounds(question: Question, asked: Asked) -> dict[str, Float64Array]:
    """The bounds of an answer that were granted; 0 for all outputs where none was of any."""
    if not question.granted:
        return {name: np.zeros(x.shape) for name, x in asked.outputs.items()}
    return {
        name: bound
        for problem, name, bound in question.granted
        if problem is asked.problem and name in asked.outputs
    }


def _up(problem: Problem, name: str, x: Array) -> Float64Array:
    return np.ones(x.shape)


def _down(problem: Problem, name: str, x: Array) -> Float64Array:
    return -np.ones(x.shape)


def _outwards(problem: Problem, name: str, x: Array) -> Float64Array:
    return np.where(x.astype(np.float64) < 0, -1.0, 1.0)


def _in_turn(problem: Problem, name: str, x: Array) -> Float64Array:
    return np.where(np.arange(x.size).reshape(x.shape) % 2 == 0, 1.0, -1.0)


def _with_the_input(problem: Problem, name: str, x: Array) -> Float64Array:
    """For products of a gradient and its input, or of the output and its cotangent."""
    other = problem.dout if name == "out" else getattr(problem, name[1:], None)
    return _up(problem, name, x) if other is None else _outwards(problem, name, other)


def _with_a_channel(problem: Problem, name: str, x: Array) -> Float64Array:
    """For sums over the rows of a gradient and one channel of its input."""
    sign = _with_the_input(problem, name, x)
    return np.broadcast_to(sign[..., :1], x.shape)


DIRECTIONS = (_up, _down, _outwards, _in_turn, _with_the_input, _with_a_channel)


def moved(x: Array, by: Float64Array, sign: Float64Array) -> Array:
    """`x`, in its own type, at least `by` away where that is finite; the next number for 0."""
    with np.errstate(all="ignore"):
        return _moved(x, by, sign)


def _moved(x: Array, by: Float64Array, sign: Float64Array) -> Array:
    form = format_of(x.dtype)
    old = x.astype(np.float64)
    new = form.round(old + sign * by)
    short = np.abs(new.astype(np.float64) - old) < by
    near = (by == 0) & ~np.isnan(old)
    away = np.where(old == np.inf, -np.inf, np.where(old == -np.inf, np.inf, sign * np.inf))
    following = np.nextafter(np.where(near, x, new).astype(x.dtype), away.astype(x.dtype))
    new = np.where(short | near, following, new)
    new = np.where((by == 0) & np.isnan(old), 0, new)  # a number for NaN
    return np.where(np.isfinite(by), new, x).astype(x.dtype)


# -- a check repeated on answers ---------------------------------------------------------------


@dataclass(eq=False)
class _Replay(Question):
    """The same question; its answers and bounds come from the record, in their order."""

    answers: Iterator[tuple[Asked, Answer]] = field(default_factory=lambda: iter(()))
    bounds: Iterator[tuple[Problem, str, Float64Array]] = field(default_factory=lambda: iter(()))

    def _noted(
        self, problem: Problem, want: tuple[str, ...], answer: Callable[..., Answer]
    ) -> Answer:
        asked, recorded = next(self.answers)
        assert asked.want == want, "a check asks the same whatever is answered"
        return recorded

    def allowance(self, problem: Problem, *, output: str = "out") -> Float64Array:
        """As it was granted."""
        _, name, bound = next(self.bounds)
        assert name == output, "a check asks the same whatever is answered"
        return bound


def _notices(question: Question, check: Check, changes: Mapping[int, Answer]) -> bool:
    """Whether the check fails on the recorded answers with some of them changed."""
    recorded: Sequence[tuple[Asked, Answer]] = [
        (asked, changes.get(number, Answer(asked.outputs, asked.changed)))
        for number, asked in enumerate(question.asked)
    ]
    again = _Replay(
        question.impl,
        question.kernel,
        question.claim,
        question.dtype,
        question.case,
        question.seed,
        classify=False,
        answers=iter(recorded),
        bounds=iter(list(question.granted)),
    )
    try:
        check(again)
    except Violation:
        return True
    return False


# -- the oracle's bounds -----------------------------------------------------------------------


def _naive(question: Question, check: Check) -> str:
    """What would have passed without looking at the scores, if anything."""
    claim, asked = question.claim, question.asked[0]
    if claim == "lse" or question.case.is_long:
        return ""
    actual, problem = asked.outputs[claim], asked.problem
    if actual.size == 0:
        return ""
    served = ("out", "lse", *question.gradients())
    exact = expected(problem, question.kernel, claim, actual, served)[0].exact
    value = _mean_of_the_visible(problem) if claim == "out" else np.zeros(actual.shape)
    if np.all(_is_exact(value, exact, problem)):
        return ""
    answer = Answer({**asked.outputs, claim: format_of(actual.dtype).round(value)})
    if _notices(question, check, {0: answer}):
        return ""
    what = "the mean of the visible values" if claim == "out" else f"{claim} = 0"
    return f"it could not have failed: {what} would have passed"


def _is_exact(value: Float64Array, exact: Enclosure, problem: Problem) -> npt.NDArray[np.bool_]:
    """Up to the sum of the keys in float64, and the oracle's own error."""
    size = float(np.abs(problem.v.astype(np.float64)).max(initial=0))
    slack = (problem.key_count + 2) * 2.0**-53 * size if value.any() else 0.0
    return np.asarray(np.abs(value - exact.value) <= exact.bound + slack)


def _mean_of_the_visible(problem: Problem) -> Float64Array:
    """(B, Hq, Nq, Dv); 0 where a row sees nothing."""
    mean = np.zeros(problem.shape_of("out"))
    for head in problem.heads():
        count = head.visible.sum(-1, keepdims=True)
        mean[head.batch, head.index] = head.visible @ head.value / np.maximum(count, 1)
    return mean
