"""The full formula, in five steps, and what a mask does in the third."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np

from attnspec.spec.evidence import binary, digits, exact
from attnspec.spec.evidence.statement import Check, Statement, require

__all__ = ["STATEMENTS"]

Q, K, V = (binary.integers((4, width), seed=seed) for seed, width in ((1, 3), (2, 3), (3, 2)))
CLOSE = mpmath.mpf(10) ** -40


# -- the formula ----------------------------------------------------------------------------------


def is_odds_weighted(attention: Any) -> str:
    """Weights in the ratio e^(q·(k_j - k_l)/√d_k), so Σ_j e^(s_j - s_l) (v_j - o) = 0 for any l."""
    out = attention(Q, K, V)
    require(out.shape == (4, 2), f"the output is {out.shape}")
    with mpmath.workdps(digits.DIGITS):
        for i in range(4):
            s = [(Q[i] @ (K[j] - K[0])) / mpmath.sqrt(3) for j in range(4)]
            for c in range(2):
                rest = mpmath.fsum(mpmath.exp(x) * (V[j, c] - out[i, c]) for j, x in enumerate(s))
                require(abs(rest) < CLOSE, f"output [{i}, {c}] is not that average")
    return "4 tokens, d_k = 3, 8 outputs: each balances the values weighted by e^s, to 40 digits"


# -- five steps -----------------------------------------------------------------------------------


def five_steps(q: Any, k: Any, v: Any, mask: Any) -> list[Any]:
    """Scores, scaled, masked, weights, output: each from the one before."""
    raw = q @ k.T
    scaled = raw / mpmath.sqrt(q.shape[1])
    masked = scaled + mask
    weights = np.array([digits.softmax(row) for row in masked], object)
    return [raw, scaled, masked, weights, weights @ v]


def steps_fit(steps: Any) -> str:
    """The shape of every step, and the last against the formula in one piece."""
    mask = np.where(binary.causal(4), mpmath.mpf(0), mpmath.mpf("-inf"))
    with mpmath.workdps(digits.DIGITS):
        done = steps(Q, K, V, mask)
    shapes = [step.shape for step in done]
    require(shapes == [(4, 4)] * 4 + [(4, 2)], f"the shapes are {shapes}")
    gap = digits.distance(done[-1], digits.attention(Q, K, V, mask=mask))
    require(gap < CLOSE, "the last step is not attention")
    return "(4, 4) four times, then (4, 2): attention to 40 digits"


def scaled_after_softmax(q: Any, k: Any, v: Any, mask: Any) -> list[Any]:
    """Wrong: the divisor comes after softmax."""
    raw = q @ k.T
    weights = np.array([digits.softmax(row) for row in raw + mask], object)
    return [raw, raw, raw + mask, weights, weights / mpmath.sqrt(q.shape[1]) @ v]


def mask_forgotten(q: Any, k: Any, v: Any, mask: Any) -> list[Any]:
    """Wrong: step 3 does nothing."""
    return five_steps(q, k, v, np.zeros(mask.shape, object))


# -- three conventions ----------------------------------------------------------------------------

HIDDEN = np.array([False, True, False])


def added(scores: Any) -> Any:
    """The text: -∞ is added."""
    with np.errstate(invalid="ignore"):
        return scores + np.where(HIDDEN, -np.inf, 0.0)


def replaced(scores: Any) -> Any:
    """The PyTorch listing: -∞ takes the place."""
    return np.where(HIDDEN, -np.inf, scores)


def replaced_by_number(scores: Any) -> Any:
    """The NumPy listing: -1e9 takes the place."""
    return np.where(HIDDEN, -1e9, scores)


def where_they_part(convention: Any) -> str:
    """What adding -∞ does: finite scores, an infinite one, and visible scores below -1e9."""
    ordinary = np.array([1.0, 2.0, 3.0])
    for other in (added, replaced, replaced_by_number):
        same = digits.distance(_weights(other(ordinary)), _weights(convention(ordinary)))
        require(same == 0, "they differ on ordinary scores")
    infinite = convention(np.array([1.0, np.inf, 3.0]))
    require(np.isnan(infinite[1]), "an infinite score at a hidden key is hidden, not NaN")
    low = _weights(convention(np.array([-1e10, 0.0, -1e10])))
    require(low[1] == 0, "a hidden key wins over visible scores below -1e9")
    return "equal on finite scores; +∞ at a hidden key is NaN if added to; low scores lose to -1e9"


def _weights(scores: Any) -> Any:
    e = np.exp(scores - scores.max())
    return e / e.sum()


# -- A[i, j] --------------------------------------------------------------------------------------


def exact_weights(q: Any, k: Any) -> exact.Matrix:
    """A at the scale ln 2."""
    return exact.weights(binary.exponentials(q, k))


def row_is_the_query(weights: Any) -> str:
    """Query 2 is edited: row 2 changes and no other."""
    q = Q.copy()
    q[2] = q[2] + np.array([1, -1, 2], object)
    before, after = weights(Q, K), weights(q, K)
    changed = {i for i in range(4) if not binary.same(before[i], after[i])}
    require(changed == {2}, f"rows {sorted(changed)} change with query 2")
    return "4 tokens: an edit of query 2 changes row 2 of A alone, exactly"


STATEMENTS = (
    Statement(
        id="heart.formula",
        where="The full formula",
        says="Softmax of the scaled scores, times the values.",
        formula=r"\mathrm{softmax}\bigl(QK^\top/\sqrt{d_k}\bigr)\,V",
        verdict="true",
        check=Check(
            run=is_odds_weighted,
            subject=digits.attention,
            mutations={
                "unscaled": lambda q, k, v: digits.attention(q, k, v, scale=1),
                "divided by d_k": lambda q, k, v: digits.attention(
                    q, k, v, scale=mpmath.mpf(1) / 3
                ),
                "queries and keys exchanged": lambda q, k, v: digits.attention(k, q, v),
            },
        ),
        properties=("odds-are-exponential", "output-averages-values"),
    ),
    Statement(
        id="heart.steps",
        where="The full formula, the table of five steps",
        says="Scores, scale, mask, softmax, average, with their shapes.",
        formula=r"(n,n) \to (n,n) \to (n,n) \to (n,n) \to (n,d_v)",
        verdict="true",
        check=Check(
            run=steps_fit,
            subject=five_steps,
            mutations={
                "scaled after softmax": scaled_after_softmax,
                "mask forgotten": mask_forgotten,
            },
        ),
    ),
    Statement(
        id="heart.steps.mask",
        where="The full formula, step 3",
        says="Masking adds -∞ to the hidden scores.",
        formula=r"s_{ij} + (-\infty) = -\infty \iff s_{ij} < \infty",
        verdict="imprecise",
        exact="The document has three conventions: adding -∞ (here), replacing by -1e9 (NumPy), "
        "replacing by -∞ (PyTorch). They agree where scores are finite and a visible one is at "
        "least -1e9 + 746.",
        check=Check(
            run=where_they_part,
            subject=added,
            mutations={"replaced by -∞": replaced, "replaced by -1e9": replaced_by_number},
        ),
        properties=("mask-is-a-bias", "hidden-keys-have-no-influence"),
    ),
    Statement(
        id="heart.Aij",
        where="The full formula, the attention matrix",
        says="A[i, j] is how much token i attends to token j: rows are queries.",
        formula=r"A_{ij} = \mathrm{softmax}_j(q_i^\top k_j/\sqrt{d_k})",
        verdict="true",
        check=Check(
            run=row_is_the_query,
            subject=exact_weights,
            mutations={
                "transposed": lambda q, k: exact_weights(q, k).T,
                "normalised down the columns": lambda q, k: exact_weights(k, q).T,
            },
        ),
    ),
)
