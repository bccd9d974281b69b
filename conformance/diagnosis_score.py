"""How often the diagnosis is right: every known fault is asked, and named from its verdicts.

Every fault is asked at level smoke; what passes there is asked what shows it at level standard.
Then it is diagnosed twice: with itself among the known faults, and without.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass

from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text
from threadpoolctl import threadpool_limits

from attnspec.adapters.catalogue import Fault, catalogue
from attnspec.adapters.fault_classes import class_of
from attnspec.conformance.diagnosis import quietly
from attnspec.conformance.diagnosis_said import Diagnosis, Suspect
from attnspec.conformance.examination import examine, questions
from attnspec.conformance.report import BAD
from attnspec.conformance.selftest import Plan, run
from attnspec.conformance.session import Session
from attnspec.conformance.verdict import Verdict

__all__ = ["Score", "print_scores", "scores"]

TOGETHER = 8
"""Faults that are asked together, and share what is certified."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """What the diagnosis said of one fault: `said`; and without it among the known ones."""

    name: str
    kind: str
    group: str
    failures: int
    said: Diagnosis
    left_out: Diagnosis
    seconds: float

    @property
    def strict(self) -> bool:
        """It is named first, as the likely cause."""
        return bool(self.said.likely) and self.said.likely[0].name == self.name

    @property
    def lenient(self) -> bool:
        """It is named, alone or beside another; or what is named first is of its kind."""
        names = {one.name for one in self.said.likely}
        first = next(iter(self.said.likely), None)
        return self.name in names or (first is not None and first.kind == self.kind)

    @property
    def classed(self) -> bool:
        """Without it, the class that is said is its own."""
        return self.left_out.class_name == class_of(self.kind)


def scores(names: Sequence[str], *, seed: int = 0, workers: int = 1) -> Iterator[Score]:
    """The scores of these faults as they are done; faults that nothing fails have none."""
    parts = [names[first : first + TOGETHER] for first in range(0, len(names), TOGETHER)]
    if workers == 1 or len(parts) == 1:
        for part in parts:
            yield from _scored(part, seed)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(parts)), mp_context=context) as pool:
        jobs = [pool.submit(_scored, part, seed) for part in parts]
        for job in as_completed(jobs):
            yield from job.result()


def _scored(names: Sequence[str], seed: int) -> list[Score]:
    known = catalogue("faulty")
    with threadpool_limits(1):
        verdicts = _verdicts([known[name] for name in names], seed)
        found = [_score(known[name], verdicts[name], seed) for name in names]
    return [score for score in found if score is not None]


def _score(fault: Fault, verdicts: Sequence[Verdict], seed: int) -> Score | None:
    failures = sum(verdict.status in BAD for verdict in verdicts)
    if not failures:
        return None
    started = time.process_time()
    found = quietly(fault.kernel(dtypes=fault.dtypes), verdicts, seed=seed)
    return Score(
        name=fault.name,
        kind=fault.kind,
        group=fault.group,
        failures=failures,
        said=found.diagnosis(),
        left_out=found.diagnosis(without=[fault.name]),
        seconds=time.process_time() - started,
    )


def _verdicts(faults: Sequence[Fault], seed: int) -> dict[str, list[Verdict]]:
    found: dict[str, list[Verdict]] = {fault.name: [] for fault in faults}
    plan = Plan(word="faulty", level="smoke", seeds=(seed,), first_failure=False)
    for batch in run(plan, faults, workers=1):
        for name, verdict in batch.verdicts:
            found[name].append(verdict)
    for fault in faults:
        if not any(verdict.status in BAD for verdict in found[fault.name]):
            found[fault.name] += _shown(fault, seed)
    return found


def _shown(fault: Fault, seed: int) -> list[Verdict]:
    """The verdicts at level standard on the claims that show the fault."""
    kernels = {f"faulty:{fault.name}": fault.kernel(dtypes=fault.dtypes)}
    session = Session(kernels, "standard", seed, (), "conformance")
    asked = (question for question in questions(session) if question.claim in fault.shows)
    return [session.settle(question, examine(question), 0.0) for question in asked]


# -- in words --------------------------------------------------------------------------------------


def print_scores(console: Console, names: Sequence[str], *, seed: int, workers: int) -> int:
    """Score the diagnosis of these faults; 0 where the aims are met, else 1."""
    running = scores(names, seed=seed, workers=workers)
    err = Console(stderr=True)
    found = list(track(running, "diagnosis", total=len(names), console=err, transient=True))
    if not found:
        console.print("no fault failed anything at these levels: nothing to diagnose")
        return 1
    if table := _confusions(found):
        console.print(table)
    for text, right, aim in (
        ("named first", [s.strict for s in found], None),
        ("named, or one of its kind", [s.lenient for s in found], 0.9),
        ("left out: its class", [s.classed for s in found], 0.75),
    ):
        share = sum(right) / len(right)
        goal = "" if aim is None else f" (aim {aim:.0%})"
        console.print(f"{text}: {sum(right)} of {len(right)}, {share:.1%}{goal}")
    missing = len(names) - len(found)
    if missing:
        console.print(f"{missing} failed nothing here, and were not diagnosed")
    enough = sum(s.lenient for s in found) >= 0.9 * len(found)
    return int(not (enough and sum(s.classed for s in found) >= 0.75 * len(found)))


def _confusions(found: Sequence[Score]) -> Table | None:
    """What was said instead, where the fault itself was not named first."""
    wrong = [score for score in found if not score.strict]
    if not wrong:
        return None
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("fault", "kind", "named instead", "of kind"):
        table.add_column(column, overflow="fold")
    for score in wrong:
        said: Sequence[Suspect] = score.said.likely or score.said.nearest[:1]
        names = " or ".join(one.name for one in said) or "nothing"
        kinds = " or ".join(dict.fromkeys(one.kind for one in said))
        unsure = "" if score.said.likely else "unexplained; near "
        table.add_row(score.name, score.kind, Text(f"{unsure}{names}"), kinds)
    return table
