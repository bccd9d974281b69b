"""Query heads that read the wrong key head."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.pipeline import Array, Pipeline

__all__: list[str] = []


@fault(kind="gqa-map", reports=("ekzhang/jax-js#180",))
class KeyHeadsTiled(Pipeline):
    """Query head h reads key head h mod Hkv."""

    def key_heads(self) -> Array:
        return np.arange(self.heads) % self.kv_heads


@fault(kind="gqa-map")
class KeyHeadsOfGroupsOfTwo(Pipeline):
    """Query head h reads key head h / 2, whatever the size of the groups."""

    def key_heads(self) -> Array:
        group = self.heads // self.kv_heads
        return np.arange(self.heads) // min(2, group) % self.kv_heads


@fault(kind="gqa-map")
class KeyHeadZeroForAll(Pipeline):
    """All query heads read key head 0."""

    def key_heads(self) -> Array:
        return np.zeros(self.heads, np.int64)


@fault(kind="gqa-map")
class KeyHeadZeroForGroups(Pipeline):
    """Where query heads share key heads, all read key head 0."""

    def key_heads(self) -> Array:
        shared = self.heads > self.kv_heads
        return super().key_heads() * (not shared)


@fault(kind="gqa-map", beyond_smoke="no variant of an option but the first")
class KeyHeadOffByOneBeyondTwo(Pipeline):
    """With more than two key heads, grouped query heads read the key head after theirs."""

    def key_heads(self) -> Array:
        step = self.kv_heads > 2 and self.heads > self.kv_heads
        return (super().key_heads() + step) % self.kv_heads


@fault(kind="gqa-map")
class GroupsCountedFromTheLastHead(Pipeline):
    """The key heads stand in reverse order."""

    def key_heads(self) -> Array:
        return super().key_heads()[::-1]


@fault(kind="gqa-map")
class GroupSizeRoundedToPowersOfTwo(Pipeline):
    """The size of a group is rounded up to a power of two."""

    def key_heads(self) -> Array:
        group = 2 ** int(np.ceil(np.log2(self.heads // self.kv_heads)))
        return np.arange(self.heads) // group % self.kv_heads


@fault(
    kind="gqa-map",
    reports=("pytorch/pytorch#174861",),
    beyond_smoke="no options for a single row",
)
class KeyHeadsTiledForOneQuery(Pipeline):
    """For a single query row, as in decoding, query head h reads key head h mod Hkv."""

    def key_heads(self) -> Array:
        return np.arange(self.heads) % self.kv_heads if self.rows == 1 else super().key_heads()


@fault(kind="gqa-map")
class QueriesOfTheFirstHeadOfTheGroup(Pipeline):
    """The query heads of a group all use the query of its first."""

    def ready(self) -> None:
        group = self.heads // self.kv_heads
        self.q = self.q[:, np.arange(self.heads) // group * group]


class _OtherValues(Pipeline):
    """Values come from other heads than keys."""

    def value_heads(self) -> Array:
        return self.key_heads()

    def ready(self) -> None:
        self.v = self.read("v", self.raw["v"])[:, self.value_heads()]


@fault(kind="gqa-map")
class ValueHeadsTiled(_OtherValues):
    """Query head h reads the values of head h mod Hkv, its keys rightly."""

    def value_heads(self) -> Array:
        return np.arange(self.heads) % self.kv_heads


@fault(kind="gqa-map")
class ValuesOfTheFirstHead(_OtherValues):
    """All query heads read the values of head 0, their keys rightly."""

    def value_heads(self) -> Array:
        return np.zeros(self.heads, np.int64)


class _Flat(Pipeline):
    """Key head `flat` of the heads of all entries in a row, for each entry and query head."""

    def flat(self) -> Array:
        entry, head = np.ogrid[: self.batch, : self.heads]
        found: Array = entry * self.kv_heads + head // (self.heads // self.kv_heads)
        return found

    def ready(self) -> None:
        index = self.flat() % (self.batch * self.kv_heads)
        for name in ("k", "v"):
            x: Any = self.read(name, self.raw[name])
            setattr(self, name, x.reshape(self.batch * self.kv_heads, *x.shape[2:])[index])


@fault(kind="gqa-map")
class SharedHeadsTakenAsOwn(_Flat):
    """Key heads are read as if each query head had its own: from the flat buffer, round again."""

    def flat(self) -> Array:
        entry, head = np.ogrid[: self.batch, : self.heads]
        found: Array = entry * self.heads + head
        return found


@fault(kind="gqa-map")
class LoneKeyHeadTakenAsOwn(_Flat):
    """A key head that all share is read as if each query head had its own."""

    def flat(self) -> Array:
        if self.kv_heads > 1:
            return super().flat()
        entry, head = np.ogrid[: self.batch, : self.heads]
        found: Array = entry * self.heads + head
        return found


@fault(kind="gqa-map")
class EntriesStepByQueryHeads(_Flat):
    """The step from a batch entry's keys to the next counts the query heads."""

    def flat(self) -> Array:
        entry, _ = np.ogrid[: self.batch, : self.heads]
        found: Array = super().flat() + entry * (self.heads - self.kv_heads)
        return found


@fault(kind="gqa-map", beyond_smoke="no two options together")
class MaskOfTheKeyHead(Pipeline):
    """A mask that each query head has its own of is looked up by key head."""

    def ready(self) -> None:
        self.mask = None if self.mask is None else self.mask[:, self.key_heads()]


@fault(kind="gqa-map", beyond_smoke="no two options together")
class BiasOfTheKeyHead(Pipeline):
    """A bias that each query head has its own of is looked up by key head."""

    def ready(self) -> None:
        self.bias = None if self.bias is None else self.bias[:, self.key_heads()]


@fault(kind="gqa-map", beyond_smoke="no two options together")
class SinksOfTheKeyHead(Pipeline):
    """The query heads of a group share one sink, looked up by key head."""

    def ready(self) -> None:
        self.sinks = None if self.sinks is None else self.sinks[:, self.key_heads()]


@fault(kind="gqa-map", beyond_smoke="no variant of an option but the first")
class GroupsOfFourAtMost(Pipeline):
    """Groups of more than four query heads are read as groups of four."""

    def key_heads(self) -> Array:
        group = min(self.heads // self.kv_heads, 4)
        return np.arange(self.heads) // group % self.kv_heads


@fault(
    kind="gqa-map",
    shows=("chunked-prefill-equals-prefill",),
    beyond_smoke="no two options together",
)
class PackedGroupsTakenAsRows(Pipeline):
    """Up to eight rows are packed with their group's heads, and the packed index is the row."""

    def seen_causally(self, ahead: Array) -> Array:
        group = self.heads // self.kv_heads
        if self.rows > 8:
            return super().seen_causally(ahead)
        head = np.arange(self.heads)[:, None, None] % group
        packed = self.row_index() * group + head
        return np.asarray(ahead + packed - self.row_index() >= 0)


@fault(kind="gqa-map", shows=("lse",), spoils=("lse",))
class LseOfGroupsTransposed(Pipeline):
    """The log-sum-exp of grouped heads stands in the order of their places in the groups."""

    def answer(self) -> Array | tuple[Array, Array]:
        found = super().answer()
        if not isinstance(found, tuple):
            return found
        group = self.heads // self.kv_heads
        order = np.arange(self.heads).reshape(self.kv_heads, group).T.reshape(-1)
        return found[0], found[1][:, order]
