"""Operands read from the wrong places in memory.

The addresses are the fault's; the memory that is read is the caller's own, and beyond its end
stands NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.pipeline import Array, Pipeline

__all__ = ["at", "contiguous", "numbers"]

LAYOUTS = ("layout-q", "layout-k", "layout-v")


# -- memory ----------------------------------------------------------------------------------------


def memory(x: Array) -> tuple[Array, int]:
    """All numbers of the buffer that x is a view of, in their order, and the place of x's first."""
    owner: Any = x
    while getattr(owner, "base", None) is not None:
        owner = owner.base
    flat = np.frombuffer(owner, np.uint8) if owner.dtype != np.uint8 else owner.reshape(-1)
    first = x.__array_interface__["data"][0] - flat.__array_interface__["data"][0]
    size = x.itemsize
    whole = flat[first % size : first % size + (len(flat) - first % size) // size * size]
    return whole.view(x.dtype), first // size


def numbers(x: Array) -> tuple[int, ...]:
    """The strides of x, in numbers."""
    return tuple(stride // x.itemsize for stride in x.strides)


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous array of that shape, in numbers."""
    return tuple(int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))


def at(x: Array, strides: Sequence[int], first: int | None = None) -> Array:
    """An array of x's shape, read with those strides from a place of its memory, or from x's."""
    flat, start = memory(x)
    index = np.asarray(start if first is None else first)
    for axis, stride in enumerate(strides):
        steps = np.arange(x.shape[axis]) * stride
        index = index + steps.reshape(-1, *(1,) * (x.ndim - axis - 1))
    inside = (index >= 0) & (index < len(flat))
    found = flat[np.where(inside, index, 0)] if len(flat) else np.zeros(index.shape, x.dtype)
    beyond = False if x.dtype == np.bool_ else np.nan
    return np.where(inside, found, np.asarray(beyond, x.dtype)).reshape(x.shape)


class Reading(Pipeline):
    """Operands are read by their addresses, here the right ones."""

    def read(self, name: str, x: Array) -> Array:
        return super().read(name, self.fetched(name, x))

    def fetched(self, name: str, x: Array) -> Array:
        """The numbers of an operand, (B, H, N, D)."""
        return at(x, numbers(x))


# -- strides ---------------------------------------------------------------------------------------


@fault(kind="stride-ignored", shows=LAYOUTS, reports=("pytorch/pytorch#187506",))
class InnermostStrideIgnored(Reading):
    """The innermost axis is read as if it were contiguous."""

    def fetched(self, name: str, x: Array) -> Array:
        return at(x, (*numbers(x)[:3], 1))


@fault(kind="stride-ignored", shows=LAYOUTS)
class ReadInTheOrderOfMemory(Reading):
    """Operands are read from their first number on as if they were contiguous."""

    def fetched(self, name: str, x: Array) -> Array:
        return at(x, contiguous(x.shape))


@fault(kind="stride-ignored", shows=LAYOUTS)
class BatchStrideOfTheShape(Reading):
    """The step from one batch entry to the next is taken from the shape."""

    def fetched(self, name: str, x: Array) -> Array:
        return at(x, (int(np.prod(x.shape[1:])), *numbers(x)[1:]))


@fault(kind="stride-ignored", shows=LAYOUTS)
class HeadStrideOfTheShape(Reading):
    """The step from one head to the next is taken from the shape."""

    def fetched(self, name: str, x: Array) -> Array:
        batch, _, row, number = numbers(x)
        return at(x, (batch, x.shape[2] * x.shape[3], row, number))


@fault(kind="stride-ignored", shows=("layout-k", "layout-v"), reports=("ROCm/pytorch#3230",))
class ValuesReadByTheStridesOfKeys(Reading):
    """Values are read with the strides of the keys."""

    def fetched(self, name: str, x: Array) -> Array:
        key = self.raw["k"]
        return at(x, numbers(key)) if name == "v" and key.shape == x.shape else x


@fault(kind="stride-ignored", shows=("layout-k",))
class KeysReadByTheStridesOfQueries(Reading):
    """The rows of keys are read with the strides of the rows of queries."""

    def fetched(self, name: str, x: Array) -> Array:
        return at(x, (*numbers(x)[:2], *numbers(self.raw["q"])[2:])) if name == "k" else x


@fault(kind="stride-ignored", shows=LAYOUTS, reports=("pytorch/pytorch#163597",))
class StridesIgnoredForOneRow(Reading):
    """The route for a single query row reads operands as if they were contiguous."""

    def fetched(self, name: str, x: Array) -> Array:
        return at(x, contiguous(x.shape)) if self.rows == 1 else x


@fault(
    kind="stride-ignored",
    shows=LAYOUTS,
    reports=("Dao-AILab/flash-attention#2665",),
    beyond_smoke="large heads come in one layout",
)
class StridesIgnoredForLargeHeads(Reading):
    """The route for heads of 128 and more reads operands as if they were contiguous."""

    def fetched(self, name: str, x: Array) -> Array:
        return at(x, contiguous(x.shape)) if self.size >= 128 else x


@fault(kind="stride-ignored", shows=("layout-k", "layout-v"))
class RepeatedKeysReadAsContiguous(Reading):
    """Keys and values that are one row or one head repeated, stride 0, are read on and on."""

    def fetched(self, name: str, x: Array) -> Array:
        full = zip(numbers(x), contiguous(x.shape), strict=True)
        return at(x, [stride or step for stride, step in full]) if name in "kv" else x


@fault(kind="tail-tile", shows=("layout-k", "layout-v"), reports=("pytorch/pytorch#191937",))
class LastRepeatedKeyIsTheOneBefore(Reading):
    """The last key, alone in its tile, is the one before where heads are repeated, stride 0."""

    def fetched(self, name: str, x: Array) -> Array:
        found = at(x, numbers(x))
        if name in "kv" and self.keys % 32 == 1 and 0 in x.strides[:2] and self.keys > 1:
            found[:, :, -1] = found[:, :, -2]
        return found


@fault(kind="stride-ignored", shows=LAYOUTS)
class NegativeStridesTakenAsPositive(Reading):
    """The sign of a stride is lost."""

    def fetched(self, name: str, x: Array) -> Array:
        return at(x, [abs(stride) for stride in numbers(x)])


@fault(kind="stride-ignored", shows=LAYOUTS)
class OddAddressesRoundedDown(Reading):
    """Operands are loaded from an address that is a multiple of sixteen bytes."""

    def fetched(self, name: str, x: Array) -> Array:
        address, first = x.__array_interface__["data"][0], memory(x)[1]
        return at(x, numbers(x), first - address % 16 // x.itemsize)


@fault(kind="stride-ignored", shows=("layout-packed",))
class PackedOperandsAllReadFromTheFirst(Reading):
    """Of operands packed in one array, each is read as if the rows held nothing else."""

    def fetched(self, name: str, x: Array) -> Array:
        batch, head, row, number = numbers(x)
        packed = row == 3 * x.shape[1] * x.shape[3]
        return at(x, (batch, head, row // 3, number)) if packed else x


@fault(kind="layout-mixup")
class HeadsAndRowsMixedWhereEqual(Pipeline):
    """Keys with as many heads as rows are taken to be laid out (B, N, H, D)."""

    def read(self, name: str, x: Array) -> Array:
        found = super().read(name, x)
        return found.swapaxes(1, 2) if name in "kv" and x.shape[1] == x.shape[2] else found


@fault(kind="layout-mixup")
class QueryRowsAndColumnsMixedWhereEqual(Pipeline):
    """Queries with as many rows as numbers in a row are transposed."""

    def read(self, name: str, x: Array) -> Array:
        found = super().read(name, x)
        return found.swapaxes(2, 3) if name == "q" and x.shape[2] == x.shape[3] else found


# -- masks, biases and cotangents ------------------------------------------------------------------


@fault(kind="stride-ignored", reports=("pytorch/pytorch#187506",))
class MaskReadInTheOrderOfMemory(Pipeline):
    """The mask is read from its first number on as if it were contiguous."""

    def spread(self, name: str, x: Array) -> Array:
        return super().spread(name, at(x, contiguous(x.shape)) if name == "mask" else x)


@fault(kind="stride-ignored", shows=("layout-bias",))
class BiasReadInTheOrderOfMemory(Pipeline):
    """The bias is read from its first number on as if it were contiguous."""

    def spread(self, name: str, x: Array) -> Array:
        return super().spread(name, at(x, contiguous(x.shape)) if name == "bias" else x)


@fault(kind="stride-ignored", shows=("layout-dout-gradients",), spoils=("dq", "dk", "dv"))
class CotangentReadInTheOrderOfMemory(Pipeline):
    """The cotangent is read from its first number on as if it were contiguous."""

    def read(self, name: str, x: Array) -> Array:
        return super().read(name, at(x, contiguous(x.shape)) if name == "dout" else x)


@fault(kind="stride-ignored", shows=("layout-dout-gradients",), spoils=("dq", "dk", "dv"))
class CotangentReadByTheStridesOfQueries(Pipeline):
    """The cotangent is read with the strides of the queries where their shapes are equal."""

    def read(self, name: str, x: Array) -> Array:
        query = self.raw["q"]
        same = name == "dout" and query.shape == x.shape
        return super().read(name, at(x, numbers(query)) if same else x)


# -- what is written -------------------------------------------------------------------------------


@fault(kind="output-layout", reports=("flagos-ai/FlagGems#5235",))
class RowsWrittenHeadByHead(Pipeline):
    """The output is written (B, N, H, D) and read as (B, H, N, D)."""

    def stored(self, x: Array, like: Array) -> Array:
        found = super().stored(x, like)
        return np.ascontiguousarray(found.swapaxes(1, 2)).reshape(found.shape)


@fault(
    kind="output-layout",
    shows=("layout-q-gradients",),
    spoils=("dq",),
    reports=("pytorch/pytorch#133671",),
)
class DqWrittenByTheStridesOfQueries(Pipeline):
    """dq is written in the layout of the queries and returned as contiguous."""

    def gradients(self) -> dict[str, Array]:
        found = super().gradients()
        order = np.argsort([-abs(stride) for stride in self.raw["q"].strides], kind="stable")
        written = np.ascontiguousarray(found["dq"].transpose(order))
        return {**found, "dq": written.reshape(found["dq"].shape)}
