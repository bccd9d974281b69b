"""Test-case reduction: from a failing question to the few small calls that fail for its reason.

A failing question made some calls. One of them is wrong by itself, mostly; else the calls before
it matter, or two calls of one problem differ. That is the `Symptom`, and a `Trace` the calls that
show it. Greedy delta debugging (Zeller and Hildebrandt, 2002) then drops calls, cuts axes, makes
options neutral and numbers plain, for as long as the symptom stays.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from attnspec.conformance import reductions
from attnspec.conformance.certify import empty_rows
from attnspec.conformance.reductions import AXES, axis_size
from attnspec.conformance.symptom import Symptom, symptoms
from attnspec.conformance.trace import Subject, Trace
from attnspec.oracle.problem import Problem, ProblemError

__all__ = ["Shrunk", "shrink"]

ELEMENTS, PARTS = 128, 16
"""Arrays of so many numbers are made plain one by one; larger ones in so many parts."""

MANY_PIECES, FEW_PIECES = 64, 8

Transform = Callable[[Problem], Problem]


@dataclass(frozen=True, eq=False)
class Shrunk:
    """What is left of a failing question. `finished`: nothing more could be dropped in time.

    subject: with the reason that was kept; a model gives way to a proof.
    """

    subject: Subject
    trace: Trace
    symptom: Symptom
    attempts: int
    seconds: float
    finished: bool


def shrink(
    subject: Subject,
    trace: Trace,
    *,
    seconds: float = 10.0,
    progress: Callable[[Problem, int], Any] = lambda problem, attempts: None,
) -> Shrunk:
    """The smallest trace that is found within `seconds` and still shows the subject's reason.

    `trace` shows it. `progress` is called with the problem so far and the number of attempts. The
    result depends on nothing but the arguments, unless the time runs out (`finished` is False).
    """
    started = time.monotonic()
    model = subject.reason.kind == "model"
    search = _Search(subject, trace, started + (0.6 if model else 1) * seconds, progress)
    try:
        search.minimise()
        finished = True
    except _OutOfTime:
        finished = False
    symptom = search.symptom or subject.reason
    elapsed = time.monotonic() - started
    found = Shrunk(search.subject, search.trace, symptom, search.attempts, elapsed, finished)
    proven = _proven(found) if model else None
    if proven is None:
        return found
    rest = shrink(
        replace(subject, reason=proven),
        search.trace,
        seconds=seconds - elapsed,
        progress=lambda problem, attempts: progress(problem, attempts + search.attempts),
    )
    return replace(rest, attempts=rest.attempts + search.attempts, seconds=rest.seconds + elapsed)


def _proven(found: Shrunk) -> Symptom | None:
    """The same output beyond the bound that no input excuses, where it now is: that is no model."""
    kernel, asked = found.subject.run(found.trace)
    about = found.subject.reason.about
    again = symptoms(kernel, asked[-1])
    return next((s for s in again if (s.kind, s.about) == ("beyond", about)), None)


class _OutOfTime(Exception):  # noqa: N818, it ends the search, which has a result
    pass


class _Search:
    """The best trace so far, and every way to make it smaller."""

    def __init__(
        self,
        subject: Subject,
        trace: Trace,
        deadline: float,
        progress: Callable[[Problem, int], Any],
    ) -> None:
        self.subject, self.trace, self.deadline, self.progress = subject, trace, deadline, progress
        self.symptom: Symptom | None = None
        self.attempts = 0
        self.empty = empty_rows(trace.problem).any()

    def minimise(self) -> None:
        """Every pass in turn, until none finds anything."""
        self.focus()
        before = None
        while before is not self.trace:
            before = self.trace
            self.drop_calls()
            self.want_less()
            self.ask_alike()
            self.each(reductions.laid_out_plainly)
            self.each(reductions.simpler_options)
            self.cut_axes()
            self.each(reductions.simpler_options)
            if self.subject.reason.kind != "model":  # a model of numbers at random
                self.plain_numbers()

    def attempt(self, trace: Trace) -> bool:
        """Whether the symptom stays; then this is the best trace so far."""
        if time.monotonic() > self.deadline:
            raise _OutOfTime
        self.attempts += 1
        self.progress(self.trace.problem, self.attempts)
        if not self.empty and empty_rows(trace.problem).any():
            return False  # rows that see no key have faults of their own
        try:
            found = self.subject.found(trace)
        except ProblemError:  # it makes no sense any more
            return False
        if found is None:
            return False
        self.trace, self.symptom = trace, found
        return True

    def change(self, transform: Transform, among: tuple[int, ...]) -> bool:
        """Attempt the trace in which these problems are transformed."""
        try:
            problems = tuple(
                transform(p) if i in among else p for i, p in enumerate(self.trace.problems)
            )
        except (ProblemError, ValueError):
            return False
        return self.attempt(replace(self.trace, problems=problems))

    def groups(self) -> Iterator[tuple[int, ...]]:
        """All problems together, then each by itself."""
        count = len(self.trace.problems)
        yield tuple(range(count))
        if count > 1:
            yield from ((i,) for i in range(count))

    # -- the passes ----------------------------------------------------------------------------

    def focus(self) -> None:
        """A few large steps at once: the batch entry, head and row, or key, that are worst."""
        reason, problem = self.subject.reason, self.trace.problem
        if len(self.trace.problems) > 1 or len(reason.where) < 3:
            return
        batch, head, slot = reason.where[:3]
        by_row = reason.about in ("out", "lse", "dq")
        if not by_row and reason.about not in ("dk", "dv"):
            return
        group = problem.query_heads // problem.kv_heads
        kept = {"batch": batch, "kv head": head // group if by_row else head}
        if by_row:
            kept |= {"group": head % group, "query": slot}
        if reason.about in ("out", "dv"):
            kept |= {"value": reason.where[3], "size": 0}
        for axis, index in kept.items():
            if axis_size(self.trace.problem, axis) > 1:
                self.change(partial(reductions.cut, axis=axis, kept=np.array([index])), (0,))

    def drop_calls(self) -> None:
        """Calls before the last, by halves down to one."""

        def without(dropped: range) -> bool:
            return self.attempt(self.trace.without(dropped))

        _dropped_by_halves(lambda: len(self.trace.calls) - 1, without, least=0)

    def ask_alike(self) -> None:
        """The last call's problem for those of the calls before it."""
        index = 0
        while index < len(self.trace.problems):
            if index == self.trace.calls[-1][0] or not self.attempt(self.trace.alike(index)):
                index += 1

    def want_less(self) -> None:
        """Of every call no more than the output that is wrong."""
        about = self.subject.reason.about
        for number, (index, want) in enumerate(self.trace.calls):
            if about in want and want != (about,):
                calls = list(self.trace.calls)
                calls[number] = (index, (about,))
                self.attempt(replace(self.trace, calls=tuple(calls)))
        for name in ("dlse", "dout"):
            if getattr(self.trace.problem, name) is not None:
                self.change(_without(name), next(self.groups()))

    def each(self, simpler: Callable[[Problem], Iterator[Problem]]) -> None:
        """The simpler problems in turn; one that still fails stays.

        Where there are several problems, the same step is tried in all of them.
        """
        for among in self.groups():
            step = 0
            while self._has(simpler, step, among):
                if not self.change(partial(_stepped, simpler, step), among):
                    step += 1  # else another stands in its place now

    def _has(
        self, simpler: Callable[[Problem], Iterator[Problem]], step: int, among: tuple[int, ...]
    ) -> bool:
        steps = (islice(simpler(self.trace.problems[i]), step, None) for i in among)
        return any(next(found, None) is not None for found in steps)

    def cut_axes(self) -> None:
        """Slots of every axis, by halves down to one, from the end."""
        for among in self.groups():
            for axis in AXES:
                self._cut(axis, among)

    def _cut(self, axis: str, among: tuple[int, ...]) -> None:
        def size() -> int:
            return axis_size(self.trace.problems[among[-1]], axis)

        def without(dropped: range) -> bool:
            count = size()
            kept = np.delete(np.arange(count), dropped)

            def cut(problem: Problem) -> Problem:
                fits = axis_size(problem, axis) == count
                return reductions.cut(problem, axis, kept) if fits else problem

            return self.change(cut, among)

        _dropped_by_halves(size, without, least=1)

    def plain_numbers(self) -> None:
        """Zeros, ones and small integers for the numbers: all of an array, parts, single ones."""
        for among in self.groups():
            for name in ("dlse", "dout", "mask", "bias", "alibi", "sinks", "v", "q", "k"):
                array = getattr(self.trace.problems[among[-1]], name)
                if array is not None and array.size:
                    self._plain(name, among)

    def _plain(self, name: str, among: tuple[int, ...]) -> None:
        """All numbers of an array, then its halves, … then single ones, if they are not too many.

        The plainest that does it stays; parts are tried as zeros and as small integers alone.
        """

        def array() -> reductions.Array:
            found: reductions.Array = getattr(self.trace.problems[among[-1]], name)
            return found

        part = size = array().size
        while part >= (1 if size <= ELEMENTS else size // PARTS):
            for start in range(0, size, part):
                chosen = slice(start, start + part)
                plainer = reductions.plainer_numbers(array().reshape(-1)[chosen])
                if 1 < part < size:
                    plainer = [x for x in plainer if not x.all() or x.dtype == np.bool_][:1]
                for numbers in plainer:
                    if self.change(_with_numbers(name, array().shape, chosen, numbers), among):
                        break
            part //= 2


def _without(name: str) -> Transform:
    return lambda problem: problem.replace(**{name: None})


def _stepped(
    simpler: Callable[[Problem], Iterator[Problem]], step: int, problem: Problem
) -> Problem:
    """The simpler problem of this number, or the problem itself where there are not so many."""
    return next(islice(simpler(problem), step, None), problem)


def _with_numbers(
    name: str, shape: tuple[int, ...], chosen: slice, numbers: reductions.Array
) -> Transform:
    """Other numbers in a part of an array, in the problems where it has this shape."""

    def transform(problem: Problem) -> Problem:
        array = getattr(problem, name)
        if array is None or array.shape != shape:
            return problem
        values = np.array(array, dtype=numbers.dtype).reshape(-1)
        values[chosen] = numbers
        return reductions.edited(problem, name, values.reshape(shape))

    return transform


def _dropped_by_halves(
    size: Callable[[], int], without: Callable[[range], bool], *, least: int
) -> None:
    """Drop half of the slots, then quarters, … then single ones, from the end.

    Where there are many pieces, of which the last few all matter, all are taken to matter.
    """
    part = size() if least == 0 else size() // 2
    while part >= 1:
        stop, failed, found = size(), 0, False
        many = stop // part > MANY_PIECES
        while stop > 0 and (found or not many or failed < FEW_PIECES):
            start = max(0, stop - part)
            if size() - (stop - start) >= least and without(range(start, stop)):
                found = True
            else:
                failed += 1
            stop = start
        part //= 2
