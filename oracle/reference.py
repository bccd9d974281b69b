"""The dispatcher: the certified answer to a problem, from the cheapest engine that reaches.

Engines are asked in the order of their cost: `float64`, `double-double`, then `balls` at a growing
number of bits. Each is asked only for the outputs that the ones before could not bound well enough
somewhere, and replaces only the elements that it bounds better.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from attnspec.oracle import float64
from attnspec.oracle.climb import Reach, Step
from attnspec.oracle.enclosure import Enclosure, Reference
from attnspec.oracle.problem import Problem, ProblemError
from attnspec.oracle.request_checks import check_bits, check_problem, check_want, check_within
from attnspec.oracle.visible_nan import Overlay, without_nan

__all__ = ["BITS", "TIERS", "Uncertified", "reference"]

BoolArray = npt.NDArray[np.bool_]

TIERS = ("float64", "double-double", "balls", "definition")
BITS = (106, 240, 480, 960, 1920, 3840)
"""The precisions that `balls` climbs through: first what two float64 hold. Scores of 2^n cost n
bits; beyond float64's range of exponents (2^±1074, products of two) there is nothing left to
resolve."""


class Uncertified(RuntimeError):  # noqa: N818, it says what the answer is not
    """No engine reached the bound that was asked for. `climb` says how far each got."""

    def __init__(self, message: str, climb: tuple[Step, ...] = ()) -> None:
        super().__init__(message)
        self.climb = climb


def reference(
    problem: Problem,
    *,
    want: Sequence[str] = ("out", "lse"),
    within: Mapping[str, npt.ArrayLike] | None = None,
    tier: str | None = None,
    bits: int | None = None,
    rows: Sequence[int] | slice | None = None,
) -> Reference:
    """The value of each output in `want` (of `OUTPUTS`), with a proven bound on its error.

    Climbs until each bound is at most `within[output]`, element by element (arrays that broadcast
    to the output), and finite for outputs that `within` does not name. `rows` asks about these
    query rows alone: the answer is that of `problem.at(rows)`, in the shapes of its outputs, at
    the cost of as many rows. `tier` asks one engine only.

    `bits`, of any size, asks `balls` (or `definition`) for bounds of about 2^-bits times the
    magnitudes that add up to an output (see `Reference.conditioning`); what does not fit
    value + low is in `Enclosure.rest`. Without `bits`, rest is there only where `within` needs it.

    The result's `tier` is the highest that was needed, and its `climb` says why. Each element has
    the best enclosure found. `definition` proves nothing: its bound is estimated from twice the
    precision, and it is never climbed to.

    A NaN that some row sees, in q, k, v or bias, makes NaN exactly what it reaches: the out and
    lse of a row whose query, key or bias it is, out[i, c] for v[j, c]. There, the bound is 0.

    Raises `ProblemError` for an output that this problem does not define (gradients without a
    cotangent or with a visible NaN; anything with a visible infinity in q, k or v), for rows that
    are not there and for a limit that is no number >= 0, `Uncertified` where nothing reaches, and
    `AssumptionFailed` where the machine's float64 is not what the proof assumes.
    """
    check_problem(problem)
    problem = problem if rows is None else problem.at(rows)
    limits = check_within(within, check_want(problem, want))
    bits = check_bits(bits)
    _check_engine(tier, bits)
    problem, overlay = without_nan(problem, want=want)
    climb = _Climb(problem, overlay, limits, two=bits is None)
    missing = tuple(want)
    for engine in _engines(tier, bits):
        missing = climb.ask(engine, missing)
        if not missing:
            outputs = {name: climb.found[name] for name in want}
            return Reference(climb.steps[-1].tier, outputs, problem, tuple(climb.steps))
    short = missing[0]
    message = _shortfall(short, climb.found[short], limits.get(short))
    raise Uncertified(message, tuple(climb.steps))


class _Climb:
    """What the engines have found so far, and how far each has reached."""

    def __init__(
        self, problem: Problem, overlay: Overlay, within: Mapping[str, npt.ArrayLike], *, two: bool
    ) -> None:
        self.problem, self.overlay, self.within, self.two = problem, overlay, within, two
        self.found: dict[str, Enclosure] = {}
        self.steps: list[Step] = []

    def ask(self, engine: _Engine, want: tuple[str, ...]) -> tuple[str, ...]:
        """Ask for these outputs; those that are still not bounded well enough."""
        start = time.perf_counter()
        answer = engine.enclose(self.problem, want)
        for name in want:
            self._keep(name, self.overlay.on(name, answer[name]))
        seconds = time.perf_counter() - start
        reached = tuple(_reach(n, self.found[n], self.within.get(n)) for n in want)
        self.steps.append(Step(engine.tier, engine.bits, reached, seconds))
        return tuple(reach.output for reach in reached if reach.short)

    def _keep(self, name: str, enclosure: Enclosure) -> None:
        """The better of this and what was found, in two float64 where these are enough."""
        best = self.found[name].sharper(enclosure) if name in self.found else enclosure
        if self.two and best.rest:
            two = best.in_two()
            best = best if np.any(_short(two, self.within.get(name))) else two
        self.found[name] = best


# -- engines -----------------------------------------------------------------------------------


class _Enclose(Protocol):
    def __call__(self, problem: Problem, want: tuple[str, ...], /) -> Reference: ...


@dataclass(frozen=True)
class _Engine:
    tier: str
    bits: int | None
    enclose: _Enclose


def _engines(tier: str | None, bits: int | None) -> Iterator[_Engine]:
    """The engines to ask, in order; the slow ones are imported when their turn comes."""
    if tier in (None, "float64") and bits is None:
        yield _Engine("float64", None, lambda problem, want: float64.enclose(problem, want=want))
    if tier in (None, "double-double") and bits is None:
        yield _Engine("double-double", None, _double_double)
    if tier in (None, "balls"):
        for precision in BITS if bits is None else (bits,):
            yield _Engine("balls", precision, _balls(precision))
    if tier == "definition":
        precision = 200 if bits is None else bits
        yield _Engine("definition", precision, _definition(precision))


def _double_double(problem: Problem, want: tuple[str, ...]) -> Reference:
    from attnspec.oracle import double_double

    return double_double.enclose(problem, want=want)


def _balls(bits: int) -> _Enclose:
    from attnspec.oracle import balls

    return lambda problem, want: balls.enclose(problem, want=want, bits=bits)


def _definition(bits: int) -> _Enclose:
    import mpmath

    from attnspec.oracle.definition import attention

    def answer(problem: Problem, want: tuple[str, ...]) -> Reference:
        coarse = attention(problem, want=want, bits=bits)
        fine = attention(problem, want=want, bits=2 * bits)
        terms = max(2, -(-bits // 53))
        with mpmath.workprec(2 * bits):
            return Reference("definition", {w: _estimate(coarse[w], fine[w], terms) for w in want})

    return answer


def _estimate(
    coarse: npt.NDArray[np.object_], fine: npt.NDArray[np.object_], terms: int
) -> Enclosure:
    """The finer value, split in float64; as its bound, what separates it from the coarser.

    An infinite lse is exact; an infinite value of a finite number has overflowed.
    """
    with np.errstate(over="ignore"):
        value = fine.astype(np.float64)
    exact = np.asarray(fine == value, np.bool_)
    known = np.isfinite(value)
    change = abs(np.where(known, fine - coarse, 0))
    left = np.where(known, fine - np.where(known, value, 0.0), 0)
    parts = [value]
    while len(parts) < terms and (len(parts) < 2 or np.any(parts[-1])):
        parts.append(left.astype(np.float64))
        left = left - parts[-1]
    bound = (change + abs(left)).astype(np.float64)
    bound = np.where(known, bound, np.where(exact, 0.0, np.inf))
    return Enclosure(value, parts[1], bound, tuple(parts[2:]))


# -- requests ----------------------------------------------------------------------------------


def _check_engine(tier: str | None, bits: int | None) -> None:
    if tier not in (None, *TIERS):
        raise ProblemError(f"tier: expected one of {', '.join(TIERS)} or None, got {tier!r}")
    if bits is not None and tier in ("float64", "double-double"):
        raise ProblemError(f"bits: {tier} has its own; expected bits with balls or definition only")


def _short(enclosure: Enclosure, within: npt.ArrayLike | None) -> BoolArray:
    """Where the bound is not good enough. An exact result is, whatever `within` says."""
    bound = enclosure.bound
    enough = np.isfinite(bound) if within is None else bound <= np.asarray(within, np.float64)
    short: BoolArray = ~(enough | (bound == 0))
    return short


def _reach(name: str, enclosure: Enclosure, within: npt.ArrayLike | None) -> Reach:
    """How far the bounds of one output reach."""
    short = _short(enclosure, within)
    bound = enclosure.bound[short]
    limit = np.asarray(np.inf if within is None else within, np.float64)
    wanted = np.broadcast_to(limit, short.shape)[short]
    known = np.isfinite(bound)
    ratio = np.full_like(bound, np.inf)
    with np.errstate(over="ignore", invalid="ignore"):
        np.divide(bound, wanted, out=ratio, where=wanted > 0)
    unknown = int(np.count_nonzero(~known))
    return Reach(name, bound.size, unknown, short.size, float(ratio[known].max(initial=0.0)))


def _shortfall(name: str, enclosure: Enclosure, within: npt.ArrayLike | None) -> str:
    """Where the last engine fell short, and by how much."""
    short = _short(enclosure, within)
    first = tuple(int(i) for i in np.argwhere(short)[0])
    limit = np.inf if within is None else np.broadcast_to(within, short.shape)[first]
    return (
        f"{name} has {np.count_nonzero(short)} of {short.size} elements whose error no engine "
        f"bounds well enough; the first is {first}: bound {enclosure.bound[first]:.3g}, "
        f"wanted {'a finite one' if limit == np.inf else f'at most {limit:.3g}'}"
    )
