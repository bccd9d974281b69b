"""Masks: what a causal row sees, and the two ways to hide the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import sympy as sp

from attnspec.spec.evidence import binary, digits, exact
from attnspec.spec.evidence.statement import Check, Proof, Statement, Step, require

__all__ = ["HIDING_CHECK", "STATEMENTS", "hidden_weight"]


def hidden_weight() -> Proof:
    """e^(s - B) → 0 as B → ∞, and is 0 at infinity; the diagonal keeps the sum positive."""
    score = sp.Symbol("s", real=True)
    bias = sp.Symbol("B", positive=True)
    others = sp.Symbol("z", nonnegative=True)
    return Proof(
        steps=(
            Step("e^(s - ∞) = 0 for real s", lambda: bool(sp.exp(score - sp.oo) == 0)),
            Step("e^(s - B) → 0", lambda: bool(sp.limit(sp.exp(score - bias), bias, sp.oo) == 0)),
            Step("e^(s_ii) + the others > 0", lambda: bool((sp.exp(score) + others).is_positive)),
        ),
        mutations={
            "10⁹ is infinite": Step("e^(s - 10⁹) = 0", lambda: bool(sp.exp(score - 10**9) == 0)),
            "the other sign": Step(
                "e^(s + B) → 0", lambda: bool(sp.limit(sp.exp(score + bias), bias, sp.oo) == 0)
            ),
            "the diagonal is hidden too": Step("0 + the others > 0",
                                               lambda: bool(others.is_positive)),
        },
    )  # fmt: skip


def hides_later(mask: Callable[[int], Any]) -> str:
    """Weights 0 after the diagonal and positive up to it; row i as if alone with i + 1 keys."""
    for n in (1, 2, 3, 5):
        e, v = exact.positive((n, n), seed=n), exact.rational((n, 2), seed=n)
        w = exact.weights(e * mask(n))
        for i in range(n):
            require((w[i, i + 1 :] == 0).all(), f"row {i} of {n} weighs a later token")
            require((w[i, : i + 1] > 0).all(), f"row {i} of {n} misses a token it may see")
            alone = exact.output(e[i : i + 1, : i + 1], v[: i + 1])[0]
            require((w[i] @ v == alone).all(), f"row {i} of {n} differs from the prefix alone")
    return "n = 1, 2, 3, 5: all weights, and each row against its prefix alone, exactly"


HIDING_CHECK = Check(
    run=hides_later,
    subject=binary.causal,
    mutations={
        "the diagonal hidden": lambda n: np.tri(n, k=-1, dtype=bool),
        "one token ahead": lambda n: np.tri(n, k=1, dtype=bool),
        "earlier tokens hidden": lambda n: np.tri(n, dtype=bool).T,
        "nothing hidden": lambda n: np.ones((n, n), bool),
    },
)


def added(n: int, hidden: Any) -> Any:
    """The matrix M: 0 up to the diagonal, `hidden` after it."""
    return np.where(np.tri(n, dtype=bool), mpmath.mpf(0), hidden)


def same_as_leaving_out(mask: Callable[[int], Any]) -> str:
    """softmax(S + M) V against attention over the first i + 1 keys, in 50 digits."""
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((4, size)) for size in (3, 3, 2))
    found = digits.attention(q, k, v, mask=mask(4))
    for i in range(4):
        alone = digits.attention(q[i : i + 1], k[: i + 1], v[: i + 1])
        gap = digits.distance(found[i : i + 1], alone)
        require(gap < mpmath.mpf(10) ** -45, f"row {i} is {mpmath.nstr(gap, 3)} off")
    return "4 rows in 50 digits against attention over the keys they see: 45 digits agree"


def infinite_scores() -> str:
    """NaN and ∞ pass through S + M; replacing them hides them."""
    with np.errstate(invalid="ignore"):
        for score in (np.nan, np.inf):
            summed = np.float64(score) + -np.inf
            require(np.isnan(summed), "the sum hides the score")
    return "NaN - ∞ and ∞ - ∞ are NaN: S + M spoils the row, replacing by -∞ does not"


def decoded(
    q: Any, k: Any, v: Any, *, keep: Callable[[int], slice] = lambda t: slice(0, t + 1)
) -> Any:
    """Token by token: append the key and the value, then let the newest query attend."""
    rows, cached_k, cached_v = [], k[:0], v[:0]
    for t in range(len(q)):
        cached_k, cached_v = (
            np.vstack([cached_k, k[t : t + 1]]),
            np.vstack([cached_v, v[t : t + 1]]),
        )
        kept = keep(t)
        rows.append(binary.attention(q[t : t + 1], cached_k[kept], cached_v[kept])[0])
    return np.array(rows, object)


def decoding_is_prefill(decode: Callable[..., Any]) -> str:
    """Rows from a growing cache are the rows of causal attention over everything."""
    q, k, v = (binary.integers((6, size), seed=40 + size) for size in (3, 3, 2))
    whole = binary.attention(q, k, v, visible=binary.causal(6))
    require(binary.same(decode(q, k, v), whole), "decoding gives other rows")
    return "6 tokens, one by one from a cache, against all at once, exactly"


STATEMENTS = (
    Statement(
        id="ch11.def9",
        where="Definition 9, equation (14)",
        says="In a causal row scores of later tokens are minus infinity, so that weights are 0.",
        formula=r"A_{ij} = 0 \text{ for } j > i, \quad A_{ij} > 0 \text{ for } j \le i",
        verdict="true",
        proof=hidden_weight,
        check=HIDING_CHECK,
        properties=(
            "hidden-nan",
            "later-tokens-have-no-influence",
            "later-tokens-have-no-influence-self-attention",
            "hidden-keys-have-no-gradient",
            "visible-set",
        ),
    ),
    Statement(
        id="ch11.def10",
        where="Definition 10, equation (15)",
        says="The same by adding a matrix of 0 and minus infinity to the scores.",
        formula=r"\mathrm{softmax}(\tilde S + M)\,V,"
        r" \quad M_{ij} = 0 \;(j \le i),\; -\infty \;(j > i)",
        verdict="conditional",
        hypotheses={"finite scores": infinite_scores},
        proof=hidden_weight,
        check=Check(
            run=same_as_leaving_out,
            subject=lambda n: added(n, -mpmath.inf),
            mutations={
                "-10 for minus infinity": lambda n: added(n, mpmath.mpf(-10)),
                "-100 for minus infinity": lambda n: added(n, mpmath.mpf(-100)),
                "no mask": lambda n: added(n, mpmath.mpf(0)),
                "transposed": lambda n: added(n, -mpmath.inf).T,
            },
        ),
        properties=("mask-is-a-bias", "hiding-is-masking", "hidden-keys-have-no-influence"),
    ),
    Statement(
        id="ch11.kvcache.ref",
        where="after Definition 10",
        says="A cache of keys and values makes autoregressive inference efficient.",
        formula=r"o_t = \mathrm{Attention}(q_t, K_{\le t}, V_{\le t})",
        verdict="true",
        check=Check(
            run=decoding_is_prefill,
            subject=decoded,
            mutations={
                "the newest key is missing": lambda q, k, v: decoded(
                    q, k, v, keep=lambda t: slice(0, max(t, 1))
                ),
                "only three keys are kept": lambda q, k, v: decoded(
                    q, k, v, keep=lambda t: slice(max(0, t - 2), t + 1)
                ),
                "without a mask": lambda q, k, v: binary.attention(q, k, v),
            },
        ),
        properties=("decoding-equals-prefill", "prefix-equals-first-rows"),
    ),
)
