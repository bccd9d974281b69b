"""What a run of the faults says about the suite: caught or not, for the right reason or not."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import attnspec
from attnspec.adapters.catalogue import Fault
from attnspec.conformance.examination import checks
from attnspec.conformance.selftest import SET_UP, Outcome, Run
from attnspec.conformance.verdict import Verdict
from attnspec.oracle.problem import OUTPUTS

__all__ = ["SCHEMA_VERSION", "Score", "alarms", "leaked", "record", "unshown"]

SCHEMA_VERSION = 1


def leaked(outcome: Outcome) -> list[Verdict]:
    """What failed and should not, the first of each claim.

    That is comparisons of outputs that the fault does not spoil, and mistakes of the suite itself.
    """
    fault: Fault = outcome.entry
    right = {SET_UP, *OUTPUTS} - set(fault.spoils)
    return [
        verdict
        for claim, verdict in outcome.claims.items()
        if claim in right or (verdict.status == "error" and "in the suite: " in verdict.message)
    ]


def unshown(outcome: Outcome, level: str) -> list[str]:
    """The claims that must fail and did not; level smoke asks too little to demand them."""
    shows = () if level == "smoke" else outcome.entry.shows
    return [claim for claim in shows if claim not in outcome.claims]


def alarms(run: Run) -> list[Verdict]:
    """Every failure, simplest implementations first: of what conforms, each is a false alarm."""
    return [verdict for outcome in run.outcomes.values() for verdict in outcome.failed]


@dataclass(frozen=True)
class Score:
    """The score of the faults that were asked. `whole`: that was every one of the catalogue."""

    run: Run
    whole: bool

    @property
    def outcomes(self) -> Collection[Outcome]:
        """Of all faults, in the catalogue's order."""
        return self.run.outcomes.values()

    @property
    def level(self) -> str:
        """At which they were asked."""
        return self.run.plan.level

    @property
    def survivors(self) -> list[Outcome]:
        """The faults that no claim failed."""
        return [outcome for outcome in self.outcomes if self.ended(outcome) and not outcome.failed]

    def ended(self, outcome: Outcome) -> bool:
        """Whether it was asked everything."""
        return outcome.ended == len(self.run.plan.seeds)

    def may_survive(self, outcome: Outcome) -> bool:
        """Whether the level has no duty to catch it."""
        fault: Fault = outcome.entry
        return self.level == "smoke" and bool(fault.beyond_smoke) and not fault.sentinel

    @property
    def wrong(self) -> list[Outcome]:
        """The faults that were caught, and not for the right reason."""
        found = (outcome for outcome in self.outcomes if outcome.failed)
        return [o for o in found if leaked(o) or (self.ended(o) and unshown(o, self.level))]

    def catches(self) -> dict[str, list[str]]:
        """By claim, the faults that it catches; the claims that were never asked are left out."""
        asked = {claim for outcome in self.outcomes for claim in outcome.judged}
        found: dict[str, list[str]] = {claim: [] for claim in checks() if claim in asked}
        for outcome in self.outcomes:
            for claim in found.keys() & outcome.claims.keys():
                found[claim].append(outcome.entry.name)
        return found

    def alone(self) -> dict[str, list[str]]:
        """By claim, the faults that no other claim catches."""
        found: dict[str, list[str]] = {}
        for outcome in self.outcomes:
            claims = list(outcome.claims)
            if len(claims) == 1 and self.ended(outcome):
                found.setdefault(claims[0], []).append(outcome.entry.name)
        return found

    def idle(self) -> list[str]:
        """The claims that caught nothing; those that smoke does not ask have no duty there."""
        catches = self.catches()
        due = catches if self.level == "smoke" else checks()
        return [claim for claim in due if not catches.get(claim)]

    def faults(self) -> Iterator[str]:
        """What keeps the selftest from passing, a line each."""
        if self.run.stopped:
            yield "stopped before the end"
        guilty = [o.entry.name for o in self.survivors if not self.may_survive(o)]
        if guilty:
            yield f"survived: {', '.join(guilty)}"
        if self.wrong:
            names = (outcome.entry.name for outcome in self.wrong)
            yield f"not for the right reason: {', '.join(names)}"
        if self.whole and not self.run.stopped and (idle := self.idle()):
            yield f"caught nothing: {', '.join(idle)}"


# -- JSON ------------------------------------------------------------------------------------------


def record(run: Run, score: Score | None) -> dict[str, Any]:
    """Everything that is known, as `selftest.schema.json` describes it."""
    found: dict[str, Any] = {
        "schema": SCHEMA_VERSION,
        "attnspec": attnspec.__version__,
        "catalogue": run.plan.word,
        "level": run.plan.level,
        "seeds": list(run.plan.seeds),
        "seconds": round(run.seconds, 2),
        "stopped": run.stopped,
        "verdicts": run.verdicts,
        "entries": [_entry(run, outcome) for outcome in run.outcomes.values()],
    }
    if score is None:
        return found
    found["problems"] = list(score.faults())
    found["claims"] = _claims(score.catches(), score.alone())
    for outcome, entry in zip(score.outcomes, found["entries"], strict=True):
        entry |= {
            "kind": outcome.entry.kind,
            "class": outcome.entry.class_name,
            "sentinel": outcome.entry.sentinel,
            "leaked": [verdict.claim for verdict in leaked(outcome)],
            "unshown": unshown(outcome, score.level),
            "may_survive": score.may_survive(outcome),
        }
    return found


def _entry(run: Run, outcome: Outcome) -> dict[str, Any]:
    entry = outcome.entry
    kept = ("dtype", "case", "status", "message", "reproduce")
    failed = outcome.claims if run.plan.first_failure else {}
    verdicts: Sequence[Verdict] = list(failed.values()) or outcome.failed
    return {
        "name": entry.name,
        "group": entry.group,
        "says": entry.says,
        "reports": list(entry.reports),
        "dtypes": list(entry.dtypes),
        "asked": outcome.judged.total(),
        "seconds": round(outcome.seconds, 3),
        "complete": outcome.ended == len(run.plan.seeds),
        "failed": [
            {"claim": verdict.claim, **{name: getattr(verdict, name) for name in kept}}
            for verdict in verdicts
        ],
    }


def _claims(catches: Mapping[str, Sequence[str]], alone: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"claim": claim, "catches": list(names), "alone": list(alone.get(claim, ()))}
        for claim, names in catches.items()
    ]
