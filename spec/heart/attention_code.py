"""The NumPy listing of softmax and attention: what it computes, and for which inputs.

Errors are measured against 50 digits. What is allowed is 1e-13: some 450 units of roundoff, for
scores below 10 and a few dozen terms in every sum.
"""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np

from attnspec.spec.evidence import digits
from attnspec.spec.evidence.statement import Check, Statement, require
from attnspec.spec.heart import listings

__all__ = ["STATEMENTS"]

CLOSE = 1e-13
Q, K, V = listings.inputs((2, 6, 4), (2, 6, 4), (2, 6, 3), seed=1)


# -- softmax --------------------------------------------------------------------------------------


def is_stable(softmax: Any) -> str:
    """Ordinary rows and rows of ±1e4, along the last axis."""
    scores = np.concatenate([Q[0] * 5, [[1e4, -1e4, 1e4, 0], [-1e4, -1e4, -1e4 + 1, -2e4]]])
    with np.errstate(all="ignore"):
        found = softmax(scores)
    gap = digits.distance(found, [digits.softmax(row) for row in scores])
    require(gap < CLOSE, f"{mpmath.nstr(gap, 3)} from softmax")
    return f"8 rows, scores up to 1e4: within {mpmath.nstr(gap, 2)} of softmax"


def naive(scores: Any) -> Any:
    """Wrong: nothing subtracted."""
    return np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)


def row_of_minus_infinity() -> str:
    """-∞ - (-∞)."""
    with np.errstate(invalid="ignore"):
        a = listings.stable_softmax(np.full(3, -np.inf))
    require(np.isnan(a).all(), "a number came out")
    return "a row of -∞ throughout gives NaN"


# -- attention ------------------------------------------------------------------------------------


def is_attention(listing: Any) -> str:
    """A batch of 2; then 3 queries over 6 keys, for which the types of the listing have no name."""
    worst = mpmath.mpf(0)
    for rows in (6, 3):
        out, weights = listing(Q[:, :rows], K, V)
        require(out.shape == (2, rows, 3), f"the output is {out.shape}")
        for b in range(2):
            worst = max(worst, digits.distance(out[b], digits.attention(Q[b, :rows], K[b], V[b])))
        require(abs(weights.sum(-1) - 1).max() < CLOSE, "rows do not sum to 1")
    require(worst < CLOSE, f"{mpmath.nstr(worst, 3)} from attention")
    return f"2 × 6 × 6 and 2 × 3 × 6: within {mpmath.nstr(worst, 2)} of attention"


def two_axes() -> str:
    """Without a batch."""
    try:
        listings.attention(Q[0], K[0], V[0])
    except ValueError as error:
        return f"inputs without a batch axis raise ValueError ({error})"
    require(False, "inputs of two axes are taken")
    return ""


STATEMENTS = (
    Statement(
        id="heart.code.softmax",
        where="NumPy listing, softmax",
        says="A numerically stable softmax along the last axis.",
        formula=r"e^{s_j - \max s} / \textstyle\sum_l e^{s_l - \max s}",
        verdict="conditional",
        hypotheses={"a finite greatest score in each row": row_of_minus_infinity},
        check=Check(
            run=is_stable,
            subject=listings.stable_softmax,
            mutations={
                "nothing subtracted": naive,
                "along the first axis": lambda s: listings.stable_softmax(s.T).T,
                "the least subtracted": lambda s: naive(s - s.min(-1, keepdims=True)),
            },
        ),
        properties=("constant-bias-changes-nothing", "dominant-key-returns-its-value"),
    ),
    Statement(
        id="heart.code.sdpa",
        where="NumPy listing, scaled dot-product attention",
        says="Batched attention with its weights.",
        formula=r"(B, n, d_k), (B, n, d_k), (B, n, d_v) \to (B, n, d_v), (B, n, n)",
        verdict="conditional",
        hypotheses={"inputs of three axes": two_axes},
        check=Check(
            run=is_attention,
            subject=listings.attention,
            mutations={
                "unscaled": lambda q, k, v: listings.attention(2 * q, k, v),
                "keys of the other batch entry": lambda q, k, v: listings.attention(q, k[::-1], v),
                "rows of 0.99": lambda q, k, v: tuple(
                    0.99 * part for part in listings.attention(q, k, v)
                ),
            },
        ),
        properties=("batch-entries-are-independent", "odds-are-exponential"),
    ),
)
