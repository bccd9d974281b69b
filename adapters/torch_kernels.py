"""Attention in torch. torch is imported by the functions, not by this file.

What is declared was measured on torch 2.13.0 for the processor, one thread, with one-hot values
(they read the weights), constant scores (they read exp and the sums) and masks of one row. The
kernels for CUDA are declared from torch's documentation and have not yet run on a GPU.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from attnspec.adapters.kernel import kernel
from attnspec.adapters.torch_scores import ahead_of, visible
from attnspec.oracle.formats import FORMATS

__all__ = [
    "cuda",
    "cuda_cudnn",
    "cuda_efficient",
    "cuda_flash",
    "cuda_math",
    "eager",
    "flex",
    "sdpa",
    "sdpa_flash",
    "sdpa_math",
]

Tensor = Any
Window = tuple[int | None, int | None]

HALF = ("float16", "bfloat16")


# -- F.scaled_dot_product_attention --------------------------------------------------------------


def _sdpa(backend: str | None = None) -> Callable[..., Tensor]:
    """SDPA, held to one of torch's kernels (a name of `SDPBackend`), or left to choose."""

    def attention(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float,
        causal: bool = False,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """F.scaled_dot_product_attention."""
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        options: dict[str, Any] = {
            "attn_mask": _attn_mask(mask, bias),
            "is_causal": causal,
            "scale": scale,
        }
        if causal and options["attn_mask"] is not None:
            # Documented as an error; the processor's flash kernel takes both all the same.
            raise NotImplementedError("is_causal together with attn_mask")
        options["enable_gqa"] = q.shape[1] != k.shape[1]
        if backend is None:
            return scaled_dot_product_attention(q, k, v, **options)
        with warnings.catch_warnings(), sdpa_kernel([SDPBackend.__members__[backend]]):
            warnings.simplefilter("ignore")  # one warning for each reason of a refusal
            try:
                return scaled_dot_product_attention(q, k, v, **options)
            except RuntimeError as error:
                if "No available kernel" in str(error) or "No viable backend" in str(error):
                    raise NotImplementedError(f"torch's {backend} kernel refuses it") from error
                raise

    return attention


def _attn_mask(mask: Tensor | None, bias: Tensor | None) -> Tensor | None:
    """SDPA has one argument for both; its kernels want four dimensions."""
    if mask is not None and bias is not None:
        bias = bias.masked_fill(mask.logical_not(), float("-inf"))
    found = mask if bias is None else bias
    return found if found is None else found[(None,) * (4 - found.ndim)]


# The flash kernel for the processor, in the half types only, by measurement: one-hot values give
# round(round(exp(s - max)) / sum), so P is rounded undivided; exp errs by 1.04e-4 = 2^-13.2 for s
# in [-3, 0]; dv errs by up to 2.1 u, where one rounding of a float32 sum gives 1. In float32 the
# sum of 4,096 exps is right to 1e-6, and roundings to the storage type cost nothing.
FLASH: dict[str, Any] = {
    "accumulate": "float32",
    "probabilities": "storage",
    "gradients": "storage",
    "by_dtype": {dtype: {"exp_error": 2.0**-13} for dtype in HALF},
}

# torch chooses its flash kernel, except where the sizes of values and keys differ or the bias
# needs a gradient: then math. Both put the diagonal top-left and give 0 for a hidden row.
sdpa = kernel(name="torch-sdpa", framework="torch", dtypes=FORMATS, diagonal="top-left", **FLASH)(
    _sdpa()
)

# measured: one-hot values give round(p) in the half types, so nothing is rounded on the way.
sdpa_math = kernel(
    name="torch-sdpa-math",
    framework="torch",
    dtypes=FORMATS,
    accumulate="float32",
    diagonal="top-left",
)(_sdpa("MATH"))

sdpa_flash = kernel(
    name="torch-sdpa-flash",
    framework="torch",
    dtypes=FORMATS,
    diagonal="top-left",
    memory="linear",
    **FLASH,
)(_sdpa("FLASH_ATTENTION"))


# -- CUDA: not yet run on a GPU ------------------------------------------------------------------

# deterministic=False: the backward passes of the fused kernels add dq with atomics.
cuda = kernel(
    name="torch-cuda",
    framework="torch",
    device="cuda",
    dtypes=HALF,
    accumulate="float32",
    probabilities="storage",
    merged=True,  # few rows against many keys are split over the keys
    diagonal="top-left",
    deterministic=False,
)(_sdpa())

cuda_math = kernel(
    name="torch-cuda-math",
    framework="torch",
    device="cuda",
    dtypes=FORMATS,
    accumulate="float32",
    diagonal="top-left",
)(_sdpa("MATH"))

cuda_flash = kernel(
    name="torch-cuda-flash",
    framework="torch",
    device="cuda",
    dtypes=HALF,
    accumulate="float32",
    probabilities="storage",
    merged=True,  # few rows against many keys are split over the keys
    diagonal="top-left",
    deterministic=False,
)(_sdpa("FLASH_ATTENTION"))

cuda_efficient = kernel(
    name="torch-cuda-efficient",
    framework="torch",
    device="cuda",
    dtypes=(*HALF, "float32"),
    accumulate="float32",
    probabilities="storage",
    diagonal="top-left",
    deterministic=False,
)(_sdpa("EFFICIENT_ATTENTION"))

cuda_cudnn = kernel(
    name="torch-cuda-cudnn",
    framework="torch",
    device="cuda",
    dtypes=HALF,
    accumulate="float32",
    probabilities="storage",
    diagonal="top-left",
    deterministic=False,
)(_sdpa("CUDNN_ATTENTION"))


# -- the formula as models write it --------------------------------------------------------------


@kernel(
    name="torch-eager",
    framework="torch",
    dtypes=FORMATS,
    accumulate="float32",
    # measured: a half matmul is the exact product rounded once (0.998 u at 1,024 terms), so the
    # scores are rounded as the product and again as they are scaled.
    scores="storage",
    score_roundings=2,
    probabilities="storage",
    normalised=True,
)
def eager(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    causal: bool = False,
    window: Window | None = None,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    alibi: Tensor | None = None,
    key_lengths: Tensor | None = None,
    query_lengths: Tensor | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Matmul, softmax in float32, matmul: what transformers calls eager."""
    import torch

    wide = torch.promote_types(q.dtype, torch.float32)
    group = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(group, dim=1).transpose(-1, -2) * scale
    if softcap is not None:
        scores = (softcap * torch.tanh(scores.to(wide) / softcap)).to(q.dtype)
    if bias is not None:
        scores = scores + bias
    ahead = ahead_of(q, k, key_lengths, query_lengths)
    if alibi is not None:
        scores = (scores.to(wide) - alibi.to(wide)[:, None, None] * ahead.abs()).to(q.dtype)
    seen = visible(q, k, ahead, causal, window, mask, bias, key_lengths, query_lengths)
    logits = scores.to(wide).masked_fill(~seen, float("-inf"))
    if sinks is not None:
        logits = torch.cat([logits, sinks.to(wide)[:, None, None].expand(*q.shape[:3], 1)], dim=-1)
    # softmax makes NaN of a row that sees nothing; backwards, the mask above stops it.
    empty = ~seen.any(dim=-1, keepdim=True)
    weights = torch.softmax(logits, dim=-1)[..., : k.shape[2]].masked_fill(empty, 0)
    out = weights.to(q.dtype) @ v.repeat_interleave(group, dim=1)
    return (out, torch.logsumexp(logits, dim=-1)) if return_lse else out


# -- flex_attention ------------------------------------------------------------------------------


@kernel(
    name="torch-flex",
    framework="torch",
    dtypes=FORMATS,
    accumulate="float32",
    # measured and read: uncompiled, the products and softmax are in float32 and the divided
    # weights are rounded. It has no backward on the processor and says so.
    probabilities="storage",
    normalised=True,
)
def flex(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    causal: bool = False,
    window: Window | None = None,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    softcap: float | None = None,
    alibi: Tensor | None = None,
    key_lengths: Tensor | None = None,
    query_lengths: Tensor | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """flex_attention, uncompiled: what hides is a mask_mod, what adds is a score_mod."""
    import torch
    from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

    if 0 in (q.shape[2], k.shape[2]):
        raise NotImplementedError("flex_attention takes no empty queries or keys")
    ahead = ahead_of(q, k, key_lengths, query_lengths)
    seen = visible(q, k, ahead, causal, window, mask, bias, key_lengths, query_lengths)
    full = (*q.shape[:3], k.shape[2])
    seen, ahead = seen.expand(full), ahead.expand(full)
    terms = None if bias is None else bias.expand(full)

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        if terms is not None:
            score = score + terms[b, h, i, j]
        return score if alibi is None else score - alibi[h] * ahead[b, h, i, j].abs()

    def mask_mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return seen[b, h, i, j]

    batch, heads, rows, keys = full
    block_mask = create_block_mask(mask_mod, batch, heads, rows, keys, device=q.device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is not compiled: so it is meant
        out, aux = flex_attention(
            q,
            k,
            v,
            score_mod=score_mod,
            block_mask=block_mask,
            scale=scale,
            enable_gqa=q.shape[1] != k.shape[1],
            return_aux=AuxRequest(lse=True),
        )
    return (out, aux.lse) if return_lse else out
