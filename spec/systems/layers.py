"""Layers: many heads with an output projection, two sequences, the causal mask."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import sympy as sp

from attnspec.spec.evidence.binary import attention, causal, exponentials, integers, same
from attnspec.spec.evidence.exact import Matrix, weights
from attnspec.spec.evidence.expressions import matrices
from attnspec.spec.evidence.linear import determinant, identity_matrix, product
from attnspec.spec.evidence.statement import Check, Proof, Statement, require
from attnspec.spec.evidence.sums import identity
from attnspec.spec.evidence.symbols import A, K, V, alpha, channels, keys

__all__ = ["STATEMENTS"]


# -- Many heads and W_O ---------------------------------------------------------------------------


def concatenated(heads: list[Matrix], blocks: list[Matrix]) -> Matrix:
    """[head_1 | ... | head_h] W_O, W_O the blocks on top of each other."""
    return np.asarray(np.concatenate(heads, 1) @ np.concatenate(blocks, 0))


def three_heads() -> tuple[list[Matrix], list[Matrix]]:
    """Outputs of 3 heads of an input (4, 3), and the block of W_O (2, 3) that reads each."""
    x = integers((4, 3), seed=1, within=1)
    draw = [[integers((3, 2), seed=10 * h + s, within=1) for s in range(4)] for h in range(3)]
    heads = [attention(x @ wq, x @ wk, x @ wv) for wq, wk, wv, _ in draw]
    return heads, [w.T + identity_matrix(3)[:2] for *_, w in draw]


def heads_are_summed(combine: Any) -> str:
    """The layer is the sum of its heads; reordered with their blocks; a single head is itself."""
    heads, blocks = three_heads()
    whole = concatenated(heads, blocks)
    require(same(combine(heads, blocks), whole), "the heads do not add up to the layer")
    for order in itertools.permutations(range(3)):
        moved = combine([heads[h] for h in order], [blocks[h] for h in order])
        require(same(moved, whole), f"heads in order {order} change the layer")
    alone = combine(heads[:1], [identity_matrix(2)])
    require(same(alone, heads[0]), "one head with W_O = I is not that head")
    return "3 heads of (4, 3): their sum, 6 orders of the heads, one head, exactly"


def block_product() -> Proof:
    """The rows of W_O in blocks: each head meets its own."""
    n, d, wide = sp.symbols("n d w", integer=True, positive=True)
    heads = [sp.MatrixSymbol(f"H{h}", n, wide) for h in range(3)]
    blocks = [sp.MatrixSymbol(f"W{h}", wide, d) for h in range(3)]
    joined = sp.BlockMatrix([heads]) * sp.BlockMatrix([[block] for block in blocks])
    total = heads[0] * blocks[0] + heads[1] * blocks[1] + heads[2] * blocks[2]
    swapped = heads[0] * blocks[1] + heads[1] * blocks[0] + heads[2] * blocks[2]
    return Proof(
        sizes="3 heads, all n, d and head",
        steps=(matrices("[H_0 | H_1 | H_2] W_O = Σ_h H_h W_h", joined, total),),
        mutations={
            "two heads meet each other's block": matrices("H_0 W_1 + H_1 W_0", joined, swapped),
            "a head is left out": matrices(
                "H_0 W_0 + H_1 W_1", joined, total - heads[2] * blocks[2]
            ),
        },
    )


def heads_moved_without_their_blocks() -> str:
    """Two heads exchanged, W_O left as it is."""
    heads, blocks = three_heads()
    moved = concatenated([heads[1], heads[0], heads[2]], blocks)
    require(not same(moved, concatenated(heads, blocks)), "the exchange changed nothing")
    return "two heads exchanged under the same W_O give another layer"


# -- Two sequences --------------------------------------------------------------------------------


def other_queries_do_not_count() -> Proof:
    """q_r moves the scores of row r alone: ∂s_ij/∂q_ra = α δ_ir k_ja."""
    i, j, other, c, r, a, b = sp.symbols("i j l c r a b", integer=True)
    delta = sp.KroneckerDelta

    def moved(step: Any) -> Any:
        mean = sp.Sum(A[i, other] * step(other), keys(other))
        return sp.Sum(A[i, j] * (step(j) - mean) * V[j, c], keys(j))

    slope = moved(lambda key: alpha * sp.Sum(delta(i, r) * delta(a, b) * K[key, b], channels(b)))
    own = moved(lambda key: alpha * K[key, a])
    return Proof(
        steps=(identity("∂o_i/∂q_r = δ_ir ∂o_i/∂q_i", slope, delta(i, r) * own),),
        mutations={
            "every query counts": identity("∂o_i/∂q_r = ∂o_i/∂q_i", slope, own),
            "no query counts": identity("∂o_i/∂q_r = 0", slope, 0),
        },
    )


def rows_are_their_own(attend: Any) -> str:
    """Shapes for n_q ≠ n_k, d_v ≠ d_k; each query alone gives its row."""
    q, k, v = integers((3, 2), seed=1), integers((5, 2), seed=2), integers((5, 4), seed=3)
    whole = attend(q, k, v)
    require(whole.shape == (3, 4), f"the output is {whole.shape}, not n_q × d_v")
    for row in range(3):
        require(same(attend(q[row : row + 1], k, v)[0], whole[row]), f"row {row} needs the others")
    rows = exponentials(q, k)
    by_hand = [[sum(e * x for e, x in zip(r, c, strict=True)) / sum(r) for c in v.T] for r in rows]
    require(same(whole, by_hand), "it is not the mean of the values under 2^(q·k)")
    return "3 queries, 5 keys, d_k = 2, d_v = 4, exactly"


# -- The causal mask ------------------------------------------------------------------------------


def future_is_not_read(visible: Any) -> str:
    """Row i of n ≤ 5 ignores later tokens; det A = Π A_ii > 0; the first row is its own value."""
    for n in range(1, 6):
        q, k, v = (integers((n, 2), seed=n + s) for s in (0, 10, 20))
        mask = visible(n, n)
        whole = attention(q, k, v, visible=mask)
        for row in range(n):
            k_new, v_new = k.copy(), v.copy()
            k_new[row + 1 :], v_new[row + 1 :] = k_new[row + 1 :] + 3, v_new[row + 1 :] - 5
            edited = attention(q, k_new, v_new, visible=mask)
            require(same(edited[: row + 1], whole[: row + 1]), f"row {row} of {n} sees the future")
        a = weights(exponentials(q, k, visible=mask))
        require(determinant(a) == product(np.diagonal(a)) > 0, "det A is not Π A_ii > 0")
        require(same(whole[0], v[0]), "the first token does not return its value")
    return "n = 1..5, every row, later tokens edited, exactly"


def two_alignments_differ() -> str:
    """2 queries beside 5 keys, counted from the left end and from the right."""
    left, right = np.tri(2, 5, dtype=bool).sum(1), causal(2, 5).sum(1)
    require(left.tolist() == [1, 2] and right.tolist() == [4, 5], f"{left} and {right} keys")
    square = all((np.tri(n, n, dtype=bool) == causal(n)).all() for n in range(1, 6))
    require(square, "they differ for n_q = n_k, too")
    return "n_q = 2, n_k = 5: top-left sees 1 and 2 keys, bottom-right 4 and 5; one for n_q = n_k"


STATEMENTS = (
    Statement(
        id="sys.mha",
        where="Vaswani et al. 2017; chapter 11, equation (13); lesson 3, section 6",
        says="Heads side by side, times W_O, are the sum of what each head sends through its own "
        "rows of W_O.",
        formula=r"\mathrm{MHA}(X) = \sum_h A_h X W_V^{(h)} W_O^{(h)}",
        verdict="conditional",
        hypotheses={
            "each head keeps its block of W_O": heads_moved_without_their_blocks,
            "W_O has h d_v rows": None,
        },
        proof=block_product,
        check=Check(
            run=heads_are_summed,
            subject=lambda heads, blocks: sum(h @ w for h, w in zip(heads, blocks, strict=True)),
            mutations={
                "the mean of the heads": lambda heads, blocks: (
                    sum((h @ w for h, w in zip(heads, blocks, strict=True)), start=0)
                    / Fraction(len(heads))
                ),
                "one block for all heads": lambda heads, blocks: sum(heads) @ blocks[0],
            },
        ),
        properties=("heads-are-independent",),
    ),
    Statement(
        id="sys.cross",
        where="Bahdanau et al. 2015; chapter 11, Pitfall 2; the third document's opening table",
        says="Queries from one sequence, keys and values from another: one output row a query, "
        "which depends on no other query.",
        formula=r"A \in \mathbb{R}^{n_q \times n_k}, \quad o_i = \sum_{j} A_{ij} v_j "
        r"\in \mathbb{R}^{d_v}, \quad \partial o_i / \partial q_r = 0\ (r \ne i)",
        verdict="true",
        proof=other_queries_do_not_count,
        check=Check(
            run=rows_are_their_own,
            subject=attention,
            mutations={
                "normalised over the queries": lambda q, k, v: weights(exponentials(q, k).T).T @ v,
                "transposed scores": lambda q, k, v: attention(k, q, v[: len(q)]),
            },
        ),
        properties=("queries-in-any-order",),
    ),
    Statement(
        id="sys.causal",
        where="chapter 11, equations (14) and (15); lesson 3, section 5; the third document's mask",
        says="Token i reads tokens up to i: weights are lower triangular and invertible.",
        formula=r"A_{ij} = 0\ (j > i), \quad \det A = \textstyle\prod_i A_{ii} > 0, \quad "
        r"A_{11} = 1",
        verdict="conditional",
        hypotheses={
            "the ends at which the mask is aligned are named, unless n_q = n_k": (
                two_alignments_differ
            ),
        },
        check=Check(
            run=future_is_not_read,
            subject=causal,
            mutations={
                "one token ahead": lambda n, m: np.tri(n, m, 1, dtype=bool),
                "hidden and visible exchanged": lambda n, m: ~np.tri(n, m, -1, dtype=bool),
                "no mask": lambda n, m: np.ones((n, m), dtype=bool),
            },
        ),
        properties=("later-tokens-have-no-influence", "prefix-equals-first-rows", "visible-set"),
    ),
)
