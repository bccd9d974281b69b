"""Simulated attention kernels for the study of the tolerance: honest ones, and one defect each.

Arithmetic is NumPy float32; a coarser format is reached by `Format.round`, never by arithmetic of
ml_dtypes. Each function takes one `Head` and returns what the kernel computes before the output's
last rounding, unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attnspec.oracle.formats import FORMATS, Format
from attnspec.oracle.problem import Head

__all__ = ["BACKWARD_DEFECTS", "FORWARD_DEFECTS", "Kernel", "backward", "sequential", "tiled"]

Float32 = npt.NDArray[np.float32]
Change = Callable[[Float32], Float32]


def rounded(name: str) -> Change:
    """Rounding of float32 to the named format and back."""
    return lambda x: FORMATS[name].round(x).astype(np.float32)


def significant(digits: int) -> Change:
    """Rounding to so many significant binary digits (4: float8 e4m3's; 11: tfloat32's)."""

    def change(x: Float32) -> Float32:
        mantissa, exponent = np.frexp(x)
        return np.ldexp(np.rint(np.ldexp(mantissa, digits)), exponent - digits)

    return change


def truncated(digits: int) -> Change:
    """Rounding towards zero to so many significant binary digits."""

    def change(x: Float32) -> Float32:
        mantissa, exponent = np.frexp(x)
        return np.ldexp(np.trunc(np.ldexp(mantissa, digits)), exponent - digits)

    return change


def same(x: Float32) -> Float32:
    """No change."""
    return x


def wavy_exp(error: float) -> Change:
    """An exp that errs by up to `error`, with both signs."""
    return lambda x: np.exp(x) * (1 + np.float32(error) * np.sin(37 * x))


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """An online-softmax kernel, and what it does to each intermediate."""

    tile: int = 64
    factor: float = 1.0
    operands: Change = same
    partial: Change | None = None  # of partial scores, every 16 products
    products: Change = same  # scores before scaling
    scores: Change = same
    exp: Change = np.exp
    weights: Change = same
    total: Change = same  # the running row sum, each tile
    output: Change = same  # the running output, each tile
    rescale: Change = same
    rescale_total: bool = True
    rescale_output: tuple[int, ...] | None = None  # tiles that are not rescaled; () is all
    dropped: int = 0  # keys at the end
    doubled: bool = False  # the first key
    last: Change = same  # before the output's rounding
    # backward
    lse: Change = same
    delta: Change = same
    delta_factor: float = 1.0
    dp: Change = same
    ds: Change = same
    gradients: Change = same  # the running dq, each tile of keys; dk and dv, each tile of queries
    dk_factor: float = 1.0


def scores(head: Head, kernel: Kernel) -> Float32:
    """Scaled scores of the whole head, -inf where hidden."""
    f32 = np.float32
    query, key = (kernel.operands(x.astype(f32)) for x in (head.query, head.key))
    if kernel.partial is None:
        s = query @ key.T
    else:
        s = np.zeros((query.shape[0], key.shape[0]), f32)
        for c in range(0, query.shape[1], 16):
            s = kernel.partial(s + query[:, c : c + 16] @ key[:, c : c + 16].T)
    s = kernel.scores(kernel.products(s) * f32(head.scale * kernel.factor))
    return np.where(head.visible, s, f32(-np.inf))


def tiled(head: Head, kernel: Kernel) -> dict[str, Float32]:
    """Flash attention's forward pass."""
    s_all = scores(head, kernel)
    value = kernel.operands(head.value.astype(np.float32))
    rows, end = s_all.shape[0], s_all.shape[1] - kernel.dropped
    top = np.full((rows, 1), -np.inf, np.float32)
    total, out = np.zeros((rows, 1), np.float32), np.zeros((rows, value.shape[1]), np.float32)
    for index, start in enumerate(range(0, end, kernel.tile)):
        stop = min(end, start + kernel.tile)
        s = s_all[:, start:stop]
        new = np.maximum(top, s.max(1, keepdims=True))
        anchor = np.where(np.isneginf(new), np.float32(0), new)
        p = kernel.exp(s - anchor)
        alpha = kernel.rescale(np.exp(top - anchor))
        skipped = kernel.rescale_output
        keep = skipped is not None and (not skipped or index in skipped)
        total = kernel.total(
            total * (alpha if kernel.rescale_total else 1) + p.sum(1, keepdims=True)
        )
        out = kernel.output(out * (1 if keep else alpha) + kernel.weights(p) @ value[start:stop])
        if kernel.doubled and start == 0:
            total, out = total + p[:, :1], out + kernel.weights(p)[:, :1] * value[:1]
        top = new
    some = total > 0
    out = np.where(some, out / np.where(some, total, 1), np.float32(0))
    with np.errstate(divide="ignore"):
        return {"out": kernel.last(out), "lse": (top + np.log(total))[:, 0]}


def whole(head: Head, kernel: Kernel, *, normalised: bool) -> dict[str, Float32]:
    """Textbook softmax over the whole row; P rounded after the division if `normalised`."""
    s = scores(head, kernel)
    top = s.max(1, keepdims=True)
    p = kernel.exp(s - top)
    total = p.sum(1, keepdims=True)
    value = head.value.astype(np.float32)
    out = kernel.weights(p / total) @ value if normalised else (kernel.weights(p) @ value) / total
    return {"out": out, "lse": (top + np.log(total))[:, 0]}


def sequential(head: Head, round_to: Change = same) -> dict[str, Float32]:
    """One product and one key after the other; every operation rounded by `round_to`."""
    f32 = np.float32
    query, key, value = (x.astype(f32) for x in (head.query, head.key, head.value))
    s = np.zeros((query.shape[0], key.shape[0]), f32)
    for c in range(query.shape[1]):
        s = round_to(s + round_to(query[:, c : c + 1] * key[:, c]))
    s = np.where(head.visible, round_to(s * round_to(f32(head.scale))), f32(-np.inf))
    top = s.max(1, keepdims=True)
    p = round_to(np.exp(round_to(s - top)))
    total, out = np.zeros((len(s), 1), f32), np.zeros((len(s), value.shape[1]), f32)
    for j in range(key.shape[0]):
        total = round_to(total + p[:, j : j + 1])
        out = round_to(out + round_to(p[:, j : j + 1] * value[j]))
    return {"out": round_to(out / total), "lse": round_to(top + round_to(np.log(total)))[:, 0]}


def backward(head: Head, kernel: Kernel, storage: Format) -> dict[str, Float32]:
    """Flash attention's backward pass, from its own forward pass's rounded output."""
    f32 = np.float32
    answer = tiled(head, kernel)
    if head.dout is None:
        return answer
    query, key, value, dout = (x.astype(f32) for x in (head.query, head.key, head.value, head.dout))
    lse = kernel.lse(answer["lse"])[:, None]
    p = kernel.exp(scores(head, kernel) - lse)
    out = storage.round(answer["out"]).astype(f32)
    delta = kernel.delta(f32(kernel.delta_factor) * (dout * out).sum(1, keepdims=True))
    ds = kernel.ds(p * (kernel.dp(dout @ value.T) - delta))
    p, scale, step = kernel.weights(p), f32(head.scale), kernel.tile
    dq = np.zeros_like(query)
    dk, dv = np.zeros_like(key), np.zeros_like(value)
    for j in range(0, key.shape[0], step):
        dq = kernel.gradients(dq + ds[:, j : j + step] @ key[j : j + step] * scale)
    for i in range(0, query.shape[0], step):
        part = slice(i, i + step)
        dk = kernel.gradients(dk + ds[part].T @ query[part] * scale)
        dv = kernel.gradients(dv + p[part].T @ dout[part])
    return answer | {"dq": dq, "dk": f32(kernel.dk_factor) * dk, "dv": dv}


def forward_defects(storage: str) -> dict[str, Kernel]:
    """One defect each; P is rounded to storage besides, as the honest kernel's is."""
    half = "float16" if storage == "float16" else "bfloat16"
    base = {"weights": rounded(storage)}
    digits = FORMATS[storage].digits
    found = {
        "scale 1 % off": Kernel(factor=1.01, **base),
        "scale 0.1 % off": Kernel(factor=1.001, **base),
        "last key dropped": Kernel(dropped=1, **base),
        "first key counted twice": Kernel(doubled=True, **base),
        "QK accumulated in bfloat16": Kernel(partial=rounded("bfloat16"), **base),
        "S rounded to half": Kernel(scores=rounded(half), **base),
        "exp wrong by 2^-8": Kernel(exp=wavy_exp(2.0**-8), **base),
        "exp wrong by 2^-11": Kernel(exp=wavy_exp(2.0**-11), **base),
        "P in float8 e4m3": Kernel(weights=significant(4)),
        "l accumulated in bfloat16": Kernel(total=rounded("bfloat16"), **base),
        "l not rescaled": Kernel(rescale_total=False, **base),
        "O not rescaled": Kernel(rescale_output=(), **base),
        "O not rescaled, tile 2 only": Kernel(rescale_output=(1,), **base),
        "rescale factor in bfloat16": Kernel(rescale=rounded("bfloat16"), **base),
        "O in bfloat16 per tile": Kernel(output=rounded("bfloat16"), **base),
    }
    if storage != "bfloat16":
        found["P in bfloat16"] = Kernel(weights=rounded("bfloat16"))
    if storage == "float32":
        found["tfloat32 products"] = Kernel(operands=significant(11))
    else:
        found["output truncated"] = Kernel(last=truncated(digits), **base)
    return found


def backward_defects(storage: str) -> dict[str, Kernel]:
    """One defect each in the backward pass."""
    half = "float16" if storage == "float16" else "bfloat16"
    base = {"weights": rounded(storage), "ds": rounded(storage)}
    found = {
        "lse in half": Kernel(lse=rounded(half), **base),
        "D in half": Kernel(delta=rounded(half), **base),
        "D missing": Kernel(delta_factor=0.0, **base),
        "dP in half": Kernel(dp=rounded(half), **base),
        "dS in float8 e4m3": Kernel(weights=rounded(storage), ds=significant(4)),
        "gradients accumulated in half": Kernel(gradients=rounded(half), **base),
        "dK 1 % off": Kernel(dk_factor=1.01, **base),
    }
    if storage == "float32":
        found["dS in bfloat16"] = Kernel(ds=rounded("bfloat16"))
    return found


FORWARD_DEFECTS = {name: forward_defects(name) for name in ("float32", "bfloat16", "float16")}
BACKWARD_DEFECTS = {name: backward_defects(name) for name in FORWARD_DEFECTS}
