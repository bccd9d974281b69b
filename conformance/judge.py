"""The verdict on one output: is each number one that the declared arithmetic can produce?

The kernel's result before its last rounding lies within B of the exact one; its last rounding is
to nearest. So a returned number x is possible exactly where the interval of reals that round
to x comes within B of the exact result. The distance between the two, divided by B, is the
fraction of the bound used: no tolerance is spent on the output's own rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attnspec.oracle.enclosure import Enclosure
from attnspec.oracle.formats import Float64Array, Format, format_of
from attnspec.oracle.rounding import LAMBDA, Tolerance

__all__ = ["Finding", "excess", "judge"]

RMS_ELEMENTS = 4096
"""A head with fewer elements says too little about its own mean square (numerics: >= ~4k)."""


@dataclass(frozen=True)
class Finding:
    """What judging one output found.

    fraction: of the bound used, at the worst element; above 1 it is violated, inf where no
        tolerance applies (NaN for a number, a masked row that is not its exact value).
    rule: the bound that was used most: `hard` (holds on any input), `model` (6 sigma of the
        variance model, generic inputs only) or `rms` (the model's mean square over a head).
    where: the index of the worst element. detail: one line on what stands there.
    """

    fraction: float
    rule: str
    where: tuple[int, ...]
    detail: str

    @property
    def passed(self) -> bool:
        """Whether the output is one that the declared arithmetic can produce."""
        return self.fraction <= 1


def judge(
    actual: npt.NDArray[Any],
    *,
    exact: Enclosure,
    tolerance: Tolerance,
    generic: bool,
    averages: bool = True,
) -> Finding:
    """Judge `actual`, in the output's own dtype and shape, against the certified result.

    `generic` says that the inputs were drawn so that roundings are independent: then the
    variance model and the mean square apply besides the hard bound. `averages` says that enough
    rows are judged for a mean square: each number of dk and dv has the errors of all of them.
    """
    if actual.size == 0:
        return Finding(0.0, "hard", (), "empty")
    distance = excess(actual, exact)
    hard = _worst(distance, tolerance.hard + exact.bound, "hard", actual, exact)
    findings = [hard]
    if generic and hard.passed:  # what no input excuses is not explained by a model
        model = np.minimum(LAMBDA * tolerance.sigma, tolerance.hard) + exact.bound
        findings.append(_worst(distance, model, "model", actual, exact))
        if averages:
            findings.append(_mean_square(actual, exact, tolerance))
    return max(findings, key=lambda finding: finding.fraction)


def excess(actual: npt.NDArray[Any], exact: Enclosure) -> Float64Array:
    """How far the exact value lies outside the reals that round to `actual`: >= 0, or inf.

    0 for NaN where NaN is exact and for the same infinity; inf for NaN against a number, a
    number against NaN, and an infinity of the wrong sign or where an infinity is exact.
    """
    form = format_of(actual.dtype)
    x = actual.astype(np.float64)
    reachable = np.where(np.isinf(x), np.copysign(form.largest, x), x)
    with np.errstate(invalid="ignore", over="ignore"):
        error = (reachable - exact.value) - exact.low
        toward = np.where(error > 0, -np.inf, np.inf)
        # The edge of the reals that round to x lies halfway to the neighbour on the exact side.
        gap = np.abs(reachable - _neighbour(reachable, toward, form))
        distance = np.maximum(np.abs(error) - gap / 2, 0.0)
        # What rounds to inf begins half an ulp beyond the largest number.
        half_ulp = np.ldexp(0.5, int(np.frexp(form.largest)[1]) - form.digits)
        overflow = np.maximum(half_ulp + np.sign(x) * error, 0.0)
    distance = np.where(np.isinf(x), overflow, distance)
    distance = np.where(np.isnan(x) | ~np.isfinite(exact.value), np.inf, distance)
    same_infinity = np.isinf(x) & (x == exact.value)
    return np.where(same_infinity | (np.isnan(x) & np.isnan(exact.value)), 0.0, distance)


def _neighbour(x: Float64Array, toward: Float64Array, form: Format) -> Float64Array:
    """The next number of the format in a direction."""
    if form.name == "float64":
        return np.nextafter(x, toward)
    narrow = x.astype(form.dtype)
    following: Float64Array = np.nextafter(narrow, toward.astype(form.dtype)).astype(np.float64)
    return np.where(np.isfinite(following), following, x)


def _worst(
    distance: Float64Array,
    bound: Float64Array,
    rule: str,
    actual: npt.NDArray[Any],
    exact: Enclosure,
) -> Finding:
    fraction = _ratio(distance, bound)
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(fraction)), fraction.shape))
    expected = float(exact.value[at])
    detail = f"got {float(actual[at]):.9g}, exact {expected:.9g}, {rule} bound {bound[at]:.3g}"
    return Finding(float(fraction[at]), rule, at, detail)


def _ratio(distance: Float64Array, bound: Float64Array) -> Float64Array:
    """distance / bound with 0/0 = 0 and anything / inf = 0: an infinite bound forbids nothing.

    A bound that is no number excuses nothing.
    """
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        ratio = np.where(np.isnan(bound), np.inf, distance / bound)
    return np.where((distance == 0) | np.isinf(bound), 0.0, ratio)


def _mean_square(actual: npt.NDArray[Any], exact: Enclosure, tolerance: Tolerance) -> Finding:
    """Root mean square over each head of error / predicted deviation; > 1 is a lost precision."""
    x = actual.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        error = (x - exact.value) - exact.low
        form = tolerance.format
        size = np.abs(exact.value)
        rounding = form.unit_roundoff * np.maximum(size, form.smallest_normal)
        # An error spread evenly over [-u|x|, u|x|] has a mean square of a third of (u|x|)². In a
        # binade the half ulp is below u|x|, so the third is above the true mean by up to 4 times;
        # only numbers just above a power of two reach it, and no family draws those alone. Below
        # the normal range the half ulp is fixed, every error fills it, and noise would exceed it.
        share = np.where(size < 2 * form.smallest_normal, 1.0, 1 / 3)
        predicted = tolerance.sigma**2 + share * rounding**2
        square = np.where(predicted > 0, error**2 / predicted, 0.0)
    usable = np.isfinite(square) & (predicted > 0)
    worst = Finding(0.0, "rms", (), "too few elements")
    if x.ndim != 4:
        return worst
    for head in np.ndindex(x.shape[:2]):
        count = int(usable[head].sum())
        if count < RMS_ELEMENTS:
            continue
        rms = float(np.sqrt(square[head][usable[head]].mean()))
        if rms > worst.fraction:
            detail = f"root mean square error {rms:.2f} times the predicted one, over {count}"
            worst = Finding(rms, "rms", head, detail)
    return worst
