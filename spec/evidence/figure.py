"""A printed figure, and whether it is right: within half a unit of its last printed place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import mpmath

__all__ = ["Figure"]

DIGITS = 40


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A number that a source prints, and the exact one.

    what: the quantity. printed: the digits as printed: "0.65", "33e6", "20" (no unit).
    exact: computes it, as a Fraction or int, or an mpmath number (called with 50 digits).
    unit: of both, for reading only.
    """

    what: str
    printed: str
    exact: Callable[[], Any]
    unit: str = ""

    def value(self) -> Any:
        """The exact value, an mpmath number of 50 digits."""
        with mpmath.workdps(DIGITS + 10):
            exact = self.exact()
            if isinstance(exact, Fraction | int):
                exact = mpmath.mpf(Fraction(exact).numerator) / Fraction(exact).denominator
            return mpmath.mpf(exact)

    @property
    def half_unit(self) -> Fraction:
        """Half a unit in the last printed place: 1/200 for "0.65", 1/2 for "33"."""
        mantissa, _, exponent = self.printed.lower().partition("e")
        places = len(mantissa.partition(".")[2])
        return Fraction(1, 2) * Fraction(10) ** (int(exponent or 0) - places)

    @property
    def right(self) -> bool:
        """Whether the printed figure is the exact one, rounded."""
        with mpmath.workdps(DIGITS + 10):
            printed, half = Fraction(self.printed), self.half_unit
            distance = abs(self.value() - mpmath.mpf(printed.numerator) / printed.denominator)
            return bool(distance <= mpmath.mpf(half.numerator) / half.denominator)

    def __str__(self) -> str:
        with mpmath.workdps(DIGITS + 10):
            digits = mpmath.nstr(self.value(), 20, min_fixed=-8, max_fixed=20)
        unit = f" {self.unit}" if self.unit else ""
        judged = "right" if self.right else "wrong"
        half = f"half a unit of the last place is {float(self.half_unit):g}"
        return f"{self.what}: printed {self.printed}{unit}, exact {digits}{unit}: {judged} ({half})"
