"""What the listings of the document do, in code of our own: softmax, attention, a layer, tiles.

Their behaviour is kept, failures included; the records of the sections show both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "attention",
    "draw",
    "inputs",
    "later",
    "layer",
    "stable_softmax",
    "tiled",
    "widths",
]

Array = npt.NDArray[Any]


def inputs(*shapes: tuple[int, ...], seed: int = 0) -> list[Array]:
    """Standard normal arrays."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in shapes]


def stable_softmax(scores: Array) -> Array:
    """Along the last axis, shifted so that the greatest exponent is 0."""
    exponentials = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
    return np.asarray(exponentials / np.sum(exponentials, axis=-1, keepdims=True))


def attention(
    q: Array, k: Array, v: Array, hidden: Array | None = None, *, fill: float = -1e9
) -> tuple[Array, Array]:
    """Output and weights of a batch (B, n, ·); where `hidden` is True, `fill` is the score."""
    raw = np.matmul(q, np.transpose(k, (0, 2, 1)))
    scores = raw / np.sqrt(q.shape[-1])
    weights = stable_softmax(scores if hidden is None else np.where(hidden, fill, scores))
    return np.matmul(weights, v), weights


def later(n: int) -> Array:
    """(n, n): True strictly above the diagonal, where the key is later than the query."""
    places = np.arange(n)
    return places[None, :] > places[:, None]


def widths(d_model: int, d_k: int | None = None, d_v: int | None = None) -> tuple[int, int]:
    """Of queries and of values; each falls back to the width of the model, also from 0."""
    return d_k or d_model, d_v or d_model


def draw(d_model: int, width: int, *, seed: int = 0) -> Array:
    """A projection: normal entries of standard deviation 1/√d_model."""
    return np.random.default_rng(seed).normal(0.0, d_model**-0.5, (d_model, width))


def layer(
    x: Array, d_k: int | None = None, d_v: int | None = None, hidden: Array | None = None
) -> tuple[Array, Array]:
    """Self-attention of x (B, n, d_model) with projections drawn anew (fixed seeds)."""
    d_model = x.shape[-1]
    key_width, value_width = widths(d_model, d_k, d_v)
    sizes = (key_width, key_width, value_width)
    q, k, v = (x @ draw(d_model, width, seed=seed) for seed, width in enumerate(sizes))
    return attention(q, k, v, hidden)


def tiled(
    q: Array, k: Array, v: Array, block: int, hidden: Array | None = None, *, guarded: bool = False
) -> Array:
    """Attention by square tiles with a running maximum; without a batch.

    As in the document, the keys are walked as far as there are *queries*. `hidden`, which the
    document does not have, sets scores to -∞. `guarded`: no maximum of -∞ is subtracted, and a
    sum of 0 divides as 1.
    """
    places = range(0, len(q), block)
    return np.concatenate([_rows(q, k, v, block, hidden, guarded, top) for top in places])


def _rows(
    q: Array, k: Array, v: Array, block: int, hidden: Array | None, guarded: bool, top: int
) -> Array:
    """One block of rows over all blocks of keys."""
    rows = q[top : top + block]
    highest, total = np.full(len(rows), -np.inf), np.zeros(len(rows))
    acc = np.zeros((len(rows), v.shape[-1]))
    for left in range(0, len(q), block):
        scores = rows @ k[left : left + block].T / np.sqrt(q.shape[-1])
        if hidden is not None:
            scores[hidden[top : top + block, left : left + block]] = -np.inf
        raised = np.maximum(highest, scores.max(axis=1))
        reference = np.where(guarded & np.isneginf(raised), 0.0, raised)
        kept, e = np.exp(highest - reference), np.exp(scores - reference[:, None])
        total = total * kept + e.sum(axis=1)
        acc = acc * kept[:, None] + e @ v[left : left + block]
        highest = raised
    total = np.where(guarded & (total == 0), 1.0, total)
    return np.asarray(acc / total[:, None])
