"""When a suite accepts an output: the acceptance rules in use, as functions of the numbers.

A rule is given one output of one problem in float64: what the kernel returned, what the suite's
reference returned, and what its run in low precision returned, where it has one. It says whether
the suite accepts. Comparisons are written so that NaN does what it does in the suite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnspec.oracle.formats import Float64Array

__all__ = ["Compared", "Rule", "allclose", "either", "fudged", "mean_times", "nmse", "times"]


@dataclass(frozen=True, eq=False)
class Compared:
    """One output: its name, the type of the problem, and the numbers in float64."""

    output: str
    dtype: str
    actual: Float64Array
    gold: Float64Array
    low: Float64Array

    def error(self, which: Float64Array) -> Float64Array:
        """|which - gold|."""
        with np.errstate(invalid="ignore", over="ignore"):
            return np.abs(which - self.gold)


Rule = Callable[[Compared], bool]
ByOutput = Mapping[str, Any]


def _of(table: Any, compared: Compared) -> float:
    """What a table, or a table of tables, says of a type and an output; `other` is the rest."""
    while isinstance(table, Mapping):
        names = (compared.dtype, compared.output, "other")
        table = next(table[name] for name in names if name in table)
    return float(table)


def _largest(x: Float64Array) -> float:
    """The maximum; NaN where there is one, 0 of nothing."""
    return float(np.max(x, initial=0.0))


def times(factor: float | ByOutput, atol: float | ByOutput = 0.0) -> Rule:
    """FlashAttention's: max|a - g| <= factor · max|low - g| + atol. NaN is rejected."""

    def accepts(c: Compared) -> bool:
        allowed = _of(factor, c) * _largest(c.error(c.low)) + _of(atol, c)
        return _largest(c.error(c.actual)) <= allowed

    return accepts


def fudged(factor: float | ByOutput, floor: float = 1e-5) -> Rule:
    """PyTorch's: max|g - a| <= max(floor, factor · max|g - low|).

    NaN is rejected, except where the difference of the two references is NaN too.
    """

    def accepts(c: Compared) -> bool:
        error, yardstick = _largest(c.error(c.actual)), _largest(c.error(c.low))
        if np.isnan(error) and not np.isnan(yardstick):
            return False
        return not error > max(floor, _of(factor, c) * yardstick)

    return accepts


def mean_times(factor: float | ByOutput, others: Mapping[str, Rule]) -> Rule:
    """FlexAttention's: mean|g - a| <= factor · mean|g - low|; NaN is rejected.

    others: outputs that are compared in another way.
    """

    def accepts(c: Compared) -> bool:
        if c.output in others:
            return others[c.output](c)
        if c.actual.size == 0:
            return True
        return bool(np.mean(c.error(c.actual)) <= _of(factor, c) * np.mean(c.error(c.low)))

    return accepts


def allclose(atol: float | ByOutput, rtol: float | ByOutput, *, equal_nan: bool = False) -> Rule:
    """|a - g| <= atol + rtol |g| everywhere; the same infinities are equal.

    equal_nan: as numpy.testing has it; otherwise NaN is rejected, as by torch.allclose.
    """

    def accepts(c: Compared) -> bool:
        limits = {"atol": _of(atol, c), "rtol": _of(rtol, c)}
        return bool(np.allclose(c.actual, c.gold, **limits, equal_nan=equal_nan))

    return accepts


def either(atol: float, rtol: float) -> Rule:
    """flashinfer-bench's: each element within atol or within rtol.

    NaN and Inf in the answer are rejected; NaN in the reference alone is accepted.
    """

    def accepts(c: Compared) -> bool:
        if not np.isfinite(c.actual).all():
            return False
        error = c.error(c.actual)
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = error / np.abs(c.gold)
        return not ((error > atol) & (relative > rtol)).any()

    return accepts


def nmse(limit: float) -> Rule:
    """llama.cpp's: Σ(a - g)² / Σg² <= limit. NaN is rejected, infinities must have equal signs."""

    def accepts(c: Compared) -> bool:
        a, g = c.actual, c.gold
        finite = np.isfinite(a) & np.isfinite(g)
        if not np.array_equal(a[~finite], g[~finite]):  # NaN equals nothing
            return False
        return float(np.sum(c.error(a)[finite] ** 2)) <= limit * float(np.sum(g[finite] ** 2))

    return accepts
