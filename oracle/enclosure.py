"""The answer: certified values. An `Enclosure` is a value and a proven bound on its error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt

from attnspec.oracle.climb import Step, explained
from attnspec.oracle.formats import Float64Array
from attnspec.oracle.problem import Problem, ProblemError

__all__ = ["Enclosure", "Reference"]


@dataclass(frozen=True, eq=False)
class Enclosure:
    """|exact - (value + low + Σ rest)| <= bound, element by element; the sum is meant exactly.

    All have the output's shape. `rest` is empty unless more than the 106 bits of value + low were
    asked for. Where the exact result is -inf (the lse of a row that sees nothing) or NaN (a
    visible NaN), `value` says so and `low`, `rest` and `bound` are 0. A bound of inf means "not
    known", and then the rest means nothing.
    """

    value: Float64Array
    low: Float64Array
    bound: Float64Array
    rest: tuple[Float64Array, ...] = ()

    @classmethod
    def of(cls, value: Float64Array, bound: Float64Array) -> Enclosure:
        """An enclosure without a low part."""
        return cls(value, np.zeros_like(value), bound)

    @property
    def parts(self) -> tuple[Float64Array, ...]:
        """value, low and every part of rest: what adds up to the centre, from the largest on."""
        return (self.value, self.low, *self.rest)

    def centre(self) -> npt.NDArray[np.object_]:
        """value + low + Σ rest, exactly: an object array of mpmath's mpf, in the output's shape.

        Printing one rounds to mpmath's working precision; give that as many bits as you asked for.
        """
        from mpmath import fadd, mpf

        add = np.frompyfunc(lambda x, y: fadd(x, mpf(float(y)), exact=True), 2, 1)
        total: Any = np.full(self.value.shape, mpf(0), dtype=object)
        for part in self.parts:
            total = np.asarray(add(total, part), object)
        return np.asarray(total, object)

    def in_two(self) -> Enclosure:
        """The same without `rest`, which goes into the bound.

        An addition to nearest errs by at most half the spacing at its result, and the next float64
        lies a whole one above, so each step is an upper bound.
        """
        bound = self.bound
        for part in self.rest:
            more = np.nextafter(bound + np.abs(part), np.inf)
            bound = np.where(part == 0, bound, more)
        return Enclosure(self.value, self.low, bound)

    def sharper(self, other: Enclosure) -> Enclosure:
        """Of two enclosures of the same numbers, that with the smaller bound, element by element.

        Where they tie, this one. A NaN for a bound knows nothing.
        """
        theirs = (other.bound < self.bound) | np.isnan(self.bound)
        zero = np.zeros_like(self.value)
        pairs = zip_longest(self.parts, other.parts, fillvalue=zero)
        value, low, *rest = (np.where(theirs, b, a) for a, b in pairs)
        return Enclosure(value, low, np.where(theirs, other.bound, self.bound), tuple(rest))


@dataclass(frozen=True, eq=False)
class Reference:
    """The certified answer to one problem: an enclosure for each output that was asked for.

    `tier` names the highest engine that was needed: `float64`, `double-double`, `balls` or
    `definition`. `problem` is what was asked and `climb` which engines were asked in turn, where
    `reference` answered.
    """

    tier: str
    outputs: Mapping[str, Enclosure]
    problem: Problem | None = None
    climb: tuple[Step, ...] = ()

    def __getitem__(self, output: str) -> Enclosure:
        try:
            return self.outputs[output]
        except KeyError:
            asked = ", ".join(self.outputs)
            raise ProblemError(f"{output!r} was not asked for: expected one of {asked}") from None

    def explain(self) -> str:
        """Which engines were asked, what for, how far each reached and how long it took."""
        return explained(self.climb)

    def conditioning(self, output: str) -> Float64Array:
        """The magnitudes of the output's terms, added up (see `oracle.conditioning`)."""
        from attnspec.oracle.conditioning import conditioning

        if self.problem is None:
            raise ProblemError("conditioning: only an answer of `reference` knows its problem")
        return conditioning(self.problem, output)
