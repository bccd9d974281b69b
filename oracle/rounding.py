"""The tolerance: how far a declared arithmetic may take a kernel from the exact result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Arithmetic"]


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """What a kernel declares about its arithmetic; the format of q, k and v is `storage`.

    accumulate: format of products, sums, softmax statistics and stored lse; the wider of it and
        the storage format is meant, so "storage" accumulates in the input's own type.
    operands: a coarser format to which the matrix products round their operands ("tfloat32").
    scores: "storage" where the scores are rounded to the storage format, `score_roundings` times
        (twice where they are stored before and after scaling).
    probabilities: "storage" where P is rounded to the storage format before P @ V, after the
        division by the row sum if `normalised`, before it (as flash attention does) otherwise.
    exp_error: relative error of exp; None means 4 unit roundoffs of the accumulator.
    gradients: "storage" where dq, dk and dv are accumulated tile by tile in the storage format.
    lse: the format of the returned lse, "accumulate" or "storage".
    tile: the fewest keys between two rescales of the online softmax.
    """

    accumulate: str = "storage"
    operands: str | None = None
    scores: Literal["storage"] | None = None
    score_roundings: int = 1
    probabilities: Literal["storage"] | None = None
    normalised: bool = False
    exp_error: float | None = None
    gradients: Literal["storage"] | None = None
    lse: Literal["accumulate", "storage"] = "accumulate"
    tile: int = 32
