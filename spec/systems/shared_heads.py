"""Shared key and value heads: several query heads read one (GQA), or all read the same (MQA)."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import sympy as sp

from attnspec.spec.evidence import exact
from attnspec.spec.evidence.binary import attention, exponentials, integers, same
from attnspec.spec.evidence.statement import Check, Proof, Statement, require
from attnspec.spec.evidence.sums import identity
from attnspec.spec.evidence.symbols import (
    A,
    G,
    Q,
    V,
    alpha,
    channels,
    keys,
    queries,
    values,
)

__all__ = ["STATEMENTS"]

TOKENS = 3


def heads(count: int, *, seed: int) -> Any:
    """(count, TOKENS, 2) integers."""
    return integers((count, TOKENS, 2), seed=seed)


def grouped(q: Any, k: Any, v: Any) -> Any:
    """Query head a reads key head ⌊a h_kv / h⌋: consecutive query heads share one."""
    group = len(q) // len(k)
    return np.stack([attention(head, k[a // group], v[a // group]) for a, head in enumerate(q)])


def repeated(kv: Any, group: int) -> Any:
    """Each key head `group` times in a row: 0 0 1 1."""
    return np.repeat(kv, group, axis=0)


def tiled(kv: Any, group: int) -> Any:
    """All key heads, `group` times over: 0 1 0 1."""
    return np.concatenate([kv] * group)


def shared_gradients() -> Proof:
    """Query heads g of one group, one K and V: a step in K_ja moves the scores of every g."""
    g, i, j, other, c, s, a, b = sp.symbols("g i j l c s a b", integer=True)
    count = sp.Symbol("g_0", integer=True, positive=True)
    group = (g, 0, count - 1)
    delta = sp.KroneckerDelta

    def slope(step: Any) -> Any:
        dA = A[g, i, j] * (step(j) - sp.Sum(A[g, i, other] * step(other), keys(other)))
        inner = sp.Sum(G[g, i, c] * V[j, c], values(c))
        return sp.Sum(dA * inner, group, queries(i), keys(j))

    def score_gradient_of(key: Any) -> Any:
        mean = sp.Sum(A[g, i, other] * sp.Sum(G[g, i, c] * V[other, c], values(c)), keys(other))
        return A[g, i, key] * (sp.Sum(G[g, i, c] * V[key, c], values(c)) - mean)

    by_key = slope(
        lambda key: alpha * sp.Sum(delta(key, a) * delta(s, b) * Q[g, i, s], channels(s))
    )
    head = alpha * sp.Sum(score_gradient_of(a) * Q[g, i, b], queries(i))
    out = sp.Sum(A[g, i, j] * delta(j, a) * delta(c, b), keys(j))
    by_value = sp.Sum(G[g, i, c] * out, group, queries(i), values(c))
    dV = sp.Sum(A[g, i, a] * G[g, i, b], queries(i))
    return Proof(
        steps=(
            identity("dK = Σ_g α dS_gᵀ Q_g", by_key, sp.Sum(head, group)),
            identity("dV = Σ_g A_gᵀ dO_g", by_value, sp.Sum(dV, group)),
        ),
        mutations={
            "one head of the group": identity("dK = α dS_gᵀ Q_g", by_key, head),
            "the mean of the group": identity("(1/g) Σ_g", by_value, sp.Sum(dV, group) / count),
        },
    )


def every_grouping(expand: Any) -> str:
    """Grouped = as many key heads as query heads, expanded; h_kv = h and h_kv = 1 included."""
    for h, h_kv in ((4, 4), (4, 2), (4, 1), (6, 3), (6, 2)):
        q, k, v = heads(h, seed=1), heads(h_kv, seed=2), heads(h_kv, seed=3)
        k_full, v_full = expand(k, h // h_kv), expand(v, h // h_kv)
        full = np.stack([attention(q[a], k_full[a], v_full[a]) for a in range(h)])
        require(same(grouped(q, k, v), full), f"h = {h}, h_kv = {h_kv}: another head is read")
        _require_summed_gradients(q, k, v, h // h_kv)
    return "h/h_kv = 4/4, 4/2, 4/1, 6/3, 6/2, outputs and dK, dV, exactly"


def _require_summed_gradients(q: Any, k: Any, v: Any, group: int) -> None:
    """dK and dV of a shared head, as of its query heads stacked, are sums over the group."""
    dout = heads(len(q), seed=4)
    for head in range(len(k)):
        own = range(head * group, (head + 1) * group)
        stacked = np.concatenate([q[a] for a in own])
        whole = exact.gradients(
            exponentials(stacked, k[head]), v[head], np.concatenate([dout[a] for a in own])
        )
        parts = [exact.gradients(exponentials(q[a], k[head]), v[head], dout[a]) for a in own]
        require(same(whole.dv, sum(part.dv for part in parts)), "dV is not the sum of the group")
        dk = sum(part.ds.T @ q[a] for part, a in zip(parts, own, strict=True))
        require(same(whole.ds.T @ stacked, dk), "dK is not the sum of the group")


def tiling_is_another_layer() -> str:
    """Two key heads for four query heads: 0 1 0 1 is not 0 0 1 1."""
    q, k, v = heads(4, seed=1), heads(2, seed=2), heads(2, seed=3)
    other = np.stack([attention(q[a], tiled(k, 2)[a], tiled(v, 2)[a]) for a in range(4)])
    require(not same(grouped(q, k, v), other), "the order of repetition does not matter")
    return "h = 4, h_kv = 2: heads repeated as 0 1 0 1 give another output"


def unequal_groups() -> str:
    """3 query heads on 2 key heads: ⌊2a/3⌋ is 0, 0, 1."""
    read = [a * 2 // 3 for a in range(3)]
    require(read.count(0) != read.count(1), f"{read}")
    return f"h = 3, h_kv = 2: heads read {read}, no repetition of equal length"


def cache_bytes(heads_kept: int, *, tokens: int = 7, width: int = 128, size: int = 2) -> int:
    """Keys and values of one layer."""
    return 2 * tokens * heads_kept * width * size


def one_head_serves_all(layer: Any) -> str:
    """One key head: every query head reads it, in any order of repetition; the cache is 1/h."""
    q, k, v = heads(4, seed=1), heads(1, seed=2), heads(1, seed=3)
    out, saved = layer(q, k, v)
    require(same(out, [attention(head, k[0], v[0]) for head in q]), "not all heads read head 0")
    require(same(repeated(k, 4), tiled(k, 4)), "repeating and tiling differ for one head")
    require(saved == Fraction(1, 4), f"the cache shrinks to {saved}")
    return "4 query heads on 1 key head, exactly; the cache is 1/4 of multi-head's"


def ratio(h: int, h_kv: int) -> Fraction:
    """Bytes of a cache of h_kv heads over those of h."""
    return Fraction(cache_bytes(h_kv), cache_bytes(h))


STATEMENTS = (
    Statement(
        id="sys.gqa",
        where="Ainslie et al. 2023; the third document, production notes (grouped-query attention)",
        says="Consecutive query heads share a key and value head: the same as multi-head attention "
        "with each key head repeated, with a cache h/h_kv times smaller.",
        formula=r"\mathrm{head}_a = \mathrm{Attn}(Q_a, K_{\lfloor a h_{kv}/h \rfloor}, "
        r"V_{\lfloor a h_{kv}/h \rfloor}), \quad dK_b = \sum_{a \in b} dK_b^{(a)}",
        verdict="conditional",
        hypotheses={
            "heads are repeated in a row, not tiled": tiling_is_another_layer,
            "h_kv divides h": unequal_groups,
        },
        proof=shared_gradients,
        check=Check(
            run=every_grouping,
            subject=repeated,
            mutations={
                "tiled": tiled,
                "one head for all": lambda kv, group: np.concatenate([kv[:1]] * group * len(kv)),
            },
        ),
        properties=("grouped-heads-are-repeated-heads", "grouped-gradients-add"),
    ),
    Statement(
        id="sys.mqa",
        where="Shazeer 2019; chapter 11, modern developments (multi-query attention)",
        says="All query heads read one key and value head: the case h_kv = 1 of sharing, with a "
        "cache h times smaller.",
        formula=r"\mathrm{head}_a = \mathrm{Attn}(Q_a, K, V), \quad a = 1 \ldots h",
        verdict="true",
        proof=shared_gradients,
        check=Check(
            run=one_head_serves_all,
            subject=lambda q, k, v: (grouped(q, k, v), ratio(4, 1)),
            mutations={
                "one query head for all": lambda q, k, v: (
                    grouped(np.concatenate([q[:1]] * 4), k, v),
                    ratio(4, 1),
                ),
                "the cache of two heads": lambda q, k, v: (grouped(q, k, v), ratio(4, 2)),
            },
        ),
        properties=("grouped-heads-are-repeated-heads", "grouped-gradients-add"),
    ),
)
