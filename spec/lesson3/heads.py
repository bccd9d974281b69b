"""Several heads: how they are joined, what they cost, and how many parameters they have."""

from __future__ import annotations

from typing import Any

import numpy as np
import sympy as sp

from attnspec.spec.evidence import binary, costs, exact
from attnspec.spec.evidence.expressions import matrices, scalars
from attnspec.spec.evidence.figure import Figure
from attnspec.spec.evidence.statement import Check, Proof, Statement, require

__all__ = ["STATEMENTS"]

n, d, h, c = sp.symbols("n d h c", positive=True)

# -- joining --------------------------------------------------------------------------------------

X = binary.integers((4, 5), seed=1)
HEADS = [[binary.integers((5, w), seed=10 * k + w, within=1) for w in (2, 2, 3)] for k in range(3)]
HEADS = [[wq, wk[::-1], wv] for wq, wk, wv in HEADS]
WO = binary.integers((9, 4), seed=2)
"""3 heads of d_k = 2 and d_v = 3 over width 5: h·d_v = 9 is not 5, and W_O is 9 × 4."""


def head(x: Any, wq: Any, wk: Any, wv: Any) -> exact.Matrix:
    """One head."""
    return binary.attention(x @ wq, x @ wk, x @ wv)


def concatenated(x: Any) -> exact.Matrix:
    """[head_1 | … | head_h] W_O."""
    return np.asarray(np.concatenate([head(x, *w) for w in HEADS], axis=1) @ WO)


def interleaved(x: Any) -> exact.Matrix:
    """Wrong: channels of the heads alternate."""
    stacked = np.stack([head(x, *w) for w in HEADS], axis=2)
    return np.asarray(stacked.reshape(len(x), -1) @ WO)


def is_the_sum_of_heads(joined: Any) -> str:
    """Σ_h A_h X W_V^h W_O^h."""
    parts = [head(X, *w) @ WO[3 * k : 3 * k + 3] for k, w in enumerate(HEADS)]
    require(binary.same(joined(X), sum(parts)), "not the sum over the heads")
    return "3 heads of d_v = 3, W_O 9 × 4: concatenated and projected = summed, exactly"


def blocks_of_the_output_matrix() -> Proof:
    """[H₁ | H₂] [W₁; W₂] for any sizes; more heads by repetition."""
    rows, width, first, second = sp.symbols("n d v_1 v_2", integer=True, positive=True)
    H1, H2 = sp.MatrixSymbol("H_1", rows, first), sp.MatrixSymbol("H_2", rows, first)
    W1, W2 = sp.MatrixSymbol("W_1", first, width), sp.MatrixSymbol("W_2", first, width)
    joined = sp.BlockMatrix([[H1, H2]]) * sp.BlockMatrix([[W1], [W2]])
    other = sp.MatrixSymbol("H_3", rows, second)
    tail = sp.MatrixSymbol("W_3", second, width)
    uneven = sp.BlockMatrix([[H1, other]]) * sp.BlockMatrix([[W1], [tail]])
    whole = sp.block_collapse(joined)[0, 0] if joined.shape == (1, 1) else sp.block_collapse(joined)
    return Proof(
        steps=(
            matrices("[H₁ | H₂] [W₁; W₂] = H₁ W₁ + H₂ W₂", whole, H1 * W1 + H2 * W2),
            matrices(
                "heads of different widths", sp.block_collapse(uneven), H1 * W1 + other * tail
            ),
        ),
        mutations={
            "blocks exchanged": matrices("= H₁ W₂ + H₂ W₁", whole, H1 * W2 + H2 * W1),
            "averaged": matrices("= (H₁ W₁ + H₂ W₂)/2", whole, (H1 * W1 + H2 * W2) / 2),
        },
    )


# -- one pattern for each head --------------------------------------------------------------------


def needs_two_patterns(second: Any) -> str:
    """Two heads hand over one channel each of x = (0, 1)ᵀ; could one matrix A do it?

    Row 1 of A x is A_12, so one A would need the weights A_12 of both heads.
    """
    first = exact.matrix([[1, 0], [1, 1]]) / exact.matrix([[1], [2]])
    outputs = [(a @ exact.matrix([0, 1])) for a in (first, second(first))]
    require(not binary.same(*outputs), "one matrix serves both heads")
    return "two heads of different weights over the same values: no single A gives both outputs"


# -- costs ----------------------------------------------------------------------------------------


def flops_of_heads() -> Proof:
    """h heads of width d/h: 4n²(d/h) for the products and c n² for softmax, each."""
    several = h * (costs.attention(n, d / h) + costs.softmax(n, 1, c))
    one = costs.attention(n, d) + costs.softmax(n, 1, c)
    return Proof(
        steps=(
            scalars("products: h · 4n²(d/h) = 4n²d", h * costs.attention(n, d / h), 4 * n**2 * d),
            scalars("with softmax, in excess: (h - 1) c n²", several - one, (h - 1) * c * n**2),
            scalars("the excess as a share", several / one - 1, c * (h - 1) / (c + 4 * d)),
            scalars(
                "0.95 % for d = 4096, h = 32, c = 5",
                (several / one - 1).subs({c: 5, h: 32, d: 4096}),
                sp.Rational(155, 16389),
            ),
        ),
        mutations={
            "d_k = d in each head": scalars(
                "h · 4n²d = 4n²d", h * costs.attention(n, d), 4 * n**2 * d
            ),
            "the same with softmax": scalars("no excess", several, one),
        },
    )


def layer_parameters(key_heads: Any = h, width: Any = d / h) -> Any:
    """W_Q and W_O of h heads, W_K and W_V of the key heads, without biases."""
    return 2 * d * h * width + 2 * d * key_heads * width


def parameters() -> Proof:
    """Counted matrix by matrix."""
    group, inner = sp.symbols("g f", positive=True)
    return Proof(
        steps=(
            scalars("attention: 4d²", layer_parameters(), 4 * d**2),
            scalars("MLP of inner width 4d: 8d²", 2 * d * inner.subs(inner, 4 * d), 8 * d**2),
            scalars("gated MLP of inner width 8d/3: 8d²", 3 * d * (8 * d / 3), 8 * d**2),
            scalars("a third of both", 4 * d**2 / (4 * d**2 + 8 * d**2), sp.Rational(1, 3)),
            scalars("g key heads", layer_parameters(group), 2 * d**2 * (1 + group / h)),
        ),
        mutations={
            "without W_O": scalars("3d²", layer_parameters(), 3 * d**2),
            "heads of width d": scalars("4d²", layer_parameters(width=d), 4 * d**2),
        },
    )


def grouped_keys() -> str:
    """8 key heads of 32."""
    share = sp.simplify(layer_parameters(8).subs(h, 32) / d**2)
    require(share != 4, "still 4 d²")
    return f"32 heads over 8 key heads: {share} d² parameters, not 4 d²"


def wide_heads() -> str:
    """h·d_k = 2d."""
    share = sp.simplify(layer_parameters(width=2 * d / h) / d**2)
    require(share != 4, "still 4 d²")
    return f"heads of width 2d/h: {share} d² parameters, not 4 d²"


STATEMENTS = (
    Statement(
        id="lesson3.sec6.mha",
        where="Section 6, multi-head attention",
        says="The heads run side by side, are concatenated and projected with W_O.",
        formula=r"\mathrm{MHA}(H) = [\mathrm{head}_1|\cdots|\mathrm{head}_h]\,W_O = "
        r"\textstyle\sum_i \mathrm{head}_i W_O^{(i)},\quad W_O \in \mathbb{R}^{h d_v\times d}",
        verdict="true",
        proof=blocks_of_the_output_matrix,
        check=Check(
            run=is_the_sum_of_heads,
            subject=concatenated,
            mutations={
                "channels interleaved": interleaved,
                "averaged": lambda x: concatenated(x) / 3,
            },
        ),
        properties=("heads-are-independent",),
    ),
    Statement(
        id="lesson3.sec6.single",
        where="Section 6, why several",
        says="A single head has one notion of relevance at a time.",
        formula=r"\mathrm{MHA}(X) = \textstyle\sum_h A_h X W_V^{(h)} W_O^{(h)},\quad "
        r"A_h \text{ from } M_h = W_Q^{(h)} W_K^{(h)\top}",
        verdict="narrative",
        reason="What language needs is no computation. What can be shown: each head has one matrix "
        "A, and two heads of different A have no single A in their place.",
        check=Check(
            run=needs_two_patterns,
            subject=lambda a: a[::-1],
            mutations={
                "the same weights": lambda a: a,
                "scores shifted by a constant": lambda a: exact.weights(3 * a),
            },
        ),
        properties=("heads-are-independent",),
    ),
    Statement(
        id="lesson3.sec6.flops",
        where="Section 6, sizes",
        says="With d_k = d_v = d/h the FLOPs are comparable to one head of full width "
        "(c: operations of softmax for each score).",
        formula=r"F_h = 4n^2d + c\,h\,n^2,\qquad F_h/F_1 - 1 = c(h-1)/(c + 4d)",
        verdict="true",
        proof=flops_of_heads,
    ),
    Statement(
        id="lesson3.sec6.special",
        where="Section 6, specialisation",
        says="Heads come to copy, to look at places, to follow syntax; nobody assigns it.",
        verdict="undecided",
        reason="An observation of trained models; no computation here bears on it.",
    ),
    Statement(
        id="lesson3.sec6.params",
        where="Section 6, parameter count",
        says="A layer has about 4d² parameters, the MLP about 8d².",
        formula=r"2dhd_k + 2dhd_v = 4d^2,\qquad 2\,d\,(4d) = 8d^2",
        verdict="conditional",
        hypotheses={
            "h·d_k = h·d_v = d": wide_heads,
            "as many key heads as heads": grouped_keys,
            "no biases (they add 4d and 5d), an inner width of 4d": None,
        },
        proof=parameters,
        figures=(
            Figure(
                what="attention, in d²",
                printed="4",
                exact=lambda: int(sp.simplify(layer_parameters() / d**2)),
            ),
            Figure(what="MLP, in d²", printed="8", exact=lambda: 2 * 4),
        ),
    ),
)
