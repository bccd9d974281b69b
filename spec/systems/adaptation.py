"""Low-rank adaptation: W + B A beside a frozen W."""

from __future__ import annotations

from typing import Any

import numpy as np
import sympy as sp

from attnspec.spec.evidence.binary import attention, integers, same
from attnspec.spec.evidence.exact import Matrix
from attnspec.spec.evidence.linear import rank
from attnspec.spec.evidence.statement import Check, Proof, Statement, require
from attnspec.spec.evidence.sums import identity

__all__ = ["STATEMENTS"]

i, a, b, r, s, t = sp.symbols("i a b r s t", integer=True)
tokens, width, inner, head = sp.symbols("n d r_0 d_k", integer=True, positive=True)
X, W, A, B, G = (sp.IndexedBase(name) for name in ("X", "W", "A", "B", "dQ"))
delta = sp.KroneckerDelta


def low_rank_gradients() -> Proof:
    """Q = X W + X B A, A (r, d_k) and B (d, r): <dQ, X B A> when one element moves by 1."""
    rows, wide, ranks, out = (i, 0, tokens - 1), (s, 0, width - 1), (r, 0, inner - 1), head - 1

    def moved(left: Any, right: Any) -> Any:
        product = sp.Sum(X[i, s] * left(s, r) * right(r, t), wide, ranks)
        return sp.Sum(G[i, t] * product, rows, (t, 0, out))

    by_a = moved(lambda s, r: B[s, r], lambda r, t: delta(r, a) * delta(t, b))
    by_b = moved(lambda s, r: delta(s, a) * delta(r, b), lambda r, t: A[r, t])
    dA = sp.Sum(X[i, s] * B[s, a] * G[i, b], rows, wide)
    dB = sp.Sum(X[i, a] * G[i, t] * A[b, t], rows, (t, 0, out))
    merged = sp.Sum(X[a, s] * (W[s, b] + sp.Sum(B[s, r] * A[r, b], ranks)), wide)
    apart = sp.Sum(X[a, s] * W[s, b], wide)
    added = sp.Sum(sp.Sum(X[a, s] * B[s, r], wide) * A[r, b], ranks)
    return Proof(
        steps=(
            identity("X (W + B A) = X W + (X B) A", merged, apart + added),
            identity("dA = (X B)ᵀ dQ", by_a, dA),
            identity("dB = Xᵀ dQ Aᵀ", by_b, dB),
        ),
        mutations={
            "the base alone": identity("X (W + B A) = X W", merged, apart),
            "B is left out of dA": identity("dA = Xᵀ dQ", by_a, sp.Sum(X[i, a] * G[i, b], rows)),
            "A is not transposed": identity(
                "dB = Xᵀ dQ A", by_b, sp.Sum(X[i, a] * G[i, t] * A[t, b], rows, (t, 0, out))
            ),
        },
    )


def adapted(x: Matrix, w: Matrix, down: Matrix, up: Matrix) -> Matrix:
    """Beside the frozen weight: the input goes through B, then A."""
    return np.asarray(x @ w + (x @ down) @ up)


def merged_is_apart(project: Any) -> str:
    """Attention with adapted W_Q, merged and not; B = 0; rank of the difference; parameters."""
    x = integers((4, 5), seed=1, within=1)
    wq, wk, wv = (integers((5, 4), seed=s, within=1) for s in (2, 3, 4))
    down, up = integers((5, 2), seed=5, within=1), integers((2, 4), seed=6, within=1)
    merged = attention(x @ (wq + down @ up), x @ wk, x @ wv)
    require(same(attention(project(x, wq, down, up), x @ wk, x @ wv), merged), "merging matters")
    require(same(project(x, wq, down * 0, up), x @ wq), "B = 0 is not the base model")
    require(rank(down @ up) <= 2, "the update has a rank above r")
    require(down.size + up.size == 2 * (5 + 4), "there are not r (d + d_k) parameters")
    return "d = 5, d_k = 4, r = 2: merged, apart, B = 0, rank, 18 parameters instead of 20, exactly"


def no_saving_at_high_rank() -> str:
    """r (d + d_k) < d d_k only for r < d d_k / (d + d_k)."""
    d, d_k = 4096, 128
    edge = d * d_k / (d + d_k)
    require(125 * (d + d_k) > d * d_k > 124 * (d + d_k), "the edge is not below r = 125")
    return f"d = {d}, d_k = {d_k}: fewer parameters only below r = {edge:.1f}"


STATEMENTS = (
    Statement(
        id="sys.lora",
        where="Hu et al. 2021; chapter 11, connections and Exercise 7",
        says="A frozen projection and a low-rank one beside it are the projection W + BA: merging "
        "them changes nothing, and attention itself is untouched.",
        formula=r"X(W + BA) = XW + (XB)A, \quad dA = (XB)^\top dQ, \quad dB = X^\top dQ\,A^\top, "
        r"\quad \mathrm{rank}(BA) \le r",
        verdict="conditional",
        hypotheses={"r < d d_k / (d + d_k), for fewer parameters": no_saving_at_high_rank},
        proof=low_rank_gradients,
        check=Check(
            run=merged_is_apart,
            subject=adapted,
            mutations={
                "the update scaled twice": lambda x, w, down, up: x @ w + 2 * (x @ down) @ up,
                "the update without the base": lambda x, w, down, up: (x @ down) @ up,
                "the update through A alone": lambda x, w, down, up: x @ w + x[:, :2] @ up,
            },
        ),
    ),
)
