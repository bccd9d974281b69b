"""Worked examples: the printed figures, recomputed."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import mpmath

from attnspec.spec.chapter11.memory import scores_bytes
from attnspec.spec.evidence import binary, exact
from attnspec.spec.evidence.costs import cache_bytes
from attnspec.spec.evidence.figure import Figure
from attnspec.spec.evidence.statement import Check, Statement, require

__all__ = ["STATEMENTS", "parameters"]


# -- Example 1 ------------------------------------------------------------------------------------


def first_weight() -> Any:
    """e^(1/√2) / (e^(1/√2) + e⁰)."""
    return 1 / (1 + mpmath.exp(-1 / mpmath.sqrt(2)))


def second_weight() -> Any:
    """e⁰ / (e^(1/√2) + e⁰)."""
    return 1 / (1 + mpmath.exp(1 / mpmath.sqrt(2)))


# -- Example 2 ------------------------------------------------------------------------------------


def positive_weights(rows: Sequence[set[int]]) -> str:
    """The positions (from 1) that each row of causal attention over 3 tokens weighs."""
    w = exact.weights(exact.positive((3, 3), seed=2) * binary.causal(3))
    for i, row in enumerate(w):
        found = {j + 1 for j, weight in enumerate(row) if weight > 0}
        require(found == rows[i], f"row {i + 1} attends to {sorted(found)}")
    return "3 tokens, rational weights: rows attend to {1}, {1, 2}, {1, 2, 3}, exactly"


# -- Example 3 ------------------------------------------------------------------------------------

LLAMA_2_70B = {
    "layers": 80, "heads": 64, "key_heads": 8, "size": 128, "hidden": 28672, "vocabulary": 32000,
}  # fmt: skip
"""Its published configuration. The source omits the 8 heads of keys and values."""
PUBLISHED = 68_976_648_192
"""Parameters of the published weights."""


def parameters(
    layers: int, heads: int, key_heads: int, size: int, hidden: int, vocabulary: int
) -> int:
    """Embeddings, projections, three matrices of the gated MLP, scales of the norms."""
    width = heads * size
    projections = 2 * width * width + 2 * width * key_heads * size
    layer = projections + 3 * width * hidden + 2 * width
    return layers * layer + 2 * vocabulary * width + width  # fmt: skip


def adds_up(configuration: dict[str, int]) -> str:
    """The configuration gives the number of parameters of the published weights."""
    found = parameters(**configuration)
    require(found == PUBLISHED, f"{found} parameters, not {PUBLISHED}")
    return f"80 layers of 64 heads of 128 (8 of keys), with MLP and embeddings: {found} parameters"


def cache(key_heads: int) -> int:
    """Bytes of keys and values of 4096 tokens, 80 layers, 2 bytes a number."""
    return int(cache_bytes(4096, layers=80, heads=key_heads, width=128))


def dominates(sizes: tuple[int, int, int]) -> str:
    """Scores of (heads, layers) against the cache of so many heads of keys."""
    heads, layers, key_heads = sizes
    scores, cached = scores_bytes(4096, heads, layers), cache(key_heads)
    text = f"{scores / 1e9:.4g} GB of scores, {cached / 1e9:.4g} GB of keys and values"
    require(scores > cached, text)
    return text


STATEMENTS = (
    Statement(
        id="ch11.ex1",
        where="Example 1",
        says="q = (1, 0), keys (1, 0) and (0, 1), d_k = 2: scaled scores 1/√2 and 0, and weights "
        "about 0.65 and 0.35.",
        formula=r"A_1 = \frac{1}{1 + e^{-1/\sqrt 2}} = 0.66976\ldots, \quad A_2 = 0.33023\ldots",
        verdict="false",
        exact="The scores are right. The weights are 0.66976 and 0.33024, 0.67 and 0.33 rounded.",
        figures=(
            Figure(what="weight of the first key", printed="0.65", exact=first_weight),
            Figure(what="weight of the second key", printed="0.35", exact=second_weight),
        ),
    ),
    Statement(
        id="ch11.ex2",
        where="Example 2",
        says="With 3 tokens, causal rows attend to position 1, to 1 and 2, and to all.",
        formula=r"\{j : A_{ij} > 0\} = \{1, \ldots, i\}",
        verdict="true",
        check=Check(
            run=positive_weights,
            subject=({1}, {1, 2}, {1, 2, 3}),
            mutations={
                "without the token itself": (set(), {1}, {1, 2}),
                "later tokens": ({1, 2, 3}, {2, 3}, {3}),
                "every token": ({1, 2, 3}, {1, 2, 3}, {1, 2, 3}),
            },
        ),
        properties=("only-key-returns-its-value", "visible-set"),
    ),
    Statement(
        id="ch11.ex3.a",
        where="Example 3, memory of a layer",
        says="At 4096 tokens the weights of one layer of Llama 2 70B take about 33 MB.",
        formula=r"64 \cdot 4096^2 \cdot 2\,\text{B} = 2^{31}\,\text{B}",
        verdict="false",
        exact="That is one head: 33.55 MB, which is 32 MiB and rounds to 34 MB. A layer has 64 "
        "heads, 2147.48 MB; 80 layers take 171.8 GB.",
        figures=(
            Figure(
                what="weights of one layer, 64 heads",
                printed="33",
                exact=lambda: Fraction(scores_bytes(4096, heads=64), 10**6),
                unit="MB",
            ),
            Figure(
                what="weights of one head",
                printed="33",
                exact=lambda: Fraction(scores_bytes(4096), 10**6),
                unit="MB",
            ),
        ),
    ),
    Statement(
        id="ch11.ex3.config",
        where="Example 3, configuration",
        says="Llama 2 70B has 80 layers of 64 heads of size 128, and sequences of 4096.",
        formula=r"L = 80, \; H = 64, \; d_k = 128 \;\Rightarrow\; 68\,976\,648\,192"
        r"\text{ parameters}",
        verdict="true",
        check=Check(
            run=adds_up,
            subject=LLAMA_2_70B,
            mutations={
                "79 layers": {**LLAMA_2_70B, "layers": 79},
                "as many heads of keys as of queries": {**LLAMA_2_70B, "key_heads": 64},
                "heads of 64": {**LLAMA_2_70B, "size": 64},
            },
        ),
    ),
    Statement(
        id="ch11.ex3.kv",
        where="Example 3, the comparison",
        says="Over all layers the weights exceed the cache of keys and values.",
        formula=r"H L n^2 \text{ against } 2 h_{kv} L n d_k \text{ numbers}",
        verdict="imprecise",
        exact="For all 64 heads (171.8 GB) they do. One head a layer (2.7 GB) exceeds the cache of "
        "8 heads of keys (1.3 GB) but not one of 64 (10.7 GB); and inference holds the weights of "
        "one layer at a time (2.1 GB), or none.",
        check=Check(
            run=dominates,
            subject=(64, 80, 8),
            mutations={
                "one head, against 64 heads of keys": (1, 80, 64),
                "one layer at a time, against 64 heads of keys": (64, 1, 64),
            },
        ),
    ),
)
