"""What an implementation that failed most likely does instead, and where.

Some failed questions and some that passed are asked again, and every fault of the catalogue
answers the same calls. What returns the implementation's own wrong numbers, and is right where it
is right, is what it most likely does. Beside that stand what the failures share (`localisation`),
where the wrong numbers are (`diagnosis_places`), and the arithmetic that would excuse them
(`diagnosis_arithmetic`).
"""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from attnspec.adapters import Kernel
from attnspec.adapters.catalogue import Fault, catalogue
from attnspec.conformance.diagnosis_arithmetic import as_if
from attnspec.conformance.diagnosis_candidates import (
    Candidate,
    candidates,
    consistency,
    ways,
)
from attnspec.conformance.diagnosis_evidence import Again, Deadline, again, chosen, literals
from attnspec.conformance.diagnosis_places import places
from attnspec.conformance.localisation import Separation, separation, spoilt_outputs
from attnspec.conformance.verdict import Verdict

__all__ = ["Diagnosis", "Findings", "Suspect", "diagnose", "examined", "quietly"]

WIDTH = 100
QUESTIONS = 12
"""Failed questions that are asked again, and as many that passed."""
FIRST = 2
"""Failed questions that every fault answers; those that come nearest answer the rest."""
SECOND = 100
"""Faults that answer the second of them: those that come nearest on the first."""
KEPT = 12
SECONDS = 10.0
"""For all of it; what is not done by then is left out."""
FAIR = 0.5
"""Share of the failures that a fault must explain to be called the likely cause."""
REFUTED = 0.34
"""Share of the passes that it may fail."""
WEIGHT = {"numbers": 1.0, "errors": 0.8, "failure": 0.7}

BAD = ("fail", "error", "xpass")
"""Not `crash` or `timeout`: they would take this process along."""


@dataclass(frozen=True)
class Suspect:
    """A fault, and how much it explains.

    explained: of `asked` failures that were asked again; refuted: of `passes`, those that it fails.
    fraction: of the bound, between it and the implementation; ways: how the failures match.
    """

    name: str
    says: str
    kind: str
    group: str
    explained: int
    asked: int
    refuted: int
    passes: int
    fraction: float
    ways: Mapping[str, int]
    score: float

    @property
    def likely(self) -> bool:
        """Whether it explains a fair share, and fails where the implementation passes seldom.

        What matches number by number may do so under a condition of its own.
        """
        enough = self.explained >= FAIR * self.asked and self.explained > 0
        return enough and (self.refuted <= REFUTED * self.passes or self.sometimes)

    @property
    def sometimes(self) -> bool:
        """Whether the implementation does what the fault does, but not always."""
        numbers = self.ways.get("numbers", 0) >= 0.75 * self.asked and self.asked > 1
        return numbers and self.refuted > REFUTED * self.passes

    @property
    def evidence(self) -> str:
        """How much of what was asked it explains, and how closely."""
        if set(self.ways) == {"numbers"}:
            close = "number by number" if self.fraction == 0 else f"to {self.fraction:.1g}"
            tail = close if self.fraction == 0 else f"{close} of the bound"
        elif self.ways.get("errors", 0) > 0:
            tail = "its errors go with these"
        else:
            tail = "it fails alike"
        against = f", but fails {self.refuted} of {self.passes} passes" if self.refuted else ""
        if self.sometimes:
            against = f"; but not always: it fails {self.refuted} of {self.passes} passes"
        return f"explains {self.explained} of {self.asked} failures asked again, {tail}{against}"


@dataclass(frozen=True)
class Diagnosis:
    """likely: the faults that explain the failures, two where nothing tells them apart.

    nearest: those that come nearest where none explains them. kind and group: of the first.
    """

    likely: tuple[Suspect, ...] = ()
    nearest: tuple[Suspect, ...] = ()
    asked: int = 0
    as_if: str = ""
    outputs: str = ""
    separation: Separation | None = None
    places: tuple[str, ...] = ()
    trouble: str = ""

    @property
    def best(self) -> Suspect | None:
        """The first of the likely ones, or the nearest."""
        return next(iter((*self.likely, *self.nearest)), None)

    def lines(self) -> list[str]:
        """For the report, each of at most 98 columns."""
        if self.trouble:
            return _wrapped("no diagnosis: ", self.trouble)
        found: list[str] = []
        for number, one in enumerate(self.likely):
            text = f"{one.says} (faulty:{one.name}; {one.evidence})"
            found += _wrapped("most likely: " if number == 0 else "or: ", text)
        excused = f"{self.as_if} (then every failure asked again would pass)"
        if self.as_if and self.likely:
            found += _wrapped("as if ", excused)
        elif self.as_if:
            found += _wrapped("most likely: ", f"coarser than declared, as if {excused}")
        elif not self.likely and self.asked:
            found += _wrapped("most likely: ", self._unexplained())
        where = [word for word in (self.outputs, str(self.separation or "")) if word]
        if self.places:
            where.append(f"wrong numbers: {', '.join(self.places)}")
        return found + (_wrapped("where: ", "; ".join(where)) if where else [])

    def _unexplained(self) -> str:
        text = "unexplained: no known fault does this"
        if self.nearest and self.nearest[0].score > 0:
            one = self.nearest[0]
            says = one.says.rstrip(".")
            text += f"; the nearest ({one.kind}): {says} (faulty:{one.name})"
        return text


def _wrapped(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH - 2,
        initial_indent=label,
        subsequent_indent=" " * 4,
        break_long_words=False,
        break_on_hyphens=False,
    )


def diagnose(kernel: Kernel, verdicts: Sequence[Verdict], *, seed: int, impl: str) -> Diagnosis:
    """The diagnosis from the verdicts on one implementation; it never raises."""
    try:
        own = [verdict for verdict in verdicts if verdict.impl == impl]
        return quietly(kernel, own, seed=seed).diagnosis()
    except Exception as error:
        first = (str(error).strip().splitlines() or ["no message"])[0]
        return Diagnosis(trouble=f"{type(error).__name__}: {first}")


def quietly(kernel: Kernel, verdicts: Sequence[Verdict], *, seed: int) -> Findings:
    """What is found out from the verdicts, without warnings of faults that overflow."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return examined(kernel, verdicts, seed=seed)


# -- looking ---------------------------------------------------------------------------------------


@dataclass(eq=False)
class Findings:
    """All that was found out, before anything is concluded from it."""

    verdicts: Sequence[Verdict]
    failures: list[Again]
    passes: list[Again]
    suspects: list[Candidate] = field(default_factory=list)
    as_if: str = ""

    def diagnosis(self, *, without: Iterable[str] = ()) -> Diagnosis:
        """What to conclude from it, as if the faults `without` were unknown."""
        left = set(without)
        ranked = sorted(
            (self._suspect(one) for one in self.suspects if one.fault.name not in left),
            key=lambda one: -one.score,
        )
        likely = [one for one in ranked if one.likely]
        told = [one for one in likely if _as_good(one, likely[0])][:2]
        return Diagnosis(
            likely=tuple(told),
            nearest=() if likely else tuple(ranked[:3]),
            asked=len(self.failures),
            as_if=self.as_if,
            outputs=spoilt_outputs(self.verdicts),
            separation=separation(self.verdicts),
            places=tuple(places(self.failures)),
        )

    def numbered(self) -> Iterator[tuple[int, Again]]:
        """The failures, then the passes."""
        return iter(enumerate((*self.failures, *self.passes)))

    def _suspect(self, one: Candidate) -> Suspect:
        count = len(self.failures)
        found = [one.likeness[i] for i in range(count) if i in one.likeness]
        right = [
            one.likeness[i] for i in range(count, count + len(self.passes)) if i in one.likeness
        ]
        refuted = sum(not like.way for like in right)
        explained = sum(WEIGHT.get(like.way, 0.0) for like in found) / max(1, len(found))
        overlap = sum(like.overlap for like in found) / max(1, len(found))
        fraction = max((like.fraction for like in found if like.way == "numbers"), default=0.0)
        score = explained + 0.3 * overlap + 0.2 * consistency(one.fault, self.verdicts)
        by_numbers = sum(like.way == "numbers" for like in found) > len(found) / 2
        score -= (0.5 if by_numbers else 1.0) * refuted / max(1, len(right))
        score -= 0.05 * min(1.0, fraction)
        fault = one.fault
        return Suspect(
            name=fault.name,
            says=fault.says,
            kind=fault.kind,
            group=fault.group,
            explained=sum(bool(like.way) for like in found),
            asked=len(found),
            refuted=refuted,
            passes=len(right),
            fraction=fraction,
            ways=ways(found),
            score=score,
        )


def _as_good(one: Suspect, best: Suspect) -> bool:
    """Whether nothing that was asked tells the two apart."""
    same = (one.explained, one.refuted, one.ways) == (best.explained, best.refuted, best.ways)
    return same and best.score - one.score < 0.03 and one.fraction <= best.fraction + 1e-6


def examined(
    kernel: Kernel,
    verdicts: Sequence[Verdict],
    *,
    seed: int,
    faults: Callable[[], Mapping[str, Fault]] = lambda: catalogue("faulty"),
    seconds: float = SECONDS,
) -> Findings:
    """Ask some questions again, and have the faults answer them too."""
    clock = Deadline.after(seconds)
    wrong = [v for v in verdicts if v.status == "fail"]  # what raises, says itself why
    failed = wrong or [v for v in verdicts if v.status in BAD and "in the suite" not in v.message]
    passed = [v for v in verdicts if v.status == "pass"]
    near = frozenset().union(*(literals(v) for v in failed))
    asked = again(
        chosen(failed, most=QUESTIONS), kernel, seed=seed, until=lambda: clock.passed(0.3)
    )
    right = again(
        chosen(passed, most=QUESTIONS, near=near),
        kernel,
        seed=seed,
        until=lambda: clock.passed(0.45),
    )
    failures = [one for one in asked if one.failed]
    found = Findings(verdicts, failures, [one for one in right if not one.failed])
    if not failures:
        return found
    found.suspects = candidates(faults(), kernel)
    _answer(found, until=lambda: clock.passed(0.95))
    found.as_if = as_if(failures, until=clock.passed)
    return found


def _answer(found: Findings, *, until: Callable[[], bool]) -> None:
    """Every fault answers the first failures, the nearest of them the rest."""
    first = [n for n, one in found.numbered() if one.failed and _is_telling(one)][:FIRST]
    first = first or [0]
    known = {one.fault.name: consistency(one.fault, found.verdicts) for one in found.suspects}
    many = len(found.suspects)
    for number in first:
        for one in found.suspects[:many]:
            one.answer(number, found.failures[number])
        found.suspects.sort(key=lambda one: -_promise(one, first) - known[one.fault.name])
        many = SECOND
    for one in found.suspects[:KEPT]:
        for number, question in found.numbered():
            if until():
                return
            if number not in first:
                one.answer(number, question)
    for one in found.suspects[:KEPT]:
        for number, question in found.numbered():
            if until():
                return
            if question.failed and not one.likeness[number].way:
                one.fails_alike(number, question)


def _is_telling(question: Again) -> bool:
    return any(call.telling for call in question.calls)


def _promise(one: Candidate, first: Sequence[int]) -> float:
    found = [one.likeness[number] for number in first if number in one.likeness]
    return sum(like.overlap + WEIGHT.get(like.way, 0.0) for like in found) / len(first)
