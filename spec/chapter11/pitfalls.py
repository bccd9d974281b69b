"""Connections and pitfalls: what goes wrong, shown going wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnspec.spec.chapter11.memory import tiled_memory
from attnspec.spec.chapter11.random_scores import greatest_weights
from attnspec.spec.evidence import binary, exact
from attnspec.spec.evidence.linear import null_vector
from attnspec.spec.evidence.statement import Check, Refuted, Statement, require

__all__ = ["STATEMENTS"]


def one_channel() -> str:
    """At d_k = 1 the scale is 1."""
    require(1**-0.5 == 1, "the scale changes something")
    return "d_k = 1: 1/√d_k = 1, so that leaving it out changes nothing"


def cross(attend: Callable[..., Any]) -> str:
    """Rows belong to the first source, values to the second; of one source it is self-attention."""
    x, y = binary.integers((2, 3), seed=50), binary.integers((5, 3), seed=51)
    w = [binary.integers((3, 2), seed=seed) for seed in (52, 53, 54)]
    out = attend(x, y, *w)
    require(out.shape == (2, 2), f"the output is {out.shape}, not one row for each query")
    require(binary.same(out[:1], attend(x[:1], y, *w)), "a row depends on the other queries")
    values = y @ w[2]
    require(
        ((values.min(0) <= out) & (out <= values.max(0))).all(), "an output outside the values of Y"
    )
    require(
        binary.same(attend(x, x, *w), binary.attention(x @ w[0], x @ w[1], x @ w[2])),
        "of one source it is not self-attention",
    )
    return "2 queries on 5 keys: shapes, independent rows, values of Y; X = Y is self-attention"


def from_two_sources(x: Any, y: Any, w_q: Any, w_k: Any, w_v: Any) -> Any:
    """Queries of X, keys and values of Y."""
    return binary.attention(x @ w_q, y @ w_k, y @ w_v)


def leaks(visible: Callable[[int], Any]) -> str:
    """An edit of token j > i changes row i without a mask, and not with it."""
    q, k, v = (binary.integers((4, 2), seed=seed) for seed in (60, 61, 62))
    for j in range(1, 4):
        edited_k, edited_v = k.copy(), v.copy()
        edited_k[j], edited_v[j] = edited_k[j] + 1, edited_v[j] + 3
        masked = [
            binary.attention(q, *kv, visible=visible(4)) for kv in ((k, v), (edited_k, edited_v))
        ]
        require(binary.same(masked[0][:j], masked[1][:j]), f"token {j} reaches an earlier row")
        free = [binary.attention(q, *kv) for kv in ((k, v), (edited_k, edited_v))]
        require((free[0][:j] != free[1][:j]).any(1).all(), "without a mask nothing leaks")
    newest = binary.attention(q[3:], k, v)
    require(
        binary.same(newest, binary.attention(q, k, v, visible=visible(4))[3:]),
        "the newest row needs a mask",
    )
    return (
        "4 tokens, every later edit: rows change unmasked, not masked; the newest row is the same"
    )  # fmt: skip


def not_identifiable(values: exact.Matrix) -> str:
    """Other weights with the same output: A + ε 1 zᵀ with zᵀ[V, 1] = 0."""
    w = exact.weights(exact.positive((3, len(values)), seed=70))
    z = null_vector(np.hstack([values, exact.matrix([[1]] * len(values))]).T)
    if z is None:
        raise Refuted("the output determines the weights")
    other = w + z * (w.min() / max(abs(z)) / 2)
    require((other != w).any() and (other > 0).all(), "no other weights")
    require((other.sum(-1) == 1).all(), "other rows do not sum to 1")
    require((other @ values == w @ values).all(), "another output")
    return f"{len(values)} keys, {values.shape[1]} channels: two different A with one A V, exactly"


def few_tokens() -> str:
    """Short sequences: tiles hold more than the matrix."""
    n, size, tile = 16, 64, 64
    require(n * (size + 2 + tile) > n * n, "tiles hold less")
    return f"n = {n}, d_v = b = 64: n² = {n * n} numbers, tiles and sums {n * (size + 2 + tile)}"


STATEMENTS = (
    Statement(
        id="ch11.conn",
        where="Connections to other chapters",
        says="Points to positions, fast kernels, caches, low-rank adaptation and dot products.",
        verdict="narrative",
        reason="A list of pointers. The systems that it names have records of their own: sys.pe, "
        "sys.rope, sys.flash, sys.kvcache, sys.lora.",
    ),
    Statement(
        id="ch11.pit1",
        where="Pitfall 1",
        says="Without the scale softmax saturates, and training is unstable, for large d_k.",
        formula=r"\mathbb{E} \max_j A_{ij} \gg 1/n \text{ unscaled}",
        verdict="conditional",
        hypotheses={
            "d_k well above 1": one_channel,
            "entries of variance 1, as at initialisation; saturation of the typical row": None,
        },
        check=Check(
            run=greatest_weights,
            subject=lambda size: size**-0.5,
            mutations={"no scale": lambda size: 1.0, "too weak": lambda size: size**-0.125},
        ),
        properties=("scale-multiplies-queries",),
    ),
    Statement(
        id="ch11.pit2",
        where="Pitfall 2",
        says="In self-attention Q, K and V come from one sequence; in cross-attention Q comes from "
        "one, K and V from another.",
        formula=r"Q = X W_Q, \; K = Y W_K, \; V = Y W_V: \quad A \in \mathbb{R}^{n_q\times n_k}",
        verdict="true",
        check=Check(
            run=cross,
            subject=from_two_sources,
            mutations={
                "keys of the queries' sequence": lambda x, y, q, k, v: binary.attention(
                    x @ q, x @ k, x @ v
                ),
                "queries of the other sequence": lambda x, y, q, k, v: binary.attention(
                    y @ q, y @ k, y @ v
                ),
                "queries and keys exchanged": lambda x, y, q, k, v: binary.attention(
                    y @ q, x @ k, x @ v
                ),
            },
        ),
    ),
    Statement(
        id="ch11.pit3",
        where="Pitfall 3",
        says="Without the causal mask in generation the model sees future tokens.",
        formula=r"\partial o_i / \partial v_j = A_{ij} I \neq 0 \text{ for } j > i",
        verdict="imprecise",
        exact="The leak is one of training, and of reading a prompt at once. The newest row of a "
        "generation has no future tokens, and is the same with the mask and without.",
        check=Check(
            run=leaks,
            subject=binary.causal,
            mutations={
                "no mask": lambda n: np.ones((n, n), bool),
                "one token ahead": lambda n: np.tri(n, k=1, dtype=bool),
                "the other half": lambda n: np.tri(n, dtype=bool).T,
            },
        ),
        properties=("later-tokens-have-no-influence", "prefix-equals-first-rows"),
    ),
    Statement(
        id="ch11.pit4",
        where="Pitfall 4",
        says="Weights cannot be taken for explanations.",
        formula=r"\mathrm{rank}\,[V, \mathbf 1] < n"
        r" \;\Rightarrow\; \exists A' \neq A: A'V = AV",
        verdict="narrative",
        reason="What explains is not defined. What can be shown: with more keys than channels of "
        "values, other weights give the same output.",
        check=Check(
            run=not_identifiable,
            subject=exact.rational((5, 2), seed=71),
            mutations={
                "as many channels as keys": exact.matrix(np.eye(4, dtype=int).tolist()),
                "one channel, two keys": exact.matrix([[1], [2]]),
            },
        ),
    ),
    Statement(
        id="ch11.pit5",
        where="Pitfall 5",
        says="Long contexts need tiles, or sparse patterns, instead of n² memory.",
        formula=r"n(d_v + 2 + b) \ll n^2",
        verdict="conditional",
        hypotheses={
            "n well above d_v and the tile": few_tokens,
            "it is memory that is saved: tiles leave the operations at n²": None,
        },
        proof=tiled_memory,
    ),
)
