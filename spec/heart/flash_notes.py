"""What the flash listing notes of itself: memory, operations, and whose algorithm it is."""

from __future__ import annotations

import tracemalloc
from fractions import Fraction
from typing import Any

import numpy as np
import sympy as sp

from attnspec.spec.evidence import binary, exact
from attnspec.spec.evidence.expressions import scalars
from attnspec.spec.evidence.statement import Check, Proof, Statement, require
from attnspec.spec.heart import listings

__all__ = ["STATEMENTS"]

# -- memory and operations ------------------------------------------------------------------------


def peak(run: Any, n: int) -> int:
    """Bytes allocated at most while it runs, beyond inputs."""
    q, k, v = listings.inputs((n, 4), (n, 4), (n, 4), seed=3)
    tracemalloc.start()
    try:
        run(q, k, v)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def grows_linearly(run: Any) -> str:
    """Peaks at n = 256, 512, 1024: the exponent of n from the last two."""
    peaks = [peak(run, n) for n in (256, 512, 1024)]
    exponent = float(np.log2(peaks[2] / peaks[1]))
    require(exponent < 1.2, f"the peak grows as n^{exponent:.2f}")
    return f"n = 256, 512, 1024, tiles of 32: peaks {peaks} bytes, n^{exponent:.2f}"


def materialised(q: Any, k: Any, v: Any) -> Any:
    """The whole matrix of scores."""
    return listings.attention(q[None], k[None], v[None])


def work_of_tiles() -> Proof:
    """T × T tiles of B × B, n = T B: 2 B² (d_k + d_v) each, and B (d_v + 1) to rescale the sums."""
    t, b, dk, dv, i, j = sp.symbols("T B d_k d_v i j", positive=True, integer=True)
    n = t * b

    def over_tiles(each: Any) -> Any:
        return sp.Sum(each, (i, 1, t), (j, 1, t)).doit()

    products, rescales = over_tiles(2 * b**2 * (dk + dv)), over_tiles(b * (dv + 1))
    return Proof(
        steps=(
            scalars("products: 2 n² (d_k + d_v), as without tiles", products, 2 * n**2 * (dk + dv)),
            scalars("rescaling in addition: (n/B) n (d_v + 1)", rescales, t * n * (dv + 1)),
        ),
        mutations={
            "O(n²), without the widths": scalars("products: 2 n²", products, 2 * n**2),
            "no rescaling": scalars("in addition: 0", rescales, 0),
        },
    )


# -- the order of the loops -----------------------------------------------------------------------


def keys_outside(q: Any, k: Any, v: Any, block: int) -> tuple[exact.Matrix, int]:
    """Keys in the outer loop; the output is kept normalised and written at every step."""
    out, total = exact.matrix([[0] * v.shape[1]] * len(q)), exact.matrix([[0]] * len(q))
    written = 0
    for j in range(0, len(k), block):
        e = binary.power_of_two(q @ k[j : j + block].T)
        grown = total + e.sum(1, keepdims=True)
        out, total = (out * total + e @ v[j : j + block]) / grown, grown
        written += len(q)
    return out, written


def not_unnormalised(q: Any, k: Any, v: Any, block: int) -> tuple[exact.Matrix, int]:
    """Wrong: normalised outputs are averaged over the blocks."""
    starts = range(0, len(k), block)
    parts = [binary.attention(q, k[j : j + block], v[j : j + block]) for j in starts]
    return np.asarray(sum(parts) / Fraction(len(parts))), len(q) * len(parts)


def writes_often(loops: Any) -> str:
    """7 tokens, blocks of 2: the same output, and every row written once for each block."""
    q, k, v = (binary.integers((7, 2), seed=seed) for seed in (1, 2, 3))
    out, written = loops(q, k, v, 2)
    require(binary.same(out, binary.attention(q, k, v)), "not attention")
    require(written == 4 * 7, f"{written} rows written")
    return "keys outside (version 1): 28 rows written for 7 tokens; queries outside (2): 7; equal"


STATEMENTS = (
    Statement(
        id="heart.flash.docmem",
        where="Flash listing, its note on memory",
        says="O(n) memory instead of O(n²).",
        formula=r"n\,d_v + O(n) + B_r B_c",
        verdict="conditional",
        hypotheses={"beyond Q, K and V; O itself has n·d_v numbers": None},
        check=Check(
            run=grows_linearly,
            subject=lambda q, k, v: listings.tiled(q, k, v, 32),
            mutations={
                "materialised": materialised,
                "one tile": lambda q, k, v: listings.tiled(q, k, v, len(q)),
            },
        ),
    ),
    Statement(
        id="heart.flash.doccomp",
        where="Flash listing, its note on operations",
        says="The same O(n²) operations.",
        formula=r"2n^2(d_k + d_v) + \lceil n/B_c\rceil\, n\,(d_v + 1)",
        verdict="imprecise",
        exact="O(n²d), and not quite the same: the sums are rescaled once for each block of keys. "
        "The backward pass computes the scores again.",
        proof=work_of_tiles,
    ),
    Statement(
        id="heart.flash.attrib",
        where="Flash attention, whose it is",
        says="The listing is Flash Attention of Dao et al., 2022.",
        formula=r"O \leftarrow (l\,O + e^{S} V) / (l + \textstyle\sum e^{S})",
        verdict="imprecise",
        exact="Queries outside and one division at the end is the order of FlashAttention-2 "
        "(2023). The first version has keys outside and writes a normalised O at every step.",
        check=Check(
            run=writes_often,
            subject=keys_outside,
            mutations={
                "averaged over the blocks": not_unnormalised,
                "queries outside": lambda q, k, v, b: (binary.attention(q, k, v), len(q)),
            },
        ),
    ),
)
