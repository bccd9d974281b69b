"""The certified result and the tolerance of a problem, computed once and shared by its claims."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from attnspec.adapters import Kernel
from attnspec.conformance.judge import excess
from attnspec.conformance.kept import shared
from attnspec.oracle.enclosure import Enclosure
from attnspec.oracle.formats import FORMATS, Float64Array
from attnspec.oracle.problem import Problem
from attnspec.oracle.reference import TIERS, reference
from attnspec.oracle.rounding import (
    CLASSES,
    LAMBDA,
    Arithmetic,
    Tolerance,
    statistics,
    tolerance,
)

__all__ = [
    "Certified",
    "allowance",
    "certified",
    "declares_masked_row",
    "empty_rows",
    "expected",
    "tightest_class",
    "tolerances",
    "with_rounding",
]

Array = npt.NDArray[Any]

ORACLE_SHARE = 2.0**-10
"""The oracle's own error is at most this share of the tolerance that it serves."""

SMALLEST = FORMATS["float64"].smallest_subnormal

_statistics = lru_cache(maxsize=1)(statistics)
"""Those of the last problem, for the arithmetics that are asked about it in turn."""


@shared
def tolerances(
    problem: Problem, arithmetic: Arithmetic, want: tuple[str, ...]
) -> dict[str, Tolerance]:
    """The tolerance of each output that is asked for."""
    shared = _statistics(problem)
    return tolerance(problem, arithmetic=arithmetic, want=want, statistics=shared)


@dataclass(frozen=True, eq=False)
class Certified:
    """A certified output, and the tier of the oracle that was needed for it."""

    exact: Enclosure
    tier: str


CLIMB = tuple(tier for tier in TIERS if tier != "definition")


@shared
def certified(
    problem: Problem, arithmetic: Arithmetic, want: tuple[str, ...]
) -> dict[str, Certified]:
    """The certified result, at least 2^10 times sharper than the tolerance.

    What the tolerance leaves to the oracle depends on the result's size, so each tier is asked
    without a limit, for what the ones before left; only the last climbs by itself.
    """
    found = {name: Certified(exact, CLIMB[0]) for name, exact in _first(problem, want).items()}
    within = {
        name: _share(allowed, found[name].exact)
        for name, allowed in tolerances(problem, arithmetic, want).items()
    }
    for tier in CLIMB[1:]:
        short = [n for n in want if not np.all(found[n].exact.bound <= within[n])]
        if not short:
            break
        limits = within if tier == CLIMB[-1] else dict.fromkeys(short, np.inf)
        answer = reference(problem, want=short, tier=tier, within={n: limits[n] for n in short})
        for name in short:
            found[name] = Certified(found[name].exact.sharper(answer[name]), tier)
    return found


@shared
def _first(problem: Problem, want: tuple[str, ...]) -> dict[str, Enclosure]:
    """The first tier's answer, for every arithmetic."""
    answer = reference(problem, want=want, tier=CLIMB[0], within=dict.fromkeys(want, np.inf))
    return {name: answer[name] for name in want}


def _share(allowed: Tolerance, exact: Enclosure) -> Float64Array:
    """How far the oracle may err: a share of the tolerance and of the output's last rounding."""
    bound = np.minimum(allowed.hard, LAMBDA * allowed.sigma)
    rounding = allowed.format.unit_roundoff * np.abs(exact.value)
    floor = allowed.format.smallest_subnormal
    share = ORACLE_SHARE * (bound + np.where(np.isfinite(rounding), rounding, 0) + floor)
    return np.maximum(share, SMALLEST)  # no float64 bound but 0 is smaller


def allowance(problem: Problem, arithmetic: Arithmetic, output: str) -> Float64Array:
    """The hard bound with the output's own rounding: valid on any input."""
    together = GRADIENTS if output in GRADIENTS else (output,)
    return _allowances(problem, arithmetic, together)[output]


GRADIENTS = ("dq", "dk", "dv")
"""Who asks for one often asks for the others, and they share most of their work."""


@shared
def _allowances(
    problem: Problem, arithmetic: Arithmetic, want: tuple[str, ...]
) -> dict[str, Float64Array]:
    allowed = tolerance(
        problem, arithmetic=arithmetic, want=want, sigma=False, statistics=_statistics(problem)
    )
    exact = reference(problem, want=want)
    return {name: with_rounding(allowed[name], exact[name]) for name in want}


def with_rounding(allowed: Tolerance, exact: Enclosure) -> Float64Array:
    """The hard bound with the output's own rounding."""
    size = np.where(np.isfinite(exact.value), np.abs(exact.value), 0.0)
    form = allowed.format
    rounding = form.unit_roundoff * (size + allowed.hard) + form.smallest_subnormal
    return np.where(allowed.hard == 0, 0.0, allowed.hard + rounding)


def expected(
    problem: Problem,
    kernel: Kernel,
    output: str,
    actual: Array,
    want: tuple[str, ...],
) -> tuple[Certified, Tolerance]:
    """What the kernel must return: the certified result, with its declared masked row.

    `want` names all outputs that this problem serves, so that they are computed together.
    """
    arithmetic = kernel.arithmetic_for(problem.dtype_name)
    answer = certified(problem, arithmetic, want)[output]
    allowed = tolerances(problem, arithmetic, want)[output]
    if not declares_masked_row(problem, kernel) or output not in ("out", "lse"):
        return answer, allowed
    exact, empty = answer.exact, empty_rows(problem)
    if output == "lse":  # only the masked row's output is declared, not its lse
        value = np.where(empty, actual.astype(np.float64), exact.value)
        return Certified(Enclosure(value, exact.low, exact.bound), answer.tier), allowed
    rows = empty[..., None]
    if kernel.masked_row == "nan":
        value, slack = np.full(exact.value.shape, np.nan), np.zeros_like(exact.bound)
    else:
        value, slack = _mean_value(problem), _mean_error(problem, kernel)
    merged = Enclosure(
        np.where(rows, value, exact.value),
        np.where(rows, 0.0, exact.low),
        np.where(rows, 0.0, exact.bound),
    )
    hard = np.where(rows, slack, allowed.hard)
    sigma = np.where(rows, slack, allowed.sigma)
    return Certified(merged, answer.tier), Tolerance(hard=hard, sigma=sigma, format=allowed.format)


def empty_rows(problem: Problem) -> npt.NDArray[np.bool_]:
    """Which rows see no key: (B, Hq, Nq)."""
    empty = np.zeros((problem.batch, problem.query_heads, problem.query_count), np.bool_)
    for batch, head in np.ndindex(empty.shape[:2]):
        empty[batch, head] = ~problem.visible(batch, head).any(axis=-1)
    return empty


def declares_masked_row(problem: Problem, kernel: Kernel) -> bool:
    """Whether a row without a visible key may be something else than the spec's zero.

    A sink is always seen, and without any key there is no mean to return.
    """
    choice = kernel.masked_row != "zero" and problem.sinks is None
    return choice and not (kernel.masked_row == "mean" and problem.key_count == 0)


def _mean_value(problem: Problem) -> Float64Array:
    mean = problem.v.astype(np.float64).mean(axis=2, keepdims=True)
    return np.repeat(mean, problem.query_heads // problem.kv_heads, axis=1)


def _mean_error(problem: Problem, kernel: Kernel) -> Float64Array:
    """A sum of Nk terms in the accumulator and weights in storage: gamma_(Nk + 4) and 2 u."""
    sizes = np.abs(problem.v.astype(np.float64)).mean(axis=2, keepdims=True)
    storage = FORMATS[problem.dtype_name].unit_roundoff
    accumulator = min(storage, FORMATS["float32"].unit_roundoff)
    slack = ((problem.key_count + 4) * accumulator + 2 * storage) * sizes
    return np.repeat(slack, problem.query_heads // problem.kv_heads, axis=1)


def tightest_class(problem: Problem, actual: Array, exact: Enclosure) -> str:
    """The name of the tightest arithmetic class whose bounds the output keeps, or `none`."""
    distance = excess(actual, exact)
    for name, arithmetic in CLASSES:
        allowed = tolerances(problem, arithmetic, ("out",))["out"]
        bound = np.minimum(LAMBDA * allowed.sigma, allowed.hard) + exact.bound
        if np.all(distance <= bound):
            return name
    return "none"
