"""Who sees whom, in torch. Importing this file imports no torch; using it does."""

from __future__ import annotations

from typing import Any

__all__ = ["ahead_of", "visible"]

Tensor = Any


def ahead_of(
    q: Tensor, k: Tensor, key_lengths: Tensor | None, query_lengths: Tensor | None
) -> Tensor:
    """i + offset - j, bottom-right: (B or 1, 1, Nq, Nk)."""
    import torch

    i = torch.arange(q.shape[2], device=q.device)[:, None]
    j = torch.arange(k.shape[2], device=q.device)
    keys = k.shape[2] if key_lengths is None else key_lengths[:, None, None, None]
    queries = q.shape[2] if query_lengths is None else query_lengths[:, None, None, None]
    return (i - j)[None, None] + (keys - queries)


def visible(
    q: Tensor,
    k: Tensor,
    ahead: Tensor,
    causal: bool,
    window: tuple[int | None, int | None] | None,
    mask: Tensor | None,
    bias: Tensor | None,
    key_lengths: Tensor | None,
    query_lengths: Tensor | None,
) -> Tensor:
    """Which keys each row sees: broadcasts to (B, Hq, Nq, Nk)."""
    import torch

    left, right = window or (None, None)
    seen = torch.ones_like(ahead, dtype=torch.bool)
    if causal:
        seen = seen & (ahead >= 0)
    if left is not None:
        seen = seen & (ahead <= left)
    if right is not None:
        seen = seen & (ahead >= -right)
    if mask is not None:
        seen = seen & mask
    if bias is not None:
        seen = seen & ~torch.isneginf(bias)
    if key_lengths is not None:
        j = torch.arange(k.shape[2], device=q.device)
        seen = seen & (j < key_lengths[:, None, None, None])
    if query_lengths is not None:
        i = torch.arange(q.shape[2], device=q.device)[:, None]
        seen = seen & (i < query_lengths[:, None, None, None])
    return seen
