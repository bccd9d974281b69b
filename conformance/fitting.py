"""Shapes that a kernel takes: one that refuses most is asked the others all the more.

A kernel may be made for head sizes 64 and 128, or for as many queries as keys, and refuse the
rest by `NotImplementedError`. Then the suite's own shapes would ask it nothing about its options.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from attnspec.adapters import CallFailed, Kernel, call
from attnspec.conformance.case import Case, Shape, draw
from attnspec.conformance.cases import OPTION
from attnspec.oracle.problem import Diagonal

__all__ = ["Fit", "fitting"]

Fit = Callable[[Case], Case]

SIZES = (64, 128)
"""Head sizes that every kernel for GPUs has."""
LONGEST = 257
"""Queries of a problem that is made square: the keys of the longest would cost too much."""


@cache
def fitting(kernel: Kernel) -> Fit:
    """How to change a case so that the kernel takes its shape; the first change that it accepts."""
    for square in (False, True):
        for size in (None, *SIZES):
            fit = _fit(size, square=square)
            if _takes(kernel, fit(Case("normal", OPTION))):
                return fit
    return lambda case: case


def _fit(size: int | None, *, square: bool) -> Fit:
    def fit(case: Case) -> Case:
        shape: Shape = case.shape
        if size is not None and shape.size not in SIZES:
            # A long context keeps its numbers, so that its gradients can still be judged.
            keys = shape.keys * shape.size // size if case.is_long else shape.keys
            shape = replace(shape, size=size, value_size=size, keys=keys)
        if square and shape.queries != shape.keys:
            length = min(max(shape.queries, shape.keys), LONGEST)
            shape = replace(shape, queries=length, keys=length)
        return replace(case, shape=shape)

    return fit


def _takes(kernel: Kernel, case: Case) -> bool:
    """Whether it answers at all; a failure is for the verdict, only a refusal is looked past."""
    diagonal: Diagonal = "top-left" if kernel.diagonal == "top-left" else "bottom-right"
    try:
        call(kernel, draw(case, dtype=kernel.dtypes[0], diagonal=diagonal, seed=0))
    except CallFailed as failure:
        return failure.status != "not claimed"
    return True
