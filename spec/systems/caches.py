"""Caches of keys and values: decoding token by token, prompts in chunks, memory in pages."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sympy as sp

from attnspec.spec.evidence.binary import attention, causal, integers, same
from attnspec.spec.evidence.exact import Matrix
from attnspec.spec.evidence.expressions import scalars
from attnspec.spec.evidence.statement import Check, Proof, Statement, require

__all__ = ["STATEMENTS"]

NAN = float("nan")
Step = Callable[[Matrix, Matrix, Matrix], Matrix]


# -- Decoding and chunks --------------------------------------------------------------------------


def last_rows(q: Matrix, k: Matrix, v: Matrix) -> Matrix:
    """The newest queries over all keys so far: the mask is aligned at the last key."""
    return attention(q, k, v, visible=causal(len(q), len(k)))


def first_rows(q: Matrix, k: Matrix, v: Matrix) -> Matrix:
    """The mask aligned at the first key: wrong as soon as the cache holds earlier tokens."""
    return attention(q, k, v, visible=np.tri(len(q), len(k), dtype=bool))


def in_chunks(step: Step, sizes: Sequence[int], q: Matrix, k: Matrix, v: Matrix) -> Matrix:
    """The prompt fed in pieces, each over the cache of all tokens up to its end."""
    ends = list(itertools.accumulate(sizes))
    starts = [0, *ends[:-1]]
    return np.concatenate([step(q[a:b], k[:b], v[:b]) for a, b in zip(starts, ends, strict=True)])


def compositions(total: int) -> list[tuple[int, ...]]:
    """All ways to cut a prompt of `total` tokens into chunks."""
    if total == 0:
        return [()]
    return [(first, *rest) for first in range(1, total + 1) for rest in compositions(total - first)]


def every_cut(step: Step) -> str:
    """All 16 cuts of a prompt of 5 tokens, tokens one by one among them, give the prefill."""
    q, k, v = (integers((5, 2), seed=s) for s in (1, 2, 3))
    prefill = attention(q, k, v, visible=causal(5))
    for sizes in compositions(5):
        require(same(in_chunks(step, sizes, q, k, v), prefill), f"chunks {sizes} differ")
        deep = two_layers(step, sizes, q)
        require(same(deep, two_layers(last_rows, (5,), q)), f"chunks {sizes}: two layers differ")
    for edited in range(5):
        k_new = k.copy()
        k_new[edited] = k_new[edited] + [1, -1]
        rows = in_chunks(step, (1,) * 5, q, k_new, v)
        before = in_chunks(step, (1,) * 5, q, k, v)
        require(same(rows[:edited], before[:edited]), f"key {edited} changes earlier rows")
    return "16 cuts of 5 tokens through one layer and two, and edits of each cached key, exactly"


def two_layers(step: Step, sizes: Sequence[int], x: Matrix) -> Matrix:
    """Between them each row on its own is rounded down: any map of rows would do."""
    hidden = np.vectorize(math.floor, otypes=[object])(in_chunks(step, sizes, x, x, x))
    return in_chunks(step, sizes, hidden, hidden, hidden)


def without_causality() -> str:
    """Earlier rows would have to change with every new token."""
    q, k, v = (integers((5, 2), seed=s) for s in (1, 2, 3))
    decoded = in_chunks(attention, (1,) * 5, q, k, v)
    require(not same(decoded, attention(q, k, v)), "it is the unmasked attention")
    return "5 tokens decoded one by one: not the attention without a mask"


def one_cached_key_edited() -> str:
    """Rows from the edited token on are stale: the cache must be invalidated there."""
    q, k, v = (integers((5, 2), seed=s) for s in (4, 5, 6))
    k_new = k.copy()
    k_new[1] = k_new[1] + [2, 1]
    before, after = (attention(q, keys, v, visible=causal(5)) for keys in (k, k_new))
    stale = [row for row in range(5) if not same(before[row], after[row])]
    require(stale and min(stale) >= 1, f"rows {stale} change")
    return f"key 1 of 5 edited: rows {stale} change, none before it"


def decoding_cost() -> Proof:
    """A token over t keys: 2 t d for its scores and 2 t d for its values."""
    n, t, d = sp.symbols("n t d", integer=True, positive=True)
    total = sp.Sum(4 * t * d, (t, 1, n)).doit()
    return Proof(
        steps=(
            scalars("Σ_(t≤n) 4 t d = 2 n (n + 1) d", total, 2 * n * (n + 1) * d),
            scalars(
                "half of a full prefill, and the diagonal", total, 4 * n**2 * d / 2 + 2 * n * d
            ),
        ),
        mutations={
            "no saving": scalars("4 n² d", total, 4 * n**2 * d),
            "linear": scalars("4 n d", total, 4 * n * d),
            "the diagonal is missing": scalars("2 n² d", total, 2 * n**2 * d),
        },
    )


# -- Pages ----------------------------------------------------------------------------------------


@dataclass
class Pages:
    """Memory for keys or values in pages of `size` tokens; free slots hold NaN."""

    size: int
    slots: Matrix
    free: list[int]
    tables: dict[str, list[int]] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)

    @classmethod
    def empty(cls, size: int, count: int, *, width: int, order: Sequence[int]) -> Pages:
        """`count` pages, handed out in `order`."""
        return cls(size, np.full((count, size, width), NAN, object), list(order))

    def append(self, name: str, token: Any) -> None:
        """Write a token behind the others of `name`; a page that another shares is copied first."""
        table, length = self.tables.setdefault(name, []), self.lengths.get(name, 0)
        if length % self.size == 0:
            table.append(self.free.pop(0))
        elif self._shared(table[-1]):
            page = self.free.pop(0)
            self.slots[page] = self.slots[table[-1]]
            table[-1] = page
        self.slots[table[-1], length % self.size] = token
        self.lengths[name] = length + 1

    def fork(self, parent: str, child: str) -> None:
        """A second sequence over the same pages."""
        self.tables[child] = list(self.tables[parent])
        self.lengths[child] = self.lengths[parent]

    def read(self, name: str) -> Matrix:
        """The tokens of `name`, in order."""
        return np.concatenate(self.slots[self.tables[name]])[: self.lengths[name]]

    def _shared(self, page: int) -> bool:
        return sum(page in table for table in self.tables.values()) > 1


class Unordered(Pages):
    """Reads pages in the order of memory."""

    def read(self, name: str) -> Matrix:
        """As if the page table were sorted."""
        return np.concatenate(self.slots[sorted(self.tables[name])])[: self.lengths[name]]


class Overread(Pages):
    """Reads the last page whole."""

    def read(self, name: str) -> Matrix:
        """With the free slots behind the last token."""
        return np.concatenate(self.slots[self.tables[name]])


class Aliased(Pages):
    """Writes into shared pages."""

    def _shared(self, page: int) -> bool:
        return False


def paged_is_contiguous(kind: type[Pages]) -> str:
    """Page sizes 1..6, all orders of 3 pages, a partial last page; a fork leaves its parent."""
    q, k, v = integers((1, 2), seed=1), integers((5, 2), seed=2), integers((5, 2), seed=3)
    tables = [(2, p) for p in itertools.permutations(range(3))]
    tables += [(size, tuple(range(5, -1, -1))) for size in (1, 3, 4, 5, 6)]
    for size, order in tables:
        stores = [kind.empty(size, len(order), width=2, order=order) for _ in range(2)]
        for store, tokens in zip(stores, (k, v), strict=True):
            for token in tokens:
                store.append("a", token)
        out = attention(q, stores[0].read("a"), stores[1].read("a"))
        require(same(out, attention(q, k, v)), f"pages of {size} in order {order} differ")
        waste = size * len(stores[0].tables["a"]) - 5
        require(waste < size, f"{waste} slots wasted by pages of {size}")
    _require_fork(kind, k)
    return "11 page tables of 5 tokens with NaN in every free slot, a fork, exactly"


def _require_fork(kind: type[Pages], k: Matrix) -> None:
    store = kind.empty(2, 6, width=2, order=(3, 0, 5, 1, 4, 2))
    for token in k[:3]:
        store.append("parent", token)
    store.fork("parent", "child")
    store.append("child", k[4])
    store.append("parent", k[3])
    require(same(store.read("parent"), k[:4]), "the child wrote into its parent")
    require(same(store.read("child"), k[[0, 1, 2, 4]]), "the parent wrote into its child")


STATEMENTS = (
    Statement(
        id="sys.kvcache",
        where="Shazeer 2019; chapter 11, section on causal masking; the third document, production "
        "notes (cache invalidation)",
        says="Keys and values of past tokens are kept: the row of a new token over the cache is "
        "its row of the whole, at 4 t d operations instead of all rows again.",
        formula=r"\mathrm{Attn}(q_t, K_{\le t}, V_{\le t}) = o_t, \qquad "
        r"\sum_{t=1}^{n} 4 t d = 2 n (n + 1) d",
        verdict="conditional",
        hypotheses={
            "cached tokens stay as they were": one_cached_key_edited,
            "a causal mask": without_causality,
        },
        proof=decoding_cost,
        check=Check(
            run=every_cut,
            subject=last_rows,
            mutations={
                "the mask is aligned at the first key": first_rows,
                "the chunk sees itself whole": attention,
                "the newest key is not yet cached": lambda q, k, v: (
                    last_rows(q, k[:-1], v[:-1]) if len(k) > len(q) else last_rows(q, k, v)
                ),
            },
        ),
        properties=("decoding-equals-prefill", "prefix-equals-first-rows"),
    ),
    Statement(
        id="sys.paged",
        where="Kwon et al. 2023 (vLLM); the third document, production notes (PagedAttention)",
        says="Keys and values in pages that stand anywhere in memory give what contiguous ones "
        "give; forks share pages until one writes; less than a page a sequence is wasted.",
        formula=r"\mathrm{Attn}(q, K[\mathrm{table}], V[\mathrm{table}]) = \mathrm{Attn}(q, K, V), "
        r"\quad 0 \le b \lceil n/b \rceil - n < b",
        verdict="true",
        check=Check(
            run=paged_is_contiguous,
            subject=Pages,
            mutations={
                "pages read in the order of memory": Unordered,
                "the last page read whole": Overread,
                "a shared page is written": Aliased,
            },
        ),
    ),
)
