"""Key takeaways, and the lesson after."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np

from attnspec.spec.evidence import binary, digits
from attnspec.spec.evidence.statement import Check, Statement, require
from attnspec.spec.heart.misconceptions import moves_with_its_tokens, pooled_everywhere
from attnspec.spec.lesson3.heads import HEADS, X, head
from attnspec.spec.lesson3.recap import attend, attend_causally, scores_are_reordered
from attnspec.spec.lesson3.scaling import scale_moves_into_queries

__all__ = ["STATEMENTS"]

QUERIES, KEYS, VALUES = (binary.integers((4, 4), seed=seed) for seed in (1, 2, 3))


def replaces_the_divisor(projection: Any) -> str:
    """No divisor, and another W_Q instead: the same attention, 50 digits."""
    with mpmath.workdps(digits.DIGITS):
        moved = digits.attention(projection(QUERIES), KEYS, VALUES, scale=1)
    gap = digits.distance(moved, digits.attention(QUERIES, KEYS, VALUES))
    require(gap < mpmath.mpf(10) ** -40, f"{mpmath.nstr(gap, 3)} apart")
    return "d_k = 4: W_Q/√d_k without the divisor is the same attention, to 40 digits"


def runs_side_by_side(joined: Any) -> str:
    """3 heads: channels 3r to 3r + 2 of the result are head r, alone."""
    out = joined(X)
    require(out.shape == (4, 9), f"the output is {out.shape}, not n × h·d_v")
    for r, w in enumerate(HEADS):
        alone = head(X, *w)
        require(binary.same(out[:, 3 * r : 3 * r + 3], alone), f"head {r} is not its own")
    return "3 heads of d_v = 3: each is 3 of the 9 channels, exactly, whatever the others do"


def side_by_side(x: Any) -> Any:
    """[head_1 | head_2 | head_3]."""
    return np.concatenate([head(x, *w) for w in HEADS], axis=1)


STATEMENTS = (
    Statement(
        id="heart.take",
        where="Key takeaways, all but the last",
        says="Paths of length 1, three roles, a divisor that is required, a causal mask, n² costs.",
        formula=r"\mathrm{Attn}(Q, K; \alpha) = \mathrm{Attn}(\alpha Q, K; 1)",
        verdict="imprecise",
        exact="The divisor is not required: W_Q/√d_k does the same. What it sets is the size of "
        "the first scores. The rest is as in the sections: one step means one layer, without a "
        "mask; O(n²) memory is of each head; time is O(n²d).",
        proof=scale_moves_into_queries,
        check=Check(
            run=replaces_the_divisor,
            subject=lambda q: q / mpmath.sqrt(4),
            mutations={
                "unscaled": lambda q: q,
                "divided by d_k": lambda q: q / mpmath.mpf(4),
            },
        ),
        properties=("scale-multiplies-queries", "later-tokens-have-no-influence"),
    ),
    Statement(
        id="heart.take.perm",
        where="Key takeaways, the last",
        says="Without positions self-attention is permutation-invariant.",
        formula=r"\mathrm{Attn}(PX) = P\,\mathrm{Attn}(X)",
        verdict="false",
        exact="It is equivariant: the outputs move with their tokens, and only without a mask. The "
        "document calls invariance a misconception before it asserts it here.",
        proof=scores_are_reordered,
        check=Check(
            run=moves_with_its_tokens,
            subject=attend,
            mutations={
                "invariant": pooled_everywhere,
                "a causal mask": attend_causally,
            },
        ),
        properties=("queries-in-any-order", "keys-in-any-order"),
    ),
    Statement(
        id="heart.next.mha",
        where="The lesson after",
        says="Multi-head attention runs several heads in parallel and concatenates them; "
        "W_O, which comes after, is no part of this.",
        formula=r"[\mathrm{head}_1 | \cdots | \mathrm{head}_h] \in \mathbb{R}^{n\times h d_v}",
        verdict="true",
        check=Check(
            run=runs_side_by_side,
            subject=side_by_side,
            mutations={
                "added": lambda x: sum(head(x, *w) for w in HEADS),
                "channels interleaved": lambda x: np.stack(
                    [head(x, *w) for w in HEADS], axis=2
                ).reshape(len(x), -1),
            },
        ),
        properties=("heads-are-independent",),
    ),
)
