"""Options that are ignored: alone, beside a second one, or on one route through the code."""

from __future__ import annotations

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.pipeline import Array, Pipeline

__all__: list[str] = []


@fault(kind="option-ignored")
class CausalIgnored(Pipeline):
    """The causal mask is not applied at all."""

    def ready(self) -> None:
        self.causal = False


class _WithoutBias(Pipeline):
    """A bias that neither adds nor hides, where `loses` says so."""

    def loses(self) -> bool:
        return True

    def biased(self, s: Array, keys: slice) -> Array:
        return s if self.loses() else super().biased(s, keys)

    def seen_by_bias(self, keys: slice) -> Array:
        return np.asarray(True) if self.loses() else super().seen_by_bias(keys)


@fault(kind="option-ignored")
class BiasIgnored(_WithoutBias):
    """The bias is ignored."""


@fault(kind="option-ignored")
class BiasOnlyHides(_WithoutBias):
    """Of the bias only -inf is honoured: finite numbers are not added."""

    def seen_by_bias(self, keys: slice) -> Array:
        return Pipeline.seen_by_bias(self, keys)


@fault(kind="option-ignored")
class BiasLostBesideCausal(_WithoutBias):
    """The bias is lost beside a causal mask."""

    def loses(self) -> bool:
        return self.causal


@fault(kind="option-ignored")
class BiasLostBesideMask(_WithoutBias):
    """The bias is lost beside a mask."""

    def loses(self) -> bool:
        return self.mask is not None


@fault(kind="option-ignored", beyond_smoke="no two options together")
class BiasLostBesideSoftcap(_WithoutBias):
    """The bias is lost beside a soft cap."""

    def loses(self) -> bool:
        return self.softcap is not None


@fault(kind="option-ignored", beyond_smoke="no options for a single row")
class BiasLostForOneQuery(_WithoutBias):
    """The bias is lost for a single query row, as in decoding."""

    def loses(self) -> bool:
        return self.rows == 1


@fault(kind="option-ignored", shows=("lse",), spoils=("lse",))
class BiasLostWhenLseIsAsked(_WithoutBias):
    """Without the bias where the log-sum-exp is asked for."""

    def loses(self) -> bool:
        return self.return_lse


@fault(kind="option-ignored")
class BiasOfTheFirstTile(Pipeline):
    """Every tile of 32 keys adds the bias of the first."""

    def biased(self, s: Array, keys: slice) -> Array:
        return s if self.bias is None else s + self.bias[..., self.key_index(keys) % 32]

    def seen_by_bias(self, keys: slice) -> Array:
        if self.bias is None:
            return np.asarray(True)
        return np.asarray(~np.isneginf(self.bias[..., self.key_index(keys) % 32]))


@fault(kind="option-ignored")
class BiasLostInTheLastKeys(Pipeline):
    """The keys after the last full vector of 16 get no bias."""

    def ready(self) -> None:
        if self.bias is not None:
            tail = np.arange(self.keys) >= self.keys // 16 * 16
            self.bias = np.where(tail, 0, self.bias).astype(self.real)


@fault(
    kind="layout-mixup",
    shows=(
        "out",
        "chunked-prefill-equals-prefill",
    ),
    beyond_smoke="no bias where there are as many queries as keys",
)
class BiasTransposedWhereSquare(Pipeline):
    """A bias of as many rows as keys is read transposed."""

    def ready(self) -> None:
        if self.bias is not None and self.rows == self.keys:
            self.bias = self.bias.swapaxes(2, 3)


@fault(kind="overflow", beyond_smoke="no variant of an option but the first")
class BiasNotInTheMaximum(Pipeline):
    """The row maximum is that of the scores before the bias: a large bias under- or overflows."""

    def scores(self, keys: slice) -> tuple[Array, Array | float]:
        self.before, _ = self.capped(self.scaled(self.dot(keys)))
        self.seen = self.visible(keys)
        return super().scores(keys)

    def largest(self, before: Array, s: Array) -> Array:
        return super().largest(before, self.hidden(self.before, self.seen).astype(s.dtype))


@fault(kind="option-ignored")
class KeyLengthsIgnored(Pipeline):
    """The key lengths are ignored: padding is attended."""

    def lengths(self, given: Array | None, most: int) -> Array:
        return super().lengths(None if given is self.raw["key_lengths"] else given, most)


@fault(kind="option-ignored")
class QueryLengthsIgnored(Pipeline):
    """The query lengths are ignored: padding attends, and the diagonal is that of all rows."""

    def lengths(self, given: Array | None, most: int) -> Array:
        return super().lengths(None if given is self.raw["query_lengths"] else given, most)


@fault(kind="option-ignored", beyond_smoke="no variant of an option but the first")
class QueryLengthOfZeroTakenAsNone(Pipeline):
    """A query length of 0 counts as no length given: all padding attends."""

    def lengths(self, given: Array | None, most: int) -> Array:
        found = super().lengths(given, most)
        return np.where(found == 0, most, found) if given is self.raw["query_lengths"] else found


@fault(kind="option-ignored")
class KeyLengthsOneTooMany(Pipeline):
    """One key beyond the length of its batch entry is attended."""

    def seen_by_length(self, keys: slice) -> Array:
        held: Array = self.key_index(keys) <= self.key_lengths
        return (self.row_index() < self.query_lengths) & held


@fault(kind="option-ignored")
class KeyLengthsOneTooFew(Pipeline):
    """The last key within the length of its batch entry is not attended."""

    def seen_by_length(self, keys: slice) -> Array:
        if self.raw["key_lengths"] is None:
            return super().seen_by_length(keys)
        held: Array = self.key_index(keys) < self.key_lengths - 1
        return (self.row_index() < self.query_lengths) & held


@fault(kind="option-ignored")
class KeyLengthsRoundedUpToTiles(Pipeline):
    """Padding is attended up to the end of its tile of 16 keys."""

    def seen_by_length(self, keys: slice) -> Array:
        held: Array = self.key_index(keys) // 16 * 16 < self.key_lengths
        return (self.row_index() < self.query_lengths) & held


@fault(kind="tail-tile", beyond_smoke="no variant of an option but the first")
class KeyLengthsOfWholeTilesLoseOne(Pipeline):
    """A key length that fills tiles of 128 loses the last of them."""

    def seen_by_length(self, keys: slice) -> Array:
        whole = (self.key_lengths % 128 == 0) & (self.raw["key_lengths"] is not None)
        held: Array = self.key_index(keys) < self.key_lengths - 128 * whole
        return (self.row_index() < self.query_lengths) & held


@fault(kind="option-ignored", beyond_smoke="no options in heads above 64")
class BiasLostForLargeHeads(_WithoutBias):
    """The bias is lost for a head size of 128."""

    def loses(self) -> bool:
        return self.size == 128


@fault(kind="option-ignored", beyond_smoke="no variant of an option but the first")
class KeyLengthOfZeroTakenAsNone(Pipeline):
    """A key length of 0 counts as no length given: all padding is attended."""

    def lengths(self, given: Array | None, most: int) -> Array:
        found = super().lengths(given, most)
        return np.where(found == 0, most, found)


@fault(kind="option-ignored", beyond_smoke="no two options together")
class KeyLengthsLostBesideMask(Pipeline):
    """The key lengths are lost beside a mask."""

    def seen_by_length(self, keys: slice) -> Array:
        seen = super().seen_by_length(keys)
        return seen if self.mask is None else np.ones_like(seen)


@fault(kind="option-ignored")
class KeyLengthsOfAnEntryForItsHeads(Pipeline):
    """Key lengths are looked up by head instead of batch entry."""

    def seen_by_length(self, keys: slice) -> Array:
        entry = np.arange(self.heads) % self.batch
        held: Array = self.key_index(keys) < self.key_lengths.reshape(-1)[entry][:, None, None]
        return (self.row_index() < self.query_lengths) & held


@fault(kind="option-ignored", beyond_smoke="no three options together")
class SoftcapLostBesideCausalAndBias(Pipeline):
    """The soft cap is lost where a causal mask and a bias come together."""

    def ready(self) -> None:
        self.softcap = None if self.causal and self.bias is not None else self.softcap


@fault(kind="option-ignored", beyond_smoke="no two options together")
class SinksLostBesideWindow(Pipeline):
    """The sinks are lost beside a window."""

    def start(self) -> tuple[Array, Array, Array]:
        sinks = self.sinks
        self.sinks = sinks if self.window == (None, None) else None
        state = super().start()
        self.sinks = sinks
        return state


@fault(kind="option-ignored", beyond_smoke="no options for a single row")
class SinksLostForOneQueryOfGroups(Pipeline):
    """The sinks are lost for a single query row whose heads share key heads."""

    def start(self) -> tuple[Array, Array, Array]:
        sinks = self.sinks
        if self.rows == 1 and self.heads > self.kv_heads:
            self.sinks = None
        state = super().start()
        self.sinks = sinks
        return state
