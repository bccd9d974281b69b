"""Attention and its gradients as framework code writes them: one step after another, each stored.

The suites that compare with a run "in the same precision", or with one in a higher precision, run
code of this kind. Here it is written once, for every option of a problem; how it stores its steps
and where it applies the scale are its parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from attnspec.oracle.formats import FORMATS
from attnspec.oracle.problem import Problem

__all__ = ["Eager"]

Array = npt.NDArray[Any]
Scaling = Literal["scores", "query", "key", "both"]


@dataclass(frozen=True, kw_only=True)
class Eager:
    """A way of writing attention.

    steps: the type in which each step's result is stored; None for the type of the inputs.
        Products and sums are accumulated in float32, or in float64 for float64.
    scores: the type of the scores and of the softmax, where it differs.
    scaling: what is multiplied by the scale; `both`: q and k, each by its root.
    returned: whether results are rounded to the type of the inputs, as some references are.
    """

    steps: str | None = "float32"
    scores: str | None = None
    scaling: Scaling = "scores"
    returned: bool = False

    def __call__(self, problem: Problem, want: tuple[str, ...]) -> dict[str, Array]:
        """The outputs that are wanted, as float64 arrays of the problem's shapes.

        A row that sees no key has out 0 and lse -inf (or the sink's), and no gradient.
        """
        with np.errstate(all="ignore"):
            run = _Run(self, problem)
            found = run.forward()
            if any(name not in found for name in want):
                found |= run.backward()
        storage = FORMATS[problem.dtype_name]
        kept = {name: found[name].astype(np.float64) for name in want}
        if self.returned:
            stored = (name for name in want if name not in ("lse", "dsinks"))
            kept |= {name: storage.round(kept[name]).astype(np.float64) for name in stored}
        return kept


class _Run:
    """One problem: H is the number of query heads."""

    def __init__(self, way: Eager, problem: Problem) -> None:
        name = way.steps or problem.dtype_name
        self.real = np.dtype(np.float64 if name == "float64" else np.float32)
        self.type, self.score_type = FORMATS[name].dtype, FORMATS[way.scores or name].dtype
        self.problem, self.group = problem, problem.query_heads // problem.kv_heads
        self.q = self.stored(problem.q)
        self.k = self.stored(np.repeat(problem.k, self.group, axis=1))
        self.v = self.stored(np.repeat(problem.v, self.group, axis=1))
        root = float(np.sqrt(np.abs(problem.scale)))
        on_q, on_k, on_s = {
            "scores": (1.0, 1.0, problem.scale),
            "query": (problem.scale, 1.0, 1.0),
            "key": (1.0, problem.scale, 1.0),
            "both": (root, float(np.sign(problem.scale)) * root, 1.0),
        }[way.scaling]
        self.on_q, self.on_k, self.on_s = on_q, on_k, on_s

    def stored(self, x: Any) -> Array:
        """Rounded to the type of the steps, as a number that is computed with."""
        return np.asarray(x).astype(self.real).astype(self.type).astype(self.real)

    def score(self, x: Array) -> Array:
        """Likewise for a score."""
        return x.astype(self.score_type).astype(self.real)

    def forward(self) -> dict[str, Array]:
        """out (B, H, Nq, Dv) and lse (B, H, Nq); P is kept."""
        problem = self.problem
        self.scaled_q = self.stored(self.q * self.on_q) if self.on_q != 1 else self.q
        self.scaled_k = self.stored(self.k * self.on_k) if self.on_k != 1 else self.k
        s = self.score(self.scaled_q @ self.scaled_k.swapaxes(-1, -2))
        s = self.score(s * self.on_s) if self.on_s != 1 else s
        self.slope: Array | float = 1.0
        if problem.softcap is not None:
            bent = self.score(np.tanh(self.score(s / problem.softcap)))
            s, self.slope = self.score(problem.softcap * bent), 1 - bent * bent
        if problem.bias is not None:
            s = self.score(s + problem.bias.astype(self.real))
        if problem.alibi is not None:
            s = self.score(s - self.per_head(problem.alibi) * np.abs(self.ahead()))
        s = np.where(self.visible(), s, -np.inf)
        largest = s.max(axis=-1, keepdims=True, initial=-np.inf)
        if problem.sinks is not None:
            largest = np.maximum(largest, self.per_head(problem.sinks))
        shift = np.where(np.isneginf(largest), 0, largest)
        p = np.exp(s - shift)
        total = p.sum(axis=-1, keepdims=True)
        if problem.sinks is not None:
            total = total + np.exp(self.per_head(problem.sinks) - shift)
        self.lse = shift + np.log(total)
        self.p = self.stored(p / np.where(total == 0, 1, total))
        return {"out": self.stored(self.p @ self.v), "lse": self.lse[..., 0]}

    def backward(self) -> dict[str, Array]:
        """The gradients, in the shapes of the inputs."""
        problem = self.problem
        dout = self.stored(np.zeros_like(self.p @ self.v) if problem.dout is None else problem.dout)
        dp = self.stored(dout @ self.v.swapaxes(-1, -2))
        inner = (self.p * dp).sum(axis=-1, keepdims=True)
        if problem.dlse is not None:
            inner = inner - problem.dlse.astype(self.real)[..., None]
        ds = self.score(np.where(self.p == 0, 0, self.p * (dp - inner)))
        dproduct = self.score(ds * self.slope) if problem.softcap is not None else ds
        dproduct = self.score(dproduct * self.on_s) if self.on_s != 1 else dproduct
        dq = self.stored(dproduct @ self.scaled_k)
        dk = self.stored(dproduct.swapaxes(-1, -2) @ self.scaled_q)
        dv = self.stored(self.p.swapaxes(-1, -2) @ dout)
        found = {
            "dq": self.stored(dq * self.on_q) if self.on_q != 1 else dq,
            "dk": self.per_key_head(self.stored(dk * self.on_k) if self.on_k != 1 else dk),
            "dv": self.per_key_head(dv),
        }
        if problem.bias is not None:
            found["dbias"] = self.gathered(ds, problem.bias.shape)
        if problem.sinks is not None:
            weight = np.exp(self.per_head(problem.sinks) - self.lse)
            found["dsinks"] = -(weight * inner).sum(axis=(0, 2, 3))
        return found

    def per_head(self, x: Array) -> Array:
        return x.astype(self.real)[None, :, None, None]

    def per_key_head(self, x: Array) -> Array:
        shape = (x.shape[0], -1, self.group, *x.shape[2:])
        return self.stored(x.reshape(shape).sum(axis=2)) if self.group > 1 else x

    def gathered(self, x: Array, shape: tuple[int, ...]) -> Array:
        """Summed over the axes along which `shape` is broadcast."""
        full = (1,) * (x.ndim - len(shape)) + shape
        axes = tuple(axis for axis, n in enumerate(full) if n == 1)
        return self.stored(x.sum(axis=axes, keepdims=True)).reshape(shape)

    def visible(self) -> Array:
        """(B, H, Nq, Nk)."""
        problem = self.problem
        heads = range(problem.query_heads)
        return np.stack(
            [np.stack([problem.visible(b, h) for h in heads]) for b in range(problem.batch)]
        )

    def ahead(self) -> Array:
        """(B, 1, Nq, Nk)."""
        problem = self.problem
        return np.stack([problem.ahead(b) for b in range(problem.batch)])[:, None].astype(self.real)
