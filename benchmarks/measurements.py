"""The records of a run: what each engine took, and how near it came, on each case."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from accuracy import accuracy, some_rows, some_rows_of
from cases import Case
from engines import BASELINE, ENGINES, SHARPEST
from memory import peak
from timing import take_turns

from attnspec.oracle.conditioning import conditioning
from attnspec.oracle.enclosure import Enclosure
from attnspec.oracle.problem import Problem

__all__ = ["Measurements", "Record"]

Record = dict[str, Any]
FAST_SHARE, SLOW_SHARE, SAMPLE_SHARE = 1 / 2, 1 / 32, 1 / 4
"""What is left of the limit, for fast and slow engines, and of the seconds of a sample, for each
way in which a case differs from those that are shown by n."""
SLOW = 5e-9
"""Engines of this cost are slow."""
PASSES = 4
"""Roughly, forward and backward against forward alone; only to guess what takes too long."""


@dataclass
class Measurements:
    """What was found, as JSON takes it; every record names its engine and the fields of its case.

    times: `wall_s` and `cpu_s` a call, `ratio` and `cpu_ratio` to `BASELINE`, `accuracy` by
    output; or, with `extrapolated_from` (an n), a `wall_s` in proportion to the scores. memory:
    bytes of `inputs` and `extra`. skipped: the `reason`.
    """

    engines: Sequence[str]
    limit: float
    seconds: float
    threads: int | None = None
    times: list[Record] = field(default_factory=list)
    memory: list[Record] = field(default_factory=list)
    skipped: list[Record] = field(default_factory=list)

    def time(self, case: Case, *, differences: int = 0) -> None:
        """Time the engines on one case, and compare their answers."""
        problem = case.problem()
        calls = {
            name: _call(name, case, problem)
            for name in self.engines
            if ENGINES[name].takes(case) and self._affordable(name, case, differences)
        }
        seconds = self.seconds * SAMPLE_SHARE**differences
        timings, answers, raised = take_turns(calls, seconds=seconds, keep=_read)
        for name, reason in raised.items():
            self.skipped.append(_record(name, case, reason=reason))
        try:
            errors = _errors(case, problem, answers)
        except MemoryError as error:
            errors = {name: {} for name in answers}
            self.skipped.append(_record("accuracy", case, reason=f"MemoryError: {error}"))
        for name, timing in timings.items():
            figures = {"wall_s": timing.wall, "cpu_s": timing.cpu, "samples": timing.samples}
            self.times.append(_record(name, case, **figures, accuracy=errors[name]))
        self._compare(case)

    def weigh(self, cases: Sequence[Case]) -> None:
        """Peak memory of each engine, on the largest case that took a quarter of the limit."""
        for name in self.engines:
            records = [(case, self.of(name, case, measured=True)) for case in cases]
            timed = [case for case, r in records if r and r["wall_s"] <= self.limit / 4]
            if timed:
                case = max(timed, key=lambda c: c.keys)
                self.memory.append(_record(name, case, **peak(name, case, self.threads)))

    def of(self, engine: str, case: Case, *, measured: bool = False) -> Record | None:
        """The times of this engine on this case; those that were measured, if so."""
        sought = _record(engine, case)
        for record in self.times:
            if sought.items() <= record.items() and not (
                measured and "extrapolated_from" in record
            ):
                return record
        return None

    def _compare(self, case: Case) -> None:
        """Set the ratios of all records of a case."""
        baseline = self.of(BASELINE, case)
        for name in self.engines if baseline else ():
            record = self.of(name, case)
            if record:
                record["ratio"] = record["wall_s"] / baseline["wall_s"]
                if "cpu_s" in record and "cpu_s" in baseline:
                    record["cpu_ratio"] = record["cpu_s"] / max(baseline["cpu_s"], 1e-9)

    def _affordable(self, name: str, case: Case, differences: int) -> bool:
        """Whether one call fits. If not, note why, and what the number of scores makes of it."""
        share = SLOW_SHARE if ENGINES[name].cost >= SLOW else FAST_SHARE
        limit = self.limit * share**differences
        known = self._largest(name, case)
        if known:
            at = Case(**{f: known[f] for f in asdict(case)})
            guess = known["wall_s"] * case.scores / at.scores
        else:
            cost = ENGINES[name].cost * (PASSES if case.backward else 1)
            guess = cost * case.scores * case.size
        if guess <= limit:
            return True
        reason = f"would take about {guess:.2g} s a call, more than {limit:.2g} s"
        self.skipped.append(_record(name, case, reason=reason))
        if known:
            figures = {"wall_s": guess, "extrapolated_from": known["keys"]}
            self.times.append(_record(name, case, **figures))
        return False

    def _largest(self, name: str, case: Case) -> Record | None:
        """The record of the largest n that was measured, all else as in the case."""
        sought = _record(name, case)
        same = [
            record
            for record in self.times
            if all(record[f] == x for f, x in sought.items() if f != "keys")
            and "extrapolated_from" not in record
        ]
        return max(same, key=lambda record: int(record["keys"]), default=None)


def _record(name: str, case: Case, **figures: Any) -> Record:
    return {"engine": name, **asdict(case), **figures}


def _call(name: str, case: Case, problem: Problem) -> Callable[[], Any]:
    """What is timed: with the conversion of the operands only where the context is long."""
    prepare = ENGINES[name].prepare
    if case.one_row:
        return lambda: prepare(problem, case.want, case.rows)()
    return prepare(problem, case.want, case.rows)


def _read(name: str, answer: Any) -> dict[str, Enclosure]:
    return some_rows_of(ENGINES[name].read(answer))


def _errors(
    case: Case, problem: Problem, answers: Mapping[str, Mapping[str, Enclosure]]
) -> Mapping[str, Any]:
    """By engine; empty where no tier answered that others could be measured against."""
    sharpest = next((name for name in SHARPEST if name in answers), None)
    if sharpest is None:
        return {name: {} for name in answers}
    asked = problem if case.rows is None else problem.at(case.rows)
    terms = {name: some_rows(conditioning(asked, name)) for name in case.want}
    return accuracy(answers, terms, sharpest)
