"""Tensor parallelism: heads on several devices, whose parts of the output are added."""

from __future__ import annotations

from typing import Any

import numpy as np
import sympy as sp

from attnspec.spec.evidence.binary import attention, integers, same
from attnspec.spec.evidence.exact import Matrix
from attnspec.spec.evidence.expressions import matrices
from attnspec.spec.evidence.statement import Check, Proof, Statement, require

__all__ = ["STATEMENTS"]

HEADS, WIDTH, HEAD = 4, 3, 2


def weights_of_all() -> tuple[Matrix, Matrix, Matrix, Matrix, Matrix]:
    """An input (4, 3), W_Q, W_K, W_V (3, 8) and W_O (8, 3)."""
    x = integers((4, WIDTH), seed=1, within=1)
    projections = (integers((WIDTH, HEADS * HEAD), seed=s, within=1) for s in (2, 3, 4))
    return x, *projections, integers((HEADS * HEAD, WIDTH), seed=5)  # type: ignore[return-value]


def heads_of(x: Matrix, wq: Matrix, wk: Matrix, wv: Matrix) -> Matrix:
    """The heads whose columns these are, side by side."""
    q, k, v = x @ wq, x @ wk, x @ wv
    columns = [slice(c, c + HEAD) for c in range(0, q.shape[1], HEAD)]
    return np.concatenate([attention(q[:, c], k[:, c], v[:, c]) for c in columns], 1)


def device(rank: int, ranks: int) -> Matrix:
    """Its columns of the projections, its heads, its rows of W_O: (n, d), to be added."""
    x, wq, wk, wv, wo = weights_of_all()
    own = slice(rank * HEADS * HEAD // ranks, (rank + 1) * HEADS * HEAD // ranks)
    return np.asarray(heads_of(x, wq[:, own], wk[:, own], wv[:, own]) @ wo[own])


def sum_of_devices(gather: Any) -> str:
    """1, 2 and 4 devices."""
    x, wq, wk, wv, wo = weights_of_all()
    whole = heads_of(x, wq, wk, wv) @ wo
    for ranks in (1, 2, 4):
        parts = [device(rank, ranks) for rank in range(ranks)]
        require(same(gather(parts), whole), f"{ranks} devices give another layer")
    return "4 heads on 1, 2 and 4 devices: one sum, exactly"


def split_projections() -> Proof:
    """Two devices: columns of W_Q, rows of W_O."""
    n, d, w = sp.symbols("n d w", integer=True, positive=True)
    x, left, right = sp.MatrixSymbol("X", n, d), *(sp.MatrixSymbol(s, d, w) for s in ("U", "V"))
    h1, h2 = (sp.MatrixSymbol(s, n, w) for s in ("H_1", "H_2"))
    o1, o2 = (sp.MatrixSymbol(s, w, d) for s in ("O_1", "O_2"))
    columns = x * sp.BlockMatrix([[left, right]])
    rows = sp.BlockMatrix([[h1, h2]]) * sp.BlockMatrix([[o1], [o2]])
    return Proof(
        sizes="two devices, all n, d and widths; more by repetition",
        steps=(
            matrices("X [U | V] = [X U | X V]", columns, sp.BlockMatrix([[x * left, x * right]])),
            matrices("[H_1 | H_2] W_O = H_1 O_1 + H_2 O_2", rows, h1 * o1 + h2 * o2),
        ),
        mutations={
            "one device alone": matrices("H_1 O_1", rows, h1 * o1),
            "devices exchanged": matrices("H_1 O_2 + H_2 O_1", rows, h1 * o2 + h2 * o1),
            "columns exchanged": matrices(
                "[X V | X U]", columns, sp.BlockMatrix([[x * right, x * left]])
            ),
        },
    )


def without_a_sum() -> str:
    """W_O mixes heads: no device holds any of the output before the sum."""
    x, wq, wk, wv, wo = weights_of_all()
    whole = heads_of(x, wq, wk, wv) @ wo
    require(not any(same(device(rank, 2), whole) for rank in range(2)), "one device has it all")
    return "2 devices: neither part is the output; an all-reduce of (n, d) is needed"


def over_channels() -> str:
    """Heads are not the only split: scores added over halves of d_k give the same."""
    q, k, v = (integers((4, 4), seed=s, within=1) for s in (6, 7, 8))
    halves = [q[:, c] @ k[:, c].T for c in (slice(0, 2), slice(2, 4))]
    require(same(halves[0] + halves[1], q @ k.T), "scores are not added up")
    require(not same(attention(q[:, :2], k[:, :2], v), attention(q, k, v)), "half is enough")
    return "one head split over d_k: the scores need a sum of their own, and then agree"


STATEMENTS = (
    Statement(
        id="sys.tp",
        where="Shoeybi et al. 2019 (Megatron-LM); the third document, production notes",
        says="Projections are split among devices by heads, which is possible only because heads "
        "are independent.",
        formula=r"\mathrm{MHA}(X) = \sum_r \mathrm{heads}_r(X)\, W_O[r]",
        verdict="imprecise",
        exact="Heads are independent up to W_O, whose rows are split with them; the parts must be "
        "added. Other splits exist, over channels with a sum of scores, or over keys.",
        hypotheses={"the parts are added": without_a_sum, "split by heads": over_channels},
        proof=split_projections,
        check=Check(
            run=sum_of_devices,
            subject=sum,
            mutations={
                "the first device's part": lambda parts: parts[0],
                "the mean of the parts": lambda parts: sum(parts) * 1 / len(parts),
            },
        ),
        properties=("heads-are-independent",),
    ),
)
