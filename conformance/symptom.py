"""What is wrong with one call of a kernel, by itself: its symptoms, and how strong they are.

A call is judged here by one rule, fit for any input: the hard bound with the output's own
rounding, element by element. It can be checked with NumPy alone.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attnspec.adapters import CallFailed, Kernel
from attnspec.conformance.certify import declares_masked_row, empty_rows, expected
from attnspec.conformance.question import Asked
from attnspec.conformance.reductions import cut
from attnspec.oracle.formats import Float64Array, Format
from attnspec.oracle.problem import Problem, ProblemError
from attnspec.oracle.reference import Uncertified
from attnspec.oracle.rounding import LAMBDA

__all__ = ["KINDS", "Judgement", "Symptom", "judgement", "symptoms"]

Array = npt.NDArray[Any]

KINDS = {
    "raises": "raises",
    "returns": "returns something else than the protocol asks for",
    "writes": "writes into its input",
    "nan": "is NaN where a number is expected",
    "infinite": "is infinite where a number is expected",
    "number": "is a number where NaN is expected",
    "beyond": "is beyond its bound",
    "model": "is beyond 6 standard deviations of a model of the declared arithmetic",
    "differs": "differs from call to call",
}
"""Every kind of symptom, in the order in which they are looked for, and what it says."""

MANY_SCORES = 2**22
"""From so many scores on, only rows with a cotangent are judged."""


@dataclass(frozen=True)
class Symptom:
    """One thing that is wrong: kind of `KINDS`; the output, input or exception that it is about.

    fraction: of the allowance, where that says anything; where: the worst element.
    """

    kind: str
    about: str
    fraction: float = np.inf
    where: tuple[int, ...] = ()

    def is_again(self, found: Symptom) -> bool:
        """Whether `found` is the same, and strong enough not to be another one's shadow.

        A reason that lies at f times its allowance must stay beyond sqrt(f) of it, or 100.
        """
        if (self.kind, self.about) != (found.kind, found.about):
            return False
        return found.fraction > min(math.sqrt(self.fraction), 100.0)


@dataclass(frozen=True, eq=False)
class Judgement:
    """One output, as it must be: |got - expected| <= allowed; inf allows everything.

    Each has the output's shape.
    """

    expected: Float64Array
    allowed: Float64Array


def symptoms(kernel: Kernel, asked: Asked, *, model: bool = False) -> list[Symptom]:
    """Everything that is wrong with a call. `model`: beyond the variance model counts too."""
    if asked.failure is not None:
        return _of_failure(asked.failure)
    found = [Symptom("writes", name) for name in asked.changed]
    for output in asked.want:
        judged = judgement(kernel, asked, output, model=model)
        if judged is not None:
            got = asked.outputs[output].astype(np.float64)
            found += _of_numbers(output, got, judged, "model" if model else "beyond")
    return found


def _of_failure(failure: CallFailed) -> list[Symptom]:
    if failure.status == "error":
        return [Symptom("raises", re.sub(r"\d+", "#", failure.message))]  # numbers: shapes, mostly
    if failure.status == "fail":
        shapes = re.findall(r"\([\d, ]*\)", failure.message)
        about = re.sub(r"\([\d, ]*\)", "()", failure.message)
        return [Symptom("returns", about + " of another shape" * (len(set(shapes)) > 1))]
    return []


def _of_numbers(output: str, got: Float64Array, judged: Judgement, kind: str) -> list[Symptom]:
    exact, allowed = judged.expected, judged.allowed
    open_ = np.isinf(allowed)
    number = ~np.isnan(exact)
    with np.errstate(all="ignore"):
        distance = np.where(got == exact, 0.0, np.abs(got - exact))
        fraction = np.where(distance == 0, 0.0, distance / allowed)
    infinite = np.isinf(got) & np.isfinite(exact)
    plain = np.isfinite(got) & number
    wrong = {
        "nan": np.isnan(got) & number,
        "infinite": infinite,
        "number": ~np.isnan(got) & ~number,
        kind: plain & (fraction > 1),
    }
    found = []
    for name, places in wrong.items():
        ratio = np.where(places & ~open_, fraction if name == kind else np.inf, 0.0)
        if np.any(ratio > 0):
            at = tuple(int(i) for i in np.unravel_index(int(np.argmax(ratio)), ratio.shape))
            found.append(Symptom(name, output, float(ratio[at]), at))
    return found


# -- what is expected --------------------------------------------------------------------------


def judgement(
    kernel: Kernel, asked: Asked, output: str, *, model: bool = False
) -> Judgement | None:
    """What one output of a call must be; None where nothing is known of it.

    Rows that see an infinity, which has no certified result, may be anything, and so may the
    gradients of a batch entry in which NaN is seen.
    """
    found = _judgement(kernel, asked, output, model=model)
    if found is not None or output in ("out", "lse", "dbias", "dsinks"):
        return found
    problem, got = asked.problem, asked.outputs[output]
    finite = [np.isfinite(x.astype(np.float64)).all(axis=(1, 2, 3)) for x in _operands(problem)]
    entries = np.nonzero(np.logical_and.reduce(finite))[0]
    if entries.size in (0, problem.batch):
        return None
    part = Asked(cut(problem, "batch", entries), asked.want, {output: got[entries]})
    found = _judgement(kernel, part, output, model=model)
    if found is None:
        return None
    whole = Judgement(np.zeros(got.shape), np.full(got.shape, np.inf))
    whole.expected[entries], whole.allowed[entries] = found.expected, found.allowed
    return whole


def _judgement(kernel: Kernel, asked: Asked, output: str, *, model: bool) -> Judgement | None:
    problem, actual = asked.problem, asked.outputs[output]
    rows = _judged_rows(problem)
    if rows is None or (
        rows.size < problem.query_count and _of_keys(output) and _poisoned(problem)
    ):
        return None
    by_row = output in ("out", "lse", "dq") and rows.size < problem.query_count
    part = problem if rows.size == problem.query_count else problem.at(rows.tolist())
    if actual.size == 0 or rows.size == 0:
        return None
    try:
        answer, bounds = expected(
            part, kernel, output, actual[:, :, rows] if by_row else actual, (output,)
        )
    except (ProblemError, Uncertified):
        return None
    value, certain = answer.exact.value, answer.exact.bound + np.abs(answer.exact.low)
    hard = np.minimum(LAMBDA * bounds.sigma, bounds.hard) if model else bounds.hard
    allowed = _with_rounding(value, hard, bounds.format) + certain
    allowed = np.broadcast_to(allowed, value.shape).copy()
    if output == "lse" and declares_masked_row(part, kernel):
        allowed[empty_rows(part)] = np.inf  # its lse is not declared
    if not by_row:
        return Judgement(value, allowed)
    whole = Judgement(np.zeros(actual.shape), np.full(actual.shape, np.inf))
    whole.expected[:, :, rows], whole.allowed[:, :, rows] = value, allowed
    return whole


def _of_keys(output: str) -> bool:
    """Whether every row has a share in it."""
    return output not in ("out", "lse", "dq")


def _with_rounding(value: Float64Array, hard: Float64Array, form: Format) -> Float64Array:
    """Rounding to nearest adds u (|exact| + hard), or half the step of the subnormal numbers.

    A number that may round to infinity may be anything.
    """
    size = np.where(np.isfinite(value), np.abs(value), 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        rounding = form.unit_roundoff * (size + hard) + form.smallest_subnormal / 2
        allowed = np.where((hard == 0) & (size == 0), 0.0, hard + rounding)
        return np.where(size + allowed >= form.largest, np.inf, allowed)


def _operands(problem: Problem) -> tuple[Array, Array, Array]:
    return problem.q, problem.k, problem.v


def _poisoned(problem: Problem) -> bool:
    return any(np.isinf(x.astype(np.float64)).any() for x in _operands(problem))


def _judged_rows(problem: Problem) -> npt.NDArray[np.intp] | None:
    """The rows to judge: none that sees an infinity; of a large problem, few. None for too many."""
    good: npt.NDArray[np.bool_] = np.ones(problem.query_count, np.bool_)
    scores = problem.batch * problem.query_heads * problem.query_count * problem.key_count
    if scores > MANY_SCORES:
        if problem.dout is None:
            return None
        good = np.asarray(problem.dout.astype(np.float64).any(axis=(0, 1, 3)))
    elif _poisoned(problem):
        good = ~np.asarray(np.isinf(problem.q.astype(np.float64)).any(axis=(0, 1, 3)))
        bad = [
            np.asarray(np.isinf(x.astype(np.float64)).any(axis=-1)) for x in _operands(problem)[1:]
        ]
        group = problem.query_heads // problem.kv_heads
        for b, h in np.ndindex(problem.batch, problem.query_heads):
            spoilt: npt.NDArray[np.bool_] = bad[0][b, h // group] | bad[1][b, h // group]
            good &= ~(problem.visible(b, h) & spoilt).any(axis=1)
    return np.nonzero(good)[0]
