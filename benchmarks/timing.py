"""Times of calls that take turns, and how times grow with n."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Timing", "slope", "take_turns"]

SAMPLE_SECONDS = 2e-3
"""Shorter calls are repeated within a sample, whose mean counts: clocks and wake-ups of threads
are coarser than they are."""
COLD_SECONDS = 2.0
"""Shorter first calls are not counted: caches and thread pools are cold."""
ROUNDS = 25
"""Samples at most."""
LEAST_ROUNDS, LEAST_SECONDS = 4, 0.2
"""Samples at least, unless they take longer together: one alone may be held up."""
SLOPE_POINTS = 4


@dataclass
class Timing:
    """The best sample: seconds a call, by the clock and of the process's threads together."""

    wall: float
    cpu: float
    samples: int = 0

    def take(self, wall: float, cpu: float) -> None:
        """Count one more sample."""
        self.samples += 1
        self.wall, self.cpu = min(self.wall, wall), min(self.cpu, cpu)


def take_turns(
    calls: Mapping[str, Callable[[], Any]],
    *,
    seconds: float,
    keep: Callable[[str, Any], Any],
) -> tuple[dict[str, Timing], dict[str, Any], dict[str, str]]:
    """Time the calls in turn, so that what else the machine does hits all of them alike.

    Each is sampled for about `seconds` in all, and a few times at least where it is short; one
    that has fewer samples than others takes its turns evenly among theirs. Returns timings, what
    `keep` made of what the first calls returned (answers may be large), and the reasons of those
    that raised.
    """
    timings, answers, raised = {}, {}, {}
    plans = {}
    for name, call in calls.items():
        try:
            answer, wall, cpu = _first(call)
            answers[name] = keep(name, answer)
            del answer
        except Exception as error:  # one engine's failure is that engine's result
            raised[name] = f"{type(error).__name__}: {error}".splitlines()[0]
            continue
        timings[name] = Timing(np.inf, np.inf)
        loops = max(1, int(SAMPLE_SECONDS / wall))
        if loops == 1:
            timings[name].take(wall, cpu)
        least = int(np.clip(LEAST_SECONDS / (wall * loops), 1, LEAST_ROUNDS))
        wanted = int(np.clip(seconds / (wall * loops), least, ROUNDS))
        plans[name] = (loops, wanted - timings[name].samples)
    for turn in range(ROUNDS):
        for name, (loops, wanted) in plans.items():
            if (turn + 1) * wanted // ROUNDS > turn * wanted // ROUNDS:
                timings[name].take(*_sample(calls[name], loops))
    return timings, answers, raised


def _first(call: Callable[[], Any]) -> tuple[Any, float, float]:
    """What the call returns, and its time: the second call's, where the first is short."""
    start, cpu = time.perf_counter(), time.process_time()
    answer = call()
    wall, used = time.perf_counter() - start, time.process_time() - cpu
    return (answer, wall, used) if wall >= COLD_SECONDS else (answer, *_sample(call, 1))


def _sample(call: Callable[[], Any], loops: int) -> tuple[float, float]:
    start, cpu = time.perf_counter(), time.process_time()
    for _ in range(loops):
        call()
    return (time.perf_counter() - start) / loops, (time.process_time() - cpu) / loops


def slope(sizes: Sequence[int], seconds: Sequence[float], *, points: int = SLOPE_POINTS) -> float:
    """The exponent b of seconds ~ n^b: least squares of the logarithms, over the largest n.

    NaN for fewer than two sizes.
    """
    largest = sorted(zip(sizes, seconds, strict=True))[-points:]
    if len(largest) < 2:
        return float("nan")
    x, y = np.log(np.array(largest, dtype=float)).T
    x = x - x.mean()
    return float(x @ y / (x @ x))
