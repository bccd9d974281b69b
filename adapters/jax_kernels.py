"""Attention in JAX. JAX is imported by the functions, not by this file."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from attnspec.adapters.kernel import kernel

__all__ = ["attention"]

Array = Any
Window = tuple[int | None, int | None]


@kernel(
    name="jax",
    framework="jax",
    # Not float64: its softmax is in float32 whatever the inputs are.
    # measured: errors of 2.5e-7 with x64 on (JAX 0.10.2, 5 x 7 scores).
    dtypes=("float16", "bfloat16", "float32"),
    accumulate="float32",
    # measured: the sum of the weights is off by what rounding each to the half type gives.
    probabilities="storage",
    normalised=True,
    # measured: the scores are not rounded; in the backward pass dout vᵀ is (jax.make_jaxpr shows
    # it as bfloat16, and dq is then right to the bit).
    scores="storage",
    score_roundings=0,
    # measured: causal and the window start at key 0 of row 0, whatever the lengths are.
    diagonal="top-left",
    # measured: mask, window and key lengths give the mean of all values, padding included.
    # query_seq_lengths give 0 instead and are not claimed: one kernel, one answer.
    masked_row="mean",
)
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool = False,
    window: Window | None = None,
    mask: Array | None = None,
    bias: Array | None = None,
    key_lengths: Array | None = None,
) -> Array:
    """jax.nn.dot_product_attention, which has (B, N, H, D) arrays."""
    if v.shape[-1] != k.shape[-1]:
        raise NotImplementedError("values of another size than the keys")
    sizes = (*q.shape[2:], k.shape[2])
    if q.dtype == "bfloat16" and q.shape[0] * q.shape[1] == 1 and 1 in sizes:
        # measured: compiled for the processor, such a product of one head is "not supported".
        raise NotImplementedError("one head with one query, key or channel in bfloat16")
    sides: Window | None = None
    if window is not None:
        far = q.shape[2] + k.shape[2]  # an open side: JAX wants a number
        left, right = window
        sides = (far if left is None else left, far if right is None else right)
    # measured: compiled for the processor, its float16 product "is not supported"; its own
    # fallback from that works op by op only.
    attend = _attention if q.dtype == "float16" else _compiled()
    return attend(q, k, v, scale, mask, bias, key_lengths, causal=causal, sides=sides)


@cache
def _compiled() -> Callable[..., Array]:
    """Compiled as a whole: op by op, every new shape costs JAX seconds."""
    import jax

    compiled: Callable[..., Array] = jax.jit(_attention, static_argnames=("causal", "sides"))
    return compiled


def _attention(
    q: Array,
    k: Array,
    v: Array,
    scale: Array,
    mask: Array | None,
    bias: Array | None,
    key_lengths: Array | None,
    *,
    causal: bool,
    sides: Any,
) -> Array:
    from jax.nn import dot_product_attention
    from jax.numpy import isneginf, swapaxes

    if bias is not None:
        # measured: a row of -inf is NaN as a bias, and the mean as a mask.
        open_slots = ~isneginf(bias)
        mask = open_slots if mask is None else mask & open_slots
    out = dot_product_attention(
        swapaxes(q, 1, 2),
        swapaxes(k, 1, 2),
        swapaxes(v, 1, 2),
        bias=bias,
        mask=mask,
        scale=scale,
        is_causal=causal,
        key_value_seq_lengths=key_lengths,
        local_window_size=sides,
    )
    return swapaxes(out, 1, 2)
