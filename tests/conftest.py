"""What several test files ask of an engine: that its enclosures hold against finer balls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from attnspec.oracle import OUTPUTS, Problem, ProblemError, Reference, balls, double_double
from attnspec.oracle.double_double import pairs
from attnspec.oracle.enclosure import Enclosure

BITS = 240


@pytest.fixture
def defined() -> Callable[[Problem], tuple[str, ...]]:
    """Which outputs a problem defines."""
    return _defined


@pytest.fixture
def used() -> Callable[[Enclosure, Enclosure], Any]:
    """|exact - (value + low)| / bound, elementwise; 0 where a bound is inf. The second is exact."""
    return _used


@pytest.fixture
def check() -> Callable[[Problem], Reference]:
    """The double-double enclosures of all outputs, which hold against balls of 240 bits."""

    def checked(problem: Problem) -> Reference:
        want = _defined(problem)
        fast = double_double.enclose(problem, want=want)
        sure = balls.enclose(problem, want=want, bits=BITS)
        for name in want:
            assert np.all(_used(fast[name], sure[name]) <= 1), name
        return fast

    return checked


def _defined(problem: Problem) -> tuple[str, ...]:
    def found() -> Iterator[str]:
        for output in OUTPUTS:
            try:
                problem.shape_of(output)
            except ProblemError:
                continue
            yield output

    return tuple(found())


def _used(fast: Enclosure, sure: Enclosure) -> Any:
    assert fast.value.shape == fast.low.shape == fast.bound.shape == sure.value.shape
    assert np.all(fast.bound >= 0)  # and not NaN
    empty = np.isneginf(sure.value) & (sure.bound == 0)
    assert np.array_equal(np.isneginf(fast.value) & (fast.bound == 0), empty)
    with np.errstate(all="ignore"):
        high, low = pairs.two_sum(fast.value, -sure.value), pairs.two_sum(fast.low, -sure.low)
        total = pairs.add(high, low)
        for part in sure.rest:
            total = pairs.add(total, pairs.Pair.of(-part))
        error = np.abs(total.high) - sure.bound
        known = np.isfinite(fast.bound) & np.isfinite(sure.bound) & ~empty & (error > 0)
        return np.where(known, error / fast.bound, 0)
