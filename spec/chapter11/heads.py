"""Heads: several attentions side by side, what they cost, and what each can express."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import sympy as sp

from attnspec.spec.chapter11.complexity import head, loops, n, product, softmax
from attnspec.spec.evidence import binary, exact
from attnspec.spec.evidence.expressions import matrices, scalars
from attnspec.spec.evidence.linear import rank
from attnspec.spec.evidence.operations import attention_operations
from attnspec.spec.evidence.shapes import shaped
from attnspec.spec.evidence.statement import Check, Proof, Statement, require

__all__ = ["EXCESS_CHECK", "STATEMENTS", "concatenation", "excess"]

d, h, d_v, c = sp.symbols("d h d_v c", integer=True, positive=True)


# -- Equations (12), (13) -------------------------------------------------------------------------


def concatenation() -> Proof:
    """[C H] [W; U] = C W + H U: one head after another, the product with W_O is a sum."""
    before, width, out = sp.symbols("p d_v d", integer=True, positive=True)
    C, H = sp.MatrixSymbol("C", n, before), sp.MatrixSymbol("H", n, width)
    W, U = sp.MatrixSymbol("W", before, out), sp.MatrixSymbol("U", width, out)
    joined = sp.BlockMatrix([[C, H]]) * sp.BlockMatrix([[W], [U]])
    collapsed = sp.block_collapse(joined)
    one = sp.MatrixSymbol("H", n, h * d_v)
    return Proof(
        steps=(
            matrices("one more head: [C H][W; U] = C W + H U", collapsed, C * W + H * U),
            shaped("h heads of d_v need W_O of h d_v rows", [one, sp.MatrixSymbol("W", h * d_v, d)],
                   (n, d)),
        ),
        mutations={
            "the blocks are exchanged": matrices("[C H][U; W] …", collapsed, H * U + H * U),
            "without the last head": matrices("C W", collapsed, C * W),
            "W_O of d rows, for any d_v": shaped(
                "h heads of d_v with W_O d × d", [one, sp.MatrixSymbol("W", d, d)], (n, d)
            ),
        },
    )  # fmt: skip


def two_heads() -> tuple[Any, ...]:
    """Integer inputs, weights of two heads of width 2, and W_O, (4, 4)."""
    x = binary.integers((3, 4), seed=21, within=1)
    weights = [binary.integers((4, 2), seed=seed, within=1) for seed in range(22, 28)]
    return x, weights[:3], weights[3:], binary.integers((4, 4), seed=28)


def one_head(x: Any, weights: Any) -> Any:
    """Attention from x by (W_Q, W_K, W_V), at the scale ln 2."""
    return binary.attention(*(x @ w for w in weights))


def joined_heads(multihead: Callable[..., Any]) -> str:
    """Element by element: Σ over heads and channels of head · W_O, in the order of the heads."""
    x, first, second, w_o = two_heads()
    found = multihead(one_head(x, first), one_head(x, second), w_o)
    heads = (one_head(x, first), one_head(x, second))
    for row, column in np.ndindex(3, 4):
        element = sum(heads[a][row, c] * w_o[2 * a + c, column] for a in range(2) for c in range(2))
        require(found[row, column] == element, f"element ({row}, {column}) differs")
    return "2 heads of width 2 over 3 tokens: all 12 elements, exactly"


def wide_values() -> str:
    """Heads of d_v = d do not fit a square W_O."""
    heads = np.zeros((3, 2 * 4))
    require(heads.shape[1] != 4, "two heads of width d fit")
    return "d = 4, two heads of d_v = 4: Concat is n × 8, W_O must be 8 × 4"


# -- Theorem 3: the same cost, but for softmax ----------------------------------------------------


def several(heads: Any) -> Any:
    """`heads` heads of width d/heads: every operation."""
    return sp.expand(heads * head(n, d / heads, d / heads))


def multiplied(heads: Any) -> Any:
    """A multiplication and its addition as 2, softmax and scale as c a score."""
    return sp.expand(heads * (4 * loops(1, n, n) * (d / heads) + c * n**2))


def excess() -> Proof:
    """What h heads cost more than one of width d, exactly and by the usual count."""
    more = several(h) - several(1)
    sums = h * product(n, d / h, n) - product(n, d, n)
    ratio = multiplied(h) / multiplied(1) - 1
    return Proof(
        steps=(
            scalars("in all: (h - 1)(5n² - 2n) operations more", more, (h - 1) * (5*n**2 - 2*n)),
            scalars("of these, softmax: (h - 1)(5n² - 2n)", (h - 1) * softmax(n, n),
                    (h - 1) * (5*n**2 - 2*n)),
            scalars("products of scores: (h - 1)n² additions fewer", sums, -(h - 1) * n**2),
            scalars("as 2 for each product, c for each score: c(h - 1)/(c + 4d) more", ratio,
                    c * (h - 1) / (c + 4 * d)),
        ),
        mutations={
            "the same": scalars("nothing more", more, 0),
            "h times as many": scalars("F_h = h F_1", several(h), h * several(1)),
            "without softmax's sums": scalars("3n² a head more", more, (h - 1) * 3 * n**2),
        },
    )  # fmt: skip


def excess_counted(claimed: Callable[[int, int], int]) -> str:
    """h heads of width d/h against one of width d, by numbers that count."""
    for tokens, width, heads in ((1, 2, 2), (3, 4, 2), (4, 6, 3), (5, 4, 4)):
        size = width // heads
        many = attention_operations(tokens, size, size, heads=heads).total()
        more = many - attention_operations(tokens, width, width).total()
        require(
            more == claimed(tokens, heads),
            f"{more} more at n = {tokens}, d = {width}, h = {heads}",
        )
    return "every operation of explicit loops, (n, d, h) up to (5, 4, 4)"


EXCESS_CHECK = Check(
    run=excess_counted,
    subject=lambda n, heads: (heads - 1) * (5 * n * n - 2 * n),
    mutations={
        "the same cost": lambda n, heads: 0,
        "the additions of the scores kept": lambda n, heads: (heads - 1) * (6 * n * n - 2 * n),
        "h for h - 1": lambda n, heads: heads * (5 * n * n - 2 * n),
    },
)
EXCESS = (
    "Products of matrices cost the same, 4n²d. Softmax and scale, c operations a score, cost h "
    "times as much: c(h - 1)/(c + 4d) more of the whole. With every operation counted they are "
    "5n² - 2n a head: 0.95 % more at d = 4096, h = 32. Scores take h n² numbers, not n², and W_O "
    "adds 2nd². O(n²d) needs h = O(d)."
)


# -- What a head can express ----------------------------------------------------------------------


def rank_of_logarithms(size: int) -> str:
    """log A = S - LSE 1ᵀ: a matrix of rank d_k less a constant in each row, `size` = d_k."""
    q, k = exact.rational((6, 2), seed=31), exact.rational((6, 2), seed=32)
    row_constants = exact.rational((6, 1), seed=33)
    found = rank(q @ k.T - row_constants)
    require(found <= size + 1, f"rank {found} > d_k + 1")
    require(found == size + 1, f"rank {found} < d_k + 1")
    form = exact.rational((6, 2), seed=34) @ exact.rational((6, 2), seed=35).T
    require(rank(form) == size, f"M has rank {rank(form)}")
    return "n = d = 6, d_k = 2: W_Q W_Kᵀ has rank 2, the logarithms of the weights rank 3, exactly"


STATEMENTS = (
    Statement(
        id="ch11.def8",
        where="Definition 8, equations (12), (13)",
        says="Heads attend by projections of their own, are concatenated, and mixed by W_O, d × d.",
        formula=r"\mathrm{Concat}(H_1, \ldots, H_h)\, W_O = \textstyle\sum_a H_a W_O^{(a)}",
        verdict="conditional",
        hypotheses={"h d_v = d (else W_O is h d_v × d)": wide_values, "h divides d": None},
        proof=concatenation,
        check=Check(
            run=joined_heads,
            subject=lambda a, b, w_o: np.hstack([a, b]) @ w_o,
            mutations={
                "heads exchanged": lambda a, b, w_o: np.hstack([b, a]) @ w_o,
                "channels interleaved": lambda a, b, w_o: np.stack([a, b], -1).reshape(3, 4) @ w_o,
                "heads added": lambda a, b, w_o: np.hstack([a + b, a + b]) @ w_o,
            },
        ),
        properties=("heads-are-independent",),
    ),
    Statement(
        id="ch11.thm3",
        where="Theorem 3",
        says="h heads of width d/h cost as much as one of width d, O(n²d).",
        formula=r"F_h - F_1 = (h-1)(5n^2 - 2n), \quad F_h / F_1 - 1 = \tfrac{c(h-1)}{c + 4d}",
        verdict="imprecise",
        exact=EXCESS,
        proof=excess,
        check=EXCESS_CHECK,
    ),
    Statement(
        id="ch11.thm3.interp",
        where="after Theorem 3",
        says="Heads express more at the same cost.",
        formula=r"\mathrm{rank}\, W_Q W_K^\top \le d/h,"
        r"\quad \mathrm{rank}\,\log A \le d/h + 1",
        verdict="imprecise",
        exact="A trade: more patterns, each of lower rank. The form of a head has rank at most d/h "
        "(d for a single one), the logarithms of its weights at most d/h + 1.",
        check=Check(
            run=rank_of_logarithms,
            subject=2,
            mutations={"of full rank": 5, "of rank 1": 1},
        ),
    ),
)
