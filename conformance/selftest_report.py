"""What `attnspec selftest` prints: in 100 columns, and the words say what colour repeats."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from attnspec.adapters.fault_classes import CLASSES
from attnspec.conformance.selftest import Outcome, Run
from attnspec.conformance.selftest_score import Score, alarms, leaked, unshown

__all__ = ["print_conforming", "print_entries", "print_one", "print_score"]

WIDTH = 100
FEW = 8
"""Faults that are named where more would not be read."""


def print_entries(console: Console, entries: Iterable[Any]) -> None:
    """The names, with what each does."""
    for entry in entries:
        _say(console, f"{entry.name}: {entry.says}", hanging=4)


def print_score(console: Console, score: Score) -> None:
    """The faults by class, the survivors, the wrong reasons, and what each claim is good for.

    Of a few faults, only what is wrong with them.
    """
    if len(score.outcomes) > FEW:
        console.print(_classes(score), markup=False)
    for outcome in score.survivors:
        console.print(f"SURVIVED {outcome.entry.name}", style="bold red", markup=False)
        for line in _survivor(score, outcome):
            _say(console, line, indent=2)
    for outcome in score.wrong:
        console.print(f"WRONG REASON {outcome.entry.name}", style="bold red", markup=False)
        for line in _reason(score, outcome):
            _say(console, line, indent=2)
    if len(score.outcomes) > FEW:
        console.print(_properties(score), markup=False)
    _conclude(console, score)


def print_one(console: Console, outcome: Outcome) -> None:
    """One fault: every claim that failed, with its first case."""
    entry = outcome.entry
    _say(console, f"{entry.name}: {entry.says}")
    reports = f"; reported: {', '.join(entry.reports)}" if entry.reports else ""
    _say(console, f"kind {entry.kind} ({entry.class_name}), in {entry.group}{reports}", indent=2)
    for verdict in outcome.claims.values():
        _say(console, f"{verdict.claim}, {verdict.dtype}, {verdict.case}: {verdict.message}", 2, 4)
        console.print(f"    {verdict.reproduce}", markup=False, soft_wrap=True)
    found, asked = len(outcome.claims), len(outcome.judged)
    _say(console, f"{found} of {asked} claims failed, {outcome.judged.total()} verdicts", indent=2)


def print_conforming(console: Console, run: Run) -> None:
    """Verdicts by variant, and every alarm with the command that repeats it."""
    table = Table(box=None, pad_edge=False)
    for column in ("variant", "verdicts", "alarms", "what it does otherwise"):
        table.add_column(column, justify="right" if column in ("verdicts", "alarms") else "left")
    for outcome in run.outcomes.values():
        counts = (str(outcome.judged.total()), str(len(outcome.failed)))
        table.add_row(outcome.entry.name, *counts, outcome.entry.says)
    console.print(table, markup=False)
    for verdict in alarms(run):
        console.print(f"ALARM {verdict.impl}: {verdict.claim}", style="bold red", markup=False)
        _say(console, f"{verdict.dtype}, {verdict.case}: {verdict.message}", indent=2)
        console.print(f"  {verdict.reproduce}", markup=False, soft_wrap=True)
    count = len(alarms(run))
    said = f"{count or 'no'} alarm{'' if count == 1 else 's'} in {run.verdicts:,} verdicts on "
    said += f"{len(run.outcomes)} conforming implementations in {run.seconds:.0f} s"
    seeds = ", ".join(map(str, run.plan.seeds))
    stopped = "; stopped before the end" if run.stopped else ""
    style = "bold red" if count else "bold green"
    _say(console, f"{said}; level {run.plan.level}, seed {seeds}{stopped}", style=style)


# -- the parts -------------------------------------------------------------------------------------


def _classes(score: Score) -> Table:
    """Caught or not, class by class, in the order of `CLASSES`."""
    table = Table(box=None, pad_edge=False)
    table.add_column("faults of")
    for column in ("asked", "caught", "survived", "wrong reason"):
        table.add_column(column, justify="right")
    classes: dict[str, list[Outcome]] = {name: [] for name in CLASSES}
    for outcome in score.outcomes:
        classes[outcome.entry.class_name].append(outcome)
    classes["all"] = list(score.outcomes)
    survivors, wrong = score.survivors, score.wrong
    for name, outcomes in classes.items():
        if not outcomes:
            continue
        caught = sum(bool(outcome.failed) for outcome in outcomes)
        counts = (len(outcomes), caught, _common(outcomes, survivors), _common(outcomes, wrong))
        table.add_row(name, *map(str, counts), style="bold" if name == "all" else "")
    return table


def _common(some: Sequence[Outcome], others: Sequence[Outcome]) -> int:
    return sum(any(outcome is other for other in others) for outcome in some)


def _survivor(score: Score, outcome: Outcome) -> Iterator[str]:
    fault = outcome.entry
    yield fault.says
    if score.may_survive(outcome):
        yield f"beyond smoke: {fault.beyond_smoke}"
    yield f"should show in {', '.join(fault.shows)}; {outcome.judged.total()} verdicts passed"


def _reason(score: Score, outcome: Outcome) -> Iterator[str]:
    yield outcome.entry.says
    for verdict in leaked(outcome):
        yield f"{verdict.claim} failed, and should not: {verdict.message}"
        yield verdict.reproduce
    if passed := unshown(outcome, score.level):
        failed = ", ".join(list(outcome.claims)[:FEW])
        yield f"{', '.join(passed)} passed and should fail; what failed: {failed}"


def _properties(score: Score) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("claim", no_wrap=True)
    table.add_column("catches", justify="right")
    table.add_column("alone", justify="right")
    table.add_column("faults that it alone catches")
    alone: Mapping[str, Sequence[str]] = score.alone()
    caught = {claim: names for claim, names in score.catches().items() if names}
    for claim, names in sorted(caught.items(), key=lambda item: -len(item[1])):
        sole = alone.get(claim, ())
        more = f" and {len(sole) - FEW} more" if len(sole) > FEW else ""
        table.add_row(claim, str(len(names)), str(len(sole)), ", ".join(sole[:FEW]) + more)
    return table


def _conclude(console: Console, score: Score) -> None:
    run = score.run
    asked = len(run.outcomes)
    caught = sum(bool(outcome.failed) for outcome in score.outcomes)
    allowed = sum(score.may_survive(outcome) for outcome in score.survivors)
    beyond = f", {allowed} beyond what it must see" if allowed else ""
    said = f"{caught} of {asked} faults caught at level {run.plan.level}{beyond}"
    speed = run.verdicts / run.seconds if run.seconds else 0.0
    said += f"; {run.verdicts:,} verdicts in {run.seconds:.0f} s ({speed:.0f} a second)"
    problems = list(score.faults())
    _say(console, said, style="bold red" if problems else "bold green")
    for problem in problems:
        _say(console, problem, hanging=2, style="bold red")


def _say(
    console: Console, text: str, indent: int = 0, hanging: int = 0, style: str | None = None
) -> None:
    """A paragraph within the width; a command to be copied stays in one line."""
    first, further = " " * indent, " " * max(indent, hanging)
    if text.startswith("pytest "):
        console.print(first + text, markup=False, soft_wrap=True)
        return
    filled = textwrap.fill(
        text, WIDTH, initial_indent=first, subsequent_indent=further, break_on_hyphens=False
    )
    console.print(filled, markup=False, style=style)
