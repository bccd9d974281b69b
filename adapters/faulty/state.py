"""What a kernel should have forgotten since an earlier call."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.pipeline import Array, Pipeline, State

__all__: list[str] = []

ALL = ("dq", "dk", "dv")


class Remembering(Pipeline):
    """Something is kept from call to call, apart for each shape."""

    @property
    def shape(self) -> tuple[Any, ...]:
        """What tells calls apart: the shapes of q, k and v."""
        return self.raw["q"].shape, self.raw["k"].shape, self.raw["v"].shape

    def kept(self, name: str, fresh: Any) -> Any:
        """The first `fresh` that came by this name and shape."""
        return self.state.setdefault((name, self.shape), fresh)

    def swapped(self, name: str, fresh: Any) -> Any:
        """What came by this name and shape in the last call; in the first one `fresh`."""
        last = self.state.get((name, self.shape), fresh)
        self.state[name, self.shape] = fresh
        return last


# -- answers ---------------------------------------------------------------------------------------


@fault(kind="stale-cache", shows=("out", "lse"), reports=("pytorch/pytorch#184122",), sentinel=True)
class AnswerCachedByShape(Remembering):
    """The answer to the first call of a shape is returned to every later one."""

    def forward(self) -> tuple[Array, Array]:
        out, lse = super().forward()
        return self.kept("out", out), self.kept("lse", lse)


@fault(kind="harness", shows=("out", "lse"), sentinel=True)
class AnswersOneCallLate(Remembering):
    """Each call of a shape returns the answer to the one before."""

    def forward(self) -> tuple[Array, Array]:
        out, lse = super().forward()
        return self.swapped("out", out), self.swapped("lse", lse)


@fault(kind="harness", shows=("weights-sum-to-one", "output-is-affine-in-values"))
class AnswerCachedByTheFirstQuery(Remembering):
    """The answer is cached by the first query of each head, as if the rest went with it."""

    def forward(self) -> tuple[Array, Array]:
        found = super().forward()
        answer: tuple[Array, Array] = self.kept(self.raw["q"][:, :, :1].tobytes().hex(), found)
        return answer


@fault(kind="stale-cache")
class LengthsCachedByShape(Remembering):
    """The lengths of the first call of a shape serve every later one."""

    def lengths(self, given: Array | None, most: int) -> Array:
        found: Array = super().lengths(given, most)
        return found if given is None else self.kept(f"lengths of {most}", found)


@fault(kind="stale-cache", shows=("out", "lse", "dq"))
class ScaleCachedByShape(Remembering):
    """The scale of the first call of a shape serves every later one."""

    def ready(self) -> None:
        self.scale = self.kept("scale", self.scale)


@fault(kind="stale-cache", shows=("out", "lse"))
class CausalFlagCachedByShape(Remembering):
    """A shape that was causal once is causal ever after."""

    def ready(self) -> None:
        self.causal = self.state["causal", self.shape] = self.causal or self.state.get(
            ("causal", self.shape), False
        )


@fault(kind="stale-cache", shows=("dq", "dk", "dv"), spoils=(*ALL, "dbias", "dsinks"))
class BackwardOfTheFirstForward(Remembering):
    """The backward pass reads the lse that the first call of the shape saved."""

    def weights(self, s: Array, lse: Array) -> Array:
        return super().weights(s, self.kept("lse", lse))


# -- workspaces ------------------------------------------------------------------------------------


@fault(
    kind="uninit",
    shows=("out", "freed-memory-gradients"),
    reports=("flashinfer-ai/flashinfer#1046",),
)
class WorkspaceNotCleared(Remembering):
    """The sums start from what the last call of the shape left in the workspace."""

    def start(self) -> State:
        largest, total, sums = super().start()
        return largest, total, sums + self.state.get(self.shape, np.zeros_like(sums))

    def attend(self) -> State:
        found = super().attend()
        self.state[self.shape] = np.where(np.isfinite(found[2]), found[2], 0)
        return found

    def fade(self, before: Array, after: Array) -> Array:
        found = super().fade(before, after)
        return np.where(np.isneginf(before), 1, found).astype(found.dtype)


@fault(kind="uninit", shows=("dq",), spoils=("dq",))
class DqNotCleared(Remembering):
    """dq is added to what the last backward pass of the shape left."""

    def backward(self) -> dict[str, Array]:
        found = super().backward()
        left = self.state.get(self.shape, np.zeros_like(found["dq"]))
        self.state[self.shape] = found["dq"]
        return {**found, "dq": found["dq"] + left}


class Unwritten(Remembering):
    """Parts of the output are not written: they hold the last call's output, or at first NaN."""

    def normalised(self, sums: Array, total: Array) -> Array:
        found = super().normalised(sums, total)
        before = self.state.get(self.shape, np.full_like(found, np.nan))
        self.state[self.shape] = found
        return np.where(self.unwritten(total), before, found)

    def unwritten(self, total: Array) -> Array:
        """Which rows are not written: of the shape (B, H, Nq, 1)."""
        return np.zeros(total.shape, np.bool_)


@fault(kind="uninit")
class EmptyRowsUnwritten(Unwritten):
    """The output of a row that sees no key is not written."""

    def unwritten(self, total: Array) -> Array:
        return np.asarray(total == 0)


@fault(kind="uninit")
class LastRowUnwritten(Unwritten):
    """The last row of a tile that is not full is not written."""

    def unwritten(self, total: Array) -> Array:
        last: Array = self.row_index() == (self.rows - 1 if self.rows % 16 else -1)
        return np.broadcast_to(last, total.shape)


@fault(kind="paged", reports=("pytorch/pytorch#194167",))
class LaterEntriesUnwrittenWhereKeysAreSplit(Unwritten):
    """Of keys that are split, the parts are put together for the first batch entry alone."""

    def unwritten(self, total: Array) -> Array:
        later = np.arange(self.batch)[:, None, None, None] * (self.keys > 64)
        return np.broadcast_to(later > 0, total.shape)


@fault(kind="uninit")
class RowsBeyondTheQueryLengthsUnwritten(Unwritten):
    """The output beyond the query length of a batch entry is not written."""

    def unwritten(self, total: Array) -> Array:
        beyond = self.row_index() >= self.query_lengths
        return np.broadcast_to(beyond, total.shape)


@fault(kind="uninit", shows=("dk", "dv"), spoils=("dk", "dv"))
class GradientsOfHiddenKeysUnwritten(Remembering):
    """dk and dv of keys that no row sees hold what the last call of the shape left."""

    def per_key_head(self, name: str, x: Array) -> Array:
        found = super().per_key_head(name, x)
        before = self.swapped(name, found.copy())
        whole = self.visible(slice(0, self.keys)).any(axis=2, keepdims=True)
        group = self.heads // self.kv_heads
        each: Array = whole.reshape(self.batch, self.kv_heads, group, self.keys, 1)
        seen = each.any(axis=2)
        return np.where(seen, found, before + 1)


# -- the passage of time ---------------------------------------------------------------------------


class Counting(Pipeline):
    """The number of earlier calls is known."""

    def ready(self) -> None:
        self.call = self.state["calls"] = self.state.get("calls", -1) + 1


@fault(kind="harness", shows=("out", "lse"))
class RightForTenCalls(Counting):
    """After ten calls the last row sees no more keys."""

    def seen_by_length(self, keys: slice) -> Array:
        found = super().seen_by_length(keys)
        last = self.row_index() == self.rows - 1
        return found & ~last if self.call >= 10 else found


@fault(kind="harness")
class RightForTenCallsOfEachShape(Remembering):
    """After ten calls of a shape its output is that of the tenth."""

    def ready(self) -> None:
        self.call = self.state["calls", self.shape] = self.state.get(("calls", self.shape), -1) + 1

    def forward(self) -> tuple[Array, Array]:
        out, lse = super().forward()
        return (self.kept("tenth", out), lse) if self.call >= 9 else (out, lse)
