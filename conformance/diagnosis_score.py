"""How often the diagnosis is right: every known fault is run, and named from its verdicts.

strict: the fault itself stands first. lenient: it is named beside another that nothing asked
tells apart, or what stands first is of its kind. left out: with the fault itself unknown, what
stands first is of its kind or its group.
"""

from __future__ import annotations

import fnmatch
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from attnspec.adapters.catalogue import Fault, catalogue
from attnspec.conformance.diagnosis import Diagnosis, examined
from attnspec.conformance.examination import examine, questions
from attnspec.conformance.session import Session
from attnspec.conformance.verdict import Verdict

__all__ = ["Score", "scores"]


@dataclass(frozen=True)
class Score:
    """What the diagnosis said of one fault, and without the fault in the catalogue."""

    fault: Fault
    failures: int
    said: Diagnosis
    left_out: Diagnosis
    seconds: float

    @property
    def strict(self) -> bool:
        """It is named first, as the likely cause."""
        return bool(self.said.likely) and self.said.likely[0].name == self.fault.name

    @property
    def lenient(self) -> bool:
        """It is among those named, or what is named first is of its kind."""
        names = {one.name for one in self.said.likely}
        first = self.said.best
        return self.fault.name in names or (first is not None and first.kind == self.fault.kind)

    @property
    def classed(self) -> bool:
        """Without it, what stands first is of its kind or group."""
        first = self.left_out.best
        return first is not None and (
            first.kind == self.fault.kind or first.group == self.fault.group
        )


def verdicts_of(fault: Fault, *, seed: int = 0) -> list[Verdict]:
    """The verdicts at smoke in the fault's types; where none fails, at standard on `shows`."""
    for level, patterns in (("smoke", ()), ("standard", fault.shows)):
        session = Session(
            {fault.name: fault.kernel(dtypes=fault.dtypes)},
            level,
            seed,
            tuple(f"{claim}/*" for claim in patterns),
            "conformance",
        )
        if patterns:
            session.patterns = ()
        found = []
        for question in questions(session):
            if not patterns or question.claim in patterns:
                found.append(session.settle(question, examine(question), 0.0))
        if any(verdict.status in ("fail", "error") for verdict in found):
            return found
    return found


def scores(faults: Iterable[Fault], *, seed: int = 0) -> Iterable[Score]:
    """Run each fault and diagnose it."""
    for fault in faults:
        found = verdicts_of(fault, seed=seed)
        failures = sum(verdict.status in ("fail", "error") for verdict in found)
        kernel = fault.kernel(dtypes=fault.dtypes)
        start = time.monotonic()
        what = examined(kernel, found, seed=seed)
        yield Score(
            fault,
            failures,
            what.diagnosis(),
            what.diagnosis(without=[fault.name]),
            time.monotonic() - start,
        )


def main(arguments: Sequence[str]) -> None:
    """Print a line for each fault that matches one of the patterns, and the shares."""
    patterns = [word for word in arguments if word != "-v"] or ["*"]
    chosen = [
        fault
        for fault in catalogue("faulty").values()
        if any(fnmatch.fnmatch(fault.name, p) or fault.group == p for p in patterns)
    ]
    found = []
    for score in scores(chosen):
        if not score.failures:
            print(f"  nothing failed: {score.fault.name}", flush=True)
            continue
        found.append(score)
        marks = "".join("-+"[good] for good in (score.strict, score.lenient, score.classed))
        named = " or ".join(one.name for one in score.said.likely) or "?"
        second = score.left_out.best
        other = "?" if second is None else f"{second.name} [{second.kind}]"
        print(
            f"{marks} {score.fault.name} [{score.fault.kind}] {score.failures} failed, "
            f"{score.seconds:.1f} s: {named}; without: {other}",
            flush=True,
        )
        if "-v" in arguments:
            print("\n".join(f"      {line}" for line in score.said.lines()), flush=True)
    for word in ("strict", "lenient", "classed"):
        right = sum(getattr(score, word) for score in found)
        print(f"{word}: {right} of {len(found)}")


if __name__ == "__main__":
    main(sys.argv[1:])
