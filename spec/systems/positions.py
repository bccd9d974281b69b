"""Positions: rotations of queries and keys (RoPE), and codes that are added to the tokens."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import sympy as sp

from attnspec.spec.evidence.binary import attention, integers, same
from attnspec.spec.evidence.exact import Matrix, matrix
from attnspec.spec.evidence.expressions import scalars
from attnspec.spec.evidence.linear import powers
from attnspec.spec.evidence.statement import Check, Proof, Statement, Step, require

__all__ = ["STATEMENTS", "TURNS", "rotated"]

TURNS = (
    matrix([["3/5", "-4/5"], ["4/5", "3/5"]]),
    matrix([["5/13", "-12/13"], ["12/13", "5/13"]]),
)
"""Rotations by angles of rational sine and cosine, which are no fraction of a turn."""


# -- RoPE -----------------------------------------------------------------------------------------


def rotated(x: Matrix, positions: Any) -> Matrix:
    """Each pair of channels of row i turned `positions[i]` times, each pair at its own angle."""
    rows = []
    for row, position in zip(x, positions, strict=True):
        pairs = row.reshape(-1, 2)
        turned = [powers(TURNS[p], position) @ pair for p, pair in enumerate(pairs)]
        rows.append(np.concatenate(turned))
    return np.array(rows, object)


def relative_rotation() -> Proof:
    """One pair of channels; the score of a head is the sum over its pairs."""
    i, j, angle = sp.symbols("i j theta", real=True)
    q, k = sp.Matrix(sp.symbols("q_1 q_2", real=True)), sp.Matrix(sp.symbols("k_1 k_2", real=True))

    def turn(steps: Any) -> Any:
        c, s = (f(sp.expand(steps * angle), evaluate=True) for f in (sp.cos, sp.sin))
        return sp.Matrix([[c, -s], [s, c]]).applyfunc(sp.expand_trig)

    score = (turn(i) * q).dot(turn(j) * k)
    relative = q.dot(turn(j - i) * k)
    norm = (turn(i) * q).dot(turn(i) * q)
    return Proof(
        steps=(
            scalars("(R_i q)·(R_j k) = q·R_(j-i) k", score, relative),
            scalars("|R_i q| = |q|", norm, q.dot(q)),
            Step("R_0 = I", lambda: turn(0) == sp.eye(2)),
        ),
        mutations={
            "the other direction": scalars("q·R_(i-j) k", score, q.dot(turn(i - j) * k)),
            "the sum of the places": scalars("q·R_(i+j) k", score, q.dot(turn(i + j) * k)),
            "no position": scalars("q·k", score, q.dot(k)),
        },
    )


def relative_scores(turn: Any) -> str:
    """Scores of 4 positions moved by 3; norms; position 0; d_k = 4."""
    q, k = integers((4, 4), seed=1), integers((4, 4), seed=2)
    here, moved = range(4), range(3, 7)
    scores = turn(q, here) @ turn(k, here).T
    require(same(turn(q, moved) @ turn(k, moved).T, scores), "scores change with a common shift")
    norms = (turn(q, moved) ** 2).sum(1)
    require(same(norms, (q**2).sum(1)), "norms change")
    require(same(turn(q, [0] * 4), q), "position 0 is not the identity")
    require(not same(turn(q, moved) @ turn(k, here).T, scores), "the distance does not matter")
    return "4 tokens, d_k = 4, rotations of rational sine and cosine, exactly"


def bias_before_rotation() -> str:
    """A constant added to every key, before the rotation: scores of a row move differently."""
    q, k = integers((1, 4), seed=1), integers((3, 4), seed=2)
    shift = matrix([1, 2, -1, 1])
    scores, moved = (rotated(q, [2]) @ rotated(keys, range(3)).T for keys in (k, k + shift))
    steps = (moved - scores)[0]
    require(len(set(steps)) > 1, "the shift adds a constant to the row")
    return f"a key bias before RoPE moves the scores of a row by {', '.join(map(str, steps))}"


# -- Codes that are added -------------------------------------------------------------------------


def shift_matrix() -> Proof:
    """(sin ωp, cos ωp) at p + k from those at p, by a rotation that does not know p."""
    p, k, w = sp.symbols("p k omega", real=True)

    def code(place: Any) -> Any:
        return sp.Matrix([sp.sin(w * place), sp.cos(w * place)])

    c, s = sp.cos(w * k), sp.sin(w * k)
    step = sp.Matrix([[c, s], [-s, c]])
    moved = step * code(p)
    return Proof(
        steps=(
            scalars("sin ω(p+k) = cos ωk sin ωp + sin ωk cos ωp", moved[0], code(p + k)[0]),
            scalars("cos ω(p+k) = -sin ωk sin ωp + cos ωk cos ωp", moved[1], code(p + k)[1]),
            Step("M_kᵀ M_k = I", lambda: sp.simplify(step.T * step) == sp.eye(2)),
            scalars("PE(p)·PE(p+k) = cos ωk", code(p).dot(code(p + k)), c),
        ),
        mutations={
            "turned the other way": scalars("M_(-k)", (step.T * code(p))[0], code(p + k)[0]),
            "a scaling": scalars("PE(p+k) = cos ωk PE(p)", c * code(p)[0], code(p + k)[0]),
        },
    )


def codes(count: int) -> Matrix:
    """Learned codes: any integers, one row a place."""
    return integers((count, 2), seed=9)


def codes_break_the_symmetry(add: Any) -> str:
    """Tokens reordered under fixed codes: another result; reordered with their codes: the same."""
    x, place = integers((4, 2), seed=1), codes(4)
    whole = self_attention(add(x, place))
    broken = 0
    for order in itertools.permutations(range(4)):
        index = list(order)
        both = self_attention(add(x[index], place[index]))
        require(same(both, whole[index]), "tokens with their codes are not equivariant")
        broken += not same(self_attention(add(x[index], place)), whole[index])
    require(broken == 23, f"{broken} of 23 orders are told apart")
    return "24 orders of 4 tokens: 23 told apart by the codes, none when the codes move along"


def self_attention(x: Matrix) -> Matrix:
    """Queries, keys and values are the tokens themselves."""
    return attention(x, x, x)


def equal_codes() -> str:
    """Two places with one code: the tokens there may change places unseen."""
    x, place = integers((4, 2), seed=1), codes(4)
    place[1] = place[0]
    index = [1, 0, 2, 3]
    whole = self_attention(x + place)
    require(same(self_attention(x[index] + place), whole[index]), "they are told apart")
    return "places 0 and 1 with one code: their tokens exchanged give the exchanged rows"


def learned_codes_at_distance_one() -> str:
    """PE(p)·PE(q) of learned codes is no function of q - p."""
    place = codes(4)
    products = [place[p] @ place[p + 1] for p in range(3)]
    require(len(set(products)) > 1, "they agree")
    return f"learned codes: neighbours' products are {', '.join(map(str, products))}"


STATEMENTS = (
    Statement(
        id="sys.rope",
        where="Su et al. 2021; chapter 11, connections and modern developments; lesson 3's opening",
        says="Queries and keys turned by their positions: scores depend on the distance alone, "
        "norms stay, position 0 is untouched.",
        formula=r"(R_i q)^\top (R_j k) = q^\top R_{j-i} k, \quad \|R_i q\| = \|q\|, \quad R_0 = I",
        verdict="conditional",
        hypotheses={"no bias is added to the keys before the rotation": bias_before_rotation},
        proof=relative_rotation,
        check=Check(
            run=relative_scores,
            subject=rotated,
            mutations={
                "turned by the square of the place": lambda x, at: rotated(x, [p * p for p in at]),
                "turned and doubled": lambda x, at: 2 * rotated(x, at),
                "positions added": lambda x, at: x + np.array(list(at), object)[:, None],
                "no rotation": lambda x, at: x,
            },
        ),
    ),
    Statement(
        id="sys.pe",
        where="Vaswani et al. 2017; chapter 11, Exercise 8; lesson 3's opening; the third "
        "document's misconceptions",
        says="Codes of the places are added to the tokens: then order matters, and a sinusoidal "
        "code at p + k is a rotation of the one at p.",
        formula=r"PE(p + k) = M_k\, PE(p), \quad M_k^\top M_k = I",
        verdict="conditional",
        hypotheses={
            "sinusoids, for products that depend on distance alone": learned_codes_at_distance_one,
            "the codes differ, for order to matter": equal_codes,
        },
        proof=shift_matrix,
        check=Check(
            run=codes_break_the_symmetry,
            subject=lambda x, place: x + place,
            mutations={
                "no code": lambda x, place: x,
                "one code for all": lambda x, place: x + place[:1] * 0 + 1,
                "a code of the row": lambda x, place: x + codes(len(x)),
            },
        ),
    ),
)
