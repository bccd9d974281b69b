"""What a layer costs: floating-point operations (a multiplication and its addition are 2), bytes.

n tokens, width d, h heads; every function takes numbers or sympy symbols.
"""

from __future__ import annotations

from typing import Any

__all__ = ["attention", "cache_bytes", "mlp", "projections", "scores_bytes", "softmax"]


def attention(n: Any, d: Any) -> Any:
    """Q Kᵀ and A V, all heads together: 2n²d each."""
    return 4 * n**2 * d


def softmax(n: Any, h: Any, c: Any) -> Any:
    """c operations for each score of each head (scale, maximum, subtract and e^x, sum, divide)."""
    return c * h * n**2


def projections(n: Any, d: Any) -> Any:
    """X W_Q, X W_K, X W_V and the product with W_O, of width d each."""
    return 8 * n * d**2


def mlp(n: Any, d: Any) -> Any:
    """Two matrices, d × 4d and 4d × d."""
    return 16 * n * d**2


def scores_bytes(n: Any, *, heads: Any = 1, batch: Any = 1, size: int = 4) -> Any:
    """The n × n matrices of one layer, `size` bytes a number."""
    return n**2 * heads * batch * size


def cache_bytes(
    n: Any, *, layers: Any, heads: Any, width: Any, batch: Any = 1, size: int = 2
) -> Any:
    """Keys and values of n tokens: 2 · layers · heads · width numbers for each."""
    return 2 * layers * heads * width * n * batch * size
