"""Calls that show a symptom, and the kernel that they are made of, again and again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attnspec.adapters import CallFailed, Kernel, call
from attnspec.adapters.frameworks import ALIGNED
from attnspec.conformance.kept import content
from attnspec.conformance.question import Asked
from attnspec.conformance.symptom import Symptom, symptoms
from attnspec.oracle.problem import Problem

__all__ = ["Subject", "Trace", "ask", "differences"]


@dataclass(frozen=True, eq=False)
class Trace:
    """Calls of one kernel in their order, of which the last shows the symptom.

    calls: the number of its problem, and what is wanted of it.
    """

    problems: tuple[Problem, ...]
    calls: tuple[tuple[int, tuple[str, ...]], ...]

    @classmethod
    def of(cls, *asked: Asked) -> Trace:
        """The calls of a question; equal problems are one."""
        return cls._merged([one.problem for one in asked], [one.want for one in asked])

    @classmethod
    def _merged(cls, problems: list[Problem], wants: list[tuple[str, ...]]) -> Trace:
        names = [(content(p) or id(p), *_layouts(p)) for p in problems]
        distinct = list(dict.fromkeys(names))
        calls = tuple((distinct.index(n), w) for n, w in zip(names, wants, strict=True))
        return cls(tuple(problems[names.index(name)] for name in distinct), calls)

    def alike(self, index: int) -> Trace:
        """With the last call's problem in the place of another."""
        changed = [self.problem if i == index else self.problems[i] for i, _ in self.calls]
        return self._merged(changed, [want for _, want in self.calls])

    @property
    def problem(self) -> Problem:
        """That of the last call."""
        return self.problems[self.calls[-1][0]]

    @property
    def want(self) -> tuple[str, ...]:
        """What is wanted of the last call."""
        return self.calls[-1][1]

    def without(self, dropped: range) -> Trace:
        """Without some calls, and the problems that no other asks."""
        calls = [c for i, c in enumerate(self.calls) if i not in dropped]
        used = sorted({index for index, _ in calls})
        renumbered = tuple((used.index(index), want) for index, want in calls)
        return Trace(tuple(self.problems[i] for i in used), renumbered)


def _layouts(problem: Problem) -> list[tuple[int, ...]]:
    """The strides of its arrays, and their places between multiples of 16 bytes."""
    arrays = [x for x in vars(problem).values() if isinstance(x, np.ndarray)]
    return [(*x.strides, x.__array_interface__["data"][0] % ALIGNED) for x in arrays]


@dataclass(frozen=True)
class Subject:
    """The kernel under test, and the symptom that is to stay.

    fresh: a kernel that remembers nothing. tries: how often a trace is run to show a symptom that
    is not there each time.
    """

    fresh: Callable[[], Kernel]
    reason: Symptom
    tries: int = 1

    def run(self, trace: Trace) -> tuple[Kernel, list[Asked]]:
        """Every call of a trace, on a fresh kernel."""
        kernel, asked = self.fresh(), []
        for index, want in trace.calls:
            asked.append(ask(kernel, trace.problems[index], want))
        return kernel, asked

    def found(self, trace: Trace) -> Symptom | None:
        """The symptom, where the trace shows it again."""
        for _ in range(self.tries):
            kernel, asked = self.run(trace)
            if self.reason.kind == "differs":
                again = differences(asked, trace)
            else:
                again = symptoms(kernel, asked[-1], model=self.reason.kind == "model")
            for one in again:
                if self.reason.is_again(one):
                    return one
        return None


def ask(kernel: Kernel, problem: Problem, want: tuple[str, ...]) -> Asked:
    """One call, and what came of it."""
    try:
        answer = call(kernel, problem, want=want)
    except CallFailed as failure:
        return Asked(problem, want, {}, failure=failure)
    return Asked(problem, want, answer.outputs, answer.changed)


def differences(asked: list[Asked], trace: Trace) -> list[Symptom]:
    """The outputs of the last call that have other bits than in an earlier one of the same."""
    last, found = asked[-1], []
    for one, said in zip(asked[:-1], trace.calls[:-1], strict=True):
        if said != trace.calls[-1]:
            continue
        for output in last.outputs.keys() & one.outputs.keys():
            if last.outputs[output].tobytes() != one.outputs[output].tobytes():
                found.append(Symptom("differs", output))
    return found
