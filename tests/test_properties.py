"""The properties judged: an honest kernel keeps every one, and each one catches its fault."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from attnspec.oracle.formats import FORMATS, format_of
from attnspec.oracle.problem import Problem
from attnspec.spec.claim import Claim, all_claims

Array = npt.NDArray[Any]
Outputs = Mapping[str, Array]
Kernel = Callable[[Problem, Sequence[str]], Outputs]

CLAIMS = {claim.id: claim for claim in all_claims()}
DTYPES = ("float64", "float32", "float16", "bfloat16")


# -- an honest kernel ------------------------------------------------------------------------------


def working(problem: Problem) -> type:
    return np.float64 if problem.dtype_name == "float64" else np.float32


def honest(problem: Problem, want: Sequence[str] = ("out",)) -> dict[str, Array]:
    """The plain formula in float32 (float64 for float64), each result rounded once."""
    return rounded(problem, evaluate(problem, working(problem), want))


def rounded(problem: Problem, outputs: Outputs) -> dict[str, Array]:
    form = format_of(problem.q.dtype)
    return {
        name: x if name == "lse" else form.round(x.astype(np.float64))
        for name, x in outputs.items()
    }


def evaluate(problem: Problem, dtype: type, want: Sequence[str]) -> dict[str, Array]:
    found = {name: np.zeros(problem.shape_of(name), dtype) for name in (*want, "out", "lse")}
    for head in problem.heads():
        at, kv = (head.batch, head.index), (head.batch, head.kv_index)
        q, k, v = (x.astype(dtype) for x in (head.query, head.key, head.value))
        s, slope = (q @ k.T) * dtype(head.scale), np.ones((), dtype)
        if head.softcap is not None:
            t = np.tanh(s / dtype(head.softcap))
            s, slope = t * dtype(head.softcap), 1 - t * t
        if head.bias is not None:
            s = s + head.bias.astype(dtype)
        if head.slope is not None:
            s = s - dtype(head.slope) * np.abs(head.ahead).astype(dtype)
        s = np.where(head.visible, s, -np.inf)
        m = s.max(-1, keepdims=True, initial=-np.inf if head.sink is None else head.sink)
        m = np.where(np.isneginf(m), 0, m).astype(dtype)
        p = np.exp(s - m)
        total = p.sum(-1, keepdims=True)
        if head.sink is not None:
            total = total + np.exp(dtype(head.sink) - m)
        p = p / np.where(total == 0, 1, total)
        found["out"][at] = p @ v
        found["lse"][at] = (m + np.log(total))[:, 0]
        if "dv" not in found:
            continue
        dout = head.dout.astype(dtype)
        ds = p * (dout @ v.T - (dout * found["out"][at]).sum(-1, keepdims=True))
        ds = ds * slope * dtype(head.scale)
        found["dq"][at] = ds @ k
        found["dk"][kv] += ds.T @ q
        found["dv"][kv] += p.T @ dout
    return found


# -- a trial ---------------------------------------------------------------------------------------


@dataclass
class OneTrial:
    """Compares at once, as the suite's own trial does; `worst` is the fraction of the bound."""

    kernel: Kernel
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))
    worst: float = 0.0
    compared: int = 0

    def ask(self, problem: Problem, *, want: Sequence[str] = ("out",)) -> Outputs:
        with np.errstate(all="ignore"):
            return self.kernel(problem, want)

    def allowance(self, problem: Problem, *, output: str = "out") -> npt.NDArray[np.float64]:
        return stand_in(problem, output)

    def close(self, actual: Array, expected: Array, within: Array, *, what: str) -> None:
        a, e = actual.astype(np.float64), expected.astype(np.float64)
        assert a.shape == e.shape == within.shape, "a comparison broadcasts by accident"
        assert np.all(within >= 0)
        self.compared += a.size
        with np.errstate(all="ignore"):
            ratio = np.where(a == e, 0.0, np.abs(a - e) / within)
        self.worst = max(self.worst, float(ratio.max(initial=0.0)))
        assert np.all(ratio <= 1), what

    def same(self, actual: Array, expected: Array, *, what: str) -> None:
        assert actual.shape == expected.shape
        self.compared += actual.size
        a, e = actual.astype(np.float64), expected.astype(np.float64)
        assert np.all((a == e) | (np.isnan(a) & np.isnan(e))), what


def stand_in(problem: Problem, output: str) -> npt.NDArray[np.float64]:
    work = FORMATS[np.dtype(working(problem)).name]
    with np.errstate(all="ignore"):
        exact = evaluate(
            problem, np.float64, (output,) if output in ("out", "lse") else ("dq", "dk", "dv")
        )
    G = (
        np.abs(problem.scale)
        * np.abs(problem.q.astype(float)).sum(-1).max()
        * np.abs(problem.k.astype(float)).max()
    )
    g = (8 + problem.head_size + problem.key_count) * work.unit_roundoff * (1 + min(G, 4000.0))
    size = np.abs(exact[output])
    if output == "lse":
        return g * (1 + np.where(np.isfinite(size), size, 0))
    u = format_of(problem.q.dtype)
    out = np.where(np.isfinite(size), size, 0)
    return (
        g * (out + np.abs(problem.v.astype(float)).max())
        + u.unit_roundoff * out * 1.01
        + u.smallest_subnormal
    )
