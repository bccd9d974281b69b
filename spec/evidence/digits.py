"""Attention in decimals of 50 digits, for what is not rational: the formula as it stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mpmath
import numpy as np

__all__ = ["DIGITS", "attention", "distance", "softmax"]

DIGITS = 50


def softmax(scores: Sequence[Any]) -> list[Any]:
    """e^s over their sum; a score of -inf has weight 0."""
    with mpmath.workdps(DIGITS):
        exponentials = [mpmath.exp(mpmath.mpf(score)) for score in scores]
        total = mpmath.fsum(exponentials)
        return [exponential / total for exponential in exponentials]


def attention(q: Any, k: Any, v: Any, *, scale: Any = None, mask: Any = None) -> Any:
    """softmax(scale · Q Kᵀ + mask) V, (Nq, Dv); scale is 1/√d_k where none is given."""
    with mpmath.workdps(DIGITS):
        q, k, v = (np.vectorize(mpmath.mpf, otypes=[object])(part) for part in (q, k, v))
        scores = q @ k.T * (1 / mpmath.sqrt(q.shape[-1]) if scale is None else scale)
        scores = scores if mask is None else scores + mask
        weights = np.array([softmax(row) for row in scores], object)
        return weights @ v


def distance(left: Any, right: Any) -> Any:
    """The greatest |left - right|; NaN where either holds one."""
    with mpmath.workdps(DIGITS):
        left, right = (np.asarray(part, object).ravel() for part in (left, right))
        gaps = [abs(mpmath.mpf(x) - mpmath.mpf(y)) for x, y in zip(left, right, strict=True)]
        return mpmath.nan if any(mpmath.isnan(gap) for gap in gaps) else max(gaps)
