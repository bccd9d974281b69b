"""Consequences: places without a code, dropout of weights, and operations to count."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import sympy as sp

from attnspec.spec.evidence import exact
from attnspec.spec.evidence.binary import attention, causal, integers, same
from attnspec.spec.evidence.exact import Matrix, matrix
from attnspec.spec.evidence.expressions import scalars
from attnspec.spec.evidence.statement import Check, Proof, Statement, require
from attnspec.spec.evidence.sums import identity

__all__ = ["STATEMENTS"]


# -- Places without a code ------------------------------------------------------------------------


def place_from_the_mask(attend: Any) -> str:
    """q = 0, the first token marked: row i of n ≤ 6 reads 1/i, the same words or not."""
    for n in range(1, 7):
        k, first = integers((n, 2), seed=n), matrix([[1]] + [[0]] * (n - 1))
        out = attend(k * 0, k, first)
        require(same(out[:, 0], [Fraction(1, i) for i in range(1, n + 1)]), f"n = {n}")
    return "n = 1..6: row i reads 1/i of a mark on the first token, exactly"


def no_mask_no_place() -> str:
    """Without the mask every row is the same mean."""
    k, first = integers((4, 2), seed=1), matrix([[1], [0], [0], [0]])
    out = attention(k * 0, k, first)
    require(len(set(out[:, 0])) == 1, "rows differ")
    return "no mask: all 4 rows read 1/4"


def no_mark_no_place() -> str:
    """Where all values are the same, no row knows its place."""
    k = integers((4, 2), seed=1)
    out = attention(k * 0, k, matrix([[1]] * 4), visible=causal(4))
    require(len(set(out[:, 0])) == 1, "rows differ")
    return "four equal values under a causal mask: four equal rows"


# -- Dropout --------------------------------------------------------------------------------------


def mean_and_variance() -> Proof:
    """Each weight is kept with chance 1 - p and divided by it: factors m_j of mean 1."""
    j, k = sp.symbols("j k", integer=True)
    n = sp.Symbol("n", integer=True, positive=True)
    p = sp.Symbol("p", positive=True)
    a, v = sp.IndexedBase("a"), sp.IndexedBase("v")
    over_j, over_k = (j, 0, n - 1), (k, 0, n - 1)
    mean, excess = (1 - p) * (1 / (1 - p)), sp.cancel((1 - p) / (1 - p) ** 2 - 1)
    delta = sp.KroneckerDelta(j, k)
    # E m_j m_k: 1, and where j = k more, by what (1 - p)/(1 - p)² exceeds 1.
    moment = sp.Sum(a[j] * a[k] * (1 + delta * excess), over_j, over_k)
    squares = sp.Sum(a[j] ** 2, over_j)
    out = sp.Sum(a[j] * v[j], over_j)
    return Proof(
        steps=(
            identity("E O = A V", sp.Sum(a[j] * mean * v[j], over_j), out),
            identity(
                "Var Σ_j = p/(1 - p) Σ A²",
                moment - 1,
                sp.cancel(p / (1 - p)) * squares,
                stochastic=[a],
            ),
        ),
        mutations={
            "not divided": identity(
                "E O = (1 - p) A V", sp.Sum(a[j] * (1 - p) * v[j], over_j), out
            ),
            "rows still sum to 1": identity("Var Σ_j = 0", moment - 1, 0, stochastic=[a]),
        },
    )


def every_mask(kept: Any) -> str:
    """All 32 masks of 5 weights, p = 1/4: the mean output, and the variance of a row's sum."""
    a = exact.weights(exact.positive((1, 5), seed=1))[0]
    v, p = integers((5, 2), seed=2), Fraction(1, 4)
    mean, sums = v[0] * Fraction(0), {1: Fraction(0), 2: Fraction(0)}
    for mask in itertools.product((0, 1), repeat=5):
        chance = (1 - p) ** sum(mask) * p ** (5 - sum(mask))
        row = kept(a, matrix(list(mask)), p)
        mean = mean + chance * (row @ v)
        for power in sums:
            sums[power] += chance * row.sum() ** power
    require(same(mean, a @ v), "the mean output is not A V")
    require(sums[1] == 1, "rows do not sum to 1 in the mean")
    require(sums[2] - 1 == p / (1 - p) * (a * a).sum(), "another variance of the sum")
    return "32 masks of 5 weights, p = 1/4, exactly"


def renormalised(a: Matrix, mask: Matrix, p: Fraction) -> Matrix:
    """The weights that are left, made to sum to 1."""
    return np.asarray(exact.weights((a * mask)[None])[0])


def sums_made_1() -> str:
    """Two weights of 1/4 and 3/4, p = 1/2, what is left made to sum to 1."""
    a, half = matrix(["1/4", "3/4"]), Fraction(1, 2)
    rows = [renormalised(a, matrix(list(m)), half) for m in itertools.product((0, 1), repeat=2)]
    mean = np.sum(rows, axis=0) / Fraction(4)
    require(not same(mean, a), "the mean is kept")
    return f"weights 1/4 and 3/4, p = 1/2: in the mean {mean[0]} and {mean[1]}"


# -- Operations -----------------------------------------------------------------------------------


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
        id="ext.nope",
        where="Haviv et al. 2022; beside chapter 11, Exercise 8",
        says="Under a causal mask attention tells places apart without any code of them.",
        formula=r"q = 0: \quad A_{i1} = 1/i",
        verdict="conditional",
        hypotheses={
            "a causal mask": no_mask_no_place,
            "a first token that differs": no_mark_no_place,
        },
        check=Check(
            run=place_from_the_mask,
            subject=lambda q, k, v: attention(q, k, v, visible=causal(len(q))),
            mutations={
                "no mask": attention,
                "itself hidden": lambda q, k, v: attention(
                    q, k, v, visible=np.tri(len(q), len(k), -1, dtype=bool)
                ),
            },
        ),
        properties=("equal-scores-average-plainly", "every-length-averages-plainly"),
    ),
    Statement(
        id="ext.dropout",
        where="Srivastava et al. 2014, Vaswani et al. 2017; none of the documents",
        says="Weights dropped and divided by the chance to stay give the output in the mean; a "
        "row's sum is 1 only in the mean.",
        formula=r"\mathbb{E}\,O = AV, \qquad \mathrm{Var} \sum_j \tilde A_{ij} = "
        r"\frac{p}{1-p} \sum_j A_{ij}^2",
        verdict="conditional",
        hypotheses={"weights are divided by 1 - p and not made to sum to 1": sums_made_1},
        proof=mean_and_variance,
        check=Check(
            run=every_mask,
            subject=lambda a, mask, p: a * mask / (1 - p),
            mutations={
                "not divided": lambda a, mask, p: a * mask,
                "made to sum to 1": renormalised,
            },
        ),
    ),
    Statement(
        id="ext.flops",
        where="folklore (Kaplan et al. 2020); chapter 11, Theorem 3 and complexity; lesson 3, "
        "section 7",
        says="A layer takes 4n²d + 8nd² operations in products, whatever the heads; causal masks "
        "leave n(n + 1)/2 pairs; attention's backward takes twice its forward, 5/2 where scores "
        "are recomputed.",
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
