"""Edge cases: attention sinks, and streams that keep a sink and a window."""

from __future__ import annotations

from typing import Any

import numpy as np
import sympy as sp

from attnspec.spec.evidence import binary, exact
from attnspec.spec.evidence.expressions import scalars
from attnspec.spec.evidence.statement import Check, Proof, Statement, require

__all__ = ["STATEMENTS"]

# -- sinks and streams ----------------------------------------------------------------------------


def null_key() -> Proof:
    """One more key of score 0 and value 0: total Z + 1, the same numerator."""
    total, numerator = sp.symbols("Z N", positive=True)
    lse = sp.log(total)
    with_sink = numerator / (total + 1)
    share = 1 / (1 + sp.exp(-lse))
    return Proof(
        steps=(scalars("O' = σ(LSE) O", with_sink, share * numerator / total),),
        mutations={
            "nothing changes": scalars("O' = O", with_sink, numerator / total),
            "σ(-LSE)": scalars("O' = σ(-LSE) O", with_sink, (1 - share) * numerator / total),
        },
    )


def streamed(sinks: int, width: int) -> Any:
    """Attention to the first `sinks` tokens and the last `width`; the rest is evicted."""

    def attention(k: Any, v: Any) -> exact.Matrix:
        i, j = np.indices((len(k), len(k)))
        visible = (j <= i) & ((i - j < width) | (j < sinks))
        q = binary.integers(k.shape, seed=21)
        return binary.attention(q, k, v, visible=visible)

    return attention


def forgets(attention: Any) -> str:
    """10 tokens, 1 sink, 3 recent: the last row and edits of each earlier token."""
    k, v = (binary.integers((10, 2), seed=seed) for seed in (22, 23))
    last = attention(k, v)[-1]
    heard = set()
    for token in range(10):
        edited = v.copy()
        edited[token] = edited[token] + 5
        if not binary.same(attention(k, edited)[-1], last):
            heard.add(token)
    require(heard == {0, 7, 8, 9}, f"the last row hears tokens {sorted(heard)}")
    return "1 sink and 3 recent of 10 tokens: the 6 evicted ones have no influence, exactly"


STATEMENTS = (
    Statement(
        id="heart.sink",
        where="Edge cases, attention sinks",
        says="Models put excess attention on the first token; Anthropic saw it in Claude.",
        formula=r"O' = \sigma(\mathrm{LSE})\,O \quad\text{(one more key: score 0, value 0)}",
        verdict="undecided",
        reason="An observation of trained models; name and method are published by Xiao, Tian, "
        "Chen, Han and Lewis (arXiv:2309.17453) for Llama-2, MPT, Falcon and Pythia. What a sink "
        "does is proved.",
        proof=null_key,
        properties=("sink-is-a-null-key", "sink-takes-nothing-or-all"),
    ),
    Statement(
        id="heart.stream",
        where="Edge cases, StreamingLLM",
        says="It gives generation with infinite context.",
        formula=r"j \le i,\ (i - j < w \text{ or } j < s)",
        verdict="false",
        exact="Generation is unbounded, the context is not: the last row reads s sinks and w "
        "recent tokens, and nothing of what was evicted.",
        check=Check(
            run=forgets,
            subject=streamed(1, 3),
            mutations={
                "everything kept": streamed(0, 10),
                "without the sink": streamed(0, 3),
                "a longer window": streamed(1, 4),
            },
        ),
        properties=("window-hides-both-sides",),
    ),
)
