"""Causal masks in the wrong place, or lost on some route through the code."""

from __future__ import annotations

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.pipeline import Array, Pipeline

__all__: list[str] = []

LONG = 300
"""Keys of a row that a kernel of many tiles would take."""


@fault(kind="causal-alignment", reports=("microsoft/onnxruntime#29020",))
class CausalTopLeft(Pipeline):
    """The causal mask is aligned top-left."""

    def seen_causally(self, ahead: Array) -> Array:
        return ahead - self.offset() >= 0


@fault(kind="causality")
class CausalSeesTheNextToken(Pipeline):
    """A causal row sees one token of its future."""

    def seen_causally(self, ahead: Array) -> Array:
        return ahead >= -1


@fault(kind="causality")
class CausalHidesTheTokenItself(Pipeline):
    """A causal row does not see its own token."""

    def seen_causally(self, ahead: Array) -> Array:
        return ahead >= 1


@fault(kind="causality")
class CausalReversed(Pipeline):
    """A causal row sees its future and not its past."""

    def seen_causally(self, ahead: Array) -> Array:
        return ahead <= 0


@fault(kind="causality", reports=("pytorch/pytorch#195910",))
class CausalByGroupsOfFourRows(Pipeline):
    """Four rows share the causal mask of their last."""

    def seen_causally(self, ahead: Array) -> Array:
        return ahead + (3 - np.arange(self.rows)[:, None] % 4) >= 0


@fault(kind="causality", reports=("tenstorrent/tt-metal#48899",))
class CausalOnlyInTheFirstKeyTile(Pipeline):
    """The causal mask is applied in the first tile of keys alone."""

    def visible(self, keys: slice) -> Array:
        causal, self.causal = self.causal, self.causal and keys.start == 0
        seen = super().visible(keys)
        self.causal = causal
        return seen


@fault(kind="causality")
class CausalByTheKeyTile(Pipeline):
    """The causal mask hides whole tiles of 16 keys and tests no key by itself."""

    def seen_causally(self, ahead: Array) -> Array:
        return ahead + np.arange(ahead.shape[-1]) % 16 >= 0


@fault(kind="causality", beyond_smoke="no two options together")
class CausalTilesFoundByPaddedRows(Pipeline):
    """The last tile of 64 keys of a causal row is looked for by the padded number of rows."""

    def seen_causally(self, ahead: Array) -> Array:
        row: Array = np.asarray(self.row_index() + self.offset())
        last = (self.row_index() + self.key_lengths - self.rows) // 64
        return np.asarray((ahead >= 0) & ((row - ahead) // 64 <= last))


@fault(kind="causality")
class CausalLostInTheLastRows(Pipeline):
    """The rows after the last full tile of 16 are not masked causally."""

    def seen_causally(self, ahead: Array) -> Array:
        return (ahead >= 0) | (self.row_index() >= self.rows // 16 * 16)


@fault(kind="causality", beyond_smoke="no options beyond the first tiles")
class CausalLostInLongRows(Pipeline):
    """The causal mask is lost where a row has more than 300 keys."""

    def ready(self) -> None:
        self.causal &= self.keys <= LONG


@fault(kind="causality")
class CausalInTheFirstHeadAlone(Pipeline):
    """The causal mask is applied to head 0 alone."""

    def seen_causally(self, ahead: Array) -> Array:
        return (ahead >= 0) | (np.arange(self.heads)[:, None, None] > 0)


@fault(kind="causality")
class CausalInTheFirstEntryAlone(Pipeline):
    """The causal mask is applied to batch entry 0 alone."""

    def seen_causally(self, ahead: Array) -> Array:
        return (ahead >= 0) | (np.arange(self.batch)[:, None, None, None] > 0)


@fault(
    kind="causality",
    shows=("lse",),
    spoils=("lse",),
    reports=("huggingface/transformers#30652",),
)
class CausalLostWhenLseIsAsked(Pipeline):
    """Without a causal mask where the log-sum-exp is asked for."""

    def ready(self) -> None:
        self.causal &= not self.return_lse


@fault(kind="causality", shows=("out-beside-lse",), spoils=())
class CausalLostInTheOutputBesideLse(Pipeline):
    """Where the log-sum-exp is asked for, it is right, but the output has no causal mask."""

    def answer(self) -> Array | tuple[Array, Array]:
        found = super().answer()
        if not isinstance(found, tuple):
            return found
        self.causal = False
        return np.asarray(super().answer()[0]), found[1]


@fault(kind="causality", beyond_smoke="no options in heads above 64")
class CausalLostForLargeHeads(Pipeline):
    """The causal mask is lost for head sizes above 64."""

    def ready(self) -> None:
        self.causal &= self.size <= 64


@fault(kind="causality", beyond_smoke="no options in unequal head sizes")
class CausalLostForUnequalHeadSizes(Pipeline):
    """The causal mask is lost where values have another size than keys."""

    def ready(self) -> None:
        self.causal &= self.size == self.value_size


@fault(
    kind="causality",
    shows=("out-beside-lse",),
    spoils=(),
    beyond_smoke="no two options together",
)
class CausalLostBesideSinksInTheOutputBesideLse(Pipeline):
    """Where lse and sinks come together, lse is right, but the output has no causal mask."""

    def answer(self) -> Array | tuple[Array, Array]:
        found = super().answer()
        if not isinstance(found, tuple) or self.sinks is None:
            return found
        self.causal = False
        return np.asarray(super().answer()[0]), found[1]


@fault(kind="causality")
class CausalLostBesideBias(Pipeline):
    """The causal mask is lost beside a bias."""

    def ready(self) -> None:
        self.causal &= self.bias is None


@fault(kind="causality")
class CausalLostBesideMask(Pipeline):
    """The causal mask is lost beside another mask."""

    def ready(self) -> None:
        self.causal &= self.mask is None


@fault(kind="causality")
class CausalLostBesideWindow(Pipeline):
    """The causal mask is lost beside a window, which may be open to the right."""

    def ready(self) -> None:
        self.causal &= self.window == (None, None)


@fault(kind="causality")
class CausalLostBesideLengths(Pipeline):
    """The causal mask is lost where the keys come with their lengths."""

    def ready(self) -> None:
        self.causal &= self.raw["key_lengths"] is None


@fault(kind="causality", beyond_smoke="no two options together")
class CausalLostWithGroupedHeads(Pipeline):
    """The causal mask is lost where query heads share key heads."""

    def ready(self) -> None:
        self.causal &= self.heads == self.kv_heads


@fault(kind="causality")
class CausalWeightsZeroedAfterTheSoftmax(Pipeline):
    """Later tokens get weight 0 only after the softmax has counted them in its sum."""

    def seen_causally(self, ahead: Array) -> Array:
        return np.ones(ahead.shape, np.bool_)

    def collected(self, sums: Array, p: Array, keys: slice, fade: Array) -> Array:
        past = self.ahead(keys) >= 0
        return super().collected(sums, np.where(past, p, 0) if self.causal else p, keys, fade)
