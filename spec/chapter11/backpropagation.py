"""Backpropagation in full: from the output of self-attention to its input and its weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy as sp

from attnspec.spec.chapter11.gradients import derivative_of_loss
from attnspec.spec.evidence.statement import Proof, Statement
from attnspec.spec.evidence.sums import identity
from attnspec.spec.evidence.symbols import (
    A,
    G,
    K,
    Q,
    alpha,
    channels,
    keys,
    keys_count,
    queries,
    queries_count,
    score_gradient,
    values,
)

__all__ = ["STATEMENTS"]

i, j, s, c, p, a, b = sp.symbols("i j s c p a b", integer=True)
X, W_Q, W_K, W_V = (sp.IndexedBase(name) for name in ("X", "W", "U", "Y"))
width = sp.Symbol("d", integer=True, positive=True)
delta = sp.KroneckerDelta


def one_sequence(expression: Any) -> Any:
    """Queries and keys of the same n tokens."""
    return expression.subs(keys_count, queries_count)


# -- What the loss becomes when Q, K and V move ---------------------------------------------------


def by_scores(move_q: Callable[..., Any], move_k: Callable[..., Any]) -> Any:
    """<G, dO> for dS_ij = α Σ_s (dQ_is K_js + Q_is dK_js)."""
    return one_sequence(
        derivative_of_loss(
            lambda i, j: (
                alpha * sp.Sum(move_q(i, s) * K[j, s] + Q[i, s] * move_k(j, s), channels(s))
            )
        )
    )


def by_values(move_v: Callable[..., Any]) -> Any:
    """<G, dO> for a move of V."""
    moved = sp.Sum(A[i, j] * move_v(j, c), keys(j))
    return one_sequence(sp.Sum(G[i, c] * moved, queries(i), values(c)))


def still(row: Any, channel: Any) -> Any:
    """No move."""
    return sp.Integer(0)


# -- What (16) and (18) say of them ---------------------------------------------------------------


def query_gradient(row: Any, channel: Any) -> Any:
    """α Σ_j dS_row,j K_j,channel."""
    return alpha * one_sequence(sp.Sum(score_gradient(row, j) * K[j, channel], keys(j)))


def key_gradient(row: Any, channel: Any) -> Any:
    """α Σ_i dS_i,row Q_i,channel."""
    return alpha * one_sequence(sp.Sum(score_gradient(i, row) * Q[i, channel], queries(i)))


def value_gradient(row: Any, channel: Any) -> Any:
    """Σ_i A_i,row G_i,channel."""
    return sp.Sum(A[i, row] * G[i, channel], queries(i))


def weight_gradients() -> Proof:
    """The weights move by one element, δ_ap δ_bs, and so Q by X_ia δ_bs."""

    def moved(row: Any, channel: Any) -> Any:
        return X[row, a] * delta(channel, b)

    def through(gradient: Callable[..., Any]) -> Any:
        return sp.Sum(X[p, a] * gradient(p, b), queries(p))

    by_q, by_k, by_v = by_scores(moved, still), by_scores(still, moved), by_values(moved)
    return Proof(
        steps=(
            identity("∂L/∂W_Q = Xᵀ dQ", by_q, through(query_gradient)),
            identity("∂L/∂W_K = Xᵀ dK", by_k, through(key_gradient)),
            identity("∂L/∂W_V = Xᵀ dV", by_v, through(value_gradient)),
        ),
        mutations={
            "dK for dQ": identity("∂L/∂W_Q = Xᵀ dK", by_q, through(key_gradient)),
            "no scale": identity("∂L/∂W_K = Xᵀ dK / α", by_k, through(key_gradient) / alpha),
            "dO for dV": identity("∂L/∂W_V = Xᵀ dO", by_v, through(lambda p, b: G[p, b])),
        },
    )


def input_gradient() -> Proof:
    """X moves by one element, δ_pa δ_ob: Q, K and V move at once, and their parts add."""

    def moved(weight: Any) -> Callable[..., Any]:
        return lambda row, channel: delta(row, a) * weight[b, channel]

    def back(gradient: Callable[..., Any], weight: Any, over: Any) -> Any:
        return sp.Sum(gradient(a, s) * weight[b, s], over(s))

    whole = by_scores(moved(W_Q), moved(W_K)) + by_values(moved(W_V))
    q, k, v = (
        back(query_gradient, W_Q, channels),
        back(key_gradient, W_K, channels),
        back(value_gradient, W_V, values),
    )
    return Proof(
        steps=(
            *weight_gradients().steps,
            identity("∂L/∂X = dQ W_Qᵀ + dK W_Kᵀ + dV W_Vᵀ", whole, q + k + v),
        ),
        mutations={
            **weight_gradients().mutations,
            "keys forgotten": identity("∂L/∂X = dQ W_Qᵀ + dV W_Vᵀ", whole, q + v),
            "weights exchanged": identity(
                "∂L/∂X = dQ W_Kᵀ + dK W_Qᵀ + dV W_Vᵀ",
                whole,
                back(query_gradient, W_K, channels) + back(key_gradient, W_Q, channels) + v,
            ),
        },
    )


def output_projection() -> Proof:
    """out = O W_O: dO = dOut W_Oᵀ, dW_O = Oᵀ dOut."""
    out, W_O, dOut = (sp.IndexedBase(name) for name in ("O", "P", "D"))

    def features(index: Any) -> Any:
        return (index, 0, width - 1)

    loss = sp.Sum(dOut[i, p] * out[i, c] * W_O[c, p], queries(i), values(c), features(p))
    by_weight, by_output = sp.diff(loss, W_O[a, b]), sp.diff(loss, out[a, b])
    return Proof(
        steps=(
            identity("∂L/∂W_O = Oᵀ dOut", by_weight, sp.Sum(out[i, a] * dOut[i, b], queries(i))),
            identity("∂L/∂O = dOut W_Oᵀ", by_output, sp.Sum(dOut[a, p] * W_O[b, p], features(p))),
        ),
        mutations={
            "O is not transposed": identity(
                "∂L/∂W_O = O dOut", by_weight, sp.Sum(out[a, i] * dOut[i, b], queries(i))
            ),
            "W_O is not transposed": identity(
                "∂L/∂O = dOut W_O", by_output, sp.Sum(dOut[a, p] * W_O[p, b], features(p))
            ),
        },
    )


def all_gradients() -> Proof:
    """From the projected output to X and the four weight matrices."""
    inner, outer = input_gradient(), output_projection()
    return Proof(
        steps=(*outer.steps, *inner.steps), mutations={**outer.mutations, **inner.mutations}
    )


STATEMENTS = (
    Statement(
        id="ch11.grad.full",
        where="after Proposition 9",
        says="Backpropagation through the whole graph gives the gradients by the input and by all "
        "four weight matrices. (The source leaves them to the reader.)",
        formula=r"dX = dQ\,W_Q^\top + dK\,W_K^\top + dV\,W_V^\top, \quad dW_Q = X^\top dQ,"
        r"\; dW_K = X^\top dK, \; dW_V = X^\top dV, \; dW_O = O^\top d\mathrm{Out}",
        verdict="true",
        proof=all_gradients,
    ),
)
