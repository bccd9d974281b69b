"""What an implementation that failed most likely does instead, and where.

Some failed questions and some that passed are asked again, and every fault of the catalogue
answers the same calls. What returns the implementation's own wrong numbers, and is right where it
is right, is what it most likely does. Beside that stand what the failures share (`localisation`),
where the wrong numbers are (`diagnosis_places`), and the arithmetic that would excuse them
(`diagnosis_arithmetic`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from attnspec.adapters import Kernel
from attnspec.adapters.catalogue import Fault, catalogue
from attnspec.adapters.fault_classes import class_of
from attnspec.conformance.diagnosis_arithmetic import as_if
from attnspec.conformance.diagnosis_candidates import (
    Candidate,
    Profile,
    candidates,
    consistency,
    spoils,
    ways,
)
from attnspec.conformance.diagnosis_class import REPEATS, Evidence, reasons, tally
from attnspec.conformance.diagnosis_evidence import Again, Deadline, again, chosen, literals
from attnspec.conformance.diagnosis_places import places
from attnspec.conformance.diagnosis_said import Diagnosis, Suspect
from attnspec.conformance.localisation import spoilt_outputs
from attnspec.conformance.verdict import Verdict

__all__ = ["Findings", "diagnose", "examined", "quietly"]

QUESTIONS = 12
"""Failed questions that are asked again, and as many that passed."""
SECOND = 80
"""Faults that answer a second failure and some passes: those that come nearest on the first."""
PASSES = 3
FEWEST = 3
"""Failures that a cause must explain, where there are as many."""
NEAREST = 12
"""Faults that have a say in what class of fault it is, where none explains it."""
ARITHMETIC = "arithmetic"
"""The class of what a coarser arithmetic excuses."""
KEPT = 12
"""Faults that answer everything."""
SECONDS = 10.0
"""For all of it; what is not done by then is left out."""
WEIGHT = {"numbers": 1.0, "errors": 0.8, "failure": 0.7}

BAD = ("fail", "error", "xpass")
"""Not `crash` or `timeout`: they would take this process along."""


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

    @cached_property
    def profile(self) -> Profile:
        """Which claims failed, and with which options."""
        return Profile.of(self.verdicts)

    @cached_property
    def evidence(self) -> Evidence:
        """What the verdicts and the wrong numbers say without any fault to compare with."""
        return Evidence(self.verdicts, tuple(places(self.failures)))

    def diagnosis(self, *, without: Iterable[str] = ()) -> Diagnosis:
        """What to conclude from it, as if the faults `without` were unknown."""
        left = set(without)
        ranked = sorted(
            (self._suspect(one) for one in self.suspects if one.fault.name not in left),
            key=lambda one: (-round(one.score, 2), len(one.name)),  # of equals, the plainer
        )
        excused = "" if self.evidence.is_no_rounding else self.as_if
        enough = min(FEWEST, sum(verdict.status in BAD for verdict in self.verdicts))
        likely = [
            one
            for one in ranked
            if one.likely and one.explained >= enough and (one.finite or not excused)
        ]
        told = [one for one in likely if _as_good(one, likely[0])][:2]
        near = sorted(ranked, key=lambda one: -one.nearness)
        name = self._class(told, near[:NEAREST], bool(excused))
        own = [one for one in near if class_of(one.kind) == name]
        return Diagnosis(
            likely=tuple(told),
            nearest=() if likely else tuple((own or near)[:3]),
            asked=len(self.failures),
            as_if=excused,
            class_name=name,
            reasons=reasons(self.evidence, name),
            outputs=spoilt_outputs(self.verdicts),
            separation=self.evidence.separation,
            places=self.evidence.places,
        )

    def _class(self, likely: Sequence[Suspect], near: Sequence[Suspect], excused: bool) -> str:
        """Of the cause that is named; else what the failures and the nearest faults speak for."""
        if not self.evidence.failed:
            return ""
        if excused and self.evidence.outputs != {"lse"}:
            return ARITHMETIC
        if likely:
            return class_of(likely[0].kind)
        votes = [(class_of(one.kind), one.nearness) for one in near]
        return next(iter(tally(self.evidence, votes)), "")

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
        fit = consistency(one.fault, self.profile)
        score = explained + 0.3 * overlap + 0.2 * fit
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
            overlap=overlap,
            finite=any(like.finite for like in found if like.way),
            ways=ways(found),
            score=score,
            nearness=score + 0.7 * overlap + 0.8 * fit,
        )


def _as_good(one: Suspect, best: Suspect) -> bool:
    """Whether nothing that was asked tells the two apart."""
    same = (one.explained, one.refuted, one.ways) == (best.explained, best.refuted, best.ways)
    return same and best.score - one.score < 0.08 and one.fraction <= best.fraction + 1e-6


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
    found.as_if = as_if(failures, until=lambda: clock.passed(0.6))
    found.suspects = candidates(faults(), kernel)
    _answer(found, until=clock.passed)
    return found


def _answer(found: Findings, *, until: Callable[[], bool]) -> None:
    """Many faults answer the first failure, the nearest of them more, and few the rest."""
    failed = [n for n, one in found.numbered() if one.failed]
    telling = [n for n in failed if _is_telling(found.failures[n])] or failed[:1]
    passed = [n for n, one in found.numbered() if not one.failed]
    known = {one.fault.name: consistency(one.fault, found.profile) for one in found.suspects}
    possible = [one for one in found.suspects if spoils(one.fault, found.profile)]
    found.suspects = possible or found.suspects
    rounds = ((telling[:1], len(found.suspects)), (telling[1:2], SECOND), (passed[:PASSES], SECOND))
    for numbers, many in rounds:
        _ask(found, found.suspects[:many], numbers, until)
        found.suspects.sort(key=lambda one: -_promise(one, failed) - known[one.fault.name])
    for one in found.suspects[:KEPT]:
        _ask(found, [one], range(len(failed) + len(passed)), until)
    unstable = found.evidence.begins(*REPEATS, "other-") > 0
    for one in found.suspects[:KEPT]:
        for number in failed:
            if number in one.likeness and not one.likeness[number].way and not until():
                one.fails_alike(number, found.failures[number], unstable=unstable)


def _ask(
    found: Findings,
    suspects: Sequence[Candidate],
    numbers: Sequence[int],
    until: Callable[[], bool],
) -> None:
    """Have suspects answer questions that they have not answered yet."""
    asked = dict(found.numbered())
    for one in suspects:
        for number in numbers:
            if number not in one.likeness and not until():
                one.answer(number, asked[number])


def _is_telling(question: Again) -> bool:
    return any(call.telling for call in question.calls)


def _promise(one: Candidate, failed: Sequence[int]) -> float:
    """How like the implementation it was so far, less the passes that it fails."""
    found = [one.likeness[number] for number in failed if number in one.likeness]
    right = [like for number, like in one.likeness.items() if number not in failed]
    like = sum(like.overlap + WEIGHT.get(like.way, 0.0) for like in found)
    against = sum(not like.way for like in right)
    return like / max(1, len(found)) - against / max(1, len(right))
