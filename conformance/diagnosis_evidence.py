"""What a diagnosis looks at: some questions asked again, and their numbers beside the exact ones.

Each call of a question is kept with the exact result of its own problem, whatever the claim was
about, so that an implementation can be compared with another one element by element.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from attnspec.adapters import Kernel
from attnspec.conformance.case import Shape
from attnspec.conformance.certify import certified, declares_masked_row, empty_rows, tolerances
from attnspec.conformance.examination import examine, question_of
from attnspec.conformance.question import Asked, Question
from attnspec.conformance.verdict import Verdict
from attnspec.oracle.enclosure import Enclosure
from attnspec.oracle.formats import Float64Array, format_of
from attnspec.oracle.problem import OUTPUTS, Problem, ProblemError
from attnspec.oracle.reference import reference
from attnspec.oracle.rounding import LAMBDA, Arithmetic

__all__ = [
    "Again",
    "Call",
    "Deadline",
    "Measured",
    "again",
    "chosen",
    "cost",
    "is_rounding",
    "literals",
    "measured",
]

BoolArray = npt.NDArray[np.bool_]

CALLS = 8
"""Calls of a question that are compared: claims that perturb every key make hundreds."""
LARGEST = 2**22
"""Products q kᵀ of a question that is asked again, where smaller ones failed too."""
SMALL_ERROR = 0.1
"""Root mean square of errors of rounding, at most, as a part of the result's."""
NOT_AGAIN = ("memory-grows-as-declared",)
"""Claims about something else than numbers, whose questions take seconds."""


@dataclass(frozen=True)
class Deadline:
    """Seconds of this process's own time, and three times that on the clock of a busy machine."""

    seconds: float
    worked: float
    began: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """From now on."""
        return cls(seconds, time.process_time(), time.monotonic())

    def passed(self, share: float = 1.0) -> bool:
        """Whether that share of the time is spent."""
        allowed = share * self.seconds
        worked = time.process_time() - self.worked
        return worked > allowed or time.monotonic() - self.began > 3 * allowed


@dataclass(frozen=True, eq=False)
class Measured:
    """One output of one call in float64, with the exact result and the allowed distance.

    judged: False in rows without a visible key where another answer than the spec's is declared.
    """

    output: str
    actual: Float64Array
    exact: Float64Array
    bound: Float64Array
    judged: BoolArray

    @cached_property
    def outside(self) -> BoolArray:
        """Where the implementation is wrong."""
        return self.beyond(self.actual, self.exact)

    def beyond(self, one: Float64Array, other: Float64Array, times: float = 1.0) -> BoolArray:
        """Where two results differ by more than the bound; NaN is equal to NaN alone."""
        return self.judged & ~(self.fraction(one, other) <= times)

    def fraction(self, one: Float64Array, other: Float64Array) -> Float64Array:
        """The distance of two results in bounds."""
        with np.errstate(all="ignore"):
            same = (one == other) | (np.isnan(one) & np.isnan(other))
            distance = np.where(same, 0.0, np.abs(one - other))
            ratio = np.where(distance == 0, 0.0, distance / self.bound)
        ratio = np.where(np.isinf(self.bound) & np.isfinite(distance), 0.0, ratio)
        return np.where(np.isnan(ratio), np.inf, ratio)

    def reach(self, one: Float64Array, other: Float64Array) -> Float64Array:
        """The distance of two results in the output's largest bound.

        A row that should see nothing has bound 0; one that does see keys rounds as others do.
        """
        known = self.bound[np.isfinite(self.bound)]
        largest = max(float(known.max()), 1e-300) if known.size else 1.0
        with np.errstate(all="ignore"):
            same = (one == other) | (np.isnan(one) & np.isnan(other))
            found = np.where(same, 0.0, np.abs(one - other) / largest)
        return np.where(np.isnan(found), np.inf, found)


@dataclass(frozen=True, eq=False)
class Call:
    """A call of the implementation: what it was asked, what came, and how far that is off."""

    asked: Asked
    outputs: tuple[Measured, ...]

    @property
    def telling(self) -> bool:
        """Whether something is wrong with this call by itself."""
        failed = self.asked.failure is not None or bool(self.asked.changed)
        return failed or any(one.outside.any() for one in self.outputs)


@dataclass(frozen=True, eq=False)
class Again:
    """A question that was asked again, its verdict and its calls in their order."""

    verdict: Verdict
    question: Question
    calls: tuple[Call, ...]
    error: str

    @property
    def failed(self) -> bool:
        """Whether it failed this time."""
        return bool(self.error)


# -- which questions are asked again ---------------------------------------------------------------


def cost(verdict: Verdict) -> int:
    """Multiplications of q kᵀ."""
    s = _shape(verdict)
    return s.batch * s.heads * (s.queries + 1) * (s.keys + 1) * max(s.size, s.value_size)


def _shape(verdict: Verdict) -> Shape:
    return Shape.parse(verdict.case.split("/")[1])


def literals(verdict: Verdict) -> frozenset[str]:
    """What is worth varying: the claim, the type, the family, each setting and the shape."""
    family, shape, settings = verdict.case.split("/")
    words = {f"set {word}" for word in settings.split("+") if word != "plain"}
    options = {f"option {word.partition(':')[0]}" for word in words}
    named = {verdict.claim, verdict.dtype, f"family {family}", f"shape {shape}"}
    return frozenset(words | options | named)


def chosen(verdicts: Sequence[Verdict], *, most: int, near: Iterable[str] = ()) -> list[Verdict]:
    """Up to `most` verdicts that differ in claims, types and options, small problems first.

    near: only what these literals name is worth having; all, where none are given.
    """
    wanted = frozenset(near)
    left = [(v, literals(v)) for v in verdicts if v.claim not in NOT_AGAIN]
    small = [pair for pair in left if cost(pair[0]) <= LARGEST]
    left = small or left
    seen: dict[str, int] = {}
    found: list[Verdict] = []

    def worth(pair: tuple[Verdict, frozenset[str]]) -> tuple[float, str]:
        verdict, words = pair
        new = sum(0.3 ** seen.get(w, 0) for w in (words & wanted if wanted else words))
        plain = 1.5 * (verdict.claim in (wanted or OUTPUTS)) + 0.5 * (verdict.dtype == "float32")
        return new + plain - 0.4 * math.log2(cost(verdict)) / 4, verdict.case

    while left and len(found) < most:
        best = max(range(len(left)), key=lambda i: worth(left[i]))
        verdict, words = left.pop(best)
        found.append(verdict)
        for word in words:
            seen[word] = seen.get(word, 0) + 1
    return sorted(found, key=cost)


# -- asking them -----------------------------------------------------------------------------------


def again(
    verdicts: Iterable[Verdict], kernel: Kernel, *, seed: int, until: Callable[[], bool]
) -> list[Again]:
    """The questions of these verdicts, examined again until `until` says to stop."""
    found = []
    for verdict in verdicts:
        question = question_of(verdict, kernel, seed=seed)
        error = examine(question)
        calls = tuple(_call(question, asked) for asked in question.asked[:CALLS])
        if error is not None and question.generic and not any(call.telling for call in calls):
            calls = tuple(_call(question, asked, model=True) for asked in question.asked[:CALLS])
        said = "" if error is None else f"{type(error).__name__}: {error}"
        found.append(Again(verdict, question, calls, said))
        if until():
            break
    return found


def _call(question: Question, asked: Asked, *, model: bool = False) -> Call:
    names = tuple(asked.outputs)
    try:
        outputs = measured(question.kernel, asked.problem, names, asked.outputs, model=model)
    except ProblemError:  # an exact result that is not defined: nothing to compare with
        outputs = ()
    return Call(asked, outputs)


def measured(
    kernel: Kernel,
    problem: Problem,
    names: tuple[str, ...],
    outputs: Any,
    *,
    model: bool = False,
) -> tuple[Measured, ...]:
    """The outputs beside the exact ones. model: the bound is that of the variance model."""
    if not names:
        return ()
    arithmetic = kernel.arithmetic_for(problem.dtype_name)
    allowed = tolerances(problem, arithmetic, names)
    exact = _exact(problem, arithmetic, names)
    empty = declares_masked_row(problem, kernel) and empty_rows(problem)
    found = []
    for name in names:
        hard, answer = allowed[name].hard, exact[name]
        bound = np.minimum(LAMBDA * allowed[name].sigma, hard) if model else hard
        form = format_of(outputs[name].dtype)
        size = np.where(np.isfinite(answer.value), np.abs(answer.value), 0.0)
        rounding = form.unit_roundoff * size + form.smallest_subnormal
        judged = np.ones(answer.value.shape, np.bool_)
        if empty is not False and name in ("out", "lse"):
            judged &= ~(empty if name == "lse" else empty[..., None])
        actual = outputs[name].astype(np.float64)
        within = np.where(bound == 0, 0.0, bound + rounding) + answer.bound
        found.append(Measured(name, actual, answer.value + answer.low, within, judged))
    return tuple(found)


def _exact(
    problem: Problem, arithmetic: Arithmetic, names: tuple[str, ...]
) -> dict[str, Enclosure]:
    """float64 is close enough to judge narrower types by, with its own bound added."""
    if problem.dtype_name == "float64":
        return {n: one.exact for n, one in certified(problem, arithmetic, names).items()}
    answer = reference(problem, want=names, tier="float64", within=dict.fromkeys(names, np.inf))
    return {name: answer[name] for name in names}


def is_rounding(one: Measured) -> bool:
    """Whether the implementation's errors are small beside the result."""
    with np.errstate(all="ignore"):
        usable = np.isfinite(one.actual) & np.isfinite(one.exact) & one.judged
        error, size = (one.actual - one.exact)[usable], one.exact[usable]
        whole = bool((np.isfinite(one.actual) == np.isfinite(one.exact))[one.judged].all())
        return whole and bool((error**2).sum() <= SMALL_ERROR**2 * (size**2).sum())
