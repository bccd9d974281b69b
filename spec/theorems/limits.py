"""What attention does not give: weights from outputs, and a bound on its slope."""

from __future__ import annotations

from typing import Any

import numpy as np
import sympy as sp

from attnspec.spec.evidence import exact
from attnspec.spec.evidence.binary import integers, same
from attnspec.spec.evidence.exact import Matrix, matrix
from attnspec.spec.evidence.expressions import scalars
from attnspec.spec.evidence.linear import null_vector
from attnspec.spec.evidence.statement import Check, Proof, Statement, Step, require

__all__ = ["STATEMENTS"]


# -- What the output tells of the weights ----------------------------------------------------------


def another_row(v: Matrix) -> Matrix | None:
    """A step z ≠ 0 with zᵀ [V | 1] = 0, or None."""
    return null_vector(np.concatenate([v.T, matrix([[1] * len(v)])]))


def two_weights_one_output(find: Any) -> str:
    """n = 5 keys, d_v = 2: another positive row with the same output; n ≤ rank: none."""
    v = integers((5, 2), seed=1)
    a = exact.weights(exact.positive((1, 5), seed=2))[0]
    z = find(v)
    require(z is not None, "no other row is found")
    other = a + z * (min(a) / (2 * max(abs(z))))
    require(all(other > 0) and other.sum() == 1, "it is no distribution")
    require(same(other @ v, a @ v) and not same(other, a), "the output differs")
    return "5 keys, d_v = 2: two rows of weights with one output, exactly"


def enough_values() -> str:
    """Values in general position with n ≤ d_v + 1."""
    v = matrix([[0, 0], [1, 0], [0, 1]])
    require(another_row(v) is None, "another row exists")
    return "3 keys at the corners of a triangle: the output determines the weights"


# -- Slopes ----------------------------------------------------------------------------------------


def slope_at(x: list[Any]) -> Any:
    """∂o_1/∂x_1 for tokens of one channel, all projections 1."""
    first = sp.Symbol("x_1", real=True)
    tokens = [first, *x[1:]]
    e = [sp.exp(first * token) for token in tokens]
    out = sum(weight * token for weight, token in zip(e, tokens, strict=True)) / sum(e)
    return sp.simplify(sp.diff(out, first).subs(first, x[0]))


def unbounded_slope() -> Proof:
    """Tokens (x_1, t, -t) at x_1 = 0."""
    t = sp.Symbol("t", real=True)
    found = slope_at([0, t, -t])
    claimed = sp.Rational(1, 3) + 2 * t**2 / 3
    return Proof(
        sizes="3 tokens, one channel (an example suffices)",
        steps=(
            scalars("∂o_1/∂x_1 = 1/3 + 2t²/3", found, claimed),
            Step("it grows without bound", lambda: sp.limit(found, t, sp.oo) == sp.oo),
        ),
        mutations={
            "half the variance": scalars("1/3 + t²/3", found, claimed - t**2 / 3),
            "bounded": scalars("1/3", found, sp.Rational(1, 3)),
        },
    )


def on_bounded_tokens() -> str:
    """With |t| ≤ 1 the slope stays at or below 1."""
    t = sp.Symbol("t", real=True)
    top = sp.maximum(slope_at([0, t, -t]), t, sp.Interval(-1, 1))
    require(top == 1, f"{top}")
    return "tokens (0, t, -t) with |t| ≤ 1: the slope is 1 at most"


STATEMENTS = (
    Statement(
        id="ext.nonident",
        where="Brunner et al. 2020; beside chapter 11, Pitfall 4",
        says="With more keys than d_v + 1 the output does not determine the weights.",
        formula=r"\mathrm{rank}\,[V, \mathbf{1}] < n \Rightarrow \exists\, a' \ne a > 0: "
        r"a'V = aV, \ a'\mathbf{1} = 1",
        verdict="conditional",
        hypotheses={"rank [V, 1] < n": enough_values},
        check=Check(
            run=two_weights_one_output,
            subject=another_row,
            mutations={
                "sums are not kept": lambda v: null_vector(v[:, :1].T),
                "values are not kept": lambda v: null_vector(matrix([[1] * len(v)])),
                "none is found": lambda v: None,
            },
        ),
    ),
    Statement(
        id="ext.notlipschitz",
        where="Kim, Papamakarios and Mnih 2021; none of the documents",
        says="Self-attention has no bound on its slope: it grows with the square of the tokens.",
        formula=r"x = (x_1, t, -t): \quad \partial o_1 / \partial x_1 |_{x_1 = 0} = "
        r"\tfrac13 + \tfrac23 t^2",
        verdict="conditional",
        hypotheses={"tokens of any size": on_bounded_tokens},
        proof=unbounded_slope,
    ),
)
