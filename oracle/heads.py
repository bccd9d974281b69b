"""Several query heads side by side, for code whose NumPy calls cost more than their arithmetic.

What a head is, `Problem.heads` decides; here heads only get a common leading axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from attnspec.oracle.formats import Float64Array
from attnspec.oracle.problem import BoolArray, Head, Problem

__all__ = ["SCORES", "Heads", "IntArray", "disjoint", "stacked", "transposed"]

IntArray = npt.NDArray[np.int64]

SCORES = 2**14
"""Scores that are worked on together: enough to hide the cost of a call, and few enough that an
array of them fits the caches and malloc need not ask the system for it. A head with more stands
alone."""


@dataclass(frozen=True, eq=False)
class Heads:
    """H query heads, each field as in `Head` behind an axis of H; scale and soft-cap are common."""

    batch: IntArray  # (H,)
    index: IntArray  # (H,)
    kv_index: IntArray  # (H,)
    scale: float
    softcap: float | None
    query: Float64Array  # (H, Nq, D)
    key: Float64Array  # (H, Nk, D)
    value: Float64Array  # (H, Nk, Dv)
    visible: BoolArray  # (H, Nq, Nk)
    ahead: IntArray  # (H, Nq, Nk)
    bias: Float64Array | None  # (H, Nq, Nk)
    slope: Float64Array | None  # (H, 1, 1)
    sink: Float64Array | None  # (H, 1, 1)
    dout: Float64Array | None  # (H, Nq, Dv)
    dlse: Float64Array | None  # (H, Nq)


def stacked(problem: Problem, *, scores: int = SCORES) -> Iterator[Heads]:
    """All heads in order, as many at a time as have `scores` scores together, at least one."""
    heads = problem.heads()
    count = max(1, scores // max(1, problem.query_count * problem.key_count))
    if problem.batch * problem.query_heads <= count:
        yield _whole(problem)
        return
    while some := list(islice(heads, count)):
        yield _side_by_side(some)


@lru_cache(maxsize=1)
def _whole(problem: Problem) -> Heads:
    """All heads of a small problem, kept: the engines and the tolerance read them in turn."""
    return _side_by_side(list(problem.heads()))


def _side_by_side(heads: Sequence[Head]) -> Heads:
    def stack(name: str) -> Any:
        if getattr(heads[0], name) is None:  # then it is None in all
            return None
        return np.stack([getattr(head, name) for head in heads])

    def column(name: str) -> Any:
        numbers = stack(name)
        return None if numbers is None else numbers[:, None, None]

    arrays = ("batch", "index", "kv_index", "query", "key", "value", "visible", "ahead")
    return Heads(
        scale=heads[0].scale,
        softcap=heads[0].softcap,
        slope=column("slope"),
        sink=column("sink"),
        **{name: stack(name) for name in (*arrays, "bias", "dout", "dlse")},
    )


def transposed(matrices: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Each head's matrix transposed, as a view."""
    return np.swapaxes(matrices, -1, -2)


def disjoint(*places: IntArray) -> Iterator[IntArray]:
    """Positions of heads in groups within which no two heads share a place, in order.

    `places` are the coordinates, (H,) each, of what each head is added to: `total[place] += x`
    adds only one head where several are at the same place.
    """
    rounds: list[list[int]] = []
    seen: dict[tuple[int, ...], int] = {}
    for head, place in enumerate(zip(*(place.tolist() for place in places), strict=True)):
        earlier = seen.get(place, 0)
        seen[place] = earlier + 1
        if earlier == len(rounds):
            rounds.append([])
        rounds[earlier].append(head)
    for members in rounds:
        yield np.array(members)
