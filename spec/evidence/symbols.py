"""The symbols of attention's identities: matrices of any size, their indices and ranges."""

from __future__ import annotations

from typing import Any

import sympy as sp

__all__ = [
    "A",
    "G",
    "K",
    "Q",
    "V",
    "alpha",
    "channels",
    "keys",
    "queries",
    "score_gradient",
    "values",
]

queries_count, keys_count, size, value_size = sp.symbols("n m d_k d_v", integer=True, positive=True)
alpha = sp.Symbol("alpha")
"""The scale, 1/√d_k or any other."""
A, Q, K, V, G = (sp.IndexedBase(name) for name in ("A", "Q", "K", "V", "G"))
"""Weights (n, m), queries (n, d_k), keys (m, d_k), values (m, d_v), the cotangent dO (n, d_v)."""


def queries(index: Any) -> tuple[Any, Any, Any]:
    """The range of a query row, for `Sum`."""
    return index, 0, queries_count - 1


def keys(index: Any) -> tuple[Any, Any, Any]:
    """The range of a key."""
    return index, 0, keys_count - 1


def channels(index: Any) -> tuple[Any, Any, Any]:
    """The range of a channel of queries and keys."""
    return index, 0, size - 1


def values(index: Any) -> tuple[Any, Any, Any]:
    """The range of a channel of values."""
    return index, 0, value_size - 1


def score_gradient(i: Any, j: Any) -> Any:
    """dS_ij = A_ij (dA_ij - Σ_l A_il dA_il), dA = G Vᵀ."""
    other, c = sp.symbols("l c", integer=True)
    inner = sp.Sum(A[i, other] * sp.Sum(G[i, c] * V[other, c], values(c)), keys(other))
    return A[i, j] * (sp.Sum(G[i, c] * V[j, c], values(c)) - inner)
