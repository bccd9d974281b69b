"""How near an answer is: the bound that it states, or its distance from a sharper answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnspec.oracle.enclosure import Enclosure
from attnspec.oracle.formats import Float64Array

__all__ = ["accuracy", "some_rows", "some_rows_of", "step_of", "summary"]

NOISE = 2.0**-30
"""Elements whose terms are this much smaller than the largest element's are left out: their
conditioning, which float64 computes by differences, may be nothing but its rounding (dq of the
row that sees one key)."""
ROWS = 2**12
"""Outputs of more rows (dk and dv of a long context) are compared at about so many of them."""
Figures = dict[str, Any]


def step_of(length: int) -> int:
    """Of an output of so many rows, one in how many is compared, from the first on."""
    return max(1, -(-length // ROWS))


def some_rows(array: Float64Array) -> Float64Array:
    """Every row of an output, or evenly spaced ones of a long one; a copy then."""
    step = step_of(array.shape[-2])
    return array if step == 1 else array[..., ::step, :].copy()


def some_rows_of(answer: Mapping[str, Enclosure]) -> dict[str, Enclosure]:
    """Likewise of every output's value, low part and bound."""
    return {
        name: Enclosure(some_rows(x.value), some_rows(x.low), some_rows(x.bound))
        for name, x in answer.items()
    }


def accuracy(
    answers: Mapping[str, Mapping[str, Enclosure]],
    conditioning: Mapping[str, Float64Array],
    sharpest: str,
) -> dict[str, dict[str, Figures]]:
    """By engine and output: `bound` where the engine states one, and `error` against `sharpest`.

    Each is a `summary`. `against` names the tier that the error was measured against.
    """
    found: dict[str, dict[str, Figures]] = {}
    for engine, outputs in answers.items():
        found[engine] = {}
        for output, terms in conditioning.items():
            mine, best = outputs[output], answers[sharpest][output]
            figures: Figures = {}
            if np.isfinite(mine.bound).all():
                figures["bound"] = summary(mine.bound, terms, best.value)
            if engine != sharpest:
                figures["error"] = summary(_distance(mine, best), terms, best.value)
                figures["against"] = sharpest
            found[engine][output] = figures
    return found


def summary(error: Float64Array, terms: Float64Array, value: Float64Array) -> Figures:
    """Median and worst of error / terms and of error / |value|, as powers of two.

    `terms` are the magnitudes that were added up (`Reference.conditioning`). None stands for
    an error of 0.
    """
    counted = terms > NOISE * terms.max()
    figures: Figures = {"left_out": int(np.count_nonzero(~counted))}
    for name, scale in (("terms", terms), ("value", np.abs(value))):
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(error == 0, 0.0, error / scale)[counted]
        figures[name] = {"median": _power(np.median(ratio)), "worst": _power(ratio.max())}
    return figures


def _power(x: float) -> float | None:
    """log2 x, to two decimals."""
    return None if x == 0 else round(float(np.log2(x)), 2)


def _distance(a: Enclosure, b: Enclosure) -> Float64Array:
    """|a - b| of the two sums; the leading parts are near, so their difference is exact."""
    distance: Float64Array = np.abs((a.value - b.value) + (a.low - b.low))
    return distance
