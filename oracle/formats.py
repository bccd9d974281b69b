"""The floating-point formats that attention is computed in, and correct rounding to them.

Every finite number of the formats here is exactly a float64, so float64 arrays carry them
without loss. Rounding goes from float64 to the format in one step: `.astype(bfloat16)` of
ml_dtypes, torch and JAX passes through float32 and rounds twice, which is wrong by up to one
ulp near ties.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

__all__ = ["FORMATS", "Float64Array", "Format", "format_of"]

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Format:
    """An IEEE-style binary format.

    `digits` counts the significand's bits with the hidden one; `exponent_min` is the exponent
    of the smallest normal number; `largest` is the largest finite number (IEEE 754-2019, 3.3).
    """

    name: str
    dtype: np.dtype[Any]
    digits: int
    exponent_min: int
    largest: float

    @property
    def unit_roundoff(self) -> float:
        """u: |RN(x) - x| <= u |x| wherever RN(x) is normal and finite (half an ulp of 1)."""
        return 2.0**-self.digits

    @property
    def smallest_normal(self) -> float:
        """The smallest positive normal number."""
        return 2.0**self.exponent_min

    @property
    def smallest_subnormal(self) -> float:
        """The spacing of the subnormal numbers; RN errs by at most half of it below normal."""
        return float(np.ldexp(1.0, self.exponent_min - self.digits + 1))

    def round(self, x: npt.ArrayLike) -> npt.NDArray[Any]:
        """Round float64 `x` (any shape) to nearest, ties to even, once; overflow gives inf."""
        x = np.asarray(x, dtype=np.float64)
        if self.name != "bfloat16":
            with np.errstate(over="ignore", under="ignore"):
                return x.astype(self.dtype)
        _, exponent = np.frexp(np.where(np.isfinite(x), x, 0.0))
        # The last kept bit weighs 2^(exponent - digits), and never less than a subnormal's step.
        step = np.maximum(exponent - self.digits, self.exponent_min - self.digits + 1)
        with np.errstate(over="ignore"):
            rounded = np.where(np.isfinite(x), np.ldexp(np.rint(np.ldexp(x, -step)), step), x)
        rounded = np.where(np.abs(rounded) > self.largest, np.copysign(np.inf, x), rounded)
        return np.where(np.isnan(x), x, rounded).astype(self.dtype)


FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("bfloat16", np.dtype(ml_dtypes.bfloat16), 8, -126, float(2.0**127 * (2 - 2.0**-7))),
        Format("float16", np.dtype(np.float16), 11, -14, 65504.0),
        Format("float32", np.dtype(np.float32), 24, -126, float(np.finfo(np.float32).max)),
        Format("float64", np.dtype(np.float64), 53, -1022, float(np.finfo(np.float64).max)),
    )
}


def format_of(dtype: npt.DTypeLike) -> Format:
    """The `Format` of a NumPy or ml_dtypes dtype; `TypeError` names the ones that exist."""
    name = np.dtype(dtype).name
    if name not in FORMATS:
        raise TypeError(f"dtype {name} is not supported; expected one of {', '.join(FORMATS)}")
    return FORMATS[name]
