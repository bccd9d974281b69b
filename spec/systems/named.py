"""What the documents only name: a theorem on approximation, whole models, a library."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from attnspec.spec.evidence.binary import attention, causal, integers, same
from attnspec.spec.evidence.exact import Matrix
from attnspec.spec.evidence.statement import Check, Statement, require

__all__ = ["STATEMENTS"]


# -- What is out of reach without codes of the places ---------------------------------------------


def first_token_everywhere(x: Matrix) -> Matrix:
    """A target that depends on order: every row becomes the first."""
    return np.asarray(np.repeat(x[:1], len(x), axis=0))


def coded(x: Matrix) -> Matrix:
    """Attention over tokens with codes of their places."""
    place = integers(x.shape, seed=3) + np.arange(len(x), dtype=object)[:, None]
    return attention(x + place, x + place, x)


def missed_on_one_of_a_pair(model: Any) -> str:
    """An equivariant model errs at X and at PX by |f(PX) - P f(X)| together, or more."""
    x, swap = integers((3, 2), seed=1), [1, 0, 2]
    target = first_token_everywhere
    gap = abs(target(x[swap]) - target(x)[swap]).max()
    require(gap > 0, "the target is equivariant here")
    require(same(model(x[swap]), model(x)[swap]), "the model tells orders apart")
    worst = max(abs(model(x[swap]) - target(x[swap])).max(), abs(model(x) - target(x)).max())
    require(worst >= Fraction(gap, 2), f"the error is {worst}, below half of {gap}")
    return f"3 tokens, two exchanged: every equivariant model misses the target by {gap}/2 or more"


def codes_lift_the_bound() -> str:
    """With codes of the places the model is not equivariant, and the bound does not hold for it."""
    x, swap = integers((3, 2), seed=1), [1, 0, 2]
    require(not same(coded(x[swap]), coded(x)[swap]), "still equivariant")
    return "3 tokens with codes of their places: exchanged tokens are told apart"


# -- The conventions of a library -----------------------------------------------------------------


def product_attention(q: Matrix, k: Matrix, v: Matrix, mask: Any) -> Matrix:
    """A boolean mask that is true where a key is visible; a blind row gives 0."""
    return attention(q, k, v, visible=mask)


def module_attention(q: Matrix, k: Matrix, v: Matrix, mask: Any) -> Matrix:
    """A boolean mask that is true where a key is hidden."""
    return attention(q, k, v, visible=~mask)


def opposite_masks(pair: Any) -> str:
    """Both conventions, asked with opposite masks, agree; with the same mask they do not."""
    one, other = pair
    q, k, v = (integers((n, 2), seed=n) for n in (3, 4, 5))
    k, v = k[:4], v[:4]
    for shift in (0, 1):
        visible = causal(3, 4) if shift else np.tri(3, 4, dtype=bool)
        require(same(one(q, k, v, visible), other(q, k, v, ~visible)), "opposite masks differ")
        require(same(one(q, k, v, visible), attention(q, k, v, visible=visible)), "true hides")
    blind = np.ones((3, 4), dtype=bool)
    blind[1] = False
    require(same(one(q, k, v, blind)[1], [0, 0]), "a row that sees nothing is not 0")
    return "top-left and bottom-right causal masks, a row that sees nothing, exactly"


def one_mask_for_both() -> str:
    """The same boolean mask given to both."""
    q, k, v = (integers((3, 2), seed=n) for n in (3, 4, 5))
    past = causal(3)
    require(not same(product_attention(q, k, v, past), module_attention(q, k, v, past)), "one rule")
    return "the same causal mask in both: another output"


def alignments() -> str:
    """is_causal is aligned at the first key: for decoding, n_q = 1, it sees one key."""
    left, right = np.tri(1, 5, dtype=bool), causal(1, 5)
    require((left.sum(), right.sum()) == (1, 5), "they agree")
    return "n_q = 1, n_k = 5: aligned at the first key it sees 1 key, at the last 5"


STATEMENTS = (
    Statement(
        id="sys.universal",
        where="Yun et al. 2020; chapter 11, research perspective",
        says="Transformers approximate any function of sequences.",
        formula=r"\max_{X, PX} \|g - f\| \ge \tfrac12 \|f(PX) - P f(X)\| "
        r"\text{ for every equivariant } g",
        verdict="imprecise",
        exact="Continuous functions on a compact set, and equivariant ones only, unless codes "
        "of the places are added: without them a target that depends on order is missed by at "
        "least half of what it changes by when two tokens change places. The theorem itself is "
        "not decided here.",
        hypotheses={"no codes of the places, for the bound": codes_lift_the_bound},
        check=Check(
            run=missed_on_one_of_a_pair,
            subject=lambda x: attention(x, x, x),
            mutations={
                "codes of the places": coded,
                "a causal mask": lambda x: attention(x, x, x, visible=causal(len(x))),
                "the target itself": first_token_everywhere,
            },
        ),
        properties=("queries-in-any-order", "keys-in-any-order"),
    ),
    Statement(
        id="sys.transformer",
        where="chapter 11, core intuition; lesson 3; the third document (GPT-4, Claude)",
        says="Transformer blocks, vision transformers, diffusion models and named language models "
        "are built on attention.",
        verdict="narrative",
        reason="They are named, and nothing is claimed of them beyond what the other records say "
        "of attention: a block adds norms, residuals and an MLP row by row.",
    ),
    Statement(
        id="sys.torch",
        where="PyTorch 2; the third document, PyTorch implementation",
        says="PyTorch's own attention is the same function: in its functional form a boolean mask "
        "is true where a key is visible, in its module where it is hidden; is_causal is aligned "
        "at the first key; a row that sees nothing gives 0 in version 2.13.",
        formula=r"\mathrm{SDPA}(q, k, v; M) = \mathrm{MHA}(q, k, v; \lnot M)",
        verdict="conditional",
        hypotheses={
            "masks are turned over between the two": one_mask_for_both,
            "n_q = n_k, for is_causal to be the mask of decoding": alignments,
            "version 2.13: older ones give NaN for a row that sees nothing": None,
        },
        check=Check(
            run=opposite_masks,
            subject=(product_attention, module_attention),
            mutations={
                "one meaning for both": (product_attention, product_attention),
                "meanings exchanged": (module_attention, product_attention),
            },
        ),
        properties=("visible-set", "true-mask-hides-nothing", "row-without-keys-returns-zero"),
    ),
)
