"""Objectives, prerequisites, notation, intuition: what the chapter promises, as it holds."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import sympy as sp

from attnspec.spec.chapter11.complexity import total_cost
from attnspec.spec.chapter11.formula import ATTENTION_CHECK
from attnspec.spec.chapter11.heads import EXCESS, EXCESS_CHECK, concatenation, excess
from attnspec.spec.chapter11.independence import initial_score, initialised
from attnspec.spec.chapter11.masks import HIDING_CHECK, hidden_weight
from attnspec.spec.chapter11.memory import tiled_memory
from attnspec.spec.chapter11.projections import projection_shapes
from attnspec.spec.chapter11.retrieval import convex_combination
from attnspec.spec.chapter11.scores import bilinear_form
from attnspec.spec.evidence.expressions import scalars
from attnspec.spec.evidence.laws import SIGNS, Law, moments
from attnspec.spec.evidence.statement import Check, Proof, Statement, require

__all__ = ["STATEMENTS"]


# -- Objective 3: initialisation ------------------------------------------------------------------


def at_initialisation(ratio: Callable[[int, Fraction], Any]) -> str:
    """Var S / d_k against ratio(d, σ²), over every outcome; then of the usual initialisations."""
    for deviation in (Fraction(1), Fraction(1, 2), Fraction(1, 3)):
        law: Law = SIGNS
        for d in (1, 2):
            _, variance = moments(
                lambda *drawn, d=d, s=deviation: s * s * initial_score(d, *drawn), law, 4 * d
            )
            require(variance == ratio(d, deviation**2), f"Var S = {variance} d_k, d = {d}")
    usual = {
        "1/d": ratio(512, Fraction(1, 512)),
        "uniform ± 1/√d": ratio(512, Fraction(1, 3 * 512)),
        "0.02², d = 768": ratio(768, Fraction(2, 100) ** 2),
        "2/(d + d_k), d = 512, d_k = 64": ratio(512, Fraction(2, 576)),
    }
    shown = "; ".join(f"{what}: {float(value):.4f}" for what, value in usual.items())
    return f"every outcome of entries ±σ, d = 1, 2, exactly. Var S / d_k by variance: {shown}"


# -- Prerequisites and intuition ------------------------------------------------------------------


def logistic() -> Proof:
    """softmax(z, 0)_1 = σ(z)."""
    z = sp.Symbol("z", real=True)
    first = sp.exp(z) / (sp.exp(z) + sp.exp(0))
    return Proof(
        steps=(scalars("e^z / (e^z + e⁰) = 1 / (1 + e^-z)", first, 1 / (1 + sp.exp(-z))),),
        mutations={
            "the other class": scalars("… = 1 / (1 + e^z)", first, 1 / (1 + sp.exp(z))),
            "of both signs": scalars(
                "softmax(z, -z)_1 = σ(z)", sp.exp(z) / (sp.exp(z) + sp.exp(-z)),
                1 / (1 + sp.exp(-z)),
            ),
        },
    )  # fmt: skip


def rounds_of_additions(claimed: Callable[[int], int]) -> str:
    """Sums of two at a time: each round halves the number of terms; no fewer rounds can do."""
    for n in (1, 2, 3, 7, 8, 9, 1000, 1024):
        terms, rounds = n, 0
        while terms > 1:
            terms, rounds = (terms + 1) // 2, rounds + 1
        require(rounds == claimed(n), f"{rounds} rounds for {n} terms")
        require(2**rounds >= n, "a term is not reached")
    return "1 to 1024 terms, two at a time: ⌈log₂ n⌉ rounds; t rounds reach at most 2^t terms"


STATEMENTS = (
    Statement(
        id="ch11.lo1",
        where="Learning objective 1",
        says="Motivates attention as retrieval by content.",
        verdict="narrative",
        reason="A motivation. The retrieval itself is Definition 3 (ch11.def3).",
    ),
    Statement(
        id="ch11.lo2",
        where="Learning objective 2",
        says="Scores are products of projected inputs.",
        formula=r"S = Q K^\top = X W_Q W_K^\top X^\top",
        verdict="true",
        proof=bilinear_form,
    ),
    Statement(
        id="ch11.lo3",
        where="Learning objective 3",
        says="The variance of a score is d_k under standard initialisation.",
        formula=r"\mathrm{Var}\, S_{ij} = d_k\,(d\,\sigma_W^2)^2",
        verdict="imprecise",
        exact="For weights of variance 1/d, and inputs of |x|² = d in the mean. The default of a "
        "linear layer in PyTorch gives d_k/9, a standard deviation of 0.02 at d = 768 gives "
        "0.094 d_k, and Xavier's for one head of 64 at d = 512 gives 3.16 d_k.",
        proof=initialised,
        check=Check(
            run=at_initialisation,
            subject=lambda d, variance: (d * variance) ** 2,
            mutations={
                "1 whatever the initialisation": lambda d, variance: 1,
                "linear in the variance": lambda d, variance: d * variance,
                "without the fan-in": lambda d, variance: variance**2,
            },
        ),
    ),
    Statement(
        id="ch11.lo4",
        where="Learning objective 4",
        says="The formulas of attention and of multi-head attention.",
        formula=r"\mathrm{softmax}(QK^\top/\sqrt{d_k})\,V, \quad"
        r"\mathrm{Concat}(H_1, \ldots, H_h)\,W_O = \textstyle\sum_a H_a W_O^{(a)}",
        verdict="true",
        proof=concatenation,
        check=ATTENTION_CHECK,
        properties=("output-averages-values", "odds-are-exponential", "heads-are-independent"),
    ),
    Statement(
        id="ch11.lo5",
        where="Learning objective 5",
        says="Causal masking makes attention autoregressive.",
        formula=r"A_{ij} = 0 \text{ for } j > i",
        verdict="true",
        proof=hidden_weight,
        check=HIDING_CHECK,
        properties=("later-tokens-have-no-influence", "prefix-equals-first-rows"),
    ),
    Statement(
        id="ch11.lo6",
        where="Learning objective 6",
        says="O(n²d) time, O(n²) memory.",
        formula=r"4n^2d + 8nd^2 + 5hn^2 - 2hn - 5nd",
        verdict="imprecise",
        exact="As n grows with d fixed. It leaves out 8nd² operations of the projections, and in "
        "memory the number of heads, h n², and O(nd).",
        proof=total_cost,
    ),
    Statement(
        id="ch11.lo7",
        where="Learning objective 7",
        says="Heads add capacity and no operations.",
        formula=r"F_h - F_1 = (h-1)(5n^2 - 2n)",
        verdict="imprecise",
        exact=EXCESS,
        proof=excess,
        check=EXCESS_CHECK,
    ),
    Statement(
        id="ch11.prereq.softmax",
        where="Prerequisites",
        says="Softmax generalises the logistic function to several classes.",
        formula=r"\mathrm{softmax}(z, 0)_1 = \sigma(z)",
        verdict="true",
        proof=logistic,
    ),
    Statement(
        id="ch11.notation",
        where="Notation",
        says="X is n × d, Q and K are n × d_k, V is n × d_v, S and A are n × n.",
        formula=r"Q, K \in \mathbb{R}^{n\times d_k}, \; V \in \mathbb{R}^{n\times d_v}, \;"
        r"S, A \in \mathbb{R}^{n\times n}",
        verdict="true",
        proof=projection_shapes,
    ),
    Statement(
        id="ch11.intuit.depth",
        where="Core intuition, depth",
        says="A recurrent network takes O(n) sequential steps, attention O(1).",
        formula=r"\text{depth of a sum of } n = \lceil \log_2 n \rceil",
        verdict="imprecise",
        exact="O(1) layers. With operations of two operands, the sums over n keys have depth "
        "⌈log₂ n⌉: O(log n) steps.",
        check=Check(
            run=rounds_of_additions,
            subject=lambda n: (n - 1).bit_length(),
            mutations={
                "constant": lambda n: 1,
                "one after another": lambda n: n - 1,
                "rounded down": lambda n: n.bit_length() - 1,
            },
        ),
    ),
    Statement(
        id="ch11.intuit.roles",
        where="Core intuition, roles",
        says="Queries ask, keys advertise, values inform; the output is a weighted sum of values.",
        formula=r"o_i = \textstyle\sum_j A_{ij} v_j",
        verdict="true",
        proof=convex_combination,
        properties=("output-averages-values",),
    ),
    Statement(
        id="ch11.intuit.systems",
        where="Core intuition, systems",
        says="Positional encoding adds order; fast kernels make long sequences tractable.",
        formula=r"n(d_v + 2 + b) \text{ numbers for } n^2, \text{ operations of order } n^2",
        verdict="imprecise",
        exact="Tiles remove the n² memory; the operations remain of the order n².",
        proof=tiled_memory,
    ),
)
