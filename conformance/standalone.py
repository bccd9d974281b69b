"""Pieces of a script that calls a kernel without the suite: where it lives, arrays, helpers."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attnspec.adapters import Kernel
from attnspec.adapters.catalogue import CATALOGUES
from attnspec.adapters.load import bound_name

__all__ = ["CHECK", "LAID_OUT", "NUMBERS", "imports", "kernel_lines", "literal"]

Array = npt.NDArray[Any]

BACKENDS = {
    "math": "MATH",
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
}
SDPA = re.compile(r"torch-(?:sdpa|cuda)(?:-(math|flash|efficient|cudnn))?")


def imports(kernel: Kernel, dtype: str) -> list[str]:
    """What the script imports."""
    lines = ["import sys", "", "import numpy as np"]
    if kernel.framework == "torch":
        lines.append("import torch")
    elif kernel.framework == "jax":
        lines += ["import jax", "import jax.numpy as jnp"]
        if dtype == "float64":
            lines += ["", 'jax.config.update("jax_enable_x64", True)']
    elif dtype == "bfloat16":
        lines.insert(2, "import ml_dtypes")
    return lines


# -- the kernel --------------------------------------------------------------------------------


def kernel_lines(spec: str, kernel: Kernel) -> list[str]:
    """How the script comes by the function `attention`."""
    if spec.partition(":")[0] in CATALOGUES:
        return _own(spec)
    if found := SDPA.fullmatch(spec):
        context = f"sdpa_kernel([SDPBackend.{BACKENDS[found[1]]}])" if found[1] else ""
        return _sdpa(context).splitlines()
    if spec == "jax":
        return JAX.splitlines()
    if file := re.fullmatch(r"(.+\.py)(?::(\w+))?", spec):
        path = Path(file[1]).resolve()
        return _FILE.format(path=str(path), name=file[2] or bound_name(path)).splitlines()
    if module := re.fullmatch(r"([\w.]+):(\w+)", spec):
        return [f"sys.path.append({str(Path.cwd())!r})",
                f"from {module[1]} import {module[2]} as attention"]  # fmt: skip
    return _own(spec)


def _own(spec: str) -> list[str]:
    """A kernel that comes with the suite, or an entry point."""
    found = "from attnspec.adapters import load  # it knows the kernel by its name"
    return [found, "", f'attention = load("{spec}")']


_FILE = """\
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

PATH = Path({path!r})
sys.path.append(str(PATH.parent))
found = spec_from_file_location(PATH.stem, PATH)
module = module_from_spec(found)
sys.modules[PATH.stem] = module
found.loader.exec_module(module)
attention = module.{name}
"""


def _sdpa(context: str) -> str:
    call = """\
return scaled_dot_product_attention(
    q, k, v, attn_mask=attn_mask, is_causal=causal, scale=scale,
    enable_gqa=q.shape[1] != k.shape[1],
)
"""
    used = "from torch.nn.attention import SDPBackend, sdpa_kernel\n"
    body = f"with {context}:\n{textwrap.indent(call, '    ')}" if context else call
    return (
        (used if context else "")
        + """\
from torch.nn.functional import scaled_dot_product_attention


def attention(q, k, v, *, scale, causal=False, mask=None, bias=None):
    if mask is not None and bias is not None:
        bias = bias.masked_fill(~mask, float("-inf"))
    attn_mask = mask if bias is None else bias
    if attn_mask is not None:
        attn_mask = attn_mask[(None,) * (4 - attn_mask.ndim)]
"""
        + textwrap.indent(body, "    ")
    )


JAX = """\
@jax.jit
def attention(q, k, v, *, scale, causal=False, window=None, mask=None, bias=None,
              key_lengths=None):
    if bias is not None:
        mask = ~jnp.isneginf(bias) if mask is None else mask & ~jnp.isneginf(bias)
    if window is not None:
        far = q.shape[2] + k.shape[2]
        window = tuple(far if side is None else side for side in window)
    out = jax.nn.dot_product_attention(
        *(jnp.swapaxes(x, 1, 2) for x in (q, k, v)), bias=bias, mask=mask, scale=scale,
        is_causal=causal, key_value_seq_lengths=key_lengths, local_window_size=window,
    )
    return jnp.swapaxes(out, 1, 2)
""".replace("@jax.jit\n", '@partial(jax.jit, static_argnames=("causal", "window"))\n')
JAX = "from functools import partial\n\n\n" + JAX


# -- arrays ------------------------------------------------------------------------------------


def literal(array: Array) -> str:
    """Nested lists that Python reads back to the same numbers in the array's type."""
    if array.ndim == 0:
        return _number(array[()], array.dtype)
    return "[" + ", ".join(literal(part) for part in array) + "]"


def _number(x: Any, dtype: np.dtype[Any]) -> str:
    if dtype.kind in "biu":
        return str(x.item())
    value = float(x)
    if not np.isfinite(value):
        return {"nan": "np.nan", "inf": "np.inf", "-inf": "-np.inf"}[str(value)]
    if value == int(value) and abs(value) < 1e6 and not (value == 0 and np.signbit(value)):
        return str(int(value))
    short = str(x)
    return short if dtype.kind == "f" and _reads_back(short, x) else repr(value)


def _reads_back(text: str, x: Any) -> bool:
    return bool(np.array(float(text)).astype(x.dtype) == x)


# -- helpers -----------------------------------------------------------------------------------

NUMBERS = {
    "numpy": "    return np.array(x, np.float64)",
    "torch": "    return x.detach().cpu().double().numpy().copy()",
    "jax": "    return np.array(x, np.float64)",
}

CHECK = '''\
def wrong(name, got, expected, allowed):
    """Print and count the numbers that lie further from the expected ones than is allowed."""
    with np.errstate(all="ignore"):
        right = (got == expected) | (np.abs(got - expected) <= allowed)
    right |= (np.isnan(got) & np.isnan(expected)) | np.isinf(allowed)
    for place in np.argwhere(~right)[:8].tolist():
        at = tuple(place)
        print(f"{name}{place}: got {got[at]:.9g}, expected {expected[at]:.9g}, "
              f"allowed +-{allowed[at]:.3g}")
    return int((~right).sum())
'''

_LAYOUT = '''\
memory = []


def laid_out(x, strides, shift):
    """x with these strides, in elements; NaN before, between and after its numbers."""
    steps = [s * (n - 1) for s, n in zip(strides, x.shape)]
    first = 64 + shift - sum(min(step, 0) for step in steps)
    count = first + sum(max(step, 0) for step in steps) + 65
'''

LAID_OUT = {
    "numpy": _LAYOUT
    + """\
    buffer = np.full(count * x.itemsize, 255, np.uint8).view(x.dtype)
    if x.dtype == bool:
        buffer[:] = np.arange(count) % 2 == 0
    memory.append(buffer)
    strides = [step * x.itemsize for step in strides]
    view = np.lib.stride_tricks.as_strided(buffer[first:], x.shape, strides)
    view[...] = x
    return view
""",
    "torch": _LAYOUT
    + """\
    buffer = torch.full((count,), 1 if x.dtype == torch.int32 else torch.nan, device=x.device)
    buffer = buffer.to(x.dtype)
    memory.append(buffer)
    view = buffer.as_strided(x.shape, strides, first)
    view.copy_(x)
    return view
""",
}
