"""NaN and infinity among the numbers that some row sees: what they make of the answer.

The engines compute with finite numbers. A NaN that nothing sees is harmless and becomes 0. One
that is seen becomes 0 too, and an `Overlay` then says which results it makes NaN: exactly those
that read it. Infinities that are seen have no defined result (inf - inf, 0 · inf) and are refused.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attnspec.oracle.enclosure import Enclosure
from attnspec.oracle.problem import Problem, ProblemError

__all__ = ["Overlay", "without_nan"]

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Overlay:
    """Which elements of out (B, Hq, Nq, Dv) and lse (B, Hq, Nq) a visible NaN reaches."""

    out: BoolArray
    lse: BoolArray

    def on(self, output: str, enclosure: Enclosure) -> Enclosure:
        """The enclosure with those elements NaN, exactly."""
        reached = {"out": self.out, "lse": self.lse}.get(output)
        if reached is None or not reached.any():
            return enclosure
        return Enclosure(
            np.where(reached, np.nan, enclosure.value),
            np.where(reached, 0.0, enclosure.low),
            np.where(reached, 0.0, enclosure.bound),
            tuple(np.where(reached, 0.0, part) for part in enclosure.rest),
        )


def without_nan(problem: Problem, *, want: Collection[str]) -> tuple[Problem, Overlay]:
    """The problem with 0 for every NaN and hidden infinity, and what the visible NaN reach.

    Raises `ProblemError` for a visible infinity in q, k or v, and for a gradient in `want` where
    a NaN is visible.
    """
    rows = (problem.batch, problem.query_heads, problem.query_count)
    overlay = Overlay(np.zeros((*rows, problem.value_size), np.bool_), np.zeros(rows, np.bool_))
    arrays = {name: getattr(problem, name) for name in ("q", "k", "v")}
    odd = {name: array for name, array in arrays.items() if not np.all(np.isfinite(array))}
    cleaned = {name: np.where(np.isfinite(a), a, a.dtype.type(0)) for name, a in odd.items()}
    if problem.bias is not None and np.any(np.isnan(problem.bias)):
        bias = problem.bias
        cleaned["bias"] = np.where(np.isnan(bias), bias.dtype.type(0), bias)
    if not cleaned:
        return problem, overlay
    for batch in range(problem.batch):
        for head in range(problem.query_heads):
            _mark(problem, overlay, batch, head)
    if np.any(overlay.out) and not set(want) <= {"out", "lse"}:
        raise ProblemError("gradients are not defined where a NaN is visible in q, k, v or bias")
    return problem.replace(**cleaned), overlay


def _mark(problem: Problem, overlay: Overlay, batch: int, head: int) -> None:
    """Mark what the NaN of one head reach; refuse its visible infinities."""
    visible = problem.visible(batch, head)
    kv = head // (problem.query_heads // problem.kv_heads)
    query, key, value = problem.q[batch, head], problem.k[batch, kv], problem.v[batch, kv]
    rows, used = visible.any(axis=1), visible.any(axis=0)
    _refuse_infinity(q=query[rows], k=key[used], v=value[used])
    row = rows & np.isnan(query).any(axis=1)
    row |= (visible & np.isnan(key).any(axis=1)).any(axis=1)
    if problem.bias is not None:
        bias = np.broadcast_to(problem.bias, (*overlay.lse.shape, len(key)))[batch, head]
        row |= (visible & np.isnan(bias)).any(axis=1)
    overlay.lse[batch, head] = row
    # Row i and channel c: does row i see a key whose value is NaN in channel c?
    reads = visible.astype(np.float64) @ np.isnan(value).astype(np.float64) > 0
    overlay.out[batch, head] = row[:, None] | reads


def _refuse_infinity(**seen: npt.NDArray[Any]) -> None:
    for name, array in seen.items():
        if np.any(np.isinf(array)):
            raise ProblemError(
                f"{name}: an infinity is visible, for which attention is not defined; "
                "expected finite numbers (or NaN) in every slot that some row sees"
            )
