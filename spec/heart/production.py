"""In production: caches and pages, grouped queries, heads on several devices."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from attnspec.spec.evidence import binary, costs
from attnspec.spec.evidence.figure import Figure
from attnspec.spec.evidence.statement import Check, Statement, require
from attnspec.spec.lesson3.heads import (
    HEADS,
    WO,
    X,
    blocks_of_the_output_matrix,
    concatenated,
    head,
)

__all__ = ["STATEMENTS"]

# -- the cache ------------------------------------------------------------------------------------

N, PAGE = 7, 3
Q, K, V = (binary.integers((N, 2), seed=seed) for seed in (31, 32, 33))
TABLE = (4, 0, 2)
"""Where the three pages of the sequence lie among six."""


def pool(rows: Any) -> Any:
    """Six pages; those of the sequence hold its rows, free slots NaN."""
    slots = np.full((6 * PAGE, rows.shape[1]), np.nan, object)
    for place, row in enumerate(rows):
        slots[TABLE[place // PAGE] * PAGE + place % PAGE] = row
    return slots


def from_pages(slots: Any, table: Any, count: int) -> Any:
    """The first `count` rows of the sequence."""
    return slots[[table[place // PAGE] * PAGE + place % PAGE for place in range(count)]]


def without_table(slots: Any, table: Any, count: int) -> Any:
    """Wrong: pages in the order in which they lie."""
    return from_pages(slots, sorted(table), count)


def whole_pages(slots: Any, table: Any, count: int) -> Any:
    """Wrong: the free rest of the last page is read too."""
    return from_pages(slots, table, -(-count // PAGE) * PAGE)


def decodes(gather: Any) -> str:
    """Token by token from pages, against all at once; then token 2 of the cache is edited."""
    prefill = binary.attention(Q, K, V, visible=binary.causal(N))
    for t in range(N):
        k, v = (gather(pool(rows[: t + 1]), TABLE, t + 1) for rows in (K, V))
        require(len(k) == t + 1, f"step {t} reads {len(k)} rows")
        require(
            binary.same(binary.attention(Q[t : t + 1], k, v)[0], prefill[t]),
            f"step {t}: not prefill",
        )
    edited = V.copy()
    edited[2] = edited[2] + 1
    after = binary.attention(Q, K, edited, visible=binary.causal(N))
    stale = [t for t in range(N) if not binary.same(after[t], prefill[t])]
    require(stale == list(range(2, N)), f"rows {stale} change")
    return (
        f"{N} steps from 3 of 6 pages with NaN in free slots = prefill; an edit of token 2 "
        "changes rows 2 and later, and those alone"
    )


def bytes_of_cache(formula: Any) -> str:
    """Arrays of every layer, key head, token and channel, for keys and for values."""
    for layers, heads, width, tokens in ((2, 3, 4, 5), (3, 1, 2, 7)):
        array = np.zeros((2, layers, heads, tokens, width), np.float16)
        found = formula(tokens, layers=layers, heads=heads, width=width)
        require(found == array.nbytes, f"{found} bytes, not {array.nbytes}")
    large = formula(4096, layers=80, heads=8, width=128)
    return f"2 caches counted; Llama-2-70B at n = 4096: {large} bytes, {large / 2**30} GiB"


# -- grouped queries ------------------------------------------------------------------------------

SHAPES = {"Llama-3-8B": (32, 8), "Mistral-7B": (32, 8), "Llama-3-70B": (64, 8)}
"""Heads and key heads of the published configurations."""


def saving(model: str) -> Fraction:
    """The cache of as many key heads as heads, over that of the key heads."""
    heads, key_heads = SHAPES[model]
    caches = [costs.cache_bytes(1, layers=1, heads=count, width=1) for count in (heads, key_heads)]
    return Fraction(*caches)


def shares_heads(assign: Any) -> str:
    """6 heads over 2 key heads, against keys that are repeated for each head."""
    q = binary.integers((6, 3, 2), seed=34)
    k, v = (binary.integers((2, 4, 2), seed=seed) for seed in (35, 36))
    repeated = [np.repeat(part, 3, axis=0) for part in (k, v)]
    for a in range(6):
        key_head = assign(a)
        out = binary.attention(q[a], k[key_head], v[key_head])
        expected = binary.attention(q[a], repeated[0][a], repeated[1][a])
        require(binary.same(out, expected), f"head {a} reads key head {key_head}")
    return "6 heads over 2 key heads: head a reads key head ⌊a/3⌋, exactly the repeated keys"


# -- several devices ------------------------------------------------------------------------------


def sums_over_devices(reduce: Any) -> str:
    """3 heads on 3 devices; then keys and channels divided instead of heads."""
    parts = [head(X, *w) @ WO[3 * r : 3 * r + 3] for r, w in enumerate(HEADS)]
    require(binary.same(reduce(parts), concatenated(X)), "not the whole layer")
    wq, wk, wv = HEADS[0]
    q, k, v = X @ wq, X @ wk, X @ wv
    by_channel = sum(np.outer(q[:, c], k[:, c]) for c in range(2))
    require(binary.same(by_channel, q @ k.T), "channels cannot be divided")
    e = binary.power_of_two(by_channel)
    halves = [(e[:, s] @ v[s], e[:, s].sum(1, keepdims=True)) for s in (slice(2), slice(2, 4))]
    merged = (halves[0][0] + halves[1][0]) / (halves[0][1] + halves[1][1])
    require(binary.same(merged, head(X, wq, wk, wv)), "keys cannot be divided")
    return "3 heads on 3 devices, summed, are the layer; channels and keys divide as well, exactly"


STATEMENTS = (
    Statement(
        id="heart.kv",
        where="Production, KV cache invalidation",
        says="Keys and values grow with each token; paged caches raise the use of memory.",
        formula=r"\mathrm{Attn}(q_t, K_{\le t}, V_{\le t}) = \mathrm{Attn}(Q, K, V)_t",
        verdict="imprecise",
        exact="The heading speaks of invalidation, the text of growth. An edit of token j makes "
        "the rows from j on stale, and only those. Pages give what contiguous memory gives. How "
        "much is won depends on the load.",
        check=Check(
            run=decodes,
            subject=from_pages,
            mutations={
                "pages as they lie": without_table,
                "the rest of the last page too": whole_pages,
            },
        ),
        properties=("decoding-equals-prefill", "prefix-equals-first-rows"),
    ),
    Statement(
        id="heart.kv.size",
        where="Production, size of the cache",
        says="The cache holds a key and a value of d_k numbers for each layer, key head, token and "
        "entry of the batch (the formula is ours; the source gives none).",
        formula=r"2 \cdot L \cdot h_{kv} \cdot d_k \cdot n \cdot B \cdot \text{bytes}",
        verdict="true",
        check=Check(
            run=bytes_of_cache,
            subject=costs.cache_bytes,
            mutations={
                "keys alone": lambda n, **shape: costs.cache_bytes(n, **shape) // 2,
                "one layer": lambda n, layers, **shape: costs.cache_bytes(n, layers=1, **shape),
            },
        ),
    ),
    Statement(
        id="heart.gqa",
        where="Production, grouped-query attention",
        says="LLaMA-3 and Mistral make the KV cache 8 times smaller.",
        formula=r"h / h_{kv}",
        verdict="false",
        exact="The factor is h/h_kv: 4 for Llama-3-8B and Mistral-7B (32 heads over 8), 8 for "
        "Llama-3-70B alone (64 over 8).",
        figures=tuple(
            Figure(what=f"{model}, cache reduced", printed="8", exact=partial(saving, model))
            for model in SHAPES
        ),
    ),
    Statement(
        id="heart.gqa.def",
        where="Production, grouped-query attention, what it is",
        says="Several query heads share one key and value head.",
        formula=r"\mathrm{head}_a = \mathrm{Attn}(Q_a, K_{\lfloor a h_{kv}/h\rfloor}, "
        r"V_{\lfloor a h_{kv}/h\rfloor})",
        verdict="true",
        check=Check(
            run=shares_heads,
            subject=lambda a: a // 3,
            mutations={"tiled, a modulo 2": lambda a: a % 2, "one for all": lambda a: 0},
        ),
        properties=("grouped-heads-are-repeated-heads", "grouped-gradients-add"),
    ),
    Statement(
        id="heart.tp",
        where="Production, tensor parallelism",
        says="Heads on several devices are only possible because they are independent.",
        formula=r"\mathrm{MHA}(X) = \textstyle\sum_r \mathrm{head}_r(X)\, W_O^{(r)}",
        verdict="imprecise",
        exact="Heads are independent up to W_O, whose parts must be summed over the devices. And "
        "not only heads divide: channels do with a sum of scores, keys with a merge of sums. With "
        "fewer key heads than devices, keys are held twice.",
        proof=blocks_of_the_output_matrix,
        check=Check(
            run=sums_over_devices,
            subject=sum,
            mutations={
                "no sum": lambda parts: parts[0],
                "the mean": lambda parts: sum(parts) / Fraction(3),
            },
        ),
        properties=("heads-are-independent", "parts-merge-by-lse"),
    ),
)
