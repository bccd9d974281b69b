"""Steps of proofs about shapes: products of matrices of symbolic sizes, and whether they fit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from attnspec.spec.evidence.statement import Step

__all__ = ["shaped"]


def shaped(text: str, factors: Sequence[Any], shape: tuple[Any, Any]) -> Step:
    """The product of these `MatrixSymbol`s exists, and has this shape, for all sizes.

    sympy itself multiplies matrices whose sizes are different symbols, as they might be equal.
    """

    def holds() -> bool:
        fit = all(left.shape[1] == right.shape[0] for left, right in pairwise(factors))
        return fit and (factors[0].shape[0], factors[-1].shape[1]) == shape

    return Step(text, holds)
