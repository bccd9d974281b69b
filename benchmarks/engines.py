"""The engines that are compared: the oracle's tiers, and what is used in their place.

An engine prepares a case's problem (imports, and float64 tensors of its operands) and returns a
call without arguments, which is what is timed. `read` turns what the call returned into
enclosures, whose bound is inf where the engine states none.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from accuracy import step_of
from cases import Case

from attnspec.oracle.enclosure import Enclosure
from attnspec.oracle.problem import Problem
from attnspec.oracle.reference import TIERS, reference

__all__ = ["BASELINE", "ENGINES", "SHARPEST", "Engine", "Rows"]

Array = npt.NDArray[Any]
Rows = tuple[int, ...] | None
Raw = Mapping[str, Any]
Call = Callable[[], Raw]

BASELINE = "torch float64"
SHARPEST = ("balls", "double-double", "float64")
"""The tiers that others' errors are measured against: the first of these that was measured."""
MPMATH_BITS = 106


def _every(case: Case) -> bool:
    return True


def _plain(found: Any) -> Enclosure:
    """What an engine without a bound returned, as value + low: float64, wider, or mpf."""
    value = found.astype(np.float64)
    low = (found - value).astype(np.float64)
    return Enclosure(value, low, np.full(value.shape, np.inf))


def _read_plain(raw: Raw) -> dict[str, Enclosure]:
    return {name: _plain(found) for name, found in raw.items()}


@dataclass(frozen=True)
class Engine:
    """One engine.

    `cost` is the rough number of seconds for each score and channel of a forward pass, which
    decides what would take too long to be tried where nothing smaller was measured.
    """

    name: str
    cost: float
    prepare: Callable[[Problem, Sequence[str], Rows], Call]
    read: Callable[[Raw], Mapping[str, Enclosure]] = _read_plain
    missing: Callable[[], str | None] = field(default=lambda: None)
    """Why it cannot run here, if so."""
    takes: Callable[[Case], bool] = lambda case: not case.one_row
    """Which cases it is measured on."""


# -- tiers of the oracle -------------------------------------------------------------------------


def _tier(name: str, cost: float, **options: Any) -> Engine:
    def prepare(problem: Problem, want: Sequence[str], rows: Rows) -> Call:
        def call() -> Raw:
            asked = problem if rows is None else problem.at(rows)
            return reference(asked, want=want, tier=name).outputs

        return call

    def missing() -> str | None:
        return None if name in TIERS else "this attnspec has no such tier"

    return Engine(name, cost, prepare, dict, missing, **options)


def _streamed() -> Engine:
    """dk and dv of a long context a block of keys at a time; what is compared is kept of each."""
    name = "double-double"

    def prepare(problem: Problem, want: Sequence[str], rows: Rows) -> Call:
        from attnspec.oracle.double_double import key_gradients

        step = step_of(problem.key_count)

        def call() -> Raw:
            asked = problem if rows is None else problem.at(rows)
            whole = reference(asked, want=("out", "dq"), tier=name).outputs
            blocks: dict[str, list[Enclosure]] = {"dk": [], "dv": []}
            for keys, found in key_gradients(asked):
                some = slice(-keys.start % step, None, step)
                for output, kept in blocks.items():
                    kept.append(_rows_of(found[output], some))
            return {**whole, **blocks}

        return call

    return Engine(
        f"{name} streamed",
        2e-9,
        prepare,
        lambda raw: {n: _joined(x) if isinstance(x, list) else x for n, x in raw.items()},
        lambda: None if name in TIERS else "this attnspec has no such tier",
        takes=lambda case: case.one_row and case.backward,
    )


def _rows_of(found: Enclosure, rows: slice) -> Enclosure:
    value, low, bound = (x[..., rows, :].copy() for x in (found.value, found.low, found.bound))
    return Enclosure(value, low, bound)


def _joined(blocks: Sequence[Enclosure]) -> Enclosure:
    parts = zip(*((x.value, x.low, x.bound) for x in blocks), strict=True)
    return Enclosure(*(np.concatenate(part, axis=-2) for part in parts))


def _mpmath() -> Engine:
    """The definition once, as mpmath evaluates it; the tier `definition` evaluates it twice."""

    def prepare(problem: Problem, want: Sequence[str], rows: Rows) -> Call:
        from attnspec.oracle.definition import attention

        return lambda: attention(problem, want=want, bits=MPMATH_BITS)

    return Engine(f"mpmath {MPMATH_BITS} bits", 1.2e-6, prepare)


# -- torch ---------------------------------------------------------------------------------------


def _torch(name: str, dtype: str, cost: float, *, math: bool = False, **options: Any) -> Engine:
    """SDPA by torch's own choice of kernel, or by its unfused one; gradients by autograd."""

    def prepare(problem: Problem, want: Sequence[str], rows: Rows) -> Call:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        q, k, v, *dout = (torch.from_numpy(x.astype(dtype)) for x in _operands(problem, rows))
        options = {"scale": problem.scale, "is_causal": problem.causal and rows is None}

        def attend():
            if not math:
                return scaled_dot_product_attention(q, k, v, **options)
            with sdpa_kernel(SDPBackend.MATH):
                return scaled_dot_product_attention(q, k, v, **options)

        def forward() -> Raw:
            with torch.no_grad():
                return {"out": attend().numpy()}

        def both() -> Raw:
            out = attend()
            gradients = torch.autograd.grad(out, (q, k, v), dout[0])
            found = (out.detach(), *gradients)
            return {n: x.numpy() for n, x in zip(want, found, strict=True)}

        if len(want) == 1:
            return forward
        for x in (q, k, v):
            x.requires_grad_()
        return both

    def missing() -> str | None:
        return None if importlib.util.find_spec("torch") else "torch is not installed"

    return Engine(name, cost, prepare, missing=missing, **options)


# -- plain NumPy ---------------------------------------------------------------------------------


def _numpy(name: str, dtype: type, cost: float) -> Engine:
    def prepare(problem: Problem, want: Sequence[str], rows: Rows) -> Call:
        operands = [x[0, 0].astype(dtype) for x in _operands(problem, rows)]
        scale = dtype(problem.scale)
        causal = problem.causal and rows is None

        def call() -> Raw:
            found = attention(*operands, scale=scale, causal=causal)
            return {n: x[None, None] for n, x in zip(want, found, strict=True)}

        return call

    return Engine(name, cost, prepare)


def attention(
    q: Array, k: Array, v: Array, dout: Array | None = None, *, scale: Any, causal: bool
) -> tuple[Array, ...]:
    """Attention of one head as it is usually written: out, and dq, dk and dv where dout is given.

    q (Nq, D), k (Nk, D), v (Nk, Dv), dout (Nq, Dv), all of one dtype, which is computed in.
    """
    scores = scale * (q @ k.T)
    if causal:
        scores = np.where(np.tri(*scores.shape, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights = weights / weights.sum(axis=1, keepdims=True)
    out = weights @ v
    if dout is None:
        return (out,)
    dweights = dout @ v.T
    dscores = scale * weights * (dweights - (dout * out).sum(axis=1, keepdims=True))
    return out, dscores @ k, dscores.T @ q, weights.T @ dout


def _operands(problem: Problem, rows: Rows) -> list[Array]:
    """q, k, v and dout, where there is one; q and dout of the rows that are asked for."""
    of_rows = slice(None) if rows is None else list(rows)
    arrays = [problem.q[:, :, of_rows], problem.k, problem.v]
    return arrays if problem.dout is None else [*arrays, problem.dout[:, :, of_rows]]


ENGINES = {
    engine.name: engine
    for engine in (
        _torch(BASELINE, "float64", 1e-10, takes=_every),
        _torch("torch float64 math", "float64", 2e-10, math=True),
        _torch("torch float32", "float32", 5e-11),
        _numpy("numpy float64", np.float64, 1e-10),
        _numpy("numpy longdouble", np.longdouble, 8e-9),
        _tier("float64", 2e-10, takes=_every),
        _tier("double-double", 2e-9, takes=_every),
        _streamed(),
        _tier("balls", 2e-8),
        _mpmath(),
        _tier("definition", 3e-6),
    )
}
"""By name, in the order in which they are shown."""
