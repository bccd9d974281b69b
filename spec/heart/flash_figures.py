"""What the tiles are said to win: memory, time, utilisation."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from attnspec.spec.evidence import costs
from attnspec.spec.evidence.figure import Figure
from attnspec.spec.evidence.statement import Check, Statement, require

__all__ = ["STATEMENTS"]

MIB = 2**20
SCORES = costs.scores_bytes(4096)
"""A of one head, single precision."""
ARRAYS = 4 * 4096 * 64 * 4
"""Q, K, V and O, d_k = d_v = 64, single precision: both implementations hold them."""
SUMS = 4096 * 4
"""One log-sum-exp a row."""


def compares_like_with_like(ratio: Any) -> str:
    """Extra memory with extra memory, or all with all."""
    found = ratio(SCORES, ARRAYS, SUMS)
    extra, whole = Fraction(SCORES, SUMS), Fraction(SCORES + ARRAYS, ARRAYS + SUMS)
    require(found in (extra, whole), f"{float(found):g} compares extra memory with all of it")
    return f"extra: {extra}; all: {float(whole):.6f}; by the printed figures {SCORES // ARRAYS}"


STATEMENTS = (
    Statement(
        id="heart.flash.mem",
        where="Memory comparison, n = 4096, d_k = 64, one head",
        says="64 MB without tiles, 4 MB with them, 8 times less.",
        formula=r"\frac{64\,\mathrm{MiB}}{16\,\mathrm{KiB}} = 4096,\qquad "
        r"\frac{68\,\mathrm{MiB}}{4.015625\,\mathrm{MiB}} \approx 16.93",
        verdict="false",
        exact="By its own figures 64/4 = 16. But 64 MiB are the scores alone, and 4 MiB are Q, K, "
        "V and O, which both need: beyond those, tiles keep 16 KiB, 4096 times less; in all 68 MiB "
        "against 4.0156 MiB, 16.93 times.",
        check=Check(
            run=compares_like_with_like,
            subject=lambda scores, arrays, sums: Fraction(scores, sums),
            mutations={
                "printed": lambda scores, arrays, sums: Fraction(8),
                "extra over all": lambda scores, arrays, sums: Fraction(scores, arrays),
            },
        ),
        figures=(
            Figure(
                what="A, materialised",
                printed="64",
                unit="MiB",
                exact=lambda: Fraction(SCORES, MIB),
            ),
            Figure(
                what="Q, K, V and O", printed="4", unit="MiB", exact=lambda: Fraction(ARRAYS, MIB)
            ),
            Figure(
                what="tiles, beyond Q, K, V and O",
                printed="4",
                unit="MiB",
                exact=lambda: Fraction(SUMS, MIB),
            ),
            Figure(
                what="reduction by the printed sizes", printed="8", exact=lambda: Fraction(64, 4)
            ),
            Figure(
                what="reduction of extra memory",
                printed="8",
                exact=lambda: Fraction(SCORES, SUMS),
            ),
            Figure(
                what="reduction of all memory",
                printed="8",
                exact=lambda: Fraction(SCORES + ARRAYS, ARRAYS + SUMS),
            ),
        ),
    ),
    Statement(
        id="heart.flash.time",
        where="Memory comparison, time",
        says="The first version is about 2 times as fast, the second about 4 times.",
        verdict="undecided",
        reason="It depends on device, length, width and number format, of which none is named.",
    ),
    Statement(
        id="heart.flash.util",
        where="After the memory comparison, utilisation",
        says="The second version reaches about 70 % of the peak, naive attention about 30 %.",
        verdict="undecided",
        reason="A measurement, for a device that is not named. The paper (arXiv:2307.08691) "
        "gives, on an A100, 50-73 % for FlashAttention-2 and 25-40 % for the first version: 70 is "
        "near the top of the range, and 30 is the first version's, not that of naive attention.",
    ),
    Statement(
        id="heart.speedup",
        where="After the memory comparison, last sentence",
        says="It is the single biggest speedup of inference.",
        verdict="undecided",
        reason="It depends on the load. When one token is generated there is one row of n scores "
        "and no n² matrix to avoid.",
    ),
)
