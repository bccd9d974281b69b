"""Batch entries of several lengths, packed into one sequence with the places where each begins."""

from __future__ import annotations

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.pipeline import Array, Pipeline, State, shift

__all__: list[str] = []


class Packed(Pipeline):
    """Keys and values of all entries are packed in a row and unpacked, here where they belong."""

    def ready(self) -> None:
        if self.raw["key_lengths"] is None:
            return
        self.held = self.key_lengths.ravel()
        self.k, self.v = self.unpacked(self.k), self.unpacked(self.v)

    def unpacked(self, x: Array) -> Array:
        """Each entry as it is read from the packed sequence: (B, H, Nk, D)."""
        entries = [x[entry, :, :held] for entry, held in enumerate(self.held)]
        row = np.concatenate([*entries, np.zeros_like(x[0])], axis=1)
        found = np.zeros_like(x)
        for entry, first in enumerate(self.starts()):
            first = min(int(first), row.shape[1] - self.keys)
            found[entry] = row[:, first : first + self.keys]
        return found

    def starts(self) -> Array:
        """Where each entry begins."""
        return np.cumsum(self.held) - self.held


@fault(kind="varlen-leak", shows=("out", "lse"))
class NeighbourInThePackLeaks(Packed):
    """The last row of each entry also sees the first key of the next in the pack."""

    def seen_by_length(self, keys: slice) -> Array:
        found = super().seen_by_length(keys)
        if self.raw["key_lengths"] is None:
            return found
        last = self.row_index() == self.query_lengths - 1
        return found | (last & (self.key_index(keys) == self.key_lengths))


@fault(
    kind="varlen-leak", beyond_smoke="one draw of key lengths, of which the first is the longest"
)
class PackedByPaddedLengths(Packed):
    """Entries of the pack are looked for at multiples of the longest length."""

    def starts(self) -> Array:
        return np.arange(self.batch) * int(self.held.max(initial=0))


@fault(kind="varlen-leak")
class StartsOfThePackOffByOneEntry(Packed):
    """Each entry begins where the next one does."""

    def starts(self) -> Array:
        return np.cumsum(self.held)


@fault(kind="varlen-leak", beyond_smoke="no batch entry without keys")
class EmptyEntriesReadTheNext(Packed):
    """A batch entry without keys sees the first key of the next."""

    def ready(self) -> None:
        super().ready()
        self.key_lengths = np.maximum(self.key_lengths, min(1, self.keys))


@fault(
    kind="varlen-leak",
    reports=("Dao-AILab/flash-attention#1537",),
    beyond_smoke="no batch of one row with lengths of queries",
)
class OneRowAnEntryAssumed(Packed):
    """Where no entry has more than one row, an empty one raises an error."""

    def ready(self) -> None:
        super().ready()
        lengths = self.query_lengths.ravel()
        if lengths.max(initial=0) == 1 and lengths.sum() < self.batch:
            raise ValueError("cannot reshape the packed queries into one row for each entry")


@fault(kind="varlen-leak", shows=("out", "lse"), reports=("pytorch/pytorch#136232",))
class PaddingCountsAsZeroKeys(Packed):
    """Slots beyond an entry's length count as keys of score 0."""

    def attend(self) -> State:
        largest, total, sums = super().attend()
        slack = (self.keys - self.key_lengths).astype(self.real)
        return largest, total + slack * self.exp(-shift(largest)), sums


@fault(kind="varlen-leak", shows=("out", "lse"))
class KeysAsManyAsQueries(Packed):
    """The lengths of the queries are used for the keys as well."""

    def ready(self) -> None:
        super().ready()
        if self.raw["query_lengths"] is not None:
            self.key_lengths = np.minimum(self.query_lengths, self.keys)


@fault(kind="kv-offset")
class DiagonalOfThePaddedLengths(Packed):
    """Causal masks and windows are placed by the padded lengths, not by each entry's own."""

    def offset(self) -> Array:
        return np.full_like(self.key_lengths, self.keys - self.rows)


@fault(kind="varlen-leak", shows=("out", "lse"))
class RowsBeyondTheirLengthComputed(Packed):
    """Rows beyond an entry's length attend like others."""

    def seen_by_length(self, keys: slice) -> Array:
        held: Array = self.key_index(keys) < self.key_lengths
        return np.broadcast_to(held, (self.batch, 1, self.rows, held.shape[-1]))


@fault(
    kind="varlen-leak",
    shows=("dk", "dv"),
    spoils=("dk", "dv"),
    beyond_smoke="one draw of key lengths, of which the last is the shortest",
)
class KeyGradientsOfTheLastEntryCut(Packed):
    """dk and dv of the last entry stop at the length of the one before."""

    def per_key_head(self, name: str, x: Array) -> Array:
        found = super().per_key_head(name, x)
        if self.batch > 1 and self.raw["key_lengths"] is not None:
            found[-1, :, self.held[-2] :] = 0
        return found
