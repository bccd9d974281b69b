"""One question to one implementation: a claim, a type and a case; how it is asked and settled."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from attnspec.adapters import Answer, CallFailed, Kernel, call
from attnspec.conformance.cases import WITHOUT_GRADIENTS, Case, draw, is_generic
from attnspec.conformance.certify import (
    allowance,
    declares_masked_row,
    expected,
    tightest_class,
)
from attnspec.conformance.judge import Finding, judge
from attnspec.conformance.verdict import Verdict
from attnspec.oracle.formats import Float64Array
from attnspec.oracle.problem import Problem

__all__ = ["Question", "Violation"]

Array = npt.NDArray[Any]


class Violation(AssertionError):  # noqa: N818, a verdict, not a mistake of the suite
    """The implementation violates the claim; the verdict says how."""


@dataclass(eq=False)
class Question:
    """A claim, asked of one implementation in one type on one case.

    It is the `Trial` of a property, and compares outputs with the oracle. Every comparison is
    noted, and the worst one stands in the verdict.
    """

    impl: str
    kernel: Kernel
    claim: str
    dtype: str
    case: Case
    seed: int
    findings: list[Finding] = field(default_factory=list)
    tightest: str = ""
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng([self.seed, zlib.crc32(self.id.encode())])

    @property
    def id(self) -> str:
        """claim/dtype/case, as `--attn-case` takes it."""
        return f"{self.claim}/{self.dtype}/{self.case.id}"

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
        return call(self.kernel, problem, want=tuple(want))

    def allowance(self, problem: Problem, *, output: str = "out") -> Float64Array:
        """The distance from the exact result that the declared arithmetic may reach."""
        arithmetic = self.kernel.arithmetic_for(problem.dtype_name)
        return allowance(problem, arithmetic, output)

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
        problem, kernel = self.problem, self.kernel
        gradient = output not in ("out", "lse")
        if gradient and declares_masked_row(problem, kernel):
            self._refuse_empty_rows(problem)
        want = (self._gradients() or (output,)) if gradient else (output,)
        actual = self.call(problem, want=tuple(dict.fromkeys(("out", *want)))).outputs[output]
        served = ("out", "lse", *self._gradients())
        exact, tolerance = expected(problem, kernel, output, actual, served)
        if actual.size and np.isinf(tolerance.hard).all():
            raise CallFailed(
                "not claimed", "the declared arithmetic may overflow: no bound is known"
            )
        generic = is_generic(self.case)
        finding = judge(actual, exact=exact, tolerance=tolerance, generic=generic)
        as_the_spec = not (declares_masked_row(problem, kernel) and _has_empty_rows(problem))
        if generic and output == "out" and as_the_spec:
            self.tightest = tightest_class(problem, actual, exact)
        self.note(finding)

    def _gradients(self) -> tuple[str, ...]:
        """What this problem can be differentiated by, on this kernel, with finite products."""
        if self.case.family in WITHOUT_GRADIENTS:
            return ()
        absent = {"dbias": self.problem.bias is None, "dsinks": self.problem.sinks is None}
        return tuple(name for name in self.kernel.differentiable if not absent.get(name, False))

    def _refuse_empty_rows(self, problem: Problem) -> None:
        if _has_empty_rows(problem):
            choice = self.kernel.masked_row
            raise CallFailed("not claimed", f"gradients of a row that sees no key ({choice})")

    # -- the verdict ---------------------------------------------------------------------------

    def settle(self, error: BaseException | None, *, reproduce: str, seconds: float) -> Verdict:
        """The verdict on what examining the question raised, if anything."""
        status, message = "pass", ""
        if isinstance(error, Violation):
            status, message = "fail", str(error)
        elif isinstance(error, CallFailed):
            status, message = error.status, error.message
        elif error is not None:
            status, message = "error", f"{type(error).__name__} in the suite: {error}"
        elif not self.findings:
            status, message = "not claimed", "nothing to compare on this case"
        worst = max(self.findings, key=lambda f: f.fraction, default=Finding(0.0, "", (), ""))
        return Verdict(
            impl=self.impl,
            claim=self.claim,
            dtype=self.dtype,
            case=self.case.id,
            generic=is_generic(self.case),
            status=status,
            fraction=worst.fraction,
            rule=worst.rule,
            where=worst.where,
            message=message,
            tightest=self.tightest,
            reproduce=reproduce,
            seconds=round(seconds, 4),
        )


def _masked_rows_zero(problem: Problem, output: str, x: Array) -> Array:
    if output not in ("out", "lse"):
        return x
    seen = np.array([head.visible.any(axis=1) for head in problem.heads()])
    seen = seen.reshape(problem.shape_of("lse"))
    if output == "lse":
        return np.where(seen, x, np.array(-np.inf, dtype=x.dtype))
    return np.where(seen[..., None], x, np.array(0, dtype=x.dtype))


def _has_empty_rows(problem: Problem) -> bool:
    return any(not head.visible.any(axis=1).all() for head in problem.heads())
