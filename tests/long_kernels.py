"""A tiled kernel, and faults of it that only show beyond `LIMIT` keys.

`--impl=tests/long_kernels.py:index_wraps` judges one at the real lengths, where an index of 16
bits holds 65,536; the tests ask the same faults with a limit of their own.
"""

from __future__ import annotations

import numpy as np

from attnspec.adapters import Kernel, kernel
from attnspec.adapters.numpy_kernels import naive
from attnspec.adapters.numpy_scores import Scores, repeated, working
from attnspec.oracle.formats import FORMATS, format_of

LIMIT = 2**16
TILE = 64

FAULTS = (
    "honest",
    "index_wraps",  # the key's index has too few bits
    "last_tile_dropped",
    "sum_in_storage",  # the row sum is kept in the input's type
    "maximum_stops",  # the running maximum of the tiles so far is kept from there on
    "rescale_stops",  # it moves on, but earlier sums stay as they were
    "causal_offset_saturates",
    "key_length_saturates",
    "mask_wraps",
    "window_is_lost",
    "dk_and_dv_stop",
    "dq_stops",
)


def faulty(fault: str, limit: int = LIMIT) -> Kernel:
    """float32 in tiles of keys, with one fault in problems of more than `limit` keys."""

    @kernel(name=fault, dtypes=("float32", "float16", "bfloat16"), accumulate="float32", tile=TILE)
    def attention(q, k, v, *, scale, causal=False, window=None, mask=None, key_lengths=None,
                  return_lse=False):  # fmt: skip
        name = fault if k.shape[2] > limit else "honest"
        if name == "causal_offset_saturates" and causal:
            causal, mask = False, np.tri(q.shape[2], k.shape[2], limit, dtype=bool)
        if name == "window_is_lost":
            window = None
        if name == "key_length_saturates" and key_lengths is not None:
            key_lengths = np.minimum(key_lengths, limit)
        if name == "mask_wraps" and mask is not None:
            mask = mask[..., np.arange(k.shape[2]) % limit]
        if name == "index_wraps":
            k, v = (x[:, :, np.arange(k.shape[2]) % limit] for x in (k, v))
        scores = Scores.of(q, k, scale=scale, causal=causal, window=window, mask=mask,
                           key_lengths=key_lengths)  # fmt: skip
        out, lse = _online(name, limit, scores, repeated(working(v), q.shape[1]), q.dtype)
        out = FORMATS[format_of(q.dtype).name].round(out)
        return (out, lse) if return_lse else out

    def backward(q, k, v, dout, **options):
        found = naive.backward(q, k, v, dout, **options)
        if k.shape[2] > limit and fault == "dk_and_dv_stop":
            found["dk"][:, :, limit:] = 0
            found["dv"][:, :, limit:] = 0
        if k.shape[2] > limit and fault == "dq_stops":
            first = {name: x[:, :, :limit] for name, x in (("k", k), ("v", v))}
            plain = {name: x for name, x in options.items() if name == "scale"}
            found["dq"] = naive.backward(q, first["k"], first["v"], dout, **plain)["dq"]
        return found

    attention.backward = backward
    return attention


def _online(fault, limit, scores, values, storage):
    """Online softmax over tiles of keys."""
    rows, keys = (*scores.q.shape[:3], 1), values.shape[2]
    top, total = np.full(rows, -np.inf, np.float32), np.zeros(rows, np.float32)
    out = np.zeros((*rows[:3], values.shape[3]), np.float32)
    stop = keys - TILE if fault == "last_tile_dropped" else keys
    for start in range(0, stop, TILE):
        tile = slice(start, min(start + TILE, keys))
        score, _ = scores.tile(slice(None), tile)
        seen = start < limit or fault != "maximum_stops"
        peak = np.maximum(top, score.max(axis=-1, keepdims=True)) if seen else top
        safe = np.where(np.isneginf(peak), 0, peak).astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            weight, fade = np.exp(score - safe), np.exp(top - safe)
            fade = np.ones_like(fade) if fault == "rescale_stops" and start >= limit else fade
            total = total * fade + weight.sum(axis=-1, keepdims=True)
            out = out * fade + weight @ values[..., tile, :]
        if fault == "sum_in_storage":
            total = total.astype(storage).astype(np.float32)
        top = peak
    with np.errstate(divide="ignore", invalid="ignore"):
        lse = (np.where(np.isneginf(top), 0, top) + np.log(total)).astype(np.float32)
        return out / np.where(total == 0, 1, total), lse[..., 0]


globals().update({fault: faulty(fault) for fault in FAULTS})
