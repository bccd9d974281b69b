"""The unit roundoffs of a declared arithmetic, and the growth of rounding errors in a sum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attnspec.oracle.formats import FORMATS, Float64Array, Format

__all__ = ["LAMBDA", "Roundoffs", "flush", "growth", "operand_roundoff", "output_flush"]

LAMBDA = 6.0
"""How many standard deviations an element may err on generic inputs. Fixed before the data, and not
changed since; sigma itself was revised where honest kernels exceeded it (benchmarks/tolerance.py).
"""
TFLOAT32 = 2.0**-11  # 10 stored bits and the hidden one; the exponent range of float32


@dataclass(frozen=True, kw_only=True)
class Roundoffs:
    """The relative errors of one kernel. 0 where the rounding does not happen.

    unit, eta: unit roundoff of the accumulator, and its absolute error below normal.
    probability, probability_eta: the same of the format that P is rounded to.
    score, score_eta: of the format that scores are rounded to, `score_roundings` times.
    operand: of the format to which matrix products round each operand.
    exp: relative error of exp; absolute error of tanh and log.
    gradient, gradient_eta: of the format in which gradients are accumulated tile by tile.
    """

    storage: Format
    accumulate: Format
    lse: Format
    unit: float
    eta: float
    probability: float
    probability_eta: float
    normalised: bool
    score: float
    score_eta: float
    score_roundings: int
    operand: float
    exp: float
    gradient: float
    gradient_eta: float
    tile: int
    merged: bool

    @property
    def output(self) -> float:
        """Unit roundoff of the storage format, to which out, dq, dk and dv are rounded."""
        return self.storage.unit_roundoff


def growth(roundings: npt.ArrayLike, unit: float) -> Float64Array:
    """How far `roundings` factors (1 + d), |d| <= unit, or their inverses, may lie from 1.

    (1-u)^k <= prod (1+d)^(±1) <= (1-u)^-k, and 1 - (1-u)^k <= (1-u)^-k - 1, so that
    (1-u)^-k - 1 bounds both sides. It is Higham's gamma_k (Accuracy and Stability of Numerical
    Algorithms, 2nd ed., Lemma 3.1) without the condition k u < 1.
    """
    k = np.asarray(roundings, np.float64)
    return np.asarray(np.expm1(np.minimum(-k * np.log1p(-unit), 600.0)))


def flush(fmt: Format) -> float:
    """The absolute error of one operation whose result lies below the format's normal range.

    Hardware flushes subnormal float32, bfloat16 and float64 to zero where it is told to (GPU
    fast-math, `torch.set_flush_denormal`): the error is then up to the smallest normal number.
    float16 subnormals are always kept: half of their spacing.
    """
    return fmt.smallest_subnormal / 2 if fmt.name == "float16" else fmt.smallest_normal


def output_flush(r: Roundoffs) -> float:
    """A subnormal result may be flushed to zero, except in float16."""
    return 0.0 if r.storage.name == "float16" else flush(r.storage)


def operand_roundoff(operands: str | None, accumulate: Format) -> float:
    """Unit roundoff of `Arithmetic.operands`; `ValueError` names the formats that exist.

    Only formats with the exponent range of float32: the bounds have no term for their overflow.
    0 where the accumulator is no finer.
    """
    known = {"tfloat32": TFLOAT32, "bfloat16": FORMATS["bfloat16"].unit_roundoff}
    if operands is None:
        return 0.0
    if operands not in known:
        raise ValueError(f"operands: expected one of {', '.join(known)} or None, got {operands!r}")
    return known[operands] if known[operands] > accumulate.unit_roundoff else 0.0
