"""Attention sinks: left out, counted as a key, of another head, or against another maximum."""

from __future__ import annotations

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.pipeline import Array, Pipeline, State, rounded, shift

__all__: list[str] = []


class SinkOf(Pipeline):
    """The sinks may be others: (1, H, 1, 1)."""

    def given(self, sinks: Array) -> Array:
        """The sinks as they are used."""
        return sinks

    def ready(self) -> None:
        self.sinks = None if self.sinks is None else self.given(self.sinks).astype(self.real)


@fault(
    kind="sink",
    reports=("NVIDIA/TransformerEngine#3551",),
    shows=("out", "lse", "dsinks", "sink-takes-nothing-or-all"),
)
class SinkDiscarded(Pipeline):
    """Sinks are accepted and not used; their gradient is zero."""

    def start(self) -> State:
        given, self.sinks = self.sinks, None
        found = super().start()
        self.sinks = given
        return found

    def dsinks(self, lse: Array, inner: Array) -> Array:
        return np.zeros(self.heads, self.real)


@fault(kind="sink", shows=("out", "lse"))
class SinkScaled(SinkOf):
    """The scale is applied to sinks, too."""

    def given(self, sinks: Array) -> Array:
        return sinks * self.scale


@fault(kind="sink", shows=("out", "lse"))
class SinkNegated(SinkOf):
    """Sinks have the wrong sign."""

    def given(self, sinks: Array) -> Array:
        return -sinks


@fault(kind="sink", shows=("out", "lse"))
class SinkOfTheNextHead(SinkOf):
    """Each head has the sink of the next."""

    def given(self, sinks: Array) -> Array:
        return np.roll(sinks, -1, axis=1)


@fault(kind="sink", shows=("out", "lse"), beyond_smoke="no sinks with grouped heads")
class SinkOfTheKeyHead(SinkOf):
    """With grouped heads, sinks are indexed by the key head."""

    def given(self, sinks: Array) -> Array:
        return sinks[:, self.key_heads()]


@fault(kind="sink", shows=("out", "lse"))
class SinkInBaseTwo(SinkOf):
    """Sinks are taken for exponents of 2, as where log2(e) is folded into the scores."""

    def given(self, sinks: Array) -> Array:
        return np.asarray(sinks * np.log(2.0))


@fault(kind="sink", shows=("out", "lse"))
class SinkInBfloat16(SinkOf):
    """Sinks are rounded to bfloat16."""

    def given(self, sinks: Array) -> Array:
        return rounded(sinks, "bfloat16")


@fault(kind="sink", shows=("out", "lse"))
class SinkIsNotExponentiated(SinkOf):
    """The sink is added to the sum as it is, not as exp(sink)."""

    def given(self, sinks: Array) -> Array:
        return np.log(np.maximum(sinks, 1e-30))


class SinkLast(Pipeline):
    """Sinks come after the last tile; `added_sinks` says how."""

    def attend(self) -> State:
        given, self.sinks = self.sinks, None
        state = super().attend()
        self.sinks = given
        return state if given is None else self.added_sinks(state, given)

    def added_sinks(self, state: State, sinks: Array) -> State:
        """With the sinks."""
        before, total, sums = state
        after = np.maximum(before, sinks)
        fade = self.fade(before, after)
        return after, total * fade + self.exp(sinks - after), sums * fade


@fault(
    kind="sink",
    shows=("out",),
    reports=("NVIDIA/TensorRT-LLM#19220",),
    beyond_smoke="no sinks in rows that see nothing",
)
class SinkAgainstPlaceholder(SinkLast):
    """In a row that sees nothing the sink is taken against a maximum of -100,000: infinity."""

    def added_sinks(self, state: State, sinks: Array) -> State:
        before, total, sums = state
        empty = np.isneginf(before)
        held = np.where(empty, -1e5, before).astype(self.real)
        weight = self.exp(sinks - held)
        return held, total + weight, np.where(empty, sums * weight, sums).astype(self.real)


@fault(kind="sink", shows=("lse",), beyond_smoke="no scores far below a sink")
class SinkNotInTheMaximum(SinkLast):
    """The row maximum leaves the sink out: the sum with a large one is infinite."""

    def added_sinks(self, state: State, sinks: Array) -> State:
        before, total, sums = state
        weight = self.exp(sinks - shift(before))
        return before, total + weight, sums


@fault(kind="sink", shows=("out", "lse"))
class SinkWithoutTheMaximum(SinkLast):
    """exp(sink) is added to weights from which the maximum was subtracted."""

    def added_sinks(self, state: State, sinks: Array) -> State:
        before, total, sums = state
        return before, total + self.exp(sinks), sums


@fault(kind="sink", shows=("out", "lse"))
class SinkOncePerTile(Pipeline):
    """Every tile of keys adds the sink to the sum."""

    def added(self, total: Array, p: Array, fade: Array) -> Array:
        found = super().added(total, p, fade)
        if self.sinks is None or self.first:
            return found
        return found + self.exp(self.sinks - shift(self.after)).astype(self.real)

    def step(self, state: State, keys: slice) -> State:
        self.first = keys.start == 0
        return super().step(state, keys)

    def largest(self, before: Array, s: Array) -> Array:
        self.after = super().largest(before, s)
        return self.after


@fault(kind="sink", shows=("out", "sink-is-a-null-key"))
class SinkHasTheFirstValue(SinkLast):
    """The sink's weight goes to the first value."""

    def added_sinks(self, state: State, sinks: Array) -> State:
        after, total, sums = super().added_sinks(state, sinks)
        value = self.value_tile(slice(0, 1)) if self.keys else np.zeros(1, self.real)
        return after, total, sums + self.exp(sinks - after) * value


@fault(kind="sink", shows=("out", "lse"), beyond_smoke="no sinks behind a hidden tile")
class SinkLostBehindHiddenTile(Pipeline):
    """A row that does not see the first tile loses its sink."""

    def step(self, state: State, keys: slice) -> State:
        if self.sinks is None or keys.start:
            return super().step(state, keys)
        largest, total, sums = super().step(state, keys)
        lost = ~self.visible(keys).any(axis=-1, keepdims=True)
        kept = np.where(lost, -np.inf, largest), np.where(lost, 0, total)
        return kept[0].astype(self.real), kept[1].astype(self.real), sums


@fault(kind="sink", shows=("out",), spoils=("out", "dq", "dk", "dbias", "dsinks"))
class SinkInLseAlone(SinkLast):
    """The sink is in lse, and not in the sum that the output is divided by."""

    def normalised(self, sums: Array, total: Array) -> Array:
        if self.sinks is None:
            return super().normalised(sums, total)
        return super().normalised(sums, total - self.weight)

    def added_sinks(self, state: State, sinks: Array) -> State:
        found = super().added_sinks(state, sinks)
        self.weight = self.exp(sinks - found[0])
        return found


@fault(kind="sink", shows=("out", "lse"), beyond_smoke="no sinks with a window")
class SinkDroppedWithWindow(SinkOf):
    """With a window, sinks are not used."""

    def given(self, sinks: Array) -> Array:
        return sinks if self.window == (None, None) else np.full_like(sinks, -np.inf)


@fault(kind="sink")
class SoftmaxOffByOne(Pipeline):
    """Every row has a sink of 0 that nobody gave."""

    def start(self) -> State:
        largest, total, sums = super().start()
        if self.sinks is None:
            largest, total = np.zeros_like(largest), np.ones_like(total)
        return largest, total, sums


@fault(kind="sink", reports=("kyegomez/AttentionIsOFFByOne#5",))
class OneAddedAfterTheMaximum(Pipeline):
    """1 is added to the sum of weights from which the maximum was subtracted."""

    def attend(self) -> State:
        largest, total, sums = super().attend()
        return largest, np.where(total == 0, 0, total + 1).astype(self.real), sums
