"""The gradients of the NumPy kernels, tile by tile, from their softmax."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attnspec.adapters.numpy_scores import Scores, finite, per_kv_head, stored

__all__ = ["Backward", "tiles"]

Array = npt.NDArray[Any]


def tiles(count: int, size: int) -> Iterator[slice]:
    """0 … count in slices of at most `size`."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


@dataclass(frozen=True, eq=False)
class Backward:
    """Gradients of <dout, out> + <dlse, lse>.

    With P the weights and D = <dout, out> of each row: dS = P · (dout vᵀ - D + dlse), and
    dq = scale dS k, dk = scale dSᵀ q, dv = Pᵀ dout, dbias = dS; the sink's weight gives
    dsinks = Σ P_sink (dlse - D). `inner` is D - dlse; P = exp(score - shift) / divisor.
    """

    scores: Scores
    values: Array  # (B, H, Nk, Dv)
    dout: Array  # (B, H, Nq, Dv)
    inner: Array  # (B, H, Nq, 1)
    shift: Array  # (B, H, Nq, 1)
    divisor: Array  # (B, H, Nq, 1)

    def gradients(
        self, inputs: dict[str, Array | None], *, query_tile: int, key_tile: int
    ) -> dict[str, Array]:
        """By name, in the shapes and types of the inputs q, k, v, and bias and sinks if given."""
        q, k = self.scores.q, self.scores.k
        dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(self.values)
        dscores = np.zeros((*q.shape[:3], k.shape[2]), q.dtype)
        for rows in tiles(q.shape[2], query_tile):
            for keys in tiles(k.shape[2], key_tile):
                p, ds, dproduct = self._tile(rows, keys)
                dscores[..., rows, keys] = ds
                dq[..., rows, :] += dproduct @ finite(k[..., keys, :])
                dk[..., keys, :] += dproduct.swapaxes(-1, -2) @ finite(q[..., rows, :])
                dv[..., keys, :] += p.swapaxes(-1, -2) @ self.dout[..., rows, :]
        found = {"dq": dq, "dk": dk, "dv": dv, "dbias": dscores, "dsinks": self._dsinks()}
        return {
            f"d{name}": stored(_like(found[f"d{name}"], x, name), x.dtype)
            for name, x in inputs.items()
            if x is not None
        }

    def _tile(self, rows: slice, keys: slice) -> tuple[Array, Array, Array]:
        """P, and the gradients of the final scores and of q kᵀ, which lie before scale and cap."""
        s, cap = self.scores.tile(rows, keys)
        p = np.exp(s - self.shift[..., rows, :]) / self.divisor[..., rows, :]
        dp = self.dout[..., rows, :] @ finite(self.values[..., keys, :]).swapaxes(-1, -2)
        # A hidden slot has weight 0, but its dp and its cap may be NaN or infinite.
        ds = np.where(p == 0, 0, p * (dp - self.inner[..., rows, :])).astype(p.dtype)
        return p, ds, self.scores.scale * np.where(p == 0, 0, ds * cap).astype(p.dtype)

    def _dsinks(self) -> Array:
        if self.scores.sinks is None:
            return np.zeros(self.scores.q.shape[1], self.inner.dtype)
        weight = np.exp(self.scores.sinks - self.shift) / self.divisor
        total: Array = -(weight * self.inner).sum(axis=(0, 2, 3))
        return total


def _like(gradient: Array, x: Array, name: str) -> Array:
    """Summed over what was repeated or broadcast."""
    if name in ("k", "v"):
        return per_kv_head(gradient, x.shape[1])
    if name != "bias":
        return gradient
    shape = (1,) * (gradient.ndim - x.ndim) + x.shape
    axes = tuple(a for a, n in enumerate(shape) if n == 1)
    total: Array = gradient.sum(axis=axes, keepdims=True).reshape(x.shape)
    return total
