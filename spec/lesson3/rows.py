"""One row of attention, its scores as a similarity, and the head from end to end."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import sympy as sp

from attnspec.spec.evidence import binary, exact
from attnspec.spec.evidence.expressions import matrices
from attnspec.spec.evidence.statement import Check, Proof, Statement, require

__all__ = ["STATEMENTS"]

WQ, WK, WV = (binary.integers((4, width), seed=seed) for seed, width in enumerate((2, 2, 5)))


# -- one row --------------------------------------------------------------------------------------


def row(scores: Any, mask: Any, v: Any) -> Any:
    """o_i from s_ij + M_ij; here the mask is None where the key is hidden."""
    pairs = zip(scores, mask, strict=True)
    e = [Fraction(0) if m is None else Fraction(2) ** int(s + m) for s, m in pairs]
    return sum(x * row for x, row in zip(e, v, strict=True)) / sum(e)


def normalised_over_all(scores: Any, mask: Any, v: Any) -> Any:
    """Wrong: hidden keys are left out above the line, not below."""
    e = [Fraction(2) ** int(s) for s in scores]
    seen = [Fraction(0) if m is None else x for x, m in zip(e, mask, strict=True)]
    return sum(x * row for x, row in zip(seen, v, strict=True)) / sum(e)


def rows_of_masked_attention(formula: Any) -> str:
    """Each row of a causal problem by the formula for one row."""
    q, k, v = (binary.integers((4, 3), seed=seed) for seed in (6, 7, 8))
    expected = binary.attention(q, k, v, visible=binary.causal(4))
    for i in range(4):
        mask = [0 if j <= i else None for j in range(4)]
        require(binary.same(formula(q[i] @ k.T, mask, v), expected[i]), f"row {i} differs")
    return "4 rows of a causal problem, exactly; without M in the score the first 3 are wrong"


# -- asymmetry ------------------------------------------------------------------------------------


def transposed_scores() -> Proof:
    """Sᵀ for any sizes; with W_K = W_Q P it has Pᵀ where S has P."""
    n, d, dk = sp.symbols("n d d_k", integer=True, positive=True)
    H, P = sp.MatrixSymbol("H", n, d), sp.MatrixSymbol("P", dk, dk)
    WQ, WK = sp.MatrixSymbol("W_Q", d, dk), sp.MatrixSymbol("W_K", d, dk)
    scores = (H * WQ) * (H * WK).T
    turned = (H * WQ) * (H * WQ * P.T).T
    return Proof(
        steps=(
            matrices("S = H (W_Q W_Kᵀ) Hᵀ", scores, H * (WQ * WK.T) * H.T),
            matrices("Sᵀ = H (W_K W_Qᵀ) Hᵀ", scores.T, H * (WK * WQ.T) * H.T),
            matrices("W_K = W_Q Pᵀ: S = H W_Q P W_Qᵀ Hᵀ", turned, H * WQ * P * WQ.T * H.T),
            matrices("and its transpose has Pᵀ", turned.T, H * WQ * P.T * WQ.T * H.T),
        ),
        mutations={
            "always symmetric": matrices("Sᵀ = S", scores.T, scores),
            "symmetric for any P": matrices("Sᵀ = S for W_K = W_Q Pᵀ", turned.T, turned),
        },
    )


def decides_symmetry(criterion: Any) -> str:
    """Whether S = Sᵀ, over pairs of matrices that differ and pairs that do not."""
    h, wq = binary.integers((5, 3), seed=9), exact.matrix([[1, 0], [2, 1], [0, 3]])
    turned = {
        "W_K = W_Q": [[1, 0], [0, 1]],
        "W_K = W_Q P, P symmetric": [[2, 1], [1, -1]],
        "W_K = W_Q P, P not symmetric": [[1, 1], [0, 1]],
    }
    for name, p in turned.items():
        wk = wq @ exact.matrix(p)
        s = (h @ wq) @ (h @ wk).T
        require(criterion(wq, wk) == binary.same(s, s.T), f"not decided: {name}")
    tokens = exact.matrix([[1, 0, 1, 0], [0, 1, 0, 1], [1, 1, 0, 0]])
    a = exact.weights(binary.exponentials(tokens, tokens))
    require(not binary.same(a, a.T), "a symmetric S made a symmetric A")
    return "3 pairs of projections; and for X = Q = K the scores are symmetric, the weights not"


def symmetric_product(wq: Any, wk: Any) -> bool:
    """Whether W_Q W_Kᵀ is symmetric."""
    m = wq @ wk.T
    return binary.same(m, m.T)


# -- the drawing ----------------------------------------------------------------------------------


def stages(x: Any) -> list[Any]:
    """Q, K, V, scores, weights and output of one head, at the scale ln 2."""
    q, k, v = x @ WQ, x @ WK, x @ WV
    a = exact.weights(binary.power_of_two(q @ k.T))
    return [q, k, v, q @ k.T, a, a @ v]


def draws_the_head(pipeline: Any) -> str:
    """The shapes of the stages, and the last one against attention as a whole."""
    x = binary.integers((4, 4), seed=10)
    *parts, out = pipeline(x)
    shapes = [part.shape for part in parts]
    require(shapes == [(4, 2), (4, 2), (4, 5), (4, 4), (4, 4)], f"the shapes are {shapes}")
    q, k, v = parts[:3]
    require(binary.same(out, binary.attention(q, k, v)), "the last stage is not attention")
    require(binary.same(parts[4].sum(1), exact.matrix([1] * 4)), "rows do not sum to 1")
    return "(4, 2), (4, 2), (4, 5) -> (4, 4) -> (4, 4) -> (4, 5), exactly attention"


def by_columns(x: Any) -> list[Any]:
    """Wrong: softmax down the columns."""
    q, k, v, s, _, _ = stages(x)
    a = exact.weights(binary.power_of_two(s).T).T
    return [q, k, v, s, a, a @ v]


STATEMENTS = (
    Statement(
        id="lesson3.sec2.rowformula",
        where="Section 2, output of one token",
        says="Output i averages the values with weights from s_ij = q_i·k_j/√d_k.",
        formula=r"o_i = \sum_j A_{ij} v_j,\quad A_{ij} = e^{s_{ij}} / \textstyle\sum_m e^{s_{im}},"
        r"\quad s_{ij} = q_i^\top k_j/\sqrt{d_k} + M_{ij}",
        verdict="imprecise",
        exact="The printed s_ij has no M_ij, although the operator above it has the mask.",
        check=Check(
            run=rows_of_masked_attention,
            subject=row,
            mutations={
                "printed, without M": lambda s, m, v: row(s, [0] * len(m), v),
                "hidden keys stay in the denominator": normalised_over_all,
            },
        ),
        properties=("output-averages-values", "output-in-hull-of-values"),
    ),
    Statement(
        id="lesson3.sec2.asym",
        where="Section 2, the score as a similarity",
        says="The score is an asymmetric similarity because W_Q and W_K differ.",
        formula=r"S = H M H^\top,\quad M = W_Q W_K^\top;\qquad S = S^\top \text{ for every } H "
        r"\iff M = M^\top",
        verdict="imprecise",
        exact="It is a bilinear form. W_Q ≠ W_K does not suffice: W_K = W_Q P with P = Pᵀ keeps S "
        "symmetric. And a symmetric S does not make A symmetric: rows have their own sums.",
        proof=transposed_scores,
        check=Check(
            run=decides_symmetry,
            subject=symmetric_product,
            mutations={
                "different projections": lambda wq, wk: binary.same(wq, wk),
                "W_Qᵀ W_K has full rank": lambda wq, wk: (wq.T @ wk)[0, 0] != 0,
            },
        ),
    ),
    Statement(
        id="lesson3.fig1",
        where="Figure 1",
        says="One head from end to end: project, score, softmax, average.",
        verdict="true",
        check=Check(
            run=draws_the_head,
            subject=stages,
            mutations={
                "softmax down the columns": by_columns,
                "values where keys belong": lambda x: [
                    *(stages(x)[part] for part in (0, 2, 1, 3, 4, 5))
                ],
            },
        ),
    ),
)
