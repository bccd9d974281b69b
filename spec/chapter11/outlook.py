"""Outlook and summary: what the order of tokens does, and the list of formulas."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from attnspec.spec.chapter11.complexity import total_cost
from attnspec.spec.chapter11.formula import ATTENTION_CHECK
from attnspec.spec.chapter11.heads import concatenation
from attnspec.spec.chapter11.scores import bilinear_form
from attnspec.spec.evidence import binary, exact
from attnspec.spec.evidence.statement import Check, Proof, Statement, require

__all__ = [
    "STATEMENTS",
    "breaks_order",
    "causal_attention",
    "equivariant",
    "self_attention",
    "with_positions",
]


# -- Order: Exercise 8, and what universality needs -----------------------------------------------

W = [binary.integers((2, 2), seed=seed, within=1) + np.eye(2, dtype=int) for seed in (80, 81, 82)]
TOKENS = exact.matrix([[1, 0], [0, 2], [-1, 1], [2, -1]])


def self_attention(x: Any) -> Any:
    """Of x alone, by fixed projections, at the scale ln 2."""
    return binary.attention(*(x @ w for w in W))


def causal_attention(x: Any) -> Any:
    """The same, each row on the tokens up to it."""
    return binary.attention(*(x @ w for w in W), visible=binary.causal(len(x)))


def with_positions(x: Any) -> Any:
    """The same, with the position added to one channel of the input."""
    return self_attention(x + np.array([[row, 0] for row in range(len(x))], object))


def equivariant(attend: Callable[[Any], Any]) -> str:
    """attend(P X) = P attend(X) for every permutation of four tokens."""
    whole = attend(TOKENS)
    for order in itertools.permutations(range(4)):
        moved = attend(TOKENS[list(order)])
        require(binary.same(moved, whole[list(order)]), f"the order {order} changes an output")
    return "all 24 orders of 4 tokens, exactly"


def breaks_order(attend: Callable[[Any], Any], what: str) -> str:
    """Two tokens exchanged: the outputs are not the same ones exchanged."""
    order = [1, 0, 2, 3]
    before, after = attend(TOKENS)[order], attend(TOKENS[order])
    require(not binary.same(before, after), f"{what} does not see the order")
    return f"{what}: tokens 1 and 2 exchanged, and outputs are others, not the same exchanged"


def summary() -> Proof:
    """The identities behind the list: scores, heads, cost."""
    parts = (bilinear_form(), concatenation(), total_cost())
    return Proof(
        steps=tuple(step for part in parts for step in part.steps),
        mutations={what: step for part in parts for what, step in part.mutations.items()},
    )


STATEMENTS = (
    Statement(
        id="ch11.sec.research",
        where="Section on research",
        says="Attention came from translation (2015), the Transformer of 2017 replaced recurrence, "
        "and universal approximation was extended to it (2020).",
        formula=r"F(PX) = P\,F(X) \;\Rightarrow\; \max_{X' \in \{X, PX\}}"
        r"\lVert F(X') - T(X') \rVert \ge \tfrac12 \lVert T(PX) - P\,T(X) \rVert",
        verdict="imprecise",
        exact="Self-attention is older than 2017 (Cheng et al. and Parikh et al., 2016). The "
        "theorem of 2020 is about continuous maps of sequences of fixed length on a compact set, "
        "with positions: without them only equivariant maps can be reached.",
        check=Check(
            run=equivariant,
            subject=self_attention,
            mutations={"with positions": with_positions, "causal": causal_attention},
        ),
        properties=("queries-in-any-order", "keys-in-any-order"),
    ),
    Statement(
        id="ch11.sec.modern",
        where="Section on research, developments",
        says="Names rotary positions, multi-query attention, fast kernels, linear attention and "
        "state-space models.",
        verdict="narrative",
        reason="A list of names. The systems have records of their own: sys.rope, sys.mqa, "
        "sys.flash, sys.linear, sys.mamba.",
    ),
    Statement(
        id="ch11.sum",
        where="Summary: equations (2), (3), (7), (10), (13), (14) and the cost again",
        says="Projections, scores, scale, softmax times values, concatenated heads, causal mask, "
        "O(n²d) operations and O(n²) numbers.",
        formula=r"4n^2d + 8nd^2 + 5hn^2 - 2hn - 5nd \text{ operations},"
        r"\; hn^2 + O(nd) \text{ numbers}",
        verdict="imprecise",
        exact="The formulas hold as in their own records. The cost leaves out the projections "
        "and the number of heads.",
        proof=summary,
        check=ATTENTION_CHECK,
    ),
)
