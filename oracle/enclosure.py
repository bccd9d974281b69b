"""The answer: certified values. An `Enclosure` is a value and a proven bound on its error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from attnspec.oracle.formats import Float64Array
from attnspec.oracle.problem import Problem, ProblemError

__all__ = ["Enclosure", "Reference"]


@dataclass(frozen=True, eq=False)
class Enclosure:
    """|exact - (value + low)| <= bound, element by element; the sum is meant exactly.

    All three have the output's shape. Where the exact result is -inf (the lse of a row that sees
    nothing) or NaN (a visible NaN), `value` says so and `low` and `bound` are 0.
    A bound of inf means "not known".
    """

    value: Float64Array
    low: Float64Array
    bound: Float64Array

    @classmethod
    def of(cls, value: Float64Array, bound: Float64Array) -> Enclosure:
        """An enclosure without a low part."""
        return cls(value, np.zeros_like(value), bound)


@dataclass(frozen=True, eq=False)
class Reference:
    """The certified answer to one problem: an enclosure for each output that was asked for.

    `tier` names the engine that answered: `float64`, `balls` or `definition`. `problem` is what
    was asked, where `reference` answered.
    """

    tier: str
    outputs: Mapping[str, Enclosure]
    problem: Problem | None = None

    def __getitem__(self, output: str) -> Enclosure:
        return self.outputs[output]

    def conditioning(self, output: str) -> Float64Array:
        """The magnitudes of the output's terms, added up (see `oracle.conditioning`)."""
        from attnspec.oracle.conditioning import conditioning

        if self.problem is None:
            raise ProblemError("conditioning: only an answer of `reference` knows its problem")
        return conditioning(self.problem, output)
