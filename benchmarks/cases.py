"""What is measured: one head of attention at every length, and one row of a long context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnspec.oracle.formats import FORMATS, Float64Array
from attnspec.oracle.problem import Problem

__all__ = ["Case", "long_cases", "square_cases"]

BLOCK = 64
"""Query rows of a long context, the last ones; the very last is the row that is asked for."""
CHUNK = 2**16
"""Keys that are drawn and rounded at a time."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One head, B = Hq = Hkv = 1, of normal(0, 1) operands rounded once to `dtype`.

    `keys` is n; there are as many query rows, or, for `one_row`, the last `BLOCK` of them, of
    which the last alone is asked for (it sees every key, causal or not). The scale is size^-1/2.
    """

    keys: int
    size: int
    dtype: str = "float32"
    causal: bool = False
    backward: bool = False
    one_row: bool = False
    seed: int = 0

    @property
    def want(self) -> tuple[str, ...]:
        """The outputs that are asked for."""
        return ("out", "dq", "dk", "dv") if self.backward else ("out",)

    @property
    def rows(self) -> tuple[int, ...] | None:
        """The query rows that are asked for; None is all."""
        return (BLOCK - 1,) if self.one_row else None

    @property
    def scores(self) -> int:
        """How many scores are computed."""
        return self.keys if self.one_row else self.keys**2

    @property
    def label(self) -> str:
        """In a few words."""
        shape = f"one row of {self.keys:,} keys" if self.one_row else f"n = {self.keys}"
        words = [f"d = {self.size}", self.dtype]
        if not self.one_row:
            words.append("causal" if self.causal else "dense")
        return ", ".join([shape, *words, "both passes" if self.backward else "forward"])

    def differences(self, other: Case) -> int:
        """In how many ways the inputs differ, length aside."""
        fields = ("size", "dtype", "causal")
        return sum(getattr(self, name) != getattr(other, name) for name in fields)

    def problem(self) -> Problem:
        """The problem; the same numbers for every engine, pass and run of one seed."""
        rng = np.random.default_rng([self.seed, self.keys, self.size, self.one_row])
        queries = BLOCK if self.one_row else self.keys
        q, dout = (self._draw(rng, queries) for _ in range(2))
        k, v = (self._draw(rng, self.keys) for _ in range(2))
        cotangent = {"dout": dout} if self.backward else {}
        scale = self.size**-0.5
        return Problem(q=q, k=k, v=v, scale=scale, causal=self.causal, **cotangent)

    def _draw(self, rng: np.random.Generator, length: int) -> Float64Array:
        form = FORMATS[self.dtype]
        array = np.empty((1, 1, length, self.size), form.dtype)
        for start in range(0, length, CHUNK):
            part = array[0, 0, start : start + CHUNK]
            part[:] = form.round(rng.standard_normal(part.shape))
        return array


def square_cases(
    sizes: Sequence[int], head_sizes: Sequence[int], dtypes: Sequence[str], seed: int
) -> list[list[Case]]:
    """Every combination, by slices in which only n, ascending, and the pass vary.

    The first slice is the one that is shown by n: the largest head, the first dtype, dense. Those
    that differ from it in most come last.
    """
    slices = [
        [
            Case(keys=n, size=size, dtype=dtype, causal=causal, backward=backward, seed=seed)
            for n in sorted(sizes)
            for backward in (False, True)
        ]
        for size in sorted(head_sizes, reverse=True)
        for dtype in dtypes
        for causal in (False, True)
    ]
    return sorted(slices, key=lambda cases: cases[0].differences(slices[0][0]))


def long_cases(contexts: Sequence[int], size: int, seed: int) -> list[Case]:
    """One row of contexts of so many keys, in float32, forward and with all gradients."""
    return [
        Case(keys=n, size=size, backward=backward, one_row=True, causal=True, seed=seed)
        for n in sorted(contexts)
        for backward in (False, True)
    ]
