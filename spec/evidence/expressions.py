"""Steps of proofs that sympy itself decides: equal scalars, and equal products of matrices."""

from __future__ import annotations

from typing import Any

import sympy as sp

from attnspec.spec.evidence.statement import Step

__all__ = ["matrices", "polynomials", "scalars"]


def scalars(text: str, left: Any, right: Any) -> Step:
    """left = right, as `simplify` decides it."""
    return Step(text, lambda: bool(sp.simplify(sp.sympify(left) - sp.sympify(right)) == 0))


def polynomials(text: str, left: Any, right: Any) -> Step:
    """left = right, expanded: quicker than `scalars` where nothing else is needed."""
    return Step(text, lambda: bool(sp.expand(sp.sympify(left) - sp.sympify(right)) == 0))


def matrices(text: str, left: Any, right: Any) -> Step:
    """left = right for `MatrixSymbol`s of any size, expanded."""
    return Step(text, lambda: bool(_expanded(left) == _expanded(right)))


def _expanded(expression: Any) -> Any:
    return sp.block_collapse(sp.expand(expression.doit())).doit()
