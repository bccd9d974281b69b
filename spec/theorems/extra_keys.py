"""Keys beside the others: one of zeros, and those that a large number hides."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import sympy as sp

from attnspec.spec.evidence import exact
from attnspec.spec.evidence.binary import same
from attnspec.spec.evidence.exact import matrix
from attnspec.spec.evidence.expressions import scalars
from attnspec.spec.evidence.statement import Check, Proof, Statement, require
from attnspec.spec.theorems.keys import a_row

__all__ = ["STATEMENTS"]

i, r = sp.symbols("i r", integer=True)
n, copies = sp.symbols("n m", integer=True, positive=True)
E, v = sp.IndexedBase("E"), sp.IndexedBase("v")
z, e, w = sp.symbols("Z E_j E_l", positive=True)
"""A sum of exponentials, one that is hidden or doubled, and another."""


# -- Added -----------------------------------------------------------------------------------------


def null_key() -> Proof:
    """One more exponential of 1, one more value of 0."""
    lse = sp.log(z)
    total = sp.Symbol("N")
    sigmoid = 1 / (1 + sp.exp(-lse))
    return Proof(
        steps=(scalars("N / (Z + 1) = σ(lse) N / Z", total / (z + 1), sigmoid * total / z),),
        mutations={
            "nothing changes": scalars("N / Z", total / (z + 1), total / z),
            "σ(-lse)": scalars("σ(-lse) N / Z", total / (z + 1), (1 - sigmoid) * total / z),
        },
    )


def sink_of_zeros(shrink: Any) -> str:
    """3 rows of 5 keys and a key of zeros with a value of zeros."""
    for seed in (1, 5, 9):
        e_row, values = a_row(seed=seed)
        wider = np.concatenate([e_row, matrix([[1]])], 1)
        found = exact.output(wider, np.concatenate([values, matrix([[0, 0]])]))
        z_row = e_row.sum()
        require(same(found, shrink(z_row) * exact.output(e_row, values)), f"Z = {z_row}")
    return "3 rows of 5 keys, exactly"


# -- Hidden by a number ----------------------------------------------------------------------------


def leak_bound(hidden: int, visible: int, spread: Fraction, fade: Fraction) -> Fraction:
    """Weight on hidden keys at most; spread = e^Δ, fade = e^-B."""
    return Fraction(hidden, visible) * spread * fade


def leaks_within(bound: Any) -> str:
    """1..4 of 5 keys hidden by 2^-b, b = 0..60: positive, within the bound, near it when even."""
    for seed, count, b in itertools.product(range(4), range(1, 5), (0, 5, 20, 60)):
        e_row, _ = a_row(seed=seed)
        fade, spread = Fraction(1, 2**b), e_row.max() / e_row.min()
        e_row[0, :count] = e_row[0, :count] * fade
        leak = exact.weights(e_row)[0, :count].sum()
        limit = bound(count, 5 - count, spread, fade)
        require(0 < leak <= limit, f"{count} hidden by 2^-{b}: {float(leak):.3g}")
        even = Fraction(count, 5 - count) * fade
        reached = bound(count, 5 - count, Fraction(1), fade) * (1 - 5 * fade)
        require(even / (1 + even) >= reached, f"{count} hidden by 2^-{b}: the bound is loose")
    return "64 rows, biases of 0 to -60 log 2, exactly: a finite bias always leaks"


def blind_row() -> str:
    """Where every key is hidden the number cancels, and hidden keys take all."""
    e_row, _ = a_row()
    faded = exact.weights(e_row * Fraction(1, 2**60))
    require(same(faded, exact.weights(e_row)), "the weights change")
    return "all 5 keys hidden by one number: the weights are those of no mask"


STATEMENTS = (
    Statement(
        id="ext.nullsink",
        where="Miller 2023 (one more in the denominator); beside the third document's attention "
        "sinks",
        says="A key of score 0 with a value of 0 scales the output by the sigmoid of lse.",
        formula=r"O' = \sigma(\mathrm{lse})\, O",
        verdict="true",
        proof=null_key,
        check=Check(
            run=sink_of_zeros,
            subject=lambda z_row: z_row / (1 + z_row),
            mutations={
                "σ(-lse)": lambda z_row: 1 / (1 + z_row),
                "no change": lambda z_row: 1,
            },
        ),
        properties=(
            "dsinks",
            "sink-is-a-null-key",
        ),
    ),
    Statement(
        id="ext.finitebias",
        where="folklore; the third document's masks of -1e9",
        says="A finite bias on hidden keys leaks, within a bound; where all keys are hidden it "
        "cancels.",
        formula=r"0 < \sum_{j\ \mathrm{hidden}} A_j \le "
        r"\frac{n_{\mathrm{hidden}}}{n_{\mathrm{visible}}}\, e^{\Delta - B}",
        verdict="conditional",
        hypotheses={"some key is visible": blind_row},
        check=Check(
            run=leaks_within,
            subject=leak_bound,
            mutations={
                "no spread": lambda h, v, spread, fade: Fraction(h, v) * fade,
                "no leak": lambda h, v, spread, fade: Fraction(0),
                "of all keys": lambda h, v, spread, fade: Fraction(h + v) * spread * fade,
            },
        ),
        properties=("mask-is-a-bias",),
    ),
)
