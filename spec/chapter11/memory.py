"""Memory: the matrix of weights, and tiles that do without it."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import sympy as sp

from attnspec.spec.chapter11.complexity import n, product
from attnspec.spec.evidence import exact
from attnspec.spec.evidence.expressions import scalars
from attnspec.spec.evidence.figure import Figure
from attnspec.spec.evidence.statement import Check, Proof, Statement, require
from attnspec.spec.evidence.sums import identity
from attnspec.spec.evidence.symbols import V, keys

__all__ = ["STATEMENTS", "rescaling", "scores_bytes", "tiled_memory"]


# -- Memory ---------------------------------------------------------------------------------------


def scores_bytes(tokens: int, heads: int = 1, layers: int = 1) -> int:
    """Two bytes a score."""
    return tokens**2 * 2 * heads * layers


def several_heads() -> str:
    """The 32 heads of one layer."""
    stored = scores_bytes(10**5, heads=32)
    require(stored != 20 * 10**9, "32 heads need no more")
    return f"32 heads: {stored // 10**9} GB"


def larger_model(parameters: int = 13 * 10**9) -> str:
    """Weights of 26 GB."""
    require(scores_bytes(10**5) < 2 * parameters, "the weights are smaller")
    return "13e9 parameters in 2 bytes: 26 GB, more than 20 GB"


def exceeds_weights(parameters: int) -> str:
    """n² scores against the parameters, both of 2 bytes."""
    scores, weights = scores_bytes(10**5), 2 * parameters
    require(scores > weights, f"{weights / 1e9:g} GB of weights, {scores / 1e9:g} GB of scores")
    return f"{scores / 1e9:g} GB of scores, {weights / 1e9:g} GB of weights"


def tiled_memory() -> Proof:
    """Beside tiles of b keys: n (d_v + 2 + b) numbers, of n²; operations stay of the order n²."""
    size, tile = sp.symbols("d_v b", integer=True, positive=True)
    beside = n * (size + 2 + tile)
    products = product(n, size, n)
    return Proof(
        steps=(
            scalars("n (d_v + 2 + b) / n² → 0", sp.limit(beside / n**2, n, sp.oo), 0),
            scalars("operations / n² → 2d - 1: no fewer", sp.limit(products / n**2, n, sp.oo),
                    2 * size - 1),
        ),
        mutations={
            "tiles that grow with n": scalars("b = n/2", sp.limit(
                beside.subs(tile, n / 2) / n**2, n, sp.oo), 0),
            "fewer operations": scalars("operations / n² → 0", sp.limit(
                products / n**2, n, sp.oo), 0),
        },
    )  # fmt: skip


# -- Tiles ----------------------------------------------------------------------------------------


def by_tiles(e: exact.Matrix, v: exact.Matrix, tile: int, *, rescale: bool = True) -> Any:
    """A V over tiles of keys: a reference, a sum and a row of output, for each query.

    The reference stands for e^max; sums are kept relative to it, and follow when it changes.
    """
    n, width = len(e), v.shape[1]
    top, part, out = exact.matrix([0] * n), exact.matrix([0] * n), v[:1] * np.zeros((n, 1), int)
    for start in range(0, e.shape[1], tile):
        now = e[:, start : start + tile]
        higher = np.maximum(top, now.max(1))
        factor = top / higher if rescale else exact.matrix([1] * n)
        part = part * factor + (now / higher[:, None]).sum(1)
        out = out * factor[:, None] + now / higher[:, None] @ v[start : start + tile]
        top = higher
    require(out.shape == (n, width), "the output has another shape")
    return out / part[:, None]


def rescaling() -> Proof:
    """Sums relative to m become sums relative to m', for any m, m' and any number of keys."""
    j, c = sp.symbols("j c", integer=True)
    score, old, new = sp.IndexedBase("s"), sp.Symbol("m"), sp.Symbol("m'")

    def relative(top: Any) -> Any:
        return sp.Sum(sp.exp(score[j] - top), keys(j))

    def averaged(top: Any) -> Any:
        return sp.Sum(sp.exp(score[j] - top) * V[j, c], keys(j))

    factor = sp.exp(old - new)
    return Proof(
        steps=(
            identity("e^(m - m') Σ_j e^(s_j - m) = Σ_j e^(s_j - m')", factor * relative(old),
                     relative(new)),
            identity("e^(m - m') Σ_j e^(s_j - m) v_j = Σ_j e^(s_j - m') v_j",
                     factor * averaged(old), averaged(new)),
        ),
        mutations={
            "not rescaled": identity("sums as they are", relative(old), relative(new)),
            "the wrong way": identity("e^(m' - m)", relative(old) / factor, relative(new)),
        },
    )  # fmt: skip


def tiled(attend: Callable[..., Any]) -> str:
    """Every width of tile gives A V."""
    e, v = exact.positive((3, 7), seed=11), exact.rational((7, 2), seed=12)
    for tile in range(1, 9):
        require((attend(e, v, tile) == exact.output(e, v)).all(), f"tiles of {tile} differ")
    return "3 rows over 7 keys in tiles of 1 to 8, ragged ones too, exactly"


def inputs_count() -> str:
    """Q, K, V and O are n · d numbers each, more than n."""
    require(4 * 1024 * 64 > 1024, "inputs take no memory")
    return "n = 1024, d = 64: Q, K, V and O are 262144 numbers; the sums beside them 2048"


STATEMENTS = (
    Statement(
        id="ch11.prop6",
        where="Proposition 6",
        says="For 100 000 tokens the weights take 20 GB in half precision.",
        formula=r"n^2 \cdot 2\,\text{B} = 2\cdot 10^{10}\,\text{B} = 20\,\text{GB}"
        r" = 18.63\,\text{GiB}",
        verdict="conditional",
        hypotheses={"one head of one layer": several_heads, "GB is 10⁹ bytes, FP16 is 2": None},
        figures=(
            Figure(
                what="n² scores of 2 bytes, n = 10⁵",
                printed="20",
                exact=lambda: Fraction(scores_bytes(10**5), 10**9),
                unit="GB",
            ),
        ),
    ),
    Statement(
        id="ch11.prop6.cmp",
        where="Proposition 6, the comparison",
        says="That is often more than the weights of the model.",
        formula=r"n^2 > \text{parameters}",
        verdict="conditional",
        hypotheses={"fewer than 10¹⁰ parameters, of as many bytes each": larger_model},
        check=Check(
            run=exceeds_weights,
            subject=7 * 10**9,
            mutations={"a model of 13e9": 13 * 10**9, "a model of 70e9": 70 * 10**9},
        ),
    ),
    Statement(
        id="ch11.flash",
        where="after Proposition 6",
        says="Tiles of keys, and recomputation, give exact attention in O(n) memory.",
        formula=r"l' = l\,e^{m - m'} + \textstyle\sum_j e^{s_j - m'}, \quad"
        r" o' = o\,e^{m - m'} + \sum_j e^{s_j - m'} v_j",
        verdict="conditional",
        hypotheses={"beside Q, K, V and O, which are O(nd)": inputs_count},
        proof=rescaling,
        check=Check(
            run=tiled,
            subject=by_tiles,
            mutations={
                "sums not rescaled": lambda e, v, tile: by_tiles(e, v, tile, rescale=False),
                "the last tile left out": lambda e, v, tile: by_tiles(e[:, :6], v[:6], tile),
                "each tile on its own": lambda e, v, tile: exact.output(e[:, :tile], v[:tile]),
            },
        ),
        properties=(
            "memory-grows-as-declared",
            "every-length-averages-plainly",
            "parts-merge-by-lse",
        ),
    ),
)
