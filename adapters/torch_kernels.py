"""Attention in torch. torch is imported by the functions, not by this file."""

from __future__ import annotations

from typing import Any

from attnspec.adapters.kernel import kernel
from attnspec.oracle.formats import FORMATS

__all__ = ["sdpa"]

Tensor = Any


@kernel(
    name="torch-sdpa",
    framework="torch",
    dtypes=FORMATS,
    diagonal="top-left",
    accumulate="float32",
    probabilities="storage",
    exp_error=2.0**-13,
    gradients="storage",
)
def sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    causal: bool = False,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """F.scaled_dot_product_attention, with the kernel that torch chooses."""
    return _sdpa(q, k, v, scale, causal, mask, bias)


def _sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    causal: bool,
    mask: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    from torch.nn.functional import scaled_dot_product_attention

    if causal and (mask is not None or bias is not None):
        raise NotImplementedError("is_causal together with attn_mask")
    if mask is not None and bias is not None:
        bias = bias.masked_fill(mask.logical_not(), float("-inf"))
    return scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=mask if bias is None else bias,
        is_causal=causal,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
