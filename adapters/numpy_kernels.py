"""Attention in NumPy: the plain formula, and the tiled online softmax of FlashAttention.

Both compute in float32, or in float64 for float64 inputs, and round each result once. What a row
does not see, NaN and infinities included, never reaches its result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from attnspec.adapters.kernel import kernel
from attnspec.adapters.numpy_backward import Backward, tiles
from attnspec.adapters.numpy_scores import (
    Scores,
    product,
    repeated,
    stored,
    working,
)
from attnspec.oracle.formats import FORMATS

__all__ = ["flash", "naive"]

Array = npt.NDArray[Any]
Window = tuple[int | None, int | None]
Softmax = Callable[[Scores, Array], tuple[Array, Array, Array]]

QUERY_TILE, KEY_TILE = 16, 32


@kernel(name="numpy", dtypes=FORMATS, accumulate="float32", hidden_nan=True)
def naive(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool = False,
    window: Window | None = None,
    mask: Array | None = None,
    bias: Array | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    alibi: Array | None = None,
    key_lengths: Array | None = None,
    query_lengths: Array | None = None,
    return_lse: bool = False,
) -> Array | tuple[Array, Array]:
    """softmax(scale · q kᵀ, …) v, with the whole score matrix in memory."""
    scores = Scores.of(
        q,
        k,
        scale=scale,
        causal=causal,
        window=window,
        mask=mask,
        bias=bias,
        softcap=softcap,
        sinks=sinks,
        alibi=alibi,
        key_lengths=key_lengths,
        query_lengths=query_lengths,
    )
    return _answer(q, v, scores, _whole_softmax, return_lse=return_lse)


@kernel(
    name="numpy-flash",
    dtypes=FORMATS,
    accumulate="float32",
    hidden_nan=True,
    memory="linear",
    tile=KEY_TILE,
)
def flash(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool = False,
    window: Window | None = None,
    mask: Array | None = None,
    bias: Array | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    alibi: Array | None = None,
    key_lengths: Array | None = None,
    query_lengths: Array | None = None,
    return_lse: bool = False,
) -> Array | tuple[Array, Array]:
    """The same in tiles of keys, with a running maximum and sum (Dao et al., 2022)."""
    scores = Scores.of(
        q,
        k,
        scale=scale,
        causal=causal,
        window=window,
        mask=mask,
        bias=bias,
        softcap=softcap,
        sinks=sinks,
        alibi=alibi,
        key_lengths=key_lengths,
        query_lengths=query_lengths,
    )
    return _answer(q, v, scores, _online_softmax, return_lse=return_lse)


def _answer(
    q: Array, v: Array, scores: Scores, softmax: Softmax, *, return_lse: bool
) -> Array | tuple[Array, Array]:
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        out, largest, total = softmax(scores, repeated(working(v), q.shape[1]))
        lse = largest + np.log(total)
    result = stored(out, q.dtype)
    return (result, lse[..., 0]) if return_lse else result


# -- forward -------------------------------------------------------------------------------------


def _whole_softmax(scores: Scores, v: Array) -> tuple[Array, Array, Array]:
    """out (B, H, Nq, Dv), and each row's largest score and its sum of exp(score - largest).

    A row that sees nothing has largest 0 and sum 0, hence lse = -inf.
    """
    rows = keys = slice(None)
    s, _ = scores.tile(rows, keys)
    largest = s.max(axis=-1, keepdims=True, initial=-np.inf)
    if scores.sinks is not None:
        largest = np.maximum(largest, scores.sinks)
    largest = _shift(largest)
    p = np.exp(s - largest)
    total = p.sum(axis=-1, keepdims=True)
    if scores.sinks is not None:
        total = total + np.exp(scores.sinks - largest)
    return product(p, v, scores.visible(rows, keys)) / _divisor(total), largest, total


def _online_softmax(scores: Scores, v: Array) -> tuple[Array, Array, Array]:
    """As `_whole_softmax`, tile by tile."""
    batch, heads, queries, _ = scores.q.shape
    out = np.zeros((batch, heads, queries, v.shape[-1]), v.dtype)
    largest = np.zeros((batch, heads, queries, 1), v.dtype)
    total = np.zeros_like(largest)
    for rows in tiles(queries, QUERY_TILE):
        out[..., rows, :], largest[..., rows, :], total[..., rows, :] = _rows(scores, v, rows)
    return out, largest, total


def _rows(scores: Scores, v: Array, rows: slice) -> tuple[Array, Array, Array]:
    """One tile of rows against every tile of keys."""
    shape = (*scores.q[..., rows, :].shape[:3], 1)
    out = np.zeros((*shape[:3], v.shape[-1]), v.dtype)
    if scores.sinks is None:
        running, total = np.full(shape, -np.inf, v.dtype), np.zeros(shape, v.dtype)
    else:  # the sink is a key that comes first and has no value
        running, total = np.broadcast_to(scores.sinks, shape), np.ones(shape, v.dtype)
    for keys in tiles(v.shape[2], KEY_TILE):
        s, _ = scores.tile(rows, keys)
        before, running = running, np.maximum(running, s.max(axis=-1, keepdims=True))
        largest = _shift(running)
        p, fade = np.exp(s - largest), np.exp(before - largest)
        total = total * fade + p.sum(axis=-1, keepdims=True)
        out = out * fade + product(p, v[..., keys, :], scores.visible(rows, keys))
    return out / _divisor(total), _shift(running), total


def _shift(largest: Array) -> Array:
    """What to subtract before exp: -inf - (-inf) is NaN, so a row that sees nothing uses 0."""
    return np.where(np.isneginf(largest), 0, largest).astype(largest.dtype)


def _divisor(total: Array) -> Array:
    """The sum, or 1 for a row that sees nothing: its output is 0, not 0/0."""
    return np.where(total == 0, 1, total).astype(total.dtype)


# -- backward ------------------------------------------------------------------------------------


def _naive_backward(
    q: Array, k: Array, v: Array, dout: Array, *, dlse: Array | None = None, **options: Any
) -> dict[str, Array]:
    """P from the softmax itself."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        scores, values = Scores.of(q, k, **options), repeated(working(v), q.shape[1])
        out, largest, total = _whole_softmax(scores, values)
        inner = _inner(working(dout), out, dlse)
        given = {"q": q, "k": k, "v": v, "bias": options.get("bias"), "sinks": options.get("sinks")}
        backward = Backward(scores, values, working(dout), inner, largest, _divisor(total))
        return backward.gradients(given, query_tile=len(q[0, 0]) or 1, key_tile=len(k[0, 0]) or 1)


def _flash_backward(
    q: Array, k: Array, v: Array, dout: Array, *, dlse: Array | None = None, **options: Any
) -> dict[str, Array]:
    """P recomputed from lse in each tile, as FlashAttention does."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        scores, values = Scores.of(q, k, **options), repeated(working(v), q.shape[1])
        out, largest, total = _online_softmax(scores, values)
        lse = largest + np.log(total)
        inner = _inner(working(dout), out, dlse)
        given = {"q": q, "k": k, "v": v, "bias": options.get("bias"), "sinks": options.get("sinks")}
        backward = Backward(scores, values, working(dout), inner, _shift(lse), np.ones_like(total))
        return backward.gradients(given, query_tile=QUERY_TILE, key_tile=KEY_TILE)


def _inner(dout: Array, out: Array, dlse: Array | None) -> Array:
    """<dout, out> - dlse of each row: (B, H, Nq, 1)."""
    inner: Array = (dout * out).sum(axis=-1, keepdims=True)
    return inner if dlse is None else inner - dlse.astype(dout.dtype)[..., None]


naive.backward = _naive_backward
flash.backward = _flash_backward
