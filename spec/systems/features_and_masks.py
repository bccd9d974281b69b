"""Below n²: features in place of the exponential, and sparse masks."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import sympy as sp

from attnspec.spec.evidence.binary import attention, causal, exponentials, integers, masked, same
from attnspec.spec.evidence.exact import Matrix, positive, rational, weights
from attnspec.spec.evidence.expressions import scalars
from attnspec.spec.evidence.statement import Check, Proof, Statement, require
from attnspec.spec.evidence.sums import identity
from attnspec.spec.evidence.symbols import K, Q, V, channels

__all__ = ["STATEMENTS"]


# -- Linear attention -----------------------------------------------------------------------------


def in_parallel(fq: Matrix, fk: Matrix, v: Matrix) -> Matrix:
    """Rows of φ(Q) φ(K)ᵀ, below the diagonal, over their sums, times V."""
    return np.asarray(weights(masked(fq @ fk.T, causal(len(fq)))) @ v)


def as_recurrence(fq: Matrix, fk: Matrix, v: Matrix) -> Matrix:
    """A state S = Σ φ(k) vᵀ and a normaliser z = Σ φ(k), whatever the length."""
    state, z = np.outer(fk[0], v[0]) * 0, fk[0] * 0
    rows = []
    for query, key, value in zip(fq, fk, v, strict=True):
        state, z = state + np.outer(key, value), z + key
        rows.append(query @ state / (query @ z))
    return np.array(rows, object)


def late_normaliser(fq: Matrix, fk: Matrix, v: Matrix) -> Matrix:
    """The sum of all keys from the start."""
    z = fk.sum(0)
    return np.array([fq[i] @ (fk[: i + 1].T @ v[: i + 1]) / (fq[i] @ z) for i in range(len(v))])


def one_state_for_all_lengths(recurrence: Any) -> str:
    """n = 1..6, 3 features, d_v = 2; weights of positive features are a distribution."""
    for n in range(1, 7):
        fq, fk, v = positive((n, 3), seed=n), positive((n, 3), seed=n + 9), rational((n, 2), seed=n)
        require(same(recurrence(fq, fk, v), in_parallel(fq, fk, v)), f"n = {n} differs")
        rows = weights(masked(fq @ fk.T, causal(n)))
        require((rows.sum(1) == 1).all() and (rows >= 0).all(), "rows are no distributions")
    return "n = 1..6: the recurrence over (3, 2) and (3,) is the lower triangle, exactly"


def features_of_any_sign() -> str:
    """A feature of both signs: negative weights, or a sum of 0."""
    fq, fk = Fraction(1), [Fraction(1), Fraction(-3)]
    found = weights(np.array([[fq * f for f in fk]], object))[0]
    require(min(found) < 0 or max(found) > 1, f"weights {found}")
    return f"features 1 and -3 weigh {found[0]} and {found[1]}: no average"


def state_and_random_features() -> Proof:
    """First Q and K are features; then w ~ N(0, I), φ_w(x) = e^(w·x - |x|²/2), t = q + k."""
    w, t = sp.symbols("w t", real=True)
    density = sp.exp(-(w**2) / 2) / sp.sqrt(2 * sp.pi)
    c = sp.Symbol("c", integer=True)
    moment = sp.Sum((Q[0, c] + K[0, c]) ** 2, channels(c)) / 2
    norms = sp.Sum(Q[0, c] ** 2 + K[0, c] ** 2, channels(c)) / 2
    inner = sp.Sum(Q[0, c] * K[0, c], channels(c))
    mean = sp.integrate(sp.exp(w * t) * density, (w, -sp.oo, sp.oo))
    i, j, e = sp.symbols("i j e", integer=True)
    past = (j, 0, i)
    state = sp.Sum(Q[i, c] * sp.Sum(K[j, c] * V[j, e], past), channels(c))
    rows = sp.Sum(sp.Sum(Q[i, c] * K[j, c], channels(c)) * V[j, e], past)
    return Proof(
        steps=(
            identity("φ(q_i)ᵀ Σ_(j≤i) φ(k_j) v_jᵀ = Σ_(j≤i) φ(q_i)·φ(k_j) v_jᵀ", state, rows),
            scalars("E e^(w t) = e^(t²/2), a channel", mean, sp.exp(t**2 / 2)),
            identity("log E[φ_w(q) φ_w(k)] = q·k", moment - norms, inner),
        ),
        mutations={
            "norms are not taken off": identity("|q + k|²/2 = q·k", moment, inner),
            "taken off twice": identity("|q + k|²/2 - |q|² - |k|²", moment - 2 * norms, inner),
            "a wrong moment": scalars("E e^(w t) = e^(t²)", mean, sp.exp(t**2)),
        },
    )


# -- Sparse masks ---------------------------------------------------------------------------------


def patterns(n: int) -> dict[str, Any]:
    """Causal patterns (n, n): blocks of 3, strides of 3, a local band with a global token."""
    i, j = np.ogrid[:n, :n]
    past = j <= i
    return {
        "blocks": past & (i // 3 == j // 3),
        "strides": past & (((i - j) % 3 == 0) | (i - j < 2)),
        "band": past & ((i - j < 2) | (j == 0)),
    }


def gathered(q: Matrix, k: Matrix, v: Matrix, visible: Any) -> tuple[Matrix, int]:
    """Each row over its own keys only, and the multiply-adds that it took, times 2."""
    rows, operations = [], 0
    for query, sees in zip(q, visible, strict=True):
        own = np.flatnonzero(sees)
        rows.append(attention(query[None], k[own], v[own])[0])
        operations += 2 * len(own) * (k.shape[1] + v.shape[1])
    return np.array(rows, object), operations


def unmasked(q: Matrix, k: Matrix, v: Matrix, visible: Any) -> tuple[Matrix, int]:
    """Sparse scores over a dense normaliser."""
    e = exponentials(q, k)
    seen = masked(e, visible)
    return np.asarray(seen @ v / e.sum(1, keepdims=True)), 4 * 2 * int(visible.sum())


def sparse_is_masked(kernel: Any) -> str:
    """Three patterns of 9 tokens: output and operations."""
    q, k, v = (integers((9, 2), seed=s) for s in (1, 2, 3))
    for name, visible in patterns(9).items():
        out, operations = kernel(q, k, v, visible)
        require(same(out, attention(q, k, v, visible=visible)), f"{name}: not the masked rows")
        require(operations == 8 * visible.sum(), f"{name}: {operations} operations")
    return "blocks, strides, band with a global token; 2 (d_k + d_v) operations a visible pair"


STATEMENTS = (
    Statement(
        id="sys.linear",
        where="Katharopoulos et al. 2020, Choromanski et al. 2021; chapter 11, modern "
        "developments; "
        "the third document, complexity analysis",
        says="With a feature map in the place of the exponential, causal attention is a recurrence "
        "over a state of fixed size, linear in n; random features estimate softmax's own kernel.",
        formula=r"o_i = \frac{\phi(q_i)^\top S_i}{\phi(q_i)^\top z_i}, \quad "
        r"S_i = S_{i-1} + \phi(k_i) v_i^\top, \quad z_i = z_{i-1} + \phi(k_i)",
        verdict="conditional",
        hypotheses={"φ > 0, for weights that average": features_of_any_sign},
        proof=state_and_random_features,
        check=Check(
            run=one_state_for_all_lengths,
            subject=as_recurrence,
            mutations={
                "normalised by all keys": late_normaliser,
                "not normalised": lambda fq, fk, v: masked(fq @ fk.T, causal(len(fq))) @ v,
                "softmax of the products": lambda fq, fk, v: in_parallel(fq**2, fk**2, v),
            },
        ),
    ),
    Statement(
        id="sys.sparse",
        where="Child et al. 2019, Beltagy et al. 2020; chapter 11, Pitfall 5; the third document, "
        "complexity analysis",
        says="A sparse kernel is dense attention under its mask, at a cost in proportion to the "
        "visible pairs.",
        formula=r"\mathrm{FLOPs} = 2 (d_k + d_v)\, |\{(i, j) \text{ visible}\}|",
        verdict="true",
        check=Check(
            run=sparse_is_masked,
            subject=gathered,
            mutations={
                "normalised over all keys": unmasked,
                "the mask is ignored": lambda q, k, v, visible: (attention(q, k, v), 8 * 81),
                "all pairs are computed": lambda q, k, v, visible: (
                    attention(q, k, v, visible=visible),
                    8 * 81,
                ),
            },
        ),
        properties=("hiding-is-masking", "hidden-keys-have-no-influence"),
    ),
)
