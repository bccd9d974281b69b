"""Below n²: features for the exponential, sparse masks, and the selective scan."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import sympy as sp

from attnspec.spec.evidence.binary import attention, causal, exponentials, integers, masked, same
from attnspec.spec.evidence.exact import Matrix, matrix, positive, rational, weights
from attnspec.spec.evidence.expressions import scalars
from attnspec.spec.evidence.linear import product, rank
from attnspec.spec.evidence.statement import Check, Proof, Statement, require
from attnspec.spec.evidence.sums import identity
from attnspec.spec.evidence.symbols import K, Q, channels

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


def random_features() -> Proof:
    """w ~ N(0, I): E e^(w·t) = e^(|t|²/2); φ_w(x) = e^(w·x - |x|²/2), so t = q + k."""
    w, t = sp.symbols("w t", real=True)
    density = sp.exp(-(w**2) / 2) / sp.sqrt(2 * sp.pi)
    c = sp.Symbol("c", integer=True)
    moment = sp.Sum((Q[0, c] + K[0, c]) ** 2, channels(c)) / 2
    norms = sp.Sum(Q[0, c] ** 2 + K[0, c] ** 2, channels(c)) / 2
    inner = sp.Sum(Q[0, c] * K[0, c], channels(c))
    mean = sp.integrate(sp.exp(w * t) * density, (w, -sp.oo, sp.oo))
    return Proof(
        steps=(
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


# -- The selective scan ---------------------------------------------------------------------------


def compose(first: Any, second: Any) -> Any:
    """h ↦ a h + b, then h ↦ a' h + b'."""
    (a, b), (a2, b2) = first, second
    return a2 * a, a2 * b + b2


def scan_is_associative() -> Proof:
    """Three steps with scalar gates; a diagonal state is many of them."""
    steps = [sp.symbols(f"a_{i} b_{i}") for i in range(3)]
    h = sp.Symbol("h")
    left = compose(compose(steps[0], steps[1]), steps[2])
    right = compose(steps[0], compose(steps[1], steps[2]))
    by_step = h
    for a, b in steps:
        by_step = a * by_step + b
    swapped = compose(compose(steps[1], steps[0]), steps[2])
    return Proof(
        steps=(
            scalars("gates: (x ∘ y) ∘ z = x ∘ (y ∘ z)", left[0], right[0]),
            scalars("inputs: (x ∘ y) ∘ z = x ∘ (y ∘ z)", left[1], right[1]),
            scalars("the composition applied to h = three steps", left[0] * h + left[1], by_step),
            scalars("(1, 0) is neutral", compose((1, 0), steps[0])[1], steps[0][1]),
        ),
        mutations={
            "in another order": scalars("y ∘ x ∘ z", left[1], swapped[1]),
            "the gate is forgotten": scalars("b + b' + b''", left[1], sum(b for _, b in steps)),
        },
    )


def scanned(a: Matrix, b: Matrix, c: Matrix, x: Matrix) -> Matrix:
    """h_t = a_t h_(t-1) + b_t x_t, y_t = c_t·h_t; a scalar gate a token, N states."""
    h, rows = b[0] * 0, []
    for gate, write, read, value in zip(a, b, c, x, strict=True):
        h = gate * h + write * value
        rows.append(read @ h)
    return np.array(rows, object)


def semiseparable(a: Matrix, b: Matrix, c: Matrix) -> Matrix:
    """M_ij = (c_i·b_j) a_(j+1) … a_i for j ≤ i: attention without softmax, with decay."""
    n = len(a)
    m: Matrix = np.full((n, n), Fraction(0), object)
    for i, j in itertools.product(range(n), range(n)):
        if j <= i:
            m[i, j] = (c[i] @ b[j]) * product(a[j + 1 : i + 1])
    return m


def scan_is_a_matrix(build: Any) -> str:
    """Scan = matrix; blocks below the diagonal of rank ≤ N; constant gates: a convolution."""
    for n, states in ((1, 1), (4, 1), (5, 2), (6, 3)):
        a, x = rational((n,), seed=n), rational((n,), seed=n + 1)
        b, c = rational((n, states), seed=n + 2), rational((n, states), seed=n + 3)
        m = build(a, b, c)
        require(same(m @ x, scanned(a, b, c, x)), f"n = {n}: the matrix is not the scan")
        for cut in range(1, n):
            require(rank(m[cut:, :cut]) <= states, f"a block of rank above {states}")
        still = build(a * 0 + a[0], b * 0 + b[0], c * 0 + c[0])
        diagonals = [{still[i, i - lag] for i in range(lag, n)} for lag in range(n)]
        require(all(len(values) == 1 for values in diagonals), "constant gates: no convolution")
    return "n = 1, 4, 5, 6 with N = 1, 1, 2, 3 states, exactly"


def gates_that_see_the_input() -> str:
    """Gates that differ: not constant along diagonals."""
    one = matrix([[1]] * 3)
    m = semiseparable(matrix(["1", "1/2", "1/3"]), one, one)
    require(m[1, 0] != m[2, 1], "the first subdiagonal is constant")
    return f"gates that differ: M_10 = {m[1, 0]}, M_21 = {m[2, 1]}: no convolution"


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
        proof=random_features,
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
    Statement(
        id="sys.mamba",
        where="Gu and Dao 2023, Dao and Gu 2024; chapter 11, modern developments (state-space "
        "models)",
        says="A state-space model with gates of the input is an associative scan, and the product "
        "with a lower triangular matrix whose blocks have rank N.",
        formula=r"(a, b) \circ (a', b') = (a' a, a' b + b'), \quad "
        r"M_{ij} = c_i^\top b_j \textstyle\prod_{l=j+1}^{i} a_l \ (j \le i)",
        verdict="conditional",
        hypotheses={
            "gates do not depend on the input, to be a convolution": (gates_that_see_the_input)
        },
        proof=scan_is_associative,
        check=Check(
            run=scan_is_a_matrix,
            subject=semiseparable,
            mutations={
                "no decay": lambda a, b, c: masked(c @ b.T, causal(len(a))),
                "decay from one token too early": lambda a, b, c: (
                    semiseparable(a, b, c) * a[None, :]
                ),
            },
        ),
    ),
)
