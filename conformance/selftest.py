"""The suite, run on implementations of which it is known whether they conform.

Every implementation is asked the same problems, so they are taken together, problem by problem, and
share what is certified about it. Several processes each take a part of the implementations.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from attnspec.adapters.catalogue import Fault, Variant, catalogue
from attnspec.conformance.case import Case
from attnspec.conformance.cases import LEVELS
from attnspec.conformance.examination import examine, questions
from attnspec.conformance.question import Question
from attnspec.conformance.report import BAD
from attnspec.conformance.session import Session
from attnspec.conformance.verdict import Verdict
from attnspec.oracle.problem import OUTPUTS

__all__ = ["SET_UP", "Batch", "Outcome", "Plan", "Run", "asked_at", "fast_subset", "run"]

TOGETHER = 48
"""Implementations a process takes at once, at most: enough to share, few enough to balance."""

SET_UP = "set-up"
"""Stands for a claim in the verdict on what cannot be asked at all."""

PERIOD = 0.1
"""Seconds between two looks at what the processes have found."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is asked of the entries of a catalogue: at which level, from which seeds.

    first_failure: a claim that failed is not asked of the same implementation again.
    everything: beyond level smoke, a fault is asked not only what it must show and what it must not
        spoil. Most of a level tells little of most faults, and takes hours.
    """

    word: str
    level: str
    seeds: tuple[int, ...]
    first_failure: bool
    everything: bool = False


@dataclass(kw_only=True)
class Outcome:
    """What became of one implementation.

    judged: verdicts by claim; those that are not claimed do not count. failed: the verdicts that
    are not passes. ended: seeds for which everything was asked.
    """

    entry: Any
    judged: Counter[str] = field(default_factory=Counter)
    failed: list[Verdict] = field(default_factory=list)
    seconds: float = 0.0
    ended: int = 0

    @property
    def claims(self) -> Mapping[str, Verdict]:
        """The claims that failed, each with its first verdict."""
        found: dict[str, Verdict] = {}
        for verdict in self.failed:
            found.setdefault(verdict.claim, verdict)
        return found

    def add(self, verdict: Verdict) -> None:
        """Count one verdict."""
        self.seconds += verdict.seconds
        if verdict.status == "not claimed":
            return
        self.judged[verdict.claim] += 1
        if verdict.status in BAD:
            self.failed.append(verdict)


@dataclass(frozen=True)
class Batch:
    """What one problem brought: the verdicts by implementation, and the progress that this is.

    share: of all that is asked, in implementations. ended: those that are through with a seed.
    """

    verdicts: Sequence[tuple[str, Verdict]]
    share: float = 0.0
    ended: tuple[str, ...] = ()


@dataclass(kw_only=True)
class Run:
    """The outcomes by name, which fill up while `batches` is read."""

    plan: Plan
    outcomes: Mapping[str, Outcome]
    batches: Iterator[Batch]
    seconds: float = 0.0
    stopped: bool = False

    @property
    def verdicts(self) -> int:
        """How many there are so far."""
        return sum(outcome.judged.total() for outcome in self.outcomes.values())

    def __iter__(self) -> Iterator[Batch]:
        """Each batch, once it is counted. An interruption ends it: what is known stays."""
        started = time.perf_counter()
        try:
            for batch in self.batches:
                for name, verdict in batch.verdicts:
                    self.outcomes[name].add(verdict)
                for name in batch.ended:
                    self.outcomes[name].ended += 1
                yield batch
        except KeyboardInterrupt:
            self.stopped = True
        finally:
            self.seconds = time.perf_counter() - started


def asked_at(entry: Any, level: str) -> bool:
    """Whether an entry is asked at a level: a fault of long contexts is, only where they are."""
    return LEVELS.index(getattr(entry, "level", level)) <= max(LEVELS.index(level), 1)


def fast_subset(faults: Mapping[str, Fault]) -> list[str]:
    """Every sentinel, and of each group the first fault of each kind that smoke must see."""
    first: dict[tuple[str, str], str] = {}
    for name, fault in faults.items():
        if not fault.beyond_smoke and asked_at(fault, "smoke"):
            first.setdefault((fault.group, fault.kind), name)
    chosen = {*first.values(), *(name for name, fault in faults.items() if fault.sentinel)}
    return [name for name in faults if name in chosen]


def run(plan: Plan, entries: Sequence[Variant], *, workers: int) -> Run:
    """Ask entries of the catalogue; nothing happens before the run is iterated over.

    With one worker, all happens in this process.
    """
    outcomes = {entry.name: Outcome(entry=entry) for entry in entries}
    batches = _here(plan, entries) if workers == 1 else _apart(plan, entries, workers)
    return Run(plan=plan, outcomes=outcomes, batches=batches)


# -- one process -----------------------------------------------------------------------------------


def _here(plan: Plan, entries: Sequence[Variant]) -> Generator[Batch]:
    with threadpool_limits(1):
        for seed in plan.seeds:
            for group in _groups(entries, workers=1):
                yield from _examined(plan, group, seed)


def _examined(plan: Plan, entries: Sequence[Variant], seed: int) -> Generator[Batch]:
    """The verdicts on the entries, problem by problem."""
    names = {f"{plan.word}:{entry.name}": entry.name for entry in entries}
    kernels = {}
    for impl, entry in zip(names, entries, strict=True):
        try:
            kernels[impl] = entry.kernel(dtypes=entry.dtypes)
        except Exception as error:
            yield Batch([(entry.name, _not_set_up(impl, entry, error))])
    session = Session(kernels, plan.level, seed, (), "conformance")
    problems = _by_problem(session, _due(plan, session, dict(zip(names, entries, strict=True))))
    count = sum(map(len, problems))
    failed: set[tuple[str, str]] = set()
    while problems:
        found, problem = [], problems.pop()
        for question in problem:
            if plan.first_failure and (question.impl, question.claim) in failed:
                continue
            verdict = _verdict(session, question)
            found.append((names[question.impl], verdict))
            if verdict.status in BAD:
                failed.add((question.impl, question.claim))
        yield Batch(found, len(entries) * len(problem) / count / len(plan.seeds))
    yield Batch((), ended=tuple(names.values()))


def _due(plan: Plan, session: Session, entries: Mapping[str, Any]) -> Callable[[Question], bool]:
    """Which questions of the session are asked: see `Plan.everything`."""
    if plan.level == "smoke" or plan.everything or not plan.first_failure:
        return lambda question: True
    smoke = {(one.impl, one.id) for one in questions(replace(session, level="smoke"))}

    def due(question: Question) -> bool:
        fault, claim = entries[question.impl], question.claim
        spared = claim in OUTPUTS and claim not in fault.spoils
        return claim in fault.shows or spared or (question.impl, question.id) in smoke

    return due


def _by_problem(session: Session, due: Callable[[Question], bool]) -> list[list[Question]]:
    """The questions, those of one problem together; the last problem is the first to ask."""
    found: dict[tuple[str, Case], list[Question]] = {}
    for question in filter(due, questions(session)):
        question.classify = False
        found.setdefault((question.dtype, question.case), []).append(question)
    return list(found.values())[::-1]


def _verdict(session: Session, question: Question) -> Verdict:
    started = time.perf_counter()
    with np.errstate(all="ignore"):  # what a fault leaves behind may overflow in the claim's check
        error = examine(question)
    return session.settle(question, error, time.perf_counter() - started)


def _not_set_up(impl: str, entry: Variant, error: Exception) -> Verdict:
    message = f"it cannot be set up: {type(error).__name__}: {error}"
    return Verdict(
        impl=impl,
        claim=SET_UP,
        dtype=entry.dtypes[0],
        case="",
        generic=False,
        status="error",
        message=message,
        reproduce=f"pytest conformance --impl={impl}",
    )


def _groups(entries: Sequence[Variant], *, workers: int) -> list[list[Variant]]:
    """The entries in parts, those of the same types together."""
    ranked = sorted(entries, key=lambda entry: entry.dtypes)
    size = max(1, min(TOGETHER, -(-len(ranked) // (2 * workers))))
    return [ranked[first : first + size] for first in range(0, len(ranked), size)]


# -- several processes -----------------------------------------------------------------------------


def _apart(plan: Plan, entries: Sequence[Variant], workers: int) -> Generator[Batch]:
    """As `_here`, with the groups shared out. An exception of a process is raised here."""
    context = multiprocessing.get_context("spawn")
    found, stop = context.SimpleQueue(), context.Event()
    jobs = [
        (plan, tuple(entry.name for entry in group), seed)
        for seed in plan.seeds
        for group in _groups(entries, workers=workers)
    ]
    with ProcessPoolExecutor(
        min(workers, len(jobs)), mp_context=context, initializer=_begin, initargs=(found, stop)
    ) as pool:
        waiting: set[Future[None]] = {pool.submit(_work, *job) for job in jobs}
        try:
            while waiting:
                done, waiting = wait(waiting, timeout=PERIOD, return_when=FIRST_EXCEPTION)
                while not found.empty():
                    yield found.get()
                for future in done:
                    future.result()
        finally:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            # A process that has something to say ends when it is heard.
            while not all(future.done() for future in waiting):
                time.sleep(PERIOD)
                while not found.empty():
                    found.get()


_FOUND: Any = None
_STOP: Any = None


def _begin(found: Any, stop: Any) -> None:
    """Set up a process: an interruption is for the one that started it."""
    global _FOUND, _STOP
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threadpool_limits(1)
    _FOUND, _STOP = found, stop


def _work(plan: Plan, names: Sequence[str], seed: int) -> None:
    entries, starter = catalogue(plan.word), multiprocessing.parent_process()
    for batch in _examined(plan, [entries[name] for name in names], seed):
        if starter is not None and not starter.is_alive():
            os._exit(1)  # it was killed: nobody hears, and nobody would end this process
        if _STOP.is_set():
            return
        _FOUND.put(batch)
