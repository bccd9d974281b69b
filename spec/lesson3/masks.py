"""Causal masking: what is hidden, the triangle, and training on all places in one pass."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import sympy as sp

from attnspec.spec.evidence import binary, digits, exact
from attnspec.spec.evidence.expressions import scalars
from attnspec.spec.evidence.linear import determinant, identity_matrix
from attnspec.spec.evidence.statement import Check, Proof, Statement, require

__all__ = ["STATEMENTS"]

Q, K, V = (binary.integers((5, 3), seed=seed) for seed in (1, 2, 3))


# -- the mask -------------------------------------------------------------------------------------


def additive(hidden: Any) -> Any:
    """M: -∞ where hidden."""
    return np.where(hidden, mpmath.mpf("-inf"), mpmath.mpf(0))


def vanishes() -> Proof:
    """e^(s + M) over any total Z, for M = -∞ and for a large finite one."""
    s, total, large = sp.symbols("s Z B", positive=True)
    hidden = sp.exp(s - sp.oo) / total
    leak = sp.exp(s - large) / total
    return Proof(
        steps=(
            scalars("e^(s - ∞)/Z = 0", hidden, 0),
            scalars("e^(s - B)/Z = e^-B e^s/Z, never 0", leak, sp.exp(s) / total * sp.exp(-large)),
        ),
        mutations={
            "B for ∞": scalars("e^(s - B)/Z = 0", leak, 0),
            "0 for ∞": scalars("e^s/Z = 0", sp.exp(s) / total, 0),
        },
    )


def other_layers_that_mix() -> str:
    """A layer before that subtracts the mean over the tokens."""
    centred = [K[:t] - K[:t].sum(0) / Fraction(t) for t in (3, 5)]
    require(not binary.same(centred[0], centred[1][:3]), "the prefix is unchanged")
    return "a layer that subtracts the mean over the tokens shows token 5 to rows 1 to 3"


def hides_the_future(mask: Any) -> str:
    """A_ij = 0 for j > i and only there, 5 tokens, in 50 digits."""
    m = mask(~binary.causal(5))
    a = np.array([digits.softmax(row) for row in Q @ K.T + m], object)
    future = ~binary.causal(5)
    require((a[future] == 0).all(), "a later token has weight")
    require((a[~future] > 0).all(), "an earlier token has none")
    return "5 tokens: the 10 weights of later tokens are exactly 0, the 15 others positive"


def infinite_scores() -> str:
    """∞ - ∞ in the sum of score and mask."""
    total = mpmath.mpf("inf") + mpmath.mpf("-inf")
    require(mpmath.isnan(total), "∞ - ∞ is a number")
    return "a score of +∞ (or NaN) at a hidden key becomes NaN, not a weight of 0"


# -- the triangle ---------------------------------------------------------------------------------


def causal_weights(*, ahead: int = 0) -> exact.Matrix:
    """A (5, 5) where row i sees the keys up to i + ahead."""
    visible = np.tri(5, 5, ahead, dtype=bool)
    return exact.weights(binary.exponentials(Q, K, visible=visible))


def is_triangular(weights: Any) -> str:
    """Triangular, A₁₁ = 1, det A = Π A_ii > 0, and each A_ii an eigenvalue."""
    a = weights()
    diagonal = np.diagonal(a)
    require((a[~binary.causal(5)] == 0).all(), "there is weight above the diagonal")
    require(a[0, 0] == 1, "the first token does not return its own value")
    require(determinant(a) == np.prod(diagonal) > 0, "det A is not the product of the diagonal")
    for value in diagonal:
        require(determinant(a - value * identity_matrix(5)) == 0, f"{value} is no eigenvalue")
    return (
        f"5 tokens: det A = Π A_ii = {float(determinant(a)):.6g} > 0, spectrum = diagonal, exactly"
    )


def more_keys_than_rows() -> str:
    """2 queries at the end of 5 keys."""
    e = binary.exponentials(Q[:2], K, visible=binary.causal(2, 5))
    require(exact.weights(e)[0, 1] != 0, "still triangular")
    return "2 new queries over 5 keys: A (2, 5) has weight above its diagonal"


# -- all places in one pass -----------------------------------------------------------------------


def causal_attention(q: Any, k: Any, v: Any) -> exact.Matrix:
    """Row i sees the keys up to i."""
    return binary.attention(q, k, v, visible=binary.causal(len(q)))


def one_token_ahead(q: Any, k: Any, v: Any) -> exact.Matrix:
    """Wrong by one: row i sees the keys up to i + 1."""
    return binary.attention(q, k, v, visible=np.tri(len(q), len(q), 1, dtype=bool))


def prefixes_are_first_rows(attention: Any) -> str:
    """The run over 5 tokens against the runs over each prefix."""
    whole = attention(Q, K, V)
    for t in range(1, 6):
        require(binary.same(attention(Q[:t], K[:t], V[:t]), whole[:t]), f"prefix {t} differs")
    return "5 tokens: one pass holds the outputs of all 5 prefixes, exactly"


def before_and_after(weights: Any) -> str:
    """The drawn pattern: one -∞ for each weight of 0, and rows that sum to 1."""
    m = additive(~binary.causal(5))
    a = weights(binary.power_of_two(Q @ K.T), binary.causal(5))
    require(((a == 0) == (m == mpmath.mpf("-inf"))).all(), "zeros and -∞ stand at other places")
    require(binary.same(a.sum(1), exact.matrix([1] * 5)), "rows do not sum to 1")
    return "5 tokens: the 10 places of -∞ before are the 10 zeros after; rows sum to 1"


STATEMENTS = (
    Statement(
        id="lesson3.sec5.mask",
        where="Section 5, the mask",
        says="Adding -∞ to the scores of later tokens makes their weights 0.",
        formula=r"M_{ij} = 0\ (j \le i),\quad -\infty\ (j > i)\ \Rightarrow\ A_{ij} = 0\ (j > i)",
        verdict="conditional",
        hypotheses={"finite scores": infinite_scores},
        proof=vanishes,
        check=Check(
            run=hides_the_future,
            subject=additive,
            mutations={
                "-30 for -∞": lambda hidden: np.where(hidden, mpmath.mpf(-30), mpmath.mpf(0)),
                "the past hidden": lambda hidden: additive(hidden.T),
            },
        ),
        properties=("mask-is-a-bias", "hidden-keys-have-no-influence", "hiding-is-masking"),
    ),
    Statement(
        id="lesson3.sec5.tri",
        where="Section 5, after the mask",
        says="The weights form a lower-triangular matrix.",
        formula=r"A_{11} = 1,\qquad \det A = \textstyle\prod_i A_{ii} > 0",
        verdict="conditional",
        hypotheses={"as many queries as keys": more_keys_than_rows},
        check=Check(
            run=is_triangular,
            subject=causal_weights,
            mutations={
                "one token ahead": lambda: causal_weights(ahead=1),
                "without a mask": lambda: causal_weights(ahead=4),
                "without the token itself": lambda: causal_weights(ahead=-1),
            },
        ),
        properties=("weights-are-probabilities", "visible-set"),
    ),
    Statement(
        id="lesson3.sec5.parallel",
        where="Section 5, training",
        says="The mask makes the model autoregressive and lets all places train in one pass.",
        formula=r"\mathrm{Attn}(H)_{1..t} = \mathrm{Attn}(H_{1..t})\quad\text{for every } t",
        verdict="conditional",
        hypotheses={"other layers that act on each token by itself": other_layers_that_mix},
        check=Check(
            run=prefixes_are_first_rows,
            subject=causal_attention,
            mutations={
                "without a mask": lambda q, k, v: binary.attention(q, k, v),
                "one token ahead": one_token_ahead,
            },
        ),
        properties=("prefix-equals-first-rows", "later-tokens-have-no-influence"),
    ),
    Statement(
        id="lesson3.fig2",
        where="Figure 2",
        says="The mask before softmax, and the zeros after it.",
        verdict="true",
        check=Check(
            run=before_and_after,
            subject=lambda e, visible: exact.weights(e * visible),
            mutations={
                "zeroed after softmax": lambda e, visible: exact.weights(e) * visible,
                "strictly later tokens only": lambda e, visible: exact.weights(e * ~visible),
            },
        ),
        properties=("visible-set",),
    ),
)
