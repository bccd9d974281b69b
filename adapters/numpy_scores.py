"""The masked scores of the NumPy kernels, tile by tile, and the products around them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attnspec.oracle.formats import format_of

__all__ = ["Scores", "finite", "per_kv_head", "product", "repeated", "stored", "working"]

Array = npt.NDArray[Any]


def working(x: Array) -> Array:
    """In the type that is computed in: float64 for float64, else float32. Exact."""
    return x.astype(np.float64 if x.dtype == np.float64 else np.float32)


def stored(x: Array, dtype: np.dtype[Any]) -> Array:
    """Rounded once to the storage type."""
    return x if x.dtype == dtype else format_of(dtype).round(x)


def repeated(kv: Array, query_heads: int) -> Array:
    """(B, Hkv, N, D) -> (B, Hq, N, D): query head a reads key head a // (Hq / Hkv)."""
    return np.repeat(kv, query_heads // kv.shape[1], axis=1)


def per_kv_head(x: Array, kv_heads: int) -> Array:
    """(B, Hq, N, D) -> (B, Hkv, N, D), summed over the query heads of each group."""
    batch, heads, *rest = x.shape
    total: Array = x.reshape(batch, kv_heads, heads // kv_heads, *rest).sum(axis=2)
    return total


def finite(x: Array) -> Array:
    """NaN and infinities replaced by 0: 0 · NaN is NaN, so a zero weight does not hide them."""
    return np.where(np.isfinite(x), x, 0)


def product(weights: Array, value: Array, visible: Array) -> Array:
    """Weights (…, r, c) times values (…, c, Dv), where a hidden value cannot matter.

    NaN where a row sees a value that is not finite.
    """
    out: Array = weights @ finite(value)
    spoilt = ~np.isfinite(value)
    if spoilt.any():
        sees_it = visible.astype(weights.dtype) @ spoilt.astype(weights.dtype) > 0
        out = np.where(sees_it, np.nan, out).astype(weights.dtype)
    return out


@dataclass(frozen=True, eq=False)
class Scores:
    """scale · q kᵀ, capped, biased and masked; `rows` and `keys` are slices of Nq and Nk."""

    q: Array  # (B, H, Nq, D)
    k: Array  # (B, H, Nk, D)
    scale: float
    causal: bool
    window: tuple[int | None, int | None]
    mask: Array | None  # (B, H, Nq, Nk)
    bias: Array | None  # (B, H, Nq, Nk)
    softcap: float | None
    sinks: Array | None  # (1, H, 1, 1)
    slopes: Array | None  # (1, H, 1, 1)
    key_lengths: Array  # (B, 1, 1, 1)
    query_lengths: Array  # (B, 1, 1, 1)

    @classmethod
    def of(
        cls,
        q: Array,
        k: Array,
        *,
        scale: float,
        causal: bool = False,
        window: tuple[int | None, int | None] | None = None,
        mask: Array | None = None,
        bias: Array | None = None,
        softcap: float | None = None,
        sinks: Array | None = None,
        alibi: Array | None = None,
        key_lengths: Array | None = None,
        query_lengths: Array | None = None,
    ) -> Scores:
        """From the arguments of a kernel."""
        heads = q.shape[1]
        full = (*q.shape[:3], k.shape[2])
        q, k = working(q), repeated(working(k), heads)

        def a_head(x: Array | None) -> Array | None:
            return None if x is None else x.astype(q.dtype).reshape(1, heads, 1, 1)

        def an_entry(lengths: Array | None, most: int) -> Array:
            lengths = np.full(len(q), most) if lengths is None else lengths.astype(np.int64)
            return lengths.reshape(-1, 1, 1, 1)

        return cls(
            q=q,
            k=k,
            scale=scale,
            causal=causal,
            window=window or (None, None),
            mask=None if mask is None else np.broadcast_to(mask, full),
            bias=None if bias is None else np.broadcast_to(working(bias), full),
            softcap=softcap,
            sinks=a_head(sinks),
            slopes=a_head(alibi),
            key_lengths=an_entry(key_lengths, full[3]),
            query_lengths=an_entry(query_lengths, full[2]),
        )

    def visible(self, rows: slice, keys: slice) -> Array:
        """Which of the keys each row sees: (B, H, r, c). The diagonal is bottom-right."""
        batch, heads, queries, key_count = (*self.q.shape[:3], self.k.shape[2])
        i = np.arange(queries)[rows, None]
        j = np.arange(key_count)[keys]
        ahead = self._ahead(rows, keys)
        left, right = self.window
        seen = (i < self.query_lengths) & (j < self.key_lengths)
        if self.causal:
            seen = seen & (ahead >= 0)
        if left is not None:
            seen = seen & (ahead <= left)
        if right is not None:
            seen = seen & (ahead >= -right)
        if self.mask is not None:
            seen = seen & self.mask[..., rows, keys]
        if self.bias is not None:
            seen = seen & ~np.isneginf(self.bias[..., rows, keys])
        return np.broadcast_to(seen, (batch, heads, *seen.shape[2:]))

    def tile(self, rows: slice, keys: slice) -> tuple[Array, Array | float]:
        """The scores (B, H, r, c), -inf where hidden, and the derivative of the soft cap."""
        scores = self.scale * (self.q[..., rows, :] @ self.k[..., keys, :].swapaxes(-1, -2))
        slope: Array | float = 1.0
        if self.softcap is not None:
            bent = np.tanh(scores / self.softcap)
            scores, slope = self.softcap * bent, 1 - bent * bent
        if self.bias is not None:
            scores = scores + self.bias[..., rows, keys]
        if self.slopes is not None:
            distance = np.abs(self._ahead(rows, keys)).astype(scores.dtype)
            scores = scores - self.slopes * distance
        return np.where(self.visible(rows, keys), scores, -np.inf).astype(scores.dtype), slope

    def _ahead(self, rows: slice, keys: slice) -> Array:
        """i + offset - j: (B, 1, r, c)."""
        i = np.arange(self.q.shape[2])[rows, None]
        j = np.arange(self.k.shape[2])[keys]
        ahead: Array = i + (self.key_lengths - self.query_lengths) - j
        return ahead
