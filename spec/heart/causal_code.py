"""The causal mask and its listing: the triangle, its use, and how it is verified."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnspec.spec.evidence import binary
from attnspec.spec.evidence.statement import Check, Statement, require
from attnspec.spec.heart import listings

__all__ = ["STATEMENTS"]

TRIANGLE = ("01111", "00111", "00011", "00001", "00000")


# -- the triangle ---------------------------------------------------------------------------------


def is_the_triangle(mask: Any) -> str:
    """The printed matrix of n = 5, and the same rule for other n."""
    printed = np.array([[int(digit) for digit in line] for line in TRIANGLE])
    require((mask(5).astype(int) == printed).all(), "n = 5 is another matrix than printed")
    for n in (1, 2, 7):
        require((mask(n) == ~binary.causal(n)).all(), f"n = {n}: another set is hidden")
    return "25 printed entries; token i hides the tokens after it, and sees itself"


def two_new_tokens() -> str:
    """2 queries at the end of 5 keys."""
    i, j = np.indices((2, 5))
    from_the_top, from_the_end = j > i, ~binary.causal(2, 5)
    require((from_the_top != from_the_end).any(), "both alignments hide the same keys")
    seen = [int((~mask).sum()) for mask in (from_the_top, from_the_end)]
    return f"2 new tokens over 5 keys: the rule (j > i) shows {seen[0]} of the {seen[1]} places due"


def broadcasts(shape: Any) -> str:
    """One mask for a batch of 3, in this shape, against a mask for each."""
    [x] = listings.inputs((3, 5, 8), seed=5)
    mask = listings.later(5)
    try:
        out, _ = listings.layer(x, hidden=mask.reshape(shape))
    except ValueError as error:
        require(False, f"the shape does not fit: {error}")
    each, _ = listings.layer(x, hidden=np.stack([mask] * 3))
    require(np.array_equal(out, each), "another result than with a mask for each")
    return "a mask (1, 5, 5) and 3 masks (3, 5, 5): the same result, bit by bit"


def finds_every_leak(inspected: Any) -> str:
    """A leak is put at each of the 10 places above the diagonal; what is looked at must show it."""
    [x] = listings.inputs((1, 5, 8), seed=6)
    _, weights = listings.layer(x, hidden=listings.later(5)[None])
    require((inspected(weights[0]) == 0).all(), "the listing leaks")
    for i, j in zip(*np.nonzero(listings.later(5)), strict=True):
        leaking = weights[0].copy()
        leaking[i, j] = 0.25
        require((inspected(leaking) != 0).any(), f"a leak at [{i}, {j}] is not seen")
    return "all 10 weights above the diagonal are exactly 0.0; a leak at any of them is seen"


# -- the rule -------------------------------------------------------------------------------------

Q, K, V = (binary.integers((5, 2), seed=seed) for seed in (1, 2, 3))


def does_not_see_later(attention: Any) -> str:
    """Keys and values after i are replaced: rows up to i must not notice."""
    out = attention(K, V)
    for i in range(5):
        k, v = K.copy(), V.copy()
        k[i + 1 :], v[i + 1 :] = 7, -5
        edited = attention(k, v)
        require(binary.same(edited[: i + 1], out[: i + 1]), f"token {i} sees a later one")
        require(i == 4 or not binary.same(edited[-1], out[-1]), "no row sees the edit")
    return "5 tokens: whatever comes after token i leaves rows up to i as they are, exactly"


def seen(ahead: int) -> Any:
    """Attention where token i sees up to i + ahead."""
    visible = np.tri(5, 5, ahead, dtype=bool)
    return lambda k, v: binary.attention(Q, k, v, visible=visible)


STATEMENTS = (
    Statement(
        id="heart.code.causal",
        where="Causal mask, its listing and the printed matrix",
        says="True strictly above the diagonal; 5 × 5 printed.",
        formula=r"m_{ij} = (j > i)",
        verdict="conditional",
        hypotheses={"as many queries as keys": two_new_tokens},
        check=Check(
            run=is_the_triangle,
            subject=listings.later,
            mutations={
                "with the diagonal": lambda n: ~np.tri(n, n, -1, dtype=bool),
                "below the diagonal": lambda n: listings.later(n).T,
            },
        ),
        properties=("visible-set", "hiding-is-masking"),
    ),
    Statement(
        id="heart.code.causal.use",
        where="Causal mask, how it is given to the layer",
        says="A mask (1, 5, 5) serves the whole batch.",
        verdict="true",
        check=Check(
            run=broadcasts,
            subject=(1, 5, 5),
            mutations={"(5, 1, 5)": (5, 1, 5), "(5, 5, 1)": (5, 5, 1)},
        ),
        properties=("broadcast-is-expanded",),
    ),
    Statement(
        id="heart.code.verify",
        where="Causal mask, the line that verifies",
        says="The upper triangle of the weights is looked at and is about 0; the last token sees "
        "everything before it.",
        verdict="imprecise",
        exact="Only row 0 is looked at, 4 of the 10 places. All 10 are exactly 0.0. And the last "
        "token sees itself as well.",
        check=Check(
            run=finds_every_leak,
            subject=lambda weights: weights[listings.later(5)],
            mutations={
                "row 0 alone": lambda weights: weights[0, 1:],
                "next tokens alone": lambda weights: np.diagonal(weights, 1),
            },
        ),
        properties=("weights-are-probabilities",),
    ),
    Statement(
        id="heart.causal.rule",
        where="Causal self-attention, the rule",
        says="Token i must not see token j > i.",
        formula=r"\partial o_i/\partial x_j = 0 \quad (j > i)",
        verdict="true",
        check=Check(
            run=does_not_see_later,
            subject=seen(0),
            mutations={"one token ahead": seen(1), "without a mask": seen(4)},
        ),
        properties=(
            "later-tokens-have-no-influence",
            "prefix-equals-first-rows",
            "hidden-keys-have-no-gradient",
        ),
    ),
)
