"""A cache of keys in pages: pages in any order, a table for each batch entry."""

from __future__ import annotations

import itertools
from typing import ClassVar

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.pipeline import Array, Pipeline, State, shift

__all__: list[str] = []


class Paged(Pipeline):
    """Keys and values are put into pages and gathered again, here by the right table.

    Slots of the last page that hold no key are NaN.
    """

    page: ClassVar[int] = 16

    @property
    def pages(self) -> int:
        """Pages of each batch entry."""
        return -(-self.keys // self.page)

    def table(self) -> Array:
        """The place of each page: (B, pages)."""
        places = np.random.default_rng(0).permutation(self.batch * self.pages)
        return places.reshape(self.batch, self.pages)

    def read(self, name: str, x: Array) -> Array:
        found = super().read(name, x)
        return self.gathered_pages(self.pool(found)) if name in "kv" else found

    def pool(self, x: Array) -> Array:
        """The pages: (B · pages, heads, page, D)."""
        batch, heads, keys, size = x.shape
        padded = np.full((batch, heads, self.pages * self.page, size), np.nan, x.dtype)
        padded[:, :, :keys] = x
        cut = padded.reshape(batch, heads, self.pages, self.page, size).swapaxes(1, 2)
        found = np.empty((batch * self.pages, *cut.shape[2:]), x.dtype)
        found[self.table()] = cut
        return found

    def gathered_pages(self, pool: Array) -> Array:
        """The keys in a row: (B, heads, Nk, D)."""
        found = pool[self.lookup()].swapaxes(1, 2)
        whole = found.reshape(*found.shape[:2], -1, found.shape[-1])
        return np.asarray(whole[:, :, : self.keys])

    def lookup(self) -> Array:
        """The table by which pages are read."""
        return self.table()


@fault(kind="paged", reports=("pytorch/pytorch#182593",))
class PagesTakenAsAdjacent(Paged):
    """Two pages are read at a time, as if the second always lay behind the first."""

    def lookup(self) -> Array:
        found = self.table().copy()
        last = self.batch * self.pages - 1
        for page in range(1, self.pages, 2):
            found[:, page] = np.minimum(found[:, page - 1] + 1, last)
        return found


@fault(kind="paged")
class TableOfTheFirstEntry(Paged):
    """Every batch entry is read by the page table of the first."""

    def lookup(self) -> Array:
        found = self.table()
        return np.broadcast_to(found[:1], found.shape)


@fault(kind="paged")
class PagesInTheOrderOfTheirPlaces(Paged):
    """The pages of a batch entry are read in the order in which they lie in memory."""

    def lookup(self) -> Array:
        return np.sort(self.table(), axis=1)


@fault(kind="paged", shows=("out", "lse"))
class SlackOfTheLastPageCounted(Paged):
    """The empty slots of the last page count as keys of score 0."""

    def attend(self) -> State:
        largest, total, sums = super().attend()
        slack = self.pages * self.page - self.keys
        return largest, total + slack * self.exp(-shift(largest)), sums


@fault(kind="paged", shows=("out", "lse"))
class LastPageDropped(Paged):
    """A last page that is not full is not read."""

    def seen_by_length(self, keys: slice) -> Array:
        full = self.keys // self.page * self.page
        return super().seen_by_length(keys) & (self.key_index(keys) < full)


@fault(kind="paged")
class LastPageOfAnEarlierCall(Paged):
    """The last page of values is still the one of an earlier call of the same shape."""

    def pool(self, x: Array) -> Array:
        found = super().pool(x)
        if not self.pages or x.shape[-1] != self.value_size:
            return found
        last = self.table()[:, -1]
        before = self.state.get(found.shape, found)[last].copy()
        self.state[found.shape] = found.copy()
        found[last] = before
        return found


@fault(kind="paged")
class ValuesInPagesOfAnotherSize(Paged):
    """Values are gathered by pages of half the size."""

    def read(self, name: str, x: Array) -> Array:
        found = super().read(name, x)
        if name != "v" or self.pages < 2:
            return found
        index = np.arange(self.keys)
        return found[:, :, index // 16 * 8 + index % 8]


@fault(kind="paged", beyond_smoke="no entry that ends with a page")
class FreePagesAreRead(Paged):
    """A page table holds one page too many for entries that end with a page."""

    def visible(self, keys: slice) -> Array:
        found = super().visible(keys)
        lengths = self.key_lengths.ravel()
        ends = (lengths % self.page == 0) & (lengths > 0) & (lengths < self.keys)
        extra = self.key_index(keys) == self.key_lengths
        return found | (extra & ends[:, None, None, None])


@fault(kind="kv-offset")
class PositionsStartAgainInEachPage(Paged):
    """The causal mask counts keys from the start of their page."""

    def seen_causally(self, ahead: Array) -> Array:
        turn = next(self.turns)
        keys = np.arange(self.keys)[turn * self.tile : turn * self.tile + ahead.shape[-1]]
        return super().seen_causally(ahead + keys // self.page * self.page)

    def scores(self, keys: slice) -> tuple[Array, Array | float]:
        self.turns = itertools.repeat(keys.start // self.tile)
        return super().scores(keys)
