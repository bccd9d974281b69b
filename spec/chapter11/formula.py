"""The formula of attention, and its rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np

from attnspec.oracle.problem import Problem
from attnspec.oracle.reference import reference
from attnspec.spec.chapter11.retrieval import convex_combination
from attnspec.spec.evidence import digits
from attnspec.spec.evidence.statement import Check, Statement, require

__all__ = ["ATTENTION_CHECK", "STATEMENTS"]


def agrees_with_reference(attend: Callable[..., Any]) -> str:
    """The formula in 50 digits against the certified bounds of the oracle, element by element."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((3, size)) for size in (16, 16, 2))
    found = attend(q, k, v)
    problem = Problem(q=q[None, None], k=k[None, None], v=v[None, None], scale=0.25)
    certified = reference(problem, want=("out",))["out"]
    low = certified.low if certified.low is not None else np.zeros_like(certified.value)
    with mpmath.workdps(digits.DIGITS):
        for place in np.ndindex(3, 2):
            centre = mpmath.mpf(float(certified.value[0, 0][place])) + float(low[0, 0][place])
            bound = mpmath.mpf(float(certified.bound[0, 0][place])) + mpmath.mpf(10) ** -45
            require(abs(found[place] - centre) <= bound, f"element {place} is out of bounds")
    return "3 rows, d_k = 16, 50 digits: within the oracle's certified bounds"


ATTENTION_CHECK = Check(
    run=agrees_with_reference,
    subject=digits.attention,
    mutations={
        "not scaled": lambda q, k, v: digits.attention(q, k, v, scale=1),
        "divided by d_k": lambda q, k, v: digits.attention(q, k, v, scale=mpmath.mpf(1) / 16),
        "queries and keys exchanged": lambda q, k, v: digits.attention(k, q, v),
    },
)


STATEMENTS = (
    Statement(
        id="ch11.thm2",
        where="Theorem 2, equation (10)",
        says="Attention is softmax of scaled scores, times the values. (A definition.)",
        formula=r"\mathrm{Attention}(Q, K, V)"
        r" = \mathrm{softmax}(Q K^\top / \sqrt{d_k})\, V",
        verdict="true",
        check=ATTENTION_CHECK,
        properties=("out", "odds-are-exponential", "output-averages-values"),
    ),
    Statement(
        id="ch11.thm2.row",
        where="Theorem 2, equation (11)",
        says="Each row of the output is a convex combination of the values.",
        formula=r"o_i = \textstyle\sum_j A_{ij} v_j \in \mathrm{conv}\,\{v_j\}",
        verdict="true",
        proof=convex_combination,
        properties=("output-averages-values", "output-in-hull-of-values"),
    ),
)
