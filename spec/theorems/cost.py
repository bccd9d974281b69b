"""Cost: operations of a layer, counted."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import sympy as sp

from attnspec.spec.evidence.binary import causal
from attnspec.spec.evidence.expressions import scalars
from attnspec.spec.evidence.statement import Check, Proof, Statement, require

__all__ = ["STATEMENTS"]


# -- Operations ------------------------------------------------------------------------------------


@dataclass
class Products:
    """Shapes of matrix products, and the operations they take: 2 a multiply-add."""

    operations: int = 0
    names: list[str] = field(default_factory=list)

    def product(self, name: str, rows: int, inner: int, columns: int) -> None:
        """(rows, inner) @ (inner, columns)."""
        self.names.append(name)
        self.operations += 2 * rows * inner * columns


def forward(n: int, d: int, h: int) -> Products:
    """Projections of all heads, scores and outputs of each, W_O."""
    seen = Products()
    for name in "QKV":
        seen.product(f"X W_{name}", n, d, d)
    for _ in range(h):
        seen.product("Q Kᵀ", n, d // h, n)
        seen.product("A V", n, n, d // h)
    seen.product("O W_O", n, d, d)
    return seen


def backward(n: int, d: int, h: int, *, recomputed: bool = False) -> Products:
    """Of attention alone: dV, dA, dQ, dK of each head; S once more where it is recomputed."""
    seen = Products()
    for _ in range(h):
        for name in ("dV = Aᵀ dO", "dA = dO Vᵀ", "dQ = dS K", "dK = dSᵀ Q"):
            seen.product(name, n, n, d // h)
        if recomputed:
            seen.product("S = Q Kᵀ", n, d // h, n)
    return seen


def counted(closed_form: Any) -> str:
    """n = 3, 8, 64; d = 8, 64; h = 1, 2, 8; causal pairs one by one; backward over forward."""
    for n, d, h in itertools.product((3, 8, 64), (8, 64), (1, 2, 8)):
        found = forward(n, d, h).operations
        require(found == closed_form(n, d), f"n = {n}, d = {d}, h = {h}: {found} operations")
        require(causal(n).sum() == n * (n + 1) // 2, f"n = {n}: not n(n + 1)/2 pairs")
        core = found - 8 * n * d * d
        require(backward(n, d, h).operations == 2 * core, "backward is not twice forward")
        fused = backward(n, d, h, recomputed=True).operations
        require(2 * fused == 5 * core, "recomputing, it is not 5/2 of forward")
    return "18 sizes: 4n²d + 8nd², n(n + 1)/2 causal pairs, backward 2 and 5/2 times, counted"


def pairs_and_totals() -> Proof:
    """h heads of d/h channels; pairs row by row."""
    n, d, h, i = sp.symbols("n d h i", integer=True, positive=True)
    heads = h * (2 * n**2 * (d / h) + 2 * n**2 * (d / h))
    total = heads + 3 * 2 * n * d**2 + 2 * n * d**2
    pairs = sp.Sum(i, (i, 1, n)).doit()
    return Proof(
        steps=(
            scalars("4n²d + 8nd², whatever h", total, 4 * n**2 * d + 8 * n * d**2),
            scalars("Σ_(i≤n) i = n(n + 1)/2", pairs, n * (n + 1) / 2),
        ),
        mutations={
            "without W_O": scalars("4n²d + 6nd²", total, 4 * n**2 * d + 6 * n * d**2),
            "h times more": scalars("4hn²d + 8nd²", total, 4 * h * n**2 * d + 8 * n * d**2),
            "half the square": scalars("n²/2", pairs, n**2 / 2),
        },
    )


def softmax_of_heads() -> str:
    """Softmax works on h n² scores: c h n² operations beside the products."""
    n, d, c = 4096, 4096, 5
    one, many = (4 * n * n * d + c * h * n * n for h in (1, 32))
    excess = Fraction(many - one, one)
    require(excess == Fraction(c * 31, c + 4 * d), f"{excess}")
    return f"d = 4096, c = 5: 32 heads take {float(excess):.4%} more than one, in softmax"


def heads_that_do_not_divide() -> str:
    """d = 8 in 3 heads of 2 channels leaves two channels out."""
    found, claimed = forward(4, 8, 3).operations, 4 * 16 * 8 + 8 * 4 * 64
    require(found != claimed, f"{found}")
    return f"n = 4, d = 8, 3 heads of 2: {found} operations, not {claimed}"


STATEMENTS = (
    Statement(
        id="ext.flops",
        where="folklore (Kaplan et al. 2020); chapter 11, Theorem 3 and complexity; lesson 3, "
        "section 7",
        says="A layer takes 4n²d + 8nd² operations in products, whatever the heads, and c in "
        "softmax for each score of each of h heads; causal masks leave n(n + 1)/2 pairs; "
        "attention's backward takes twice its forward, 5/2 where scores are recomputed.",
        formula=r"4 n^2 d + 8 n d^2 + c\,h\,n^2, \quad \tfrac{n(n+1)}{2}, \quad "
        r"\mathrm{bwd}/\mathrm{fwd} = 2,\ \tfrac52",
        verdict="conditional",
        hypotheses={
            "products only, for any number of heads": softmax_of_heads,
            "d_k = d_v = d/h": heads_that_do_not_divide,
        },
        proof=pairs_and_totals,
        check=Check(
            run=counted,
            subject=lambda n, d: 4 * n * n * d + 8 * n * d * d,
            mutations={
                "one operation a multiply-add": lambda n, d: 2 * n * n * d + 4 * n * d * d,
                "without W_O": lambda n, d: 4 * n * n * d + 6 * n * d * d,
            },
        ),
    ),
)
