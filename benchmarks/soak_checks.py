"""What the soak requires of one problem: that no engine contradicts another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
from soak_problems import Drawn

from attnspec.oracle import balls, double_double, float64
from attnspec.oracle.enclosure import Enclosure, Reference
from attnspec.oracle.formats import Float64Array
from attnspec.oracle.problem import OUTPUTS, Problem, ProblemError
from attnspec.oracle.reference import Uncertified, reference
from attnspec.oracle.visible_nan import without_nan

__all__ = ["ENGINES", "Tally", "apart", "examine"]

FINE_BITS = 240
DEFINED_SCORES = 100
DEFINED_EXPONENT = 700
"""The definition is asked about problems of at most so many scores, none above 2^so many."""

ALL_ROWS = "all rows"

Engine = Callable[[Problem, Sequence[str]], Reference]
ENGINES: dict[str, Engine] = {
    "float64": lambda problem, want: float64.enclose(problem, want=want),
    "double-double": lambda problem, want: double_double.enclose(problem, want=want),
    "balls": lambda problem, want: balls.enclose(problem, want=want, bits=106),
    "fine balls": lambda problem, want: balls.enclose(problem, want=want, bits=FINE_BITS),
}
"""From the coarsest to the finest."""


# -- counting ----------------------------------------------------------------------------------


@dataclass
class Tally:
    """What has been compared. Keys are engines, or (engine, output) pairs as `engine/output`."""

    problems: int = 0
    compared: Counter[str] = field(default_factory=Counter)
    elements: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    worst: dict[str, tuple[float, int, int]] = field(default_factory=dict)
    misses: list[dict[str, Any]] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add another tally to this."""
        self.problems += other.problems
        self.misses += other.misses
        for name in ("compared", "elements", "unknown"):
            getattr(self, name).update(getattr(other, name))
        for engine, found in other.worst.items():
            self.worst[engine] = max(self.worst.get(engine, found), found)


# -- comparing ---------------------------------------------------------------------------------


def distance(a: Enclosure, b: Enclosure) -> Float64Array:
    """At least |centre of a - centre of b|, and hardly more: NaN where float64 does not reach.

    The terms' differences as sums of two floats each, without error (Knuth's TwoSum, The Art of
    Computer Programming 2, 4.2.2, theorem B), then their magnitudes added up and rounded up.
    """
    total = np.zeros(a.value.shape)
    zero = np.zeros(a.value.shape)
    count = max(len(a.parts), len(b.parts))
    pairs = [(*a.parts, *[zero] * count)[:count], (*b.parts, *[zero] * count)[:count]]
    with np.errstate(all="ignore"):
        carry = zero
        for x, y in zip(*pairs, strict=True):
            difference = x - y
            part = difference - x
            lost = (x - (difference - part)) - (y + part)
            # The leading difference goes on to the next terms, where it may cancel.
            joint = carry + difference
            bend = joint - carry
            lost = np.abs(lost) + np.abs((carry - (joint - bend)) + (difference - bend))
            total += lost
            carry = joint
        return (total + np.abs(carry)) * (1 + 2.0**-40)


def exactly(enclosure: Enclosure, index: tuple[int, ...]) -> Fraction:
    """The centre of one element."""
    return sum((Fraction(float(part[index])) for part in enclosure.parts), Fraction(0))


def apart(a: Enclosure, b: Enclosure) -> Iterator[tuple[int, ...]]:
    """Where two enclosures of the same numbers, where both are finite, have none in common."""
    known = np.isfinite(a.bound) & np.isfinite(b.bound)
    infinite = [np.isneginf(e.value) & (e.bound == 0) for e in (a, b)]
    yield from map(tuple, np.argwhere(known & (infinite[0] != infinite[1])).tolist())
    far = distance(a, b)
    with np.errstate(over="ignore"):
        sure = (far == 0) | (far < (a.bound + b.bound) * (1 - 2.0**-40))
    for index in map(tuple, np.argwhere(known & ~infinite[0] & ~infinite[1] & ~sure).tolist()):
        bounds = Fraction(float(a.bound[index])) + Fraction(float(b.bound[index]))
        if abs(exactly(a, index) - exactly(b, index)) > bounds:
            yield index


def share(engine: Enclosure, truth: Enclosure) -> float:
    """The largest error of a bound, in units of the bound, against a much finer enclosure."""
    judged = np.isfinite(engine.bound) & np.isfinite(truth.bound) & (engine.bound > 0)
    judged &= np.isfinite(engine.value)
    error = distance(engine, truth)[judged] - truth.bound[judged]
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.nanmax(error / engine.bound[judged], initial=0.0))


# -- one problem -------------------------------------------------------------------------------


def defined(problem: Problem) -> tuple[str, ...]:
    """All outputs that can be asked of the problem."""

    def defines(output: str) -> bool:
        try:
            problem.shape_of(output)
        except ProblemError:
            return False
        return True

    return tuple(filter(defines, OUTPUTS))


def answers(case: Drawn) -> Iterator[tuple[str, dict[str, Enclosure]]]:
    """Each engine's enclosures, from the coarsest on; whole rows under the name of their engine."""
    want = defined(case.problem)
    asked, _ = without_nan(case.hidden, want=want)
    for name, engine in ENGINES.items():
        yield name, dict(engine(asked, want).outputs)
    if case.whole is not None:
        some = [output for output in want if output in ("out", "lse", "dq")]
        for name, engine in ENGINES.items():
            whole = engine(case.whole, some).outputs
            yield f"{name}, {ALL_ROWS}", {o: _at(e, case.rows) for o, e in whole.items()}
    if (exact := by_definition(case.problem, want)) is not None:
        yield "definition", exact


def _at(enclosure: Enclosure, rows: list[int]) -> Enclosure:
    value, low, *rest = (part[:, :, rows] for part in enclosure.parts)
    return Enclosure(value, low, enclosure.bound[:, :, rows], tuple(rest))


def by_definition(problem: Problem, want: tuple[str, ...]) -> dict[str, Enclosure] | None:
    """The definition's answer where the problem is small and its scores are not too large."""
    scores = problem.batch * problem.query_heads * problem.query_count * problem.key_count
    exponent = max(balls.logit_exponent(head) for head in problem.heads())
    if scores > DEFINED_SCORES or exponent > DEFINED_EXPONENT:
        return None
    try:
        found = reference(problem, want=want, tier="definition", bits=FINE_BITS + 20 + exponent)
    except Uncertified:  # a result beyond float64
        return None
    return dict(found.outputs)


def examine(case: Drawn, seed: int, number: int) -> Tally:
    """Ask every engine about one problem and compare all with all."""
    tally = Tally(problems=1)
    found = dict(answers(case))
    for (first, a), (second, b) in combinations(found.items(), 2):
        for output in a.keys() & b.keys():
            for index in apart(a[output], b[output]):
                pair = {"engines": [first, second], "output": output, "index": list(index)}
                tally.misses.append({"seed": seed, "problem": number, **pair})
    finest = found.get("definition", {}), found["fine balls"]
    for engine, enclosures in found.items():
        name = ALL_ROWS if engine.endswith(ALL_ROWS) else engine
        for output, enclosure in enclosures.items():
            known = int(np.count_nonzero(np.isfinite(enclosure.bound)))
            tally.compared[f"{name}/{output}"] += known
            tally.elements[name] += enclosure.bound.size
            tally.unknown[name] += enclosure.bound.size - known
            if name in ("fine balls", ALL_ROWS, "definition"):
                continue
            truth = next(f[output] for f in finest if output in f)
            used = share(enclosure, truth), seed, number
            tally.worst[name] = max(tally.worst.get(name, used), used)
    return tally
