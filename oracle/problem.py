"""The question: one attention problem, and the one rule that says which key a query sees.

    out = softmax(scale · q kᵀ, capped, + bias, over the visible keys) v

Arrays are taken as exact numbers. Every engine of the oracle reads the problem head by head
through `Problem.heads`, so that grouping, broadcasting, lengths and hidden slots are decided
here and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from attnspec.oracle import problem_checks as checks
from attnspec.oracle.formats import FORMATS, Float64Array, format_of
from attnspec.oracle.problem_checks import ProblemError

__all__ = ["OUTPUTS", "Head", "IntArray", "Problem", "ProblemError"]

OUTPUTS = ("out", "lse", "dq", "dk", "dv", "dbias", "dsinks")
"""What can be asked of a problem. Gradients need a cotangent: `dout`, `dlse` or both."""

Array = npt.NDArray[Any]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
Diagonal = Literal["bottom-right", "top-left"] | int


@dataclass(frozen=True)
class Head:
    """One query head of one batch entry, in float64, as the engines read it.

    Keys that no row sees are zeroed in `key` and `value`: their content, however large, has no
    influence. `bias` is None where there is none and 0 at hidden slots; `ahead` is i + offset - j.
    """

    batch: int
    index: int
    kv_index: int
    scale: float
    softcap: float | None
    query: Float64Array  # (Nq, D)
    key: Float64Array  # (Nk, D)
    value: Float64Array  # (Nk, Dv)
    visible: BoolArray  # (Nq, Nk)
    ahead: IntArray  # (Nq, Nk)
    bias: Float64Array | None  # (Nq, Nk)
    slope: float | None
    sink: float | None
    dout: Float64Array | None  # (Nq, Dv)
    dlse: Float64Array | None  # (Nq,)


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """An attention problem, with every choice explicit. Immutable; arrays are exact numbers.

    Shapes:
        q (B, Hq, Nq, D), k (B, Hkv, Nk, D), v (B, Hkv, Nk, Dv), all of one floating dtype;
        Hq is a multiple of Hkv and query head a reads key head a // (Hq / Hkv).
        mask: bool, broadcastable to (B, Hq, Nq, Nk); True = may attend.
        bias: floating, broadcastable likewise; added after scale and soft-cap; -inf hides.
        sinks (Hq,): a logit a head, in the denominator (and in lse) only.
        alibi (Hq,): slopes; adds -slope · |ahead| where the bias is added.
        key_lengths (B,), query_lengths (B,): integers; slots from there on are padding.
        dout (B, Hq, Nq, Dv), dlse (B, Hq, Nq): the cotangents of the gradients.
        positions (Nq,): where each row stands among the queries, where q holds only some of
            them (see `at`); then query_lengths says how many there are.

    Options:
        scale: exact float64, any finite value.
        diagonal: where row i meets the keys, ahead = i + offset - j, with offset Nk - Nq
            (`bottom-right`, by the batch entry's own lengths), 0 (`top-left`) or the integer.
        causal: hides ahead < 0.
        window: (left, right), inclusive, keeps -right <= ahead <= left; None leaves a side open.
        softcap: c > 0; c · tanh(s / c), after scaling, before bias and mask.

    A row that sees no key has out 0, lse -inf (the sink's logit, where there is one) and no
    gradient. Raises `ProblemError`, which says what was expected.
    """

    q: Array
    k: Array
    v: Array
    scale: float
    diagonal: Diagonal = "bottom-right"
    causal: bool = False
    window: tuple[int | None, int | None] | None = None
    mask: BoolArray | None = None
    bias: Array | None = None
    softcap: float | None = None
    sinks: Array | None = None
    alibi: Array | None = None
    key_lengths: npt.NDArray[np.integer[Any]] | None = None
    query_lengths: npt.NDArray[np.integer[Any]] | None = None
    dout: Array | None = None
    dlse: Array | None = None
    positions: IntArray | None = None

    def __post_init__(self) -> None:
        self._check_arrays()
        self._check_operands()
        self._check_numbers()
        scores = (self.batch, self.query_heads, self.query_count, self.key_count)
        checks.check_broadcast("mask", self.mask, scores)
        checks.check_broadcast("bias", self.bias, scores)
        if self.bias is not None and np.any(np.asarray(self.bias, np.float64) == np.inf):
            raise ProblemError("bias: +inf has no meaning; expected finite values or -inf (hides)")
        checks.check_exact("sinks", self.sinks, (self.query_heads,))
        checks.check_exact("alibi", self.alibi, (self.query_heads,))
        checks.check_lengths("key_lengths", self.key_lengths, self.batch, self.key_count)
        most = self.query_count if self.positions is None else None
        checks.check_lengths("query_lengths", self.query_lengths, self.batch, most)
        checks.check_positions(self.positions, self.query_count, self.query_lengths)
        checks.check_exact("dout", self.dout, (*scores[:3], self.value_size))
        checks.check_exact("dlse", self.dlse, scores[:3])

    @property
    def batch(self) -> int:
        """B."""
        return int(self.q.shape[0])

    @property
    def query_heads(self) -> int:
        """Hq."""
        return int(self.q.shape[1])

    @property
    def kv_heads(self) -> int:
        """Hkv."""
        return int(self.k.shape[1])

    @property
    def query_count(self) -> int:
        """Nq."""
        return int(self.q.shape[2])

    @property
    def key_count(self) -> int:
        """Nk."""
        return int(self.k.shape[2])

    @property
    def head_size(self) -> int:
        """D."""
        return int(self.q.shape[3])

    @property
    def value_size(self) -> int:
        """Dv."""
        return int(self.v.shape[3])

    @property
    def dtype_name(self) -> str:
        """The name of the storage type of q, k and v: `float32`, `bfloat16`, …"""
        return format_of(self.q.dtype).name

    def shape_of(self, output: str) -> tuple[int, ...]:
        """The shape of one of `OUTPUTS`; `ProblemError` where the problem does not define it."""
        rows = (self.batch, self.query_heads, self.query_count)
        shapes = {"out": (*rows, self.value_size), "lse": rows}
        if self.dout is not None or self.dlse is not None:
            shapes |= {"dq": self.q.shape, "dk": self.k.shape, "dv": self.v.shape}
            if self.bias is not None:
                shapes["dbias"] = self.bias.shape
            if self.sinks is not None:
                shapes["dsinks"] = self.sinks.shape
        if output not in shapes:
            raise ProblemError(
                f"output {output!r} is not defined for this problem: expected one of "
                f"{', '.join(shapes)} (gradients need dout or dlse; dbias a bias, dsinks sinks)"
            )
        return shapes[output]

    def replace(self, **changes: Any) -> Problem:
        """A copy with some fields changed, validated anew."""
        return replace(self, **changes)

    def at(self, rows: Sequence[int] | slice) -> Problem:
        """The problem of these query rows alone, each of which sees what it sees here.

        So its out, lse and dq are those rows of this problem's; its dk, dv, dbias and dsinks are
        those of this problem with a cotangent that is 0 in all other rows. Its cost is that of
        as many rows. Negative rows count from the end; `ProblemError` for rows that do not exist.
        """
        chosen = checks.row_numbers(rows, self.query_count)
        counts = np.full(self.batch, self.query_count)

        def cut(array: Array | None) -> Array | None:
            broadcast = array is None or array.ndim < 2 or array.shape[-2] == 1
            return array if array is None or broadcast else array[..., chosen, :]

        return self.replace(
            q=self.q[:, :, chosen],
            mask=cut(self.mask),
            bias=cut(self.bias),
            dout=None if self.dout is None else self.dout[:, :, chosen],
            dlse=None if self.dlse is None else self.dlse[:, :, chosen],
            query_lengths=counts if self.query_lengths is None else self.query_lengths,
            positions=self._positions()[chosen],
        )

    def offset(self, batch: int) -> int:
        """The key that row 0 of this batch entry meets on the diagonal."""
        if self.diagonal == "top-left":
            return 0
        if self.diagonal == "bottom-right":
            queries, keys = self._lengths(batch)
            return keys - queries
        return self.diagonal

    def diagonals(self, batch: int) -> IntArray:
        """The key that each row meets on the diagonal: i + offset, (Nq,)."""
        return self._positions() + self.offset(batch)

    def ahead(self, batch: int) -> IntArray:
        """i + offset - j for every row i and key j: (Nq, Nk). Negative: the key lies ahead."""
        return self.diagonals(batch)[:, None] - np.arange(self.key_count, dtype=np.int64)

    def spans(self, batch: int) -> IntArray:
        """The keys [first, stop) that causal, window and lengths leave each row: (2, Nq).

        Empty spans are (0, 0).
        """
        queries, keys = self._lengths(batch)
        diagonal = self.diagonals(batch)
        first = np.zeros_like(diagonal)
        stop = np.where(self._positions() < queries, np.int64(keys), np.int64(0))
        left, right = (None, None) if self.window is None else self.window
        right = 0 if self.causal else right
        if left is not None:
            first = np.maximum(first, diagonal - left)
        if right is not None:
            stop = np.minimum(stop, diagonal + right + 1)
        empty = stop <= first
        return np.stack([np.where(empty, 0, first), np.where(empty, 0, stop)])

    def visible(
        self, batch: int, head: int, rows: slice = slice(None), keys: slice = slice(None)
    ) -> BoolArray:
        """Which keys each row sees: (Nq, Nk), or that part of it. All that hide together."""
        first, stop = self.spans(batch)[:, rows, None]
        key = np.arange(self.key_count, dtype=np.int64)[keys]
        seen: BoolArray = (key >= first) & (key < stop)
        if self.mask is not None:
            seen &= self.scores_of(self.mask, batch, head)[rows, keys]
        if self.bias is not None:
            seen &= self.scores_of(self.bias, batch, head)[rows, keys] != -np.inf
        return seen

    def used(self, batch: int, head: int) -> BoolArray:
        """Which keys any row sees: (Nk,)."""
        keys = self.key_count
        if self.mask is None and self.bias is None:
            begins, ends = (np.bincount(edge, minlength=keys + 1) for edge in self.spans(batch))
            inside: BoolArray = np.cumsum(begins - ends)[:keys] > 0
            return inside
        used = np.zeros(keys, np.bool_)
        step = max(1, 2**16 // max(1, keys))
        for start in range(0, self.query_count, step):
            used |= self.visible(batch, head, slice(start, start + step)).any(axis=0)
        return used

    def heads(self) -> Iterator[Head]:
        """Every query head of every batch entry, in order (batch major)."""
        for batch in range(self.batch):
            ahead = self.ahead(batch)
            for head in range(self.query_heads):
                yield self._head(batch, head, ahead)

    def _head(self, batch: int, head: int, ahead: IntArray) -> Head:
        kv = head // (self.query_heads // self.kv_heads)
        visible = self.visible(batch, head)
        used: BoolArray = np.asarray(visible.any(axis=0))[:, None]
        bias = None
        if self.bias is not None:
            bias = np.where(visible, self.scores_of(self.bias, batch, head).astype(np.float64), 0)
        return Head(
            batch=batch,
            index=head,
            kv_index=kv,
            scale=float(self.scale),
            softcap=None if self.softcap is None else float(self.softcap),
            query=self.q[batch, head].astype(np.float64),
            key=np.where(used, self.k[batch, kv].astype(np.float64), 0.0),
            value=np.where(used, self.v[batch, kv].astype(np.float64), 0.0),
            visible=visible,
            ahead=ahead,
            bias=bias,
            slope=None if self.alibi is None else float(self.alibi[head]),
            sink=None if self.sinks is None else float(self.sinks[head]),
            dout=None if self.dout is None else self.dout[batch, head].astype(np.float64),
            dlse=None if self.dlse is None else self.dlse[batch, head].astype(np.float64),
        )

    def scores_of(self, array: Array, batch: int, head: int) -> Array:
        """The (Nq, Nk) view of an array that broadcasts over the scores: mask or bias."""
        full = (self.batch, self.query_heads, self.query_count, self.key_count)
        scores: Array = np.broadcast_to(array, full)[batch, head]
        return scores

    def _lengths(self, batch: int) -> tuple[int, int]:
        """How many queries and keys of this batch entry are not padding."""
        queries = self.query_count if self.query_lengths is None else self.query_lengths[batch]
        keys = self.key_count if self.key_lengths is None else self.key_lengths[batch]
        return int(queries), int(keys)

    def _positions(self) -> IntArray:
        """Where each row stands among the queries: (Nq,)."""
        if self.positions is None:
            return np.arange(self.query_count, dtype=np.int64)
        return self.positions.astype(np.int64)

    def _check_operands(self) -> None:
        for name in ("q", "k", "v"):
            array = getattr(self, name)
            if array.ndim != 4:
                raise ProblemError(
                    f"{name}: expected shape (batch, heads, length, size), got {array.shape}"
                )
            if array.dtype != self.q.dtype:
                raise ProblemError(f"{name}: expected q's dtype {self.q.dtype}, got {array.dtype}")
        (b, hq, _, d), (bk, hkv, nk, dk) = self.q.shape, self.k.shape
        if 0 in (b, hq, hkv, d, self.v.shape[3]):
            raise ProblemError(
                f"q {self.q.shape}, k {self.k.shape}, v {self.v.shape}: batch, heads and sizes "
                "must be at least 1 (lengths may be 0)"
            )
        if (bk, dk) != (b, d):
            raise ProblemError(f"k: expected (B={b}, Hkv, Nk, D={d}), got {self.k.shape}")
        if self.v.shape[:3] != (b, hkv, nk):
            raise ProblemError(f"v: expected (B={b}, Hkv={hkv}, Nk={nk}, Dv), got {self.v.shape}")
        if hq % hkv:
            raise ProblemError(f"q has {hq} heads: expected a multiple of k's {hkv}")

    def _check_numbers(self) -> None:
        for name in ("scale", "softcap"):
            x = getattr(self, name)
            real = isinstance(x, int | float | np.floating) and not isinstance(x, bool)
            if not (real and math.isfinite(x)) and (name, x) != ("softcap", None):
                raise ProblemError(f"{name}: expected a finite number, got {x!r}")
        if self.softcap is not None and self.softcap <= 0:
            raise ProblemError(f"softcap: expected a positive number, got {self.softcap}")
        plain = {
            "causal": checks.plain_bool("causal", self.causal),
            "diagonal": checks.plain_diagonal(self.diagonal),
            "window": checks.plain_window(self.window),
        }
        for name, value in plain.items():
            object.__setattr__(self, name, value)  # frozen to its users only

    def _check_arrays(self) -> None:
        operands = ("q", "k", "v")
        numbers = (*operands, "bias", "sinks", "alibi", "dout", "dlse")
        dtypes = dict.fromkeys(numbers, tuple(FORMATS)) | {"mask": ("bool",)}
        for name in (*dtypes, "key_lengths", "query_lengths", "positions"):
            array = getattr(self, name)
            if array is None and name not in operands:
                continue
            checks.check_array(name, array)
            if name in dtypes and array.dtype.name not in dtypes[name]:
                expected = " or ".join(dtypes[name])
                raise ProblemError(f"{name}: expected dtype {expected}, got {array.dtype}")
