"""The answer: certified values. An `Enclosure` is a value and a proven bound on its error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from attnspec.oracle.formats import Float64Array

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

    `tier` names the engine that answered: `float64`, `balls` or `definition`.
    """

    tier: str
    outputs: Mapping[str, Enclosure]

    def __getitem__(self, output: str) -> Enclosure:
        return self.outputs[output]
