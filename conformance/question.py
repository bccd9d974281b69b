"""One question to one implementation: a claim, a type and a case; how it is asked and settled."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from attnspec.adapters import Answer, CallFailed, Kernel, call
from attnspec.conformance.case import Case, draw, has_gradients, is_generic, rows_of
from attnspec.conformance.certify import (
    allowance,
    declares_masked_row,
    empty_rows,
    expected,
    tightest_class,
    with_rounding,
)
from attnspec.conformance.judge import Finding, judge
from attnspec.conformance.kept import kept
from attnspec.conformance.verdict import Verdict
from attnspec.oracle.formats import Float64Array
from attnspec.oracle.problem import Problem

__all__ = ["Asked", "Question", "Violation"]

Array = npt.NDArray[Any]


BY_ROW = ("out", "lse", "dq")
"""Outputs that have query rows."""


class Violation(AssertionError):  # noqa: N818, a verdict, not a mistake of the suite
    """The implementation violates the claim; the verdict says how."""


@dataclass(frozen=True, eq=False)
class Asked:
    """One call of the implementation while a question was examined, and what came of it.

    outputs: empty where the call failed; then `failure` says how.
    """

    problem: Problem
    want: tuple[str, ...]
    outputs: Mapping[str, Array]
    changed: tuple[str, ...] = ()
    failure: CallFailed | None = None


@dataclass(eq=False)
class Question:
    """A claim, asked of one implementation in one type on one case.

    It is the `Trial` of a property, and compares outputs with the oracle. Every comparison is
    noted, and the worst one stands in the verdict. `asked` holds the calls until it is settled,
    and `granted` the bounds on their outputs; `classify` says whether the tightest arithmetic
    class that it meets is looked for.
    """

    impl: str
    kernel: Kernel
    claim: str
    dtype: str
    case: Case
    seed: int
    findings: list[Finding] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    granted: list[tuple[Problem, str, Float64Array]] = field(default_factory=list)
    tightest: str = ""
    tier: str = ""
    classify: bool = True

    @cached_property
    def rng(self) -> np.random.Generator:
        """What the claim draws from: the same for every implementation."""
        return np.random.default_rng([self.seed, zlib.crc32(self.id.encode())])

    @property
    def id(self) -> str:
        """claim/dtype/case, as `--attn-case` takes it."""
        return f"{self.claim}/{self.dtype}/{self.case.id}"

    @property
    def generic(self) -> bool:
        """Whether the variance model judges: the case's roundings are independent (`is_generic`).

        A kernel that stores its scores in 16 bits leaves a long row some thousand of them, so that
        keys by the hundred have the same weight, and round alike.
        """
        stored = self.kernel.arithmetic_for(self.dtype).resolve(self.dtype).score > 0
        return is_generic(self.case) and not (self.case.is_long and stored)

    @property
    def problem(self) -> Problem:
        """The case's problem, in the implementation's declared alignment."""
        diagonal: Any = self.kernel.diagonal
        return draw(self.case, dtype=self.dtype, diagonal=diagonal, seed=self.seed)

    # -- the trial -----------------------------------------------------------------------------

    def ask(self, problem: Problem, *, want: Sequence[str] = ("out",)) -> Mapping[str, Array]:
        """The implementation's outputs, rows without a visible key as the spec has them."""
        if declares_masked_row(problem, self.kernel) and not set(want) <= {"out", "lse"}:
            self._refuse_empty_rows(problem)
        answer = self.call(problem, want=want)
        if not declares_masked_row(problem, self.kernel):
            return answer.outputs
        return {name: _masked_rows_zero(problem, name, x) for name, x in answer.outputs.items()}

    def call(self, problem: Problem, *, want: Sequence[str] = ("out",)) -> Answer:
        """The implementation's answer as it is."""
        return self._noted(problem, tuple(want), call)

    def _noted(
        self, problem: Problem, want: tuple[str, ...], answer: Callable[..., Answer]
    ) -> Answer:
        try:
            found = answer(self.kernel, problem, want=want)
        except CallFailed as failure:
            self.asked.append(Asked(problem, want, {}, failure=failure))
            raise
        self.asked.append(Asked(problem, want, found.outputs, found.changed))
        return found

    def allowance(self, problem: Problem, *, output: str = "out") -> Float64Array:
        """The distance from the exact result that the declared arithmetic may reach."""
        arithmetic = self.kernel.arithmetic_for(problem.dtype_name)
        bound = allowance(problem, arithmetic, output)
        self.granted.append((problem, output, bound))
        return bound

    def close(self, actual: Array, expected: Array, within: Float64Array, *, what: str) -> None:
        """Require |actual - expected| <= within everywhere."""
        a, e = actual.astype(np.float64), expected.astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            distance = np.where(a == e, 0.0, np.abs(a - e))
            ratio = np.where(distance == 0, 0.0, distance / within)
        self._note(np.where(np.isinf(within), 0.0, ratio), a, e, "hard", what)

    def same(self, actual: Array, expected: Array, *, what: str) -> None:
        """Require equal numbers everywhere."""
        a, e = actual.astype(np.float64), expected.astype(np.float64)
        equal = (a == e) | (np.isnan(a) & np.isnan(e))
        self._note(np.where(equal, 0.0, np.inf), a, e, "exact", what)

    def _note(
        self, ratio: Float64Array, a: Float64Array, e: Float64Array, rule: str, what: str
    ) -> None:
        if ratio.size == 0:
            return
        ratio = np.where(np.isnan(ratio), np.inf, ratio)
        at = tuple(int(i) for i in np.unravel_index(int(np.argmax(ratio)), ratio.shape))
        a, e = np.broadcast_to(a, ratio.shape), np.broadcast_to(e, ratio.shape)
        digits = 17 if rule == "exact" else 9
        detail = f"{what}: got {a[at]:.{digits}g}, expected {e[at]:.{digits}g}"
        self.note(Finding(float(ratio[at]), rule, at, detail))

    def note(self, finding: Finding) -> None:
        """Record a finding; a violated one ends the question."""
        self.findings.append(finding)
        if not finding.passed:
            raise Violation(finding.detail)

    # -- the oracle ----------------------------------------------------------------------------

    def compare(self, output: str) -> None:
        """Judge one output against the certified result.

        Forward outputs are asked for without gradients, as in inference: many libraries take
        another route when training.
        """
        kernel, generic = self.kernel, self.generic
        actual = self._answer(output)
        problem, rows = self._judged()
        if rows is not None and output in BY_ROW:
            actual = actual[:, :, rows]
        served = ("out", "lse", *self.gradients())
        answer, tolerance = expected(problem, kernel, output, actual, served)
        if actual.size and np.isinf(tolerance.hard).all():
            raise CallFailed(
                "not claimed", "the declared arithmetic may overflow: no bound is known"
            )
        self.tier = answer.tier
        self._grant(output, with_rounding(tolerance, answer.exact), rows)
        finding = judge(
            actual,
            exact=answer.exact,
            tolerance=tolerance,
            generic=generic,
            averages=not self.case.is_long,
        )
        as_the_spec = not (declares_masked_row(problem, kernel) and empty_rows(problem).any())
        classify = self.classify and not self.case.is_long  # it takes six tolerances
        if classify and generic and output == "out" and as_the_spec:
            self.tightest = tightest_class(problem, actual, answer.exact)
        if rows is not None and output in BY_ROW:
            finding = _in_the_whole(finding, rows)
        self.note(finding)

    def _grant(self, output: str, bound: Float64Array, rows: tuple[int, ...] | None) -> None:
        """Note a bound for the whole output; 0 in rows that are not judged."""
        if rows is not None and output in BY_ROW:
            whole = np.zeros(self.problem.shape_of(output))
            whole[:, :, rows] = bound
            bound = whole
        self.granted.append((self.problem, output, bound))

    def _answer(self, output: str) -> Array:
        """The implementation's output on the whole problem; all gradients are asked together."""
        problem, kernel = self.problem, self.kernel
        if output in ("out", "lse"):
            want = tuple(dict.fromkeys(("out", output)))
        else:
            if declares_masked_row(problem, kernel):
                self._refuse_empty_rows(problem)
            want = ("out", *(self.gradients() or (output,)))
        return self._noted(problem, want, _shared_call).outputs[output]

    def _judged(self) -> tuple[Problem, tuple[int, ...] | None]:
        """The problem of the rows that are judged, and these; the whole one and None for all."""
        rows = rows_of(self.case, seed=self.seed)
        return (self.problem if rows is None else _at(self.problem, rows)), rows

    def gradients(self) -> tuple[str, ...]:
        """What this problem can be differentiated by, on this kernel, with finite products."""
        if not has_gradients(self.case):
            return ()
        absent = {"dbias": self.problem.bias is None, "dsinks": self.problem.sinks is None}
        return tuple(name for name in self.kernel.differentiable if not absent.get(name, False))

    def _refuse_empty_rows(self, problem: Problem) -> None:
        if empty_rows(problem).any():
            choice = self.kernel.masked_row
            raise CallFailed("not claimed", f"gradients of a row that sees no key ({choice})")

    # -- the verdict ---------------------------------------------------------------------------

    def settle(
        self, error: BaseException | None, *, reproduce: str, seconds: float, vacuity: str = ""
    ) -> Verdict:
        """The verdict on what examining the question raised, if anything.

        `vacuity`: why the question could not have failed, where that was looked for.
        """
        self.asked.clear()  # many questions wait for the end of a run, and arrays are large
        self.granted.clear()
        status, message = "pass", ""
        if isinstance(error, Violation):
            status, message = "fail", str(error)
        elif isinstance(error, CallFailed):
            status, message = error.status, error.message
        elif error is not None:
            status, message = "error", f"{type(error).__name__} in the suite: {error}"
        elif not self.findings:
            status, message = "not claimed", "nothing to compare on this case"
        elif vacuity:
            status, message = "vacuous", vacuity
        worst = max(self.findings, key=lambda f: f.fraction, default=Finding(0.0, "", (), ""))
        return Verdict(
            impl=self.impl,
            claim=self.claim,
            dtype=self.dtype,
            case=self.case.id,
            generic=self.generic,
            status=status,
            fraction=worst.fraction,
            rule=worst.rule,
            where=worst.where,
            message=message,
            tightest=self.tightest,
            tier=self.tier,
            reproduce=reproduce,
            seconds=round(seconds, 4),
        )


def _masked_rows_zero(problem: Problem, output: str, x: Array) -> Array:
    if output not in ("out", "lse"):
        return x
    empty = empty_rows(problem)
    if output == "lse":
        return np.where(empty, np.array(-np.inf, dtype=x.dtype), x)
    return np.where(empty[..., None], np.array(0, dtype=x.dtype), x)


def _shared_call(kernel: Kernel, problem: Problem, *, want: tuple[str, ...]) -> Answer:
    return _kept_answer(problem, kernel, want)


@kept
def _kept_answer(problem: Problem, kernel: Kernel, want: tuple[str, ...]) -> Answer:
    """What the kernel returned, once for all claims about it."""
    return call(kernel, problem, want=want)


@kept
def _at(problem: Problem, rows: tuple[int, ...]) -> Problem:
    """The same problem of these rows for every claim, so that claims share its answers."""
    return problem.at(rows)


def _in_the_whole(finding: Finding, rows: tuple[int, ...]) -> Finding:
    """The place of the worst element among all rows; a mean square has only a head."""
    if len(finding.where) < 3:
        return finding
    batch, head, row, *rest = finding.where
    return replace(finding, where=(batch, head, rows[row], *rest))
