"""The properties raise no false alarm: an honest kernel keeps every one, in every format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from attnspec.conformance.case import Case, Shape, draw, parse_settings
from attnspec.oracle.formats import format_of
from attnspec.oracle.problem import Head, Problem
from attnspec.oracle.rounding import Arithmetic, tolerance
from attnspec.spec.claim import Claim, all_claims

Array = npt.NDArray[Any]
Outputs = Mapping[str, Array]
Kernel = Callable[[Problem, Sequence[str]], Outputs]

CLAIMS = {claim.id: claim for claim in all_claims()}
DTYPES = ("float64", "float32", "float16", "bfloat16")


# -- an honest kernel ------------------------------------------------------------------------------


def working(problem: Problem) -> type:
    return np.float64 if problem.dtype_name == "float64" else np.float32


def honest(problem: Problem, want: Sequence[str]) -> dict[str, Array]:
    """The plain formula in float32 (float64 for float64), each result rounded once."""
    form = format_of(problem.q.dtype)
    found = evaluate(problem, working(problem), want)
    return {n: x if n == "lse" else form.round(x.astype(np.float64)) for n, x in found.items()}


def evaluate(
    problem: Problem,
    dtype: type,
    want: Sequence[str],
) -> dict[str, Array]:
    """Attention head by head, in `dtype` throughout."""
    backward = any(name.startswith("d") for name in want)
    names = ["out", "lse"]
    if backward:
        names += ["dq", "dk", "dv"]
        names += [f"d{n}" for n in ("bias", "sinks") if getattr(problem, n) is not None]
    found = {name: np.zeros(problem.shape_of(name), dtype) for name in names}
    for head in problem.heads():
        at, kv = (head.batch, head.index), (head.batch, head.kv_index)
        q, k, v = (x.astype(dtype) for x in (head.query, head.key, head.value))
        s, slope = scores(head, q, k)
        sink = None if head.sink is None else dtype(head.sink)
        m = s.max(-1, keepdims=True, initial=-np.inf if sink is None else sink)
        m = np.where(np.isneginf(m), 0, m).astype(dtype)
        p = np.exp(s - m)
        total = p.sum(-1, keepdims=True)
        total = total if sink is None else total + np.exp(sink - m)
        p = p / np.where(total == 0, 1, total)
        out = found["out"][at] = p @ v
        found["lse"][at] = (m + np.log(total))[:, 0]
        if not backward:
            continue
        dout = head.dout.astype(dtype)
        inner = (dout * out).sum(-1, keepdims=True)
        inner = inner if head.dlse is None else inner - head.dlse.astype(dtype)[:, None]
        ds = p * (dout @ v.T - inner)
        if head.bias is not None:
            found["dbias"] += broadcast_sum(ds, at, found["dbias"].shape)
        if sink is not None:
            found["dsinks"][head.index] -= (np.exp(sink - m) / total * inner).sum()
        ds = ds * slope * dtype(head.scale)
        found["dq"][at] = ds @ k
        found["dk"][kv] += ds.T @ q
        found["dv"][kv] += p.T @ dout
    return found


def scores(head: Head, q: Array, k: Array) -> tuple[Array, Array]:
    """The scores, -inf where hidden, and the derivative of the soft-cap."""
    dtype = q.dtype.type
    s, slope = (q @ k.T) * dtype(head.scale), np.ones((), dtype)
    if head.softcap is not None:
        t = np.tanh(s / dtype(head.softcap))
        s, slope = t * dtype(head.softcap), 1 - t * t
    if head.bias is not None:
        s = s + head.bias.astype(dtype)
    if head.slope is not None:
        s = s - dtype(head.slope) * np.abs(head.ahead).astype(dtype)
    return np.where(head.visible, s, -np.inf).astype(dtype), slope


def broadcast_sum(ds: Array, at: tuple[int, int], shape: tuple[int, ...]) -> Array:
    """One head's dS, summed over the axes along which a bias of this shape was broadcast."""
    padded = (1,) * (4 - len(shape)) + shape
    full = np.zeros((max(padded[0], at[0] + 1), max(padded[1], at[1] + 1), *ds.shape), ds.dtype)
    full[at] = ds
    axes = tuple(axis for axis, n in enumerate(padded) if n == 1)
    summed = full.sum(axes, keepdims=True)
    return summed.reshape(shape)


# -- a trial ---------------------------------------------------------------------------------------


class ViolationError(Exception):
    pass


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
        groups = (("out", "lse"), ("dq", "dk", "dv"), ("dbias",), ("dsinks",))
        return allowances(problem, next(g for g in groups if output in g))[output]

    def close(self, actual: Array, expected: Array, within: Array, *, what: str) -> None:
        a, e = actual.astype(np.float64), expected.astype(np.float64)
        assert a.shape == e.shape == within.shape, "a comparison broadcasts by accident"
        assert np.all(within >= 0)
        self.compared += a.size
        with np.errstate(all="ignore"):
            ratio = np.where(a == e, 0.0, np.abs(a - e) / within)
        self.worst = max(self.worst, float(ratio.max(initial=0.0)))
        if not np.all(ratio <= 1):
            raise ViolationError(what)

    def same(self, actual: Array, expected: Array, *, what: str) -> None:
        assert actual.shape == expected.shape
        self.compared += actual.size
        a, e = actual.astype(np.float64), expected.astype(np.float64)
        if not np.all((a == e) | (np.isnan(a) & np.isnan(e))):
            raise ViolationError(what)


@lru_cache(maxsize=8)
def allowances(problem: Problem, want: tuple[str, ...]) -> dict[str, npt.NDArray[np.float64]]:
    """The proven bound for the declared arithmetic, and the rounding of the result."""
    allowed = tolerance(problem, arithmetic=Arithmetic(accumulate="float32"), want=want)
    with np.errstate(all="ignore"):
        exact = evaluate(problem, np.float64, want)
    found = {}
    for name, bound in allowed.items():
        size = np.abs(np.where(np.isfinite(exact[name]), exact[name], 0)) + bound.hard
        form = bound.format
        found[name] = bound.hard + form.unit_roundoff * size + form.smallest_subnormal
    return found


# -- the tests -------------------------------------------------------------------------------------


def problems(claim: Claim, dtype: str) -> Iterator[tuple[str, Problem]]:
    """Small problems in the claim's settings, drawn as the suite draws them."""
    queries, keys = (13, 13) if claim.self_attention else (7, 19)
    for setting in claim.settings:
        heads = 4 if "gqa" in setting else 2
        shape = Shape(2, heads, heads, queries, keys, 16, 8)
        case = Case("normal", shape, parse_settings(setting))
        yield setting, draw(case, dtype=dtype, diagonal="bottom-right", seed=3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CLAIMS)
def test_an_honest_kernel_keeps_it(name: str, dtype: str) -> None:
    claim, compared = CLAIMS[name], 0
    for number, (_, problem) in enumerate(problems(claim, dtype)):
        if number % 4 == DTYPES.index(dtype) or len(claim.settings) < 4:
            trial = OneTrial(honest)
            claim.check(trial, problem)
            compared += trial.compared
    assert compared, "nothing was compared"
