"""An honest kernel with places to go wrong, and faults that real kernels had.

`--impl=tests/faulty_kernels.py:scale_by_d` judges one. `honest` is the control: the same code
without a fault conforms.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from attnspec.adapters import Kernel, kernel
from attnspec.adapters.numpy_kernels import naive
from attnspec.oracle.formats import FORMATS, format_of

FAULTS = (
    "honest",
    "scale_by_d",
    "no_rescale",
    "last_key_dropped",
    "causal_off_by_one",
    "causal_top_left",
    "heads_tiled",
    "softcap_after_mask",
    "finite_mask",
    "bfloat16_accumulation",
    "mean_of_values",
    "zeros",
    "nan",
    "maximum_from_zero",
    "lse_in_base_two",
    "lse_without_sink",
    "window_exclusive",
    "mask_inverted",
    "mask_starts_again",
    "causal_lost_in_long_rows",
    "heads_halved",
    "last_of_1025_keys_dropped",
    "softcap_lost_beside_two",
    "float64_output",
    "transposed_output",
    "writes_into_query",
    "raises",
    "changes_every_run",
    "strides_ignored",
    "false_hidden_nan",
    "false_masked_row",
)

GRADIENT_FAULTS = ("dq_rows_reversed", "dk_unscaled", "dv_of_one_head", "no_centring")

TILE = 16


def faulty(fault: str) -> Kernel:
    """A tiled float32 kernel with one fault."""

    @kernel(
        name=fault,
        dtypes=("float32", "float16"),
        accumulate="float32",
        tile=TILE,
        hidden_nan=fault == "false_hidden_nan",
        masked_row="mean" if fault == "false_masked_row" else "zero",
    )
    def attention(q, k, v, *, scale, causal=False, window=None, mask=None, bias=None,
                  softcap=None, sinks=None, return_lse=False):  # fmt: skip
        return _attention(fault, q, k, v, scale, causal, window, mask, bias, softcap, sinks,
                          return_lse)  # fmt: skip

    return attention


def _attention(fault, q, k, v, scale, causal, window, mask, bias, softcap, sinks, return_lse):
    if fault == "raises":
        raise ValueError("no attention today")
    if fault == "writes_into_query":
        q *= np.asarray(2, q.dtype)
        q /= np.asarray(2, q.dtype)
        q[..., 0, 0] += np.asarray(1, q.dtype)
    if fault == "strides_ignored":  # read in the order of memory
        q, k, v = (x.ravel(order="K").reshape(x.shape) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    heads = np.arange(q.shape[1]) // group
    if fault == "heads_tiled":
        heads = np.arange(q.shape[1]) % k.shape[1]
    elif fault == "heads_halved":
        heads = np.arange(q.shape[1]) // min(2, group) % k.shape[1]
    query, key, value = (x.astype(np.float32) for x in (q, k[:, heads], v[:, heads]))
    if fault == "causal_lost_in_long_rows" and key.shape[2] > 300:
        causal = False
    if fault == "softcap_lost_beside_two" and causal and bias is not None:
        softcap = None
    if fault == "mask_starts_again" and mask is not None and mask.shape[-1] > 1:
        mask = mask[..., np.arange(mask.shape[-1]) % 64]
    if fault == "scale_by_d":
        scale = 1 / q.shape[-1]
    score = _scores(fault, query, key, np.float32(scale), causal, window, mask, bias, softcap)
    out, lse = _softmax_times_values(fault, score, value, sinks)
    if fault == "mean_of_values":
        out = np.broadcast_to(value.mean(axis=2, keepdims=True), out.shape)
    elif fault == "zeros":
        out = np.zeros_like(out)
    elif fault == "nan":
        out = np.full_like(out, np.nan)
    elif fault == "changes_every_run":
        out = out * (1 + 2e-7 * np.random.default_rng().standard_normal(out.shape))
    out = FORMATS[format_of(q.dtype).name].round(out)
    if fault == "float64_output":
        out = out.astype(np.float64)
    elif fault == "transposed_output":
        out = out.swapaxes(1, 2)
    lse = lse * np.float32(np.log2(np.e)) if fault == "lse_in_base_two" else lse
    return (out, lse) if return_lse else out


def _scores(fault, query, key, scale, causal, window, mask, bias, softcap):
    score = query @ key.swapaxes(-1, -2) * scale
    rows, keys = score.shape[-2:]
    offset = 0 if fault == "causal_top_left" else keys - rows
    ahead = np.arange(rows)[:, None] + offset - np.arange(keys)
    visible = np.ones(score.shape, dtype=bool)
    if causal:
        visible &= ahead >= (1 if fault == "causal_off_by_one" else 0)
    if window is not None:
        left, right = window
        edge = 1 if fault == "window_exclusive" else 0
        visible &= (left is None) | (ahead <= (left or 0) - edge)
        visible &= (right is None) | (ahead >= -(right or 0))
    if mask is not None:
        visible &= ~mask if fault == "mask_inverted" else mask
    hidden = np.float32(-1e4 if fault == "finite_mask" else -np.inf)
    if softcap is not None and fault != "softcap_after_mask":
        score = softcap * np.tanh(score / np.float32(softcap))
    if bias is not None:
        score = score + bias.astype(np.float32)
    score = np.where(visible, score, hidden)
    if softcap is not None and fault == "softcap_after_mask":
        score = softcap * np.tanh(score / np.float32(softcap))
    return score.astype(np.float32)


def _softmax_times_values(fault, score, value, sinks):
    """Online softmax over tiles of keys, from the last tile to the first where it matters not."""
    rows = score.shape[:-1]
    total = np.zeros(rows, np.float32)
    sums = np.zeros((*rows, value.shape[-1]), np.float32)
    top = np.full(rows, 0.0 if fault == "maximum_from_zero" else -np.inf, np.float32)
    dropped = fault == "last_key_dropped" or (
        fault == "last_of_1025_keys_dropped" and score.shape[-1] % 1024 == 1
    )
    keys = score.shape[-1] - dropped
    for start in range(0, keys, TILE):
        tile = score[..., start : min(start + TILE, keys)]
        peak = np.maximum(top, tile.max(axis=-1))
        safe = np.where(np.isneginf(peak), 0, peak)
        weight = np.exp(tile - safe[..., None])
        rescale = np.exp(top - safe) if fault != "no_rescale" else np.ones_like(top)
        total = total * rescale + weight.sum(axis=-1)
        sums = sums * rescale[..., None] + weight @ value[..., start : start + tile.shape[-1], :]
        if fault == "bfloat16_accumulation":
            sums = sums.astype(ml_dtypes.bfloat16).astype(np.float32)
        top = peak
    safe = np.where(np.isneginf(top), 0, top)
    unsunk = total
    if sinks is not None:
        sink = sinks.astype(np.float32)[None, :, None]
        peak = np.maximum(safe, sink)
        factor = np.exp(safe - peak)
        total, sums, safe = total * factor + np.exp(sink - peak), sums * factor[..., None], peak
        unsunk = unsunk * factor
    with np.errstate(divide="ignore"):
        lse = np.log(unsunk if fault == "lse_without_sink" else total) + safe
    return sums / np.where(total == 0, 1, total)[..., None], lse.astype(np.float32)


def faulty_gradient(fault: str) -> Kernel:
    """The plain NumPy kernel, whose forward pass is right, with one fault in its gradients."""

    @kernel(name=fault, dtypes=("float32", "float16"), accumulate="float32")
    def attention(q, k, v, *, scale, causal=False):
        return naive(q, k, v, scale=scale, causal=causal)

    def backward(q, k, v, dout, **options):
        found = naive.backward(q, k, v, dout, **options)
        if fault == "dq_rows_reversed":
            found["dq"] = found["dq"][:, :, ::-1]
        elif fault == "dk_unscaled":
            found["dk"] = found["dk"] / np.asarray(options["scale"], q.dtype)
        elif fault == "dv_of_one_head":
            group = q.shape[1] // k.shape[1]
            found["dv"] = naive.backward(q[:, ::group], k, v, dout[:, ::group], **options)["dv"]
        elif fault == "no_centring":  # dS = P dP: as if rows of P need not sum to 1
            mean = naive(q, k, k, **options)
            delta = (dout * naive(q, k, v, **options)).sum(-1, keepdims=True)
            extra = options["scale"] * delta.astype(np.float32) * mean.astype(np.float32)
            found["dq"] = (found["dq"] + extra).astype(q.dtype)
        return found

    attention.backward = backward
    return attention


globals().update({fault: faulty(fault) for fault in FAULTS})
globals().update({fault: faulty_gradient(fault) for fault in GRADIENT_FAULTS})
