"""The least loosening of a declared arithmetic under which wrong numbers would be right.

Errors of precision do not match number by number where tiles differ, but they fit the bounds of
the arithmetic that makes them: "as if the probabilities were rounded to bfloat16".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attnspec.conformance.certify import tolerances
from attnspec.conformance.diagnosis_evidence import Again, Measured, is_rounding
from attnspec.conformance.judge import judge
from attnspec.oracle.enclosure import Enclosure
from attnspec.oracle.formats import FORMATS
from attnspec.oracle.problem import OUTPUTS
from attnspec.oracle.rounding import Arithmetic, Tolerance
from attnspec.oracle.roundoffs import Roundoffs, flush

__all__ = ["as_if"]

FLOAT8 = 2.0**-4
"""Unit roundoff of e4m3: three stored bits."""


@dataclass(frozen=True, kw_only=True)
class _Loosened(Arithmetic):
    """A declared arithmetic of which one roundoff is another."""

    field: str = ""
    roundoff: float = 0.0
    eta: float = 0.0

    def resolve(self, storage: str) -> Roundoffs:
        found = super().resolve(storage)
        changes = {self.field: max(self.roundoff, getattr(found, self.field))}
        if self.field in ("probability", "score", "gradient"):
            changes[f"{self.field}_eta"] = max(self.eta, getattr(found, f"{self.field}_eta"))
        return replace(found, **changes)


def as_if(questions: Sequence[Again], *, until: Callable[[], bool]) -> str:
    """How the arithmetic would have to be declared for every wrong output to be right, or "".

    Only comparisons with the oracle are looked at; there must be two of them.
    """
    asked = [q for q in questions if q.failed and q.verdict.claim in OUTPUTS and q.calls]
    asked = [q for q in asked if any(call.telling for call in q.calls)]
    if len(asked) < 2 or any(call.asked.failure for q in asked for call in q.calls):
        return ""
    if not all(is_rounding(one) for q in asked for call in q.calls for one in call.outputs):
        return ""
    declared = asked[0].question.kernel.arithmetic_for(asked[0].verdict.dtype)
    least: tuple[float, str] | None = None
    for words, roundoff, arithmetic in _loosenings(declared, asked[0].verdict.dtype):
        if until():
            break
        sizes = [_excused(q, _for(q, arithmetic), roundoff) for q in asked]
        if all(size is not None for size in sizes):
            size = float(np.mean([size for size in sizes if size is not None]))
            if least is None or size < least[0] - 1e-6:
                least = (size, words)
    return "" if least is None else least[1]


def _for(question: Again, change: Arithmetic) -> Arithmetic:
    """The same loosening of what the question's own type declares."""
    own = question.question.kernel.arithmetic_for(question.verdict.dtype)
    if not isinstance(change, _Loosened):
        return change
    kept = {name: getattr(own, name) for name in Arithmetic.__dataclass_fields__}
    return _Loosened(**kept, field=change.field, roundoff=change.roundoff, eta=change.eta)


def _loosenings(declared: Arithmetic, dtype: str) -> Iterator[tuple[str, float, Arithmetic]]:
    """Each loosening in words, with the output's own roundoff where that is loosened.

    From the least on: by roundoff, and at the same by how few outputs it concerns.
    """
    kept = {name: getattr(declared, name) for name in Arithmetic.__dataclass_fields__}
    formats = [FORMATS[name] for name in ("float32", "float16", "bfloat16")]
    steps: list[tuple[float, int, str, float, Arithmetic]] = []

    def add(rank: int, words: str, field: str, roundoff: float, eta: float = 0.0) -> None:
        change = _Loosened(**kept, field=field, roundoff=roundoff, eta=eta)
        steps.append((roundoff, rank, words, 0.0, change))

    storage = FORMATS[dtype]
    for form in formats:
        unit, eta, name = form.unit_roundoff, flush(form), form.name
        if unit > storage.unit_roundoff:
            words = f"the results were rounded to {name} before they are returned"
            steps.append((unit, 0, words, unit, declared))
        elif form is storage:
            words = "the results were rounded twice"
            steps.append((unit, 0, words, unit, declared))
        add(2, f"the probabilities were rounded to {name}", "probability", unit, eta)
        add(3, f"the scores were rounded to {name}", "score", unit, eta)
        add(1, f"the gradients were accumulated in {name}", "gradient", unit, eta)
        add(5, f"products and sums were accumulated in {name}", "unit", unit)
        add(4, f"q, k and v were rounded to {name}", "operand", unit)
    add(4, "the matrix products rounded their operands to tfloat32", "operand", 2.0**-11)
    add(2, "the probabilities were rounded to 8 bits (e4m3)", "probability", FLOAT8, 2.0**-10)
    for bits in (20, 13, 11, 8):
        add(2.5, f"exp erred by 2^-{bits}", "exp", 2.0**-bits)  # type: ignore[arg-type]
    for _, _, words, roundoff, arithmetic in sorted(steps, key=lambda step: step[:2]):
        yield words, roundoff, arithmetic


def _excused(question: Again, arithmetic: Arithmetic, roundoff: float) -> float | None:
    """The logarithm of the bounds under which all wrong outputs are right; None where some are not.

    roundoff: of the output itself, on top of the arithmetic.
    """
    sizes: list[float] = []
    for call in question.calls:
        wrong = [one for one in call.outputs if one.outside.any()]
        if not wrong:
            continue
        allowed = tolerances(call.asked.problem, arithmetic, tuple(one.output for one in wrong))
        for one in wrong:
            found = _rounded_more(allowed[one.output], one, roundoff)
            if not np.isfinite(found.hard).all():
                return None
            exact = Enclosure.of(one.exact, np.zeros_like(one.exact))
            actual = one.actual.astype(found.format.dtype)
            generic = question.question.generic
            if not judge(actual, exact=exact, tolerance=found, generic=generic).passed:
                return None
            sizes.append(float(np.log(found.hard[one.outside] + 1e-300).mean()))
    return float(np.mean(sizes)) if sizes else None


def _rounded_more(allowed: Tolerance, one: Measured, roundoff: float) -> Tolerance:
    """A tolerance for results that are rounded once more: evenly in the mean, by a third."""
    size = roundoff * np.where(np.isfinite(one.exact), np.abs(one.exact), 0.0)
    return replace(allowed, hard=allowed.hard + size, sigma=np.hypot(allowed.sigma, size / 3**0.5))
