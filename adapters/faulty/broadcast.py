"""Masks and biases that are smaller than the scores, read at the wrong place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.pipeline import Array, Pipeline

__all__: list[str] = []


def four(x: Array) -> Array:
    """With the leading axes that are left out: four."""
    return x.reshape((1,) * (4 - x.ndim) + x.shape)


class _Buffer(Pipeline, ABC):
    """A smaller mask or bias, read at `places` of its buffer, over and over."""

    @abstractmethod
    def wrong(self, shape: tuple[int, ...]) -> bool:
        """Whether an array of this shape (four axes) is read wrongly."""

    @abstractmethod
    def places(self, shape: tuple[int, ...]) -> Any:
        """Where in the buffer each score finds its number, broadcastable to (B, H, Nq, Nk)."""

    def index(self) -> list[Array]:
        """b, h, i and j, each along its axis."""
        return list(np.ogrid[: self.batch, : self.heads, : self.rows, : self.keys])

    def spread(self, name: str, x: Array) -> Array:
        whole = four(x)
        if not whole.size or not self.wrong(whole.shape):
            return super().spread(name, x)
        return super().spread(name, whole.reshape(-1)[self.places(whole.shape) % whole.size])


@fault(
    kind="broadcast",
    reports=("pytorch/pytorch#128816",),
    beyond_smoke="no variant of an option but the first",
)
class LastAxisOfOneReadOnwards(_Buffer):
    """A mask or bias with one number a row is read on from there for the other keys."""

    def wrong(self, shape: tuple[int, ...]) -> bool:
        return shape[3] == 1 and self.keys > 1

    def places(self, shape: tuple[int, ...]) -> Any:
        b, h, i, j = self.index()
        _, heads, rows, _ = shape
        return ((b % shape[0] * heads + h % heads) * rows + i % rows) + j


@fault(kind="broadcast", reports=("NVIDIA/TransformerEngine#2537",))
class KeysAloneReadAsRows(_Buffer):
    """A mask or bias with one row for all is read as if each row had its own."""

    def wrong(self, shape: tuple[int, ...]) -> bool:
        return shape[2] == 1 and self.rows > 1

    def places(self, shape: tuple[int, ...]) -> Any:
        b, h, i, j = self.index()
        entries, heads, _, keys = shape
        return (b % entries * heads + h % heads) * keys + i * keys + j % keys


@fault(kind="broadcast")
class HeadsReadTheNextEntry(_Buffer):
    """A mask or bias shared by the heads is read as if each head had its own."""

    def wrong(self, shape: tuple[int, ...]) -> bool:
        return shape[1] == 1 and shape[0] > 1

    def places(self, shape: tuple[int, ...]) -> Any:
        b, h, i, j = self.index()
        entries, _, rows, keys = shape
        return ((b % entries + h) * rows + i % rows) * keys + j % keys


@fault(kind="broadcast")
class EntriesReadTheNextHead(_Buffer):
    """A mask or bias shared by the batch is read as if each entry had its own."""

    def wrong(self, shape: tuple[int, ...]) -> bool:
        return shape[0] == 1 and shape[1] > 1

    def places(self, shape: tuple[int, ...]) -> Any:
        b, h, i, j = self.index()
        _, heads, rows, keys = shape
        return ((b + h % heads) * rows + i % rows) * keys + j % keys


@fault(kind="broadcast")
class HeadAxisTakenAsBatch(Pipeline):
    """A mask or bias with a slice for each head uses the slice of the batch entry's number."""

    def spread(self, name: str, x: Array) -> Array:
        whole = four(x)
        if whole.shape[0] > 1 or whole.shape[1] == 1:
            return super().spread(name, x)
        entry = np.arange(self.batch) % whole.shape[1]
        return super().spread(name, whole[0, entry][:, None])


@fault(kind="broadcast", beyond_smoke="no variant of an option but the first")
class ThreeAxesTakenAsBatch(Pipeline):
    """The first of three axes is taken as the batch, where it is the heads."""

    def spread(self, name: str, x: Array) -> Array:
        if x.ndim == 3 and x.shape[0] > 1:
            return super().spread(name, x[np.arange(self.batch) % x.shape[0]][:, None])
        return super().spread(name, x)


@fault(kind="broadcast")
class TwoAxesTakenAsBatchAndKeys(Pipeline):
    """A mask or bias of rows and keys is taken as one of batch entries and keys."""

    def spread(self, name: str, x: Array) -> Array:
        if x.ndim == 2 and x.shape[0] >= self.batch:
            return super().spread(name, x[: self.batch, None, None])
        return super().spread(name, x)


@fault(kind="broadcast")
class RowOfTheFirstForAll(Pipeline):
    """A mask or bias gives every row what is meant for the first."""

    def spread(self, name: str, x: Array) -> Array:
        return super().spread(name, four(x)[:, :, :1])


@fault(kind="broadcast")
class SliceOfTheFirstHeadForAll(Pipeline):
    """A bias gives every head what is meant for the first."""

    def spread(self, name: str, x: Array) -> Array:
        return super().spread(name, four(x)[:, :1] if name == "bias" else x)


@fault(kind="broadcast")
class FlatSliceOfTheBatch(_Buffer):
    """A bias of all entries and heads is indexed by h · B + b instead of b · H + h."""

    def wrong(self, shape: tuple[int, ...]) -> bool:
        return shape[0] > 1 and shape[1] > 1

    def places(self, shape: tuple[int, ...]) -> Any:
        b, h, i, j = self.index()
        entries, _, rows, keys = shape
        return ((h * entries + b) * rows + i % rows) * keys + j % keys
