"""What is learned, what is configured, and what is made anew for each input."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnspec.spec.evidence import binary, exact
from attnspec.spec.evidence.statement import Check, Statement, require

__all__ = ["STATEMENTS"]

SOURCES = {"weights W": "learned", "scale": "config", "mask": "config", "A": "state", "O": "state"}


def parts(x: Any, w: Any) -> dict[str, Any]:
    """Everything of one causal head, by name."""
    q, k, v = (x @ matrix for matrix in w)
    visible = binary.causal(len(x))
    a = exact.weights(binary.exponentials(q, k, visible=visible))
    return {"weights W": np.concatenate(w), "scale": 1, "mask": visible, "A": a, "O": a @ v}


def sorts(table: dict[str, str]) -> str:
    """State follows the input, the learned follows training, config neither."""
    x, y = binary.integers((4, 3), seed=1), binary.integers((4, 3), seed=2)
    w, trained = ([binary.integers((3, 2), seed=s + k) for k in range(3)] for s in (3, 9))
    first, again, moved, later = parts(x, w), parts(x, w), parts(y, w), parts(x, trained)
    for name, kind in table.items():
        require(np.all(first[name] == again[name]), f"{name} is not a function of its input")
        follows_input = not np.all(first[name] == moved[name])
        follows_weights = not np.all(first[name] == later[name])
        found = "state" if follows_input else "learned" if follows_weights else "config"
        require(found == kind, f"{name} is {found}, not {kind}")
    return "W changes with training alone, A and O with the input, scale and mask with neither"


def backward_needs_weights() -> str:
    """dV = Aᵀ dO."""
    dout, v = binary.integers((3, 2), seed=4), binary.integers((3, 2), seed=5)
    dvs = [exact.gradients(exact.positive((3, 3), seed=s), v, dout).dv for s in (6, 7)]
    require(not binary.same(*dvs), "dV does not depend on A")
    return "dV = Aᵀ dO depends on A: training keeps A, or the log-sum-exp to make it again"


STATEMENTS = (
    Statement(
        id="lesson3.table",
        where="Section 7, the table",
        says="Matrices are learned; sizes, scale and mask are configuration; A and O are state.",
        verdict="true",
        check=Check(
            run=sorts,
            subject=SOURCES,
            mutations={
                "A learned": {**SOURCES, "A": "learned"},
                "mask is state": {**SOURCES, "mask": "state"},
            },
        ),
    ),
    Statement(
        id="lesson3.sec7.state",
        where="Section 7, after the table",
        says="A is recomputed for each input and never stored.",
        verdict="conditional",
        hypotheses={"no gradient wanted": backward_needs_weights},
        check=Check(
            run=sorts,
            subject={"A": "state"},
            mutations={"A a parameter": {"A": "learned"}, "A a constant": {"A": "config"}},
        ),
    ),
)
