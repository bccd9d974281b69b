"""Sequences: what goes in and comes out, and how far tokens are from each other."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import sympy as sp

from attnspec.spec.evidence import exact
from attnspec.spec.evidence.expressions import matrices
from attnspec.spec.evidence.linear import powers
from attnspec.spec.evidence.shapes import shaped
from attnspec.spec.evidence.statement import Check, Proof, Statement, Step, require
from attnspec.spec.evidence.sums import identity
from attnspec.spec.evidence.symbols import A, V, keys

__all__ = ["STATEMENTS", "reaches_every_token"]

n, d, d_v, h = sp.symbols("n d d_v h", integer=True, positive=True)
i, j, other, b, c = sp.symbols("i j l b c", integer=True)


# -- Definition 1: shapes -------------------------------------------------------------------------


def output_shapes() -> Proof:
    """One head gives n × d_v; a projection makes it n × d."""
    X, weights = sp.MatrixSymbol("X", n, d), sp.MatrixSymbol("A", n, n)
    W_V, W_O = sp.MatrixSymbol("W_V", d, d_v), sp.MatrixSymbol("W_O", d_v, d)
    return Proof(
        steps=(
            shaped("A X W_V is n × d_v", [weights, X, W_V], (n, d_v)),
            shaped("A X W_V W_O is n × d", [weights, X, W_V, W_O], (n, d)),
        ),
        mutations={
            "as printed, for one head": shaped("A X W_V is n × d", [weights, X, W_V], (n, d)),
            "the projection comes first": shaped(
                "A X W_O W_V is n × d", [weights, X, W_O, W_V], (n, d)
            ),
        },
    )


# -- Definition 2, Proposition 2: every token reaches every row in one layer ----------------------


def reaches_every_token() -> Proof:
    """∂o_ic / ∂v_jb = A_ij δ_cb, and A_ij > 0 for finite scores."""
    slope = sp.diff(sp.Sum(A[i, other] * V[other, c], keys(other)), V[j, b])
    score = sp.Symbol("s", real=True)
    rest = sp.Symbol("z", nonnegative=True)
    weight = sp.exp(score) / (sp.exp(score) + rest)
    delta = sp.KroneckerDelta(c, b)
    return Proof(
        steps=(
            identity("∂o_ic / ∂v_jb = A_ij δ_cb", slope, A[i, j] * delta),
            Step("e^s / (e^s + the rest) > 0 for finite s", lambda: bool(weight.is_positive)),
        ),
        mutations={
            "transposed": identity("∂o_ic / ∂v_jb = A_ji δ_cb", slope, A[j, i] * delta),
            "channels mix": identity("∂o_ic / ∂v_jb = A_ij", slope, A[i, j]),
            "a hidden key counts": Step(
                "0 / (0 + the rest) > 0", lambda: bool((0 * weight).is_positive)
            ),
        },
    )


def hidden_token() -> str:
    """A causal row has weight 0, and so derivative 0, at later tokens."""
    e = exact.positive((4, 4), seed=3) * np.tri(4, dtype=int)
    weight = exact.weights(e)[1, 3]
    require(weight == 0, "a causal row reaches a later token")
    return "causal: A_24 = 0, and so is every derivative of o_2 by v_4"


def infinite_score() -> str:
    """Beside a score of infinity, the limit of a weight is 0."""
    gap = sp.Symbol("g", positive=True)
    weight = sp.limit(1 / (1 + sp.exp(gap)), gap, sp.oo)
    require(weight == 0, "a weight beside an infinite score is positive")
    return "as a score grows without bound, the weight beside it tends to 0"


# -- Propositions 1 and 2: layers and steps between two tokens ------------------------------------


def steps_between(sees: np.ndarray[Any, np.dtype[np.bool_]], i: int, j: int) -> int | None:
    """How many layers (or steps) information needs from j to i, where row i sees sees[i]."""
    reached = {j}
    for step in range(1, len(sees) + 1):
        reached = {row for row in range(len(sees)) if any(sees[row, key] for key in reached)}
        if i in reached:
            return step
    return None


def one_layer(sees: Callable[[int], Any]) -> str:
    """Every pair of tokens is one layer apart."""
    for n in (1, 2, 5, 9):
        for i in range(n):
            for j in range(n):
                steps = steps_between(sees(n), i, j)
                require(steps == 1, f"{steps} layers from token {j} to token {i} of {n}")
    return "every pair of 1, 2, 5 and 9 tokens, by search of the graph of who sees whom"


def narrow_window() -> str:
    """Tokens that see two neighbours on each side: w = 5, and 4L + 1 tokens in L layers."""
    near = abs(np.subtract.outer(np.arange(17), np.arange(17))) <= 2
    steps = steps_between(near, 16, 0)
    require(steps != 1, "a window connects every pair in one layer")
    for layers in (1, 2, 3):
        reached = int((np.linalg.matrix_power(near.astype(int), layers)[8] > 0).sum())
        require(reached == layers * 4 + 1, f"{layers} layers reach {reached} tokens")
    return f"a window of 2 on each side (w = 5): from token 0 to token 16 in {steps} layers"


W = exact.matrix([["1/2", "1/3"], ["-1/4", "3/5"]])


def final_state(inputs: exact.Matrix) -> list[exact.Matrix]:
    """h_t = W h_(t-1) + x_t, from h = 0: all states."""
    states, state = [], exact.matrix([0, 0])
    for x in inputs:
        state = W @ state + x
        states.append(state)
    return states


def recurrence_differentiated(jacobian: Callable[[int, int], exact.Matrix]) -> str:
    """∂h_i/∂x_j by exact differences: h is linear in x."""
    x = exact.rational((6, 2), seed=4)
    base = final_state(x)
    for j in range(6):
        for channel in range(2):
            moved = x.copy()
            moved[j, channel] += 1
            slopes = [
                after - before for after, before in zip(final_state(moved), base, strict=True)
            ]
            for i in range(6):
                require((slopes[i] == jacobian(i, j)[:, channel]).all(), f"∂h_{i}/∂x_{j} differs")
    return "all 36 derivatives of a linear recurrence over 6 tokens, exactly"


def steps_of_recurrence() -> Proof:
    """∂h_(i+1)/∂h_j = W ∂h_i/∂h_j, so W^(i - j), by induction on i - j; |W x| for orthogonal W."""
    size = sp.Symbol("k", integer=True, positive=True)
    step = sp.Symbol("t", integer=True, nonnegative=True)
    transition = sp.MatrixSymbol("W", size, size)
    growth = sp.Symbol("rho", positive=True)
    x = sp.MatrixSymbol("x", size, 1)
    less, more = growth / (1 + growth), 1 + growth
    return Proof(
        steps=(
            matrices("no step: W⁰ = I", transition**0, sp.Identity(size)),
            matrices("one more step: W Wᵗ = Wᵗ⁺¹", transition * transition**step,
                     transition ** (step + 1)),
            matrices("|W x|² = |x|² where Wᵀ = W⁻¹", x.T * transition.I * transition * x, x.T * x),
            Step("ρᵗ → 0 for 0 < ρ < 1", lambda: sp.limit(less**step, step, sp.oo) == 0),
            Step("ρᵗ → ∞ for ρ > 1", lambda: sp.limit(more**step, step, sp.oo) == sp.oo),
        ),
        mutations={
            "a step too many": matrices("W Wᵗ = Wᵗ⁺²", transition * transition**step,
                                        transition ** (step + 2)),
            "the transpose": matrices("Wᵀ Wᵗ = Wᵗ⁺¹", transition.T * transition**step,
                                      transition ** (step + 1)),
            "always vanishes": Step("ρᵗ → 0 for ρ > 1",
                                    lambda: sp.limit(more**step, step, sp.oo) == 0),
        },
    )  # fmt: skip


def power_of_transition(i: int, j: int) -> exact.Matrix:
    """W^(i - j) for i >= j, and 0 before."""
    return powers(W, i - j) if i >= j else W * Fraction(0)


STATEMENTS = (
    Statement(
        id="ch11.def1",
        where="Definition 1",
        says="A sequence of n embeddings of width d becomes a sequence of the same shape.",
        formula=r"X \in \mathbb{R}^{n\times d} \mapsto O \in \mathbb{R}^{n\times d_v}",
        verdict="imprecise",
        exact="A single head gives n × d_v. The output is n × d where d_v = d, or after W_O.",
        proof=output_shapes,
    ),
    Statement(
        id="ch11.def2",
        where="Definition 2",
        says="Every token has direct access to every token.",
        formula=r"\partial o_i / \partial v_j = A_{ij} I \neq 0",
        verdict="conditional",
        hypotheses={"no mask": hidden_token, "finite scores": infinite_score},
        proof=reaches_every_token,
    ),
    Statement(
        id="ch11.prop1",
        where="Proposition 1",
        says="A recurrent network carries information over |i - j| steps, through which gradients "
        "vanish or explode.",
        formula=r"\partial h_i / \partial h_j = W^{\,i-j} \quad (i \ge j)",
        verdict="imprecise",
        exact="Only from earlier tokens to later ones: for j > i the derivative is 0. A linear "
        "recurrence has W^(i-j), which vanishes for ρ(W) < 1, grows without bound for ρ(W) > 1, "
        "and does neither for an orthogonal W.",
        proof=steps_of_recurrence,
        check=Check(
            run=recurrence_differentiated,
            subject=power_of_transition,
            mutations={
                "|i - j| steps in both directions": lambda i, j: powers(W, abs(i - j)),
                "one step more": lambda i, j: power_of_transition(i + 1, j),
                "transposed": lambda i, j: power_of_transition(i, j).T,
            },
        ),
    ),
    Statement(
        id="ch11.prop2",
        where="Proposition 2",
        says="Attention connects every pair of tokens in one layer.",
        formula=r"A_{ij} > 0 \quad \text{for all } i, j",
        verdict="conditional",
        hypotheses={
            "no mask": hidden_token,
            "no window (of w tokens, itself included: L layers reach L(w - 1) + 1)": narrow_window,
            "finite scores": infinite_score,
        },
        proof=reaches_every_token,
        check=Check(
            run=one_layer,
            subject=lambda n: np.ones((n, n), bool),
            mutations={
                "causal": lambda n: np.tri(n, dtype=bool),
                "causal, with 2 tokens ahead": lambda n: np.tri(n, k=2, dtype=bool),
                "a recurrence": lambda n: np.eye(n, k=-1, dtype=bool) | np.eye(n, dtype=bool),
            },
        ),
        properties=("output-averages-values",),
    ),
)  # fmt: skip
