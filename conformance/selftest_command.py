"""The command `attnspec selftest`: the suite judged on what is known to be wrong, or right."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import secrets
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["SelftestError", "add_arguments", "selftest"]

LEVELS = ("smoke", "standard", "full")  # as in `cases`, which is too heavy to import here
INTERRUPTED = 130
LIST_IN_FULL = 3
"""Faults that are asked for by name are shown claim by claim, where they are no more than this."""


class SelftestError(ValueError):
    """A mistake in what was asked for; the message says what to do."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    add = parser.add_argument
    add(
        "names",
        nargs="*",
        metavar="NAME",
        help="only these, or these groups, instead of the whole catalogue",
    )
    add("--level", choices=LEVELS, default="standard", help="how much is asked (default: standard)")
    add(
        "--fast",
        action="store_true",
        help="level smoke, on every sentinel and one fault of each kind in each group",
    )
    add(
        "--everything",
        action="store_true",
        help="beyond smoke, ask a fault not only what it must show and must not spoil (hours)",
    )
    add("--seed", type=_natural, metavar="N", help="default: 0; a fresh one with --conforming")
    add("--seeds", type=_natural, default=1, metavar="N", help="ask from N seeds in turn")
    add("--workers", type=_natural, default=_cores(), metavar="N", help="processes (default: all)")
    add("--json", type=Path, metavar="FILE", help="write everything to this file")
    add("--list", action="store_true", help="only name what would be asked")
    add("--conforming", action="store_true", help="implementations that may raise no alarm")
    add(
        "--diagnosis",
        action="store_true",
        help="how often the cause of a failure is named, from verdicts at level smoke",
    )


def _natural(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"expected an integer of at least 0, got {text}")
    return number


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def selftest(options: argparse.Namespace, console: Console) -> int:
    """Run it; 0 where the suite judges as it must, 1 where not, 130 where it was interrupted."""
    from attnspec.conformance import selftest_report as report
    from attnspec.conformance.selftest import Plan, run
    from attnspec.conformance.selftest_score import Score, alarms, record

    options.level = "smoke" if options.fast else options.level
    asked, whole = _chosen(options)
    if options.list:
        report.print_entries(console, asked)
        return 0
    if options.diagnosis:
        from attnspec.conformance.diagnosis_score import print_scores

        names = [entry.name for entry in asked]
        workers = max(1, options.workers)
        return print_scores(console, names, seed=options.seed or 0, workers=workers)
    plan = Plan(
        word="conforming" if options.conforming else "faulty",
        level=options.level,
        seeds=_seeds(options),
        first_failure=not options.conforming,
        everything=options.everything,
    )
    found = run(plan, asked, workers=max(1, options.workers))
    _watch(found, len(asked))
    score = None if options.conforming else Score(found, whole=whole)
    if options.json:
        _write(options.json, record(found, score))
    if score is None:
        report.print_conforming(console, found)
        failed = bool(alarms(found)) or not found.verdicts
    else:
        if options.names and len(asked) <= LIST_IN_FULL:
            for outcome in found.outcomes.values():
                report.print_one(console, outcome)
        report.print_score(console, score)
        failed = any(score.faults())
    return INTERRUPTED if found.stopped else int(failed)


def _chosen(options: argparse.Namespace) -> tuple[list[Any], bool]:
    """The entries that are asked, and whether they are all that the level has."""
    from attnspec.adapters.catalogue import catalogue
    from attnspec.conformance.selftest import asked_at, fast_subset

    entries = catalogue("conforming" if options.conforming else "faulty")
    known = {name: [entry] for name, entry in entries.items()}
    for entry in entries.values():
        known.setdefault(entry.group, []).append(entry)
    for name in options.names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise SelftestError(f"no implementation {name!r}{hint} (--list names them)")
    everything = fast_subset(entries) if options.fast and not options.conforming else entries
    named = [entry for name in options.names or everything for entry in known[name]]
    unique = {entry.name: entry for entry in named}.values()
    asked = [entry for entry in unique if asked_at(entry, options.level)]
    if not asked:
        raise SelftestError(f"{', '.join(options.names)}: asked at level full alone")
    return asked, not options.names


def _seeds(options: argparse.Namespace) -> tuple[int, ...]:
    first = options.seed
    if first is None:
        first = secrets.randbelow(2**31) if options.conforming else 0
    return tuple(range(first, first + max(1, options.seeds)))


def _watch(run: Any, count: int) -> None:
    """See the run through, with a progress bar on stderr."""
    columns = (TextColumn("selftest"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=count)
        done = 0.0
        for batch in run:
            done += batch.share
            progress.update(task, completed=min(round(done, 6), count))


def _write(path: Path, found: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise SelftestError(f"--json: {path}: {error.strerror}") from None
