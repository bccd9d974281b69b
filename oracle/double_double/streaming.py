"""Gradients of the keys and values of a long context, some keys at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack

import numpy as np

from attnspec.oracle.double_double import assumptions
from attnspec.oracle.double_double.engine import add_part, room, tile_forward
from attnspec.oracle.double_double.gradients import Gradients
from attnspec.oracle.double_double.reading import LONGEST, Tile, groups
from attnspec.oracle.double_double.scratch import workspace
from attnspec.oracle.double_double.totals import Total
from attnspec.oracle.enclosure import Reference
from attnspec.oracle.problem import Problem, ProblemError
from attnspec.oracle.request_checks import check_problem, check_want
from attnspec.oracle.visible_nan import without_nan

__all__ = ["key_gradients"]

Totals = dict[str, Total]


def key_gradients(
    problem: Problem, *, want: Collection[str] = ("dk", "dv"), size: int = LONGEST
) -> Iterator[tuple[slice, Reference]]:
    """dk and dv of `size` keys at a time: those keys and their enclosures, (B, Hkv, size, D or Dv).

    An enclosure's arrays are there until the next one is asked for. For few rows of a long context
    (`Problem.at`), whose dk and dv would fill the memory; holds 16 bytes for each score. `size` is
    a multiple of 8,192. Raises `AssumptionFailed`, and `ProblemError` for another output or where
    gradients are not defined: without a cotangent, or with a visible NaN or infinity.
    """
    check_problem(problem)
    if not isinstance(size, int | np.integer) or size < LONGEST or size % LONGEST:
        raise ProblemError(f"size: expected a multiple of {LONGEST}, got {size!r}")
    shapes = check_want(problem, want, among=("dk", "dv"))
    problem, _ = without_nan(problem, want=want)
    assumptions.check()
    return _streamed(problem, shapes, int(size))


def _streamed(
    problem: Problem, shapes: dict[str, tuple[int, ...]], size: int
) -> Iterator[tuple[slice, Reference]]:
    ranges = [
        slice(start, min(start + size, problem.key_count))
        for start in range(0, problem.key_count, size)
    ]
    with ExitStack() as stack:
        tiles = []
        for group in groups(problem):
            for tile in group.tiles():
                work = stack.enter_context(workspace(room(tile)))
                with np.errstate(all="ignore"):
                    gradients = Gradients(tile, tile_forward(tile, work), shapes, work.scratch)
                tiles.append((tile, gradients))
        # One range after the other: few rows are many short operations, between which several
        # threads would only wait for one another.
        totals: Totals = {}
        for keys in ranges:
            totals = _empty(totals, shapes, keys)
            with np.errstate(all="ignore"):  # not while the caller works
                _fill(totals, tiles, keys)
                found = {n: t.enclosure(t.value.shape) for n, t in totals.items()}
            yield keys, Reference("double-double", found)


def _empty(used: Totals, shapes: dict[str, tuple[int, ...]], keys: slice) -> Totals:
    """Totals of so many keys: the used ones, cleared, where they are as many."""
    count = keys.stop - keys.start
    if not used or any(total.value.shape[2] != count for total in used.values()):
        return {name: Total((*s[:2], count, s[3])) for name, s in shapes.items()}
    for total in used.values():
        total.clear()
    return used


def _fill(totals: Totals, tiles: list[tuple[Tile, Gradients]], keys: slice) -> None:
    """Add what every tile gives to these keys."""
    for tile, gradients in tiles:
        for block in gradients.result.softmax.blocks:
            if keys.start <= block[0].start < keys.stop:
                for part in gradients.of_block(block):
                    add_part(tile, part, totals[part.output], origin=keys.start)
