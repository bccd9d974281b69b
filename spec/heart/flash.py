"""Attention by tiles: what it saves, what the listing computes, and where the listing fails."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import sympy as sp

from attnspec.spec.evidence import costs, digits
from attnspec.spec.evidence.expressions import scalars
from attnspec.spec.evidence.figure import Figure
from attnspec.spec.evidence.statement import Check, Proof, Statement, require
from attnspec.spec.heart import listings

__all__ = ["STATEMENTS"]

CLOSE = 1e-13
"""What rounding may do: some 450 units of roundoff, for scores below 10 and up to 65 keys."""
MIB, GIB = 2**20, 2**30


def decimal_megabytes() -> str:
    """MB = 10^6 bytes."""
    size = Fraction(costs.scores_bytes(8192), 10**6)
    require(abs(size - 256) > Fraction(1, 2), "still 256")
    return f"{float(size)} MB of 10^6 bytes; 256 are MiB"


def decimal_gigabytes() -> str:
    """GB = 10^9 bytes."""
    size = Fraction(costs.scores_bytes(8192, heads=32, batch=4), 10**9)
    require(abs(size - 32) > Fraction(1, 2), "still 32")
    return f"{float(size):.6f} GB of 10^9 bytes; 32 are GiB"


# -- the listing ----------------------------------------------------------------------------------


def is_attention(tiled: Any) -> str:
    """n = 1 … 65 with tiles of 1, 4, 16 and 64, against 50 digits."""
    worst, cases = mpmath.mpf(0), 0
    for n in (1, 2, 5, 17, 65):
        q, k, v = listings.inputs((n, 4), (n, 4), (n, 3), seed=n)
        expected = digits.attention(q, k, v)
        for block in (1, 4, 16, 64):
            worst, cases = max(worst, digits.distance(tiled(q, k, v, block), expected)), cases + 1
            require(worst < CLOSE, f"{mpmath.nstr(worst, 3)} from attention: n = {n}, tile {block}")
    return f"{cases} pairs of length and tile: within {mpmath.nstr(worst, 2)} of attention"


def never_rescaled(q: Any, k: Any, v: Any, block: int) -> Any:
    """Wrong: each block is shifted by its own maximum, and the sums are never rescaled."""
    starts = range(0, len(k), block)
    parts = [q @ k[j : j + block].T / np.sqrt(q.shape[-1]) for j in starts]
    e = np.concatenate([np.exp(s - s.max(1, keepdims=True)) for s in parts], axis=1)
    return e @ v / e.sum(1, keepdims=True)


def last_tile_lost(q: Any, k: Any, v: Any, block: int) -> Any:
    """Wrong: keys beyond the last full tile are dropped."""
    kept = max(len(k) // block * block, 1)
    return listings.attention(q[None], k[None, :kept], v[None, :kept])[0][0]


def other_lengths() -> str:
    """5 queries over 9 keys, and 9 over 5, tiles of 2."""
    q, k, v = listings.inputs((9, 4), (9, 4), (9, 3), seed=1)
    short = listings.tiled(q[:5], k, v, 2)
    read = listings.attention(q[None, :5], k[None, :6], v[None, :6])[0][0]
    error = abs(short - listings.attention(q[None, :5], k[None], v[None])[0][0]).max()
    require(abs(short - read).max() < CLOSE < error, "all 9 keys are read")
    try:
        listings.tiled(q, k[:5], v[:5], 2)
    except ValueError:
        return f"5 queries over 9 keys read 6 of them, silently (error {error:.2f}); 9 over 5 raise"
    require(False, "9 queries over 5 keys give a result")
    return ""


def first_block_hidden(tiled: Any) -> str:
    """A causal mask, a window whose later rows do not see the first block, an empty row."""
    q, k, v = listings.inputs((9, 4), (9, 4), (9, 3), seed=2)
    i, j = np.indices((9, 9))
    window, empty = (j > i) | (i - j >= 2), j > i
    empty[4] = True
    for hidden in (j > i, window, empty):
        with np.errstate(all="ignore"):
            out = tiled(q, k, v, 3, hidden)
        require(not np.isnan(out).any(), f"{np.isnan(out).any(1).sum()} rows are NaN")
        expected = listings.attention(q[None], k[None], v[None], hidden[None])[0][0]
        expected[hidden.all(1)] = 0
        require(abs(out - expected).max() < CLOSE, "another result than attention")
    return "9 tokens, tiles of 3: causal, a window of 2 and an empty row, none NaN, all attention"


def unguarded_is_causal_at_least() -> str:
    """Block 0 comes first and every row sees it."""
    q, k, v = listings.inputs((9, 4), (9, 4), (9, 3), seed=2)
    out = listings.tiled(q, k, v, 3, listings.later(9))
    expected = listings.attention(q[None], k[None], v[None], listings.later(9)[None])[0][0]
    require(abs(out - expected).max() < CLOSE, "the causal mask fails too")
    i, j = np.indices((9, 9))
    with np.errstate(all="ignore"):
        bad = np.isnan(listings.tiled(q, k, v, 3, (j > i) | (i - j >= 2))).any(1)
    require(bad.any(), "the window works too")
    return f"unguarded, the causal mask is right, but a window makes {bad.sum()} of 9 rows NaN"


# -- the running maximum --------------------------------------------------------------------------


def any_reference() -> Proof:
    """P and B: sums of e^s over keys before and in the block; m, m' any two finite numbers."""
    before, block, m, moved = sp.symbols("P B m m'", real=True)
    carried = before * sp.exp(-m) * sp.exp(m - moved) + block * sp.exp(-moved)
    total = (before + block) * sp.exp(-moved)
    kept = before * sp.exp(-m) + block * sp.exp(-moved)
    backwards = before * sp.exp(-m) * sp.exp(moved - m) + block * sp.exp(-moved)
    return Proof(
        steps=(
            scalars("e^(m - m') e^(-m) P + e^(-m') B = e^(-m') (P + B)", carried, total),
            scalars("it cancels: ratios of two such sums hold no m'", total / total.subs(m, 0), 1),
        ),
        mutations={
            "not rescaled": scalars("e^(-m) P + e^(-m') B", kept, total),
            "rescaled backwards": scalars("e^(m' - m) e^(-m) P + e^(-m') B", backwards, total),
        },
    )


STATEMENTS = (
    Statement(
        id="heart.flash.256",
        where="Flash attention, size of A",
        says="At n = 8192 A takes 256 MB a head and layer.",
        formula=r"8192^2 \cdot 4\,\mathrm{B} = 2^{28}\,\mathrm{B}",
        verdict="conditional",
        hypotheses={"MB of 2^20 bytes; single precision": decimal_megabytes},
        figures=(
            Figure(
                what="A, one head",
                printed="256",
                unit="MiB",
                exact=lambda: Fraction(costs.scores_bytes(8192), MIB),
            ),
        ),
    ),
    Statement(
        id="heart.flash.32",
        where="Flash attention, size of all A",
        says="With 32 heads and a batch of 4, 32 GB.",
        formula=r"2^{28} \cdot 32 \cdot 4\,\mathrm{B} = 2^{35}\,\mathrm{B}",
        verdict="conditional",
        hypotheses={"GB of 2^30 bytes; one layer": decimal_gigabytes},
        figures=(
            Figure(
                what="A, 32 heads, batch 4, one layer",
                printed="32",
                unit="GiB",
                exact=lambda: Fraction(costs.scores_bytes(8192, heads=32, batch=4), GIB),
            ),
        ),
    ),
    Statement(
        id="heart.code.flash",
        where="Flash listing",
        says="Tiles with a running maximum and sum give attention, for any block size.",
        verdict="conditional",
        hypotheses={
            "as many keys as queries": other_lengths,
            "no mask, finite scores": unguarded_is_causal_at_least,
        },
        check=Check(
            run=is_attention,
            subject=listings.tiled,
            mutations={
                "sums not rescaled": never_rescaled,
                "keys beyond the last full tile dropped": last_tile_lost,
            },
        ),
        properties=("every-length-averages-plainly", "parts-merge-by-lse"),
    ),
    Statement(
        id="heart.code.flash.mask",
        where="Flash listing, with a mask added",
        says="The listing has no mask; with one of -∞ it would still be attention.",
        formula=r"m = -\infty:\quad -\infty - (-\infty) = \mathrm{NaN}",
        verdict="false",
        exact="A row whose first block is fully hidden has a maximum of -∞ and becomes NaN. Two "
        "guards mend it: no maximum of -∞ is subtracted, and a sum of 0 divides as 1.",
        check=Check(
            run=first_block_hidden,
            subject=lambda q, k, v, b, hidden: listings.tiled(q, k, v, b, hidden, guarded=True),
            mutations={
                "without guards": listings.tiled,
                "NaN turned into 0 afterwards": lambda q, k, v, b, hidden: np.nan_to_num(
                    listings.tiled(q, k, v, b, hidden)
                ),
            },
        ),
        properties=("row-without-keys-returns-zero", "window-hides-both-sides"),
    ),
    Statement(
        id="heart.flash.max",
        where="Flash listing, the running maximum",
        says="The maximum is tracked for numerical stability.",
        formula=r"e^{m-m'}\,e^{-m}P + e^{-m'}B = e^{-m'}(P + B)",
        verdict="conditional",
        hypotheses={"m and m' finite": unguarded_is_causal_at_least},
        proof=any_reference,
        properties=("constant-bias-changes-nothing",),
    ),
)
