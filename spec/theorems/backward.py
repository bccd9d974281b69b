"""Backward: what the gradients of attention have in common, whatever the loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import sympy as sp

from attnspec.spec.evidence import exact
from attnspec.spec.evidence.binary import causal, exponentials, integers, same
from attnspec.spec.evidence.exact import Matrix
from attnspec.spec.evidence.linear import powers
from attnspec.spec.evidence.statement import Check, Proof, Statement, require
from attnspec.spec.evidence.sums import identity
from attnspec.spec.evidence.symbols import (
    A,
    G,
    K,
    Q,
    V,
    alpha,
    keys,
    queries,
    score_gradient,
    values,
)
from attnspec.spec.systems.positions import TURNS, rotated

__all__ = ["STATEMENTS"]

i, j, other, c, a, b, s = sp.symbols("i j l c a b s", integer=True)
delta = sp.KroneckerDelta


# -- Sums over keys --------------------------------------------------------------------------------


def score_gradients_cancel() -> Proof:
    """In each row of dS."""
    inner = sp.Sum(G[i, c] * V[j, c], values(c))
    row = sp.Sum(score_gradient(i, j), keys(j))
    column = sp.Sum(score_gradient(i, j), queries(i))
    return Proof(
        steps=(identity("Σ_j dS_ij = 0", row, 0, stochastic=[A]),),
        mutations={
            "not centred": identity(
                "Σ_j A_ij dA_ij = 0", sp.Sum(A[i, j] * inner, keys(j)), 0, stochastic=[A]
            ),
            "over the queries": identity("Σ_i dS_ij = 0", column, 0, stochastic=[A]),
            "weights that do not sum to 1": identity("Σ_j dS_ij = 0", row, 0),
        },
    )


def one_number_for_a_row() -> Proof:
    """D_i from the output alone, without the weights."""
    by_weights = sp.Sum(A[i, j] * sp.Sum(G[i, c] * V[j, c], values(c)), keys(j))
    by_output = sp.Sum(G[i, c] * sp.Sum(A[i, j] * V[j, c], keys(j)), values(c))
    plain = sp.Sum(G[i, c] * V[j, c], values(c), keys(j))
    return Proof(
        steps=(identity("Σ_j A_ij dA_ij = <dO_i, O_i>", by_weights, by_output),),
        mutations={
            "not weighted": identity("Σ_j dA_ij", plain, by_output),
            "squared weights": identity(
                "Σ_j A_ij² dA_ij",
                sp.Sum(A[i, j] ** 2 * sp.Sum(G[i, c] * V[j, c], values(c)), keys(j)),
                by_output,
            ),
        },
    )


def key_sums() -> Proof:
    """dV = Aᵀ dO and dK = α dSᵀ Q, summed over the keys."""
    dV = sp.Sum(A[i, j] * G[i, c], queries(i))
    dK = alpha * sp.Sum(score_gradient(i, j) * Q[i, b], queries(i))
    dO = sp.Sum(G[i, c], queries(i))
    untransposed = sp.Sum(A[j, i] * G[i, c], queries(i))
    return Proof(
        steps=(
            identity("Σ_j dV_j = Σ_i dO_i", sp.Sum(dV, keys(j)), dO, stochastic=[A]),
            identity("Σ_j dK_j = 0", sp.Sum(dK, keys(j)), 0, stochastic=[A]),
        ),
        mutations={
            "A is not transposed": identity(
                "Σ_j (A dO)_j", sp.Sum(untransposed, keys(j)), dO, stochastic=[A]
            ),
            "weights that do not sum to 1": identity("Σ_j dV_j", sp.Sum(dV, keys(j)), dO),
            "dQ for dK": identity(
                "Σ_j (dS K)_j = 0",
                sp.Sum(alpha * sp.Sum(score_gradient(i, j) * K[j, b], keys(j)), queries(i)),
                0,
                stochastic=[A],
            ),
        },
    )


def centred_rows(centre: Any) -> str:
    """D from the outputs, in 3 causal problems: what makes each row of dS sum to 0."""
    for seed in (1, 11, 21):
        e, v, dout, _ = masked_problem(seed)
        a, da = exact.weights(e), dout @ v.T
        d = centre(a, v, dout)
        require(same((a * da).sum(1), d), "D is not Σ A dA")
        require(all((a * (da - d[:, None])).sum(1) == 0), "a row of dS does not sum to 0")
    return "3 causal problems of 4 tokens, exactly"


def masked_problem(seed: int) -> tuple[Matrix, Matrix, Matrix, Matrix]:
    """Exponentials of 4 causal rows of 4 keys, values, cotangents and queries."""
    q, k = integers((4, 2), seed=seed), integers((4, 2), seed=seed + 1)
    e = exponentials(q, k, visible=causal(4))
    return e, integers((4, 3), seed=seed + 2), integers((4, 3), seed=seed + 3), q


def score_and_value_gradients(e: Matrix, v: Matrix, dout: Matrix) -> tuple[Matrix, Matrix]:
    """dS and dV."""
    found = exact.gradients(e, v, dout)
    return found.ds, found.dv


def sums_cancel_under_masks(gradients: Any) -> str:
    """Rows of dS and columns of dK sum to 0, dV to dO, under a causal mask as well."""
    for seed in (1, 11, 21):
        e, v, dout, q = masked_problem(seed)
        ds, dv = gradients(e, v, dout)
        require(all(ds.sum(1) == 0), "a row of dS does not sum to 0")
        require(all((ds.T @ q).sum(0) == 0), "dK does not sum to 0")
        require(same(dv.sum(0), dout.sum(0)), "dV does not sum to dO")
    return "3 causal problems of 4 tokens, exactly"


def row_without_keys() -> str:
    """A row that sees nothing hands its cotangent to no value."""
    e, v, dout, _ = masked_problem(1)
    e[0] = e[0] * 0
    dout[0] = dout[0] + 5
    dv = exact.gradients(e, v, dout).dv
    require(not same(dv.sum(0), dout.sum(0)), "its cotangent arrives")
    return "row 0 hidden whole: Σ dV misses dO_0"


def rotated_keys() -> str:
    """RoPE: scores see R_j k_j, so what a key receives is turned back by its own angle."""
    e, v, dout, q = masked_problem(1)
    received = exact.gradients(e, v, dout).ds.T @ rotated(q, range(4))
    back = [powers(TURNS[0].T, place) @ row for place, row in enumerate(received)]
    total = np.sum(back, axis=0)
    require(any(total != 0), "they still sum to 0")
    return f"keys under RoPE: Σ_j dK_j = ({', '.join(f'{float(x):.3g}' for x in total)})"


STATEMENTS = (
    Statement(
        id="ext.rowsum0",
        where="folklore; from chapter 11, equations (9) and (17)",
        says="The gradients of a row's scores sum to 0.",
        formula=r"dS\,\mathbf{1} = 0",
        verdict="true",
        proof=score_gradients_cancel,
        check=Check(
            run=sums_cancel_under_masks,
            subject=score_and_value_gradients,
            mutations={
                "not centred": lambda e, v, do: (
                    exact.weights(e) * (do @ v.T),
                    exact.gradients(e, v, do).dv,
                ),
                "centred by the plain mean": lambda e, v, do: (
                    exact.weights(e) * (do @ v.T - (do @ v.T).mean(-1, keepdims=True)),
                    exact.gradients(e, v, do).dv,
                ),
            },
        ),
        properties=("dbias-rows-sum-to-zero", "dbias-and-dsinks-sum-to-zero"),
    ),
    Statement(
        id="ext.D",
        where="Dao et al. 2022; beside chapter 11, equation (17)",
        says="What centres a row of dS is the product of its output and its cotangent.",
        formula=r"\sum_j A_{ij}\, dA_{ij} = \langle dO_i, O_i \rangle",
        verdict="true",
        proof=one_number_for_a_row,
        check=Check(
            run=centred_rows,
            subject=lambda a, v, dout: (dout * (a @ v)).sum(1),
            mutations={
                "Σ dA": lambda a, v, dout: (dout @ v.T).sum(1),
                "the value of the row": lambda a, v, dout: (dout * v).sum(1),
            },
        ),
        properties=("dv-with-v-equals-dout-with-out",),
    ),
    Statement(
        id="ext.dVsum",
        where="folklore; from chapter 11, equations (16) and (18)",
        says="Values receive, together, all that the outputs are given; keys receive nothing "
        "together.",
        formula=r"\sum_j dV_j = \sum_i dO_i, \qquad \sum_j dK_j = 0",
        verdict="conditional",
        hypotheses={
            "every row sees a key": row_without_keys,
            "no rotation of the keys, for dK": rotated_keys,
        },
        proof=key_sums,
        check=Check(
            run=sums_cancel_under_masks,
            subject=score_and_value_gradients,
            mutations={
                "dS is not centred": lambda e, v, do: (
                    exact.weights(e) * (do @ v.T),
                    score_and_value_gradients(e, v, do)[1],
                ),
                "A is not transposed": lambda e, v, do: (
                    score_and_value_gradients(e, v, do)[0],
                    exact.weights(e) @ do,
                ),
            },
        ),
        properties=("dv-sums-to-dout", "dk-sums-to-zero"),
    ),
)
