"""Tiles: exact attention in blocks of queries and keys (FlashAttention), and parts merged by lse.

Scores are integers and the base is 2, so the running maximum and all rescaling are exact.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import sympy as sp

from attnspec.spec.evidence import exact
from attnspec.spec.evidence.binary import attention, causal, exponentials, integers, same
from attnspec.spec.evidence.exact import Matrix
from attnspec.spec.evidence.expressions import scalars
from attnspec.spec.evidence.statement import Check, Proof, Statement, require

__all__ = ["STATEMENTS", "by_sums", "every_partition"]

NOTHING = float("-inf")
TWO = Fraction(2)


# -- The running state ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Tiling:
    """One query row over blocks of keys: running maximum m, sum l, and unnormalised output o.

    rescaled: which of the two are brought from the old maximum to the new. guarded: 2^(-∞ + ∞) is
    0, not NaN. Mutations change one of them.
    """

    rescaled: tuple[str, ...] = ("sum", "output")
    guarded: bool = True

    def row(self, scores: Any, v: Matrix, *, block: int) -> Matrix:
        """The output of one query; a hidden key has score -∞; without any key, 0."""
        m, total, out = NOTHING, Fraction(0), v[0] * Fraction(0)
        for start in range(0, len(v), block):
            part, values = scores[start : start + block], v[start : start + block]
            new = max(m, *part)
            old = self._power(m, new)
            p = np.array([self._power(score, new) for score in part], object)
            total = total * (old if "sum" in self.rescaled else 1) + p.sum()
            out = out * (old if "output" in self.rescaled else 1) + p @ values
            m = new
        return np.asarray(out / total if total != 0 else out)

    def _power(self, score: Any, reference: Any) -> Any:
        if score == NOTHING:
            return Fraction(0) if self.guarded or reference != NOTHING else float("nan")
        return TWO ** (score - reference)


def masks(queries: int, keys: int) -> Iterator[Any]:
    """Nothing hidden; causal; the first keys hidden from all; a row that sees nothing."""
    yield np.ones((queries, keys), dtype=bool)
    yield causal(queries, keys)
    late = np.ones((queries, keys), dtype=bool)
    late[:, : keys - 1] = False
    yield late
    blind = np.ones((queries, keys), dtype=bool)
    blind[0] = False
    yield blind


def every_tile(tiling: Tiling) -> str:
    """All blocks of 1..n_k keys, n_q ≠ n_k, d_v ≠ d_k, four masks; query blocks change nothing."""
    count = 0
    for queries, keys in ((3, 3), (2, 5), (5, 2), (1, 4), (4, 1)):
        q, k = integers((queries, 2), seed=1, within=3), integers((keys, 2), seed=2, within=3)
        v = integers((keys, 3), seed=3)
        for visible, block in itertools.product(masks(queries, keys), range(1, keys + 2)):
            scores = np.where(visible, q @ k.T, NOTHING)
            out = [tiling.row(row, v, block=block) for row in scores]
            whole = attention(q, k, v, visible=visible)
            require(same(out, whole), f"{queries} × {keys} in blocks of {block} differs")
            count += 1
    return f"{count} tilings of 5 shapes and 4 masks, and the backward pass of 12, exactly"


def forward_and_backward(subject: tuple[Tiling, str]) -> str:
    """The forward in tiles, and gradients from P recomputed by lse, tile by tile."""
    tiling, centre = subject
    said = every_tile(tiling)
    _require_traffic()
    q, k, v = (integers((n, 2), seed=s) for n, s in ((3, 1), (4, 2), (4, 3)))
    dout = integers((3, 2), seed=4)
    whole = exact.gradients(exponentials(q, k), v, dout)
    total = exponentials(q, k).sum(1)
    d = (dout * attention(q, k, v)).sum(1) * (1 if centre == "<dO, O>" else 0)
    for rows, columns in itertools.product(range(1, 4), range(1, 5)):
        dq, dk, dv = q * Fraction(0), k * Fraction(0), v * Fraction(0)
        for a, b in itertools.product(range(0, 3, rows), range(0, 4, columns)):
            r, c = slice(a, a + rows), slice(b, b + columns)
            p = exponentials(q[r], k[c]) / total[r, None]
            ds = p * (dout[r] @ v[c].T - d[r, None])
            dq[r], dk[c], dv[c] = dq[r] + ds @ k[c], dk[c] + ds.T @ q[r], dv[c] + p.T @ dout[r]
        require(same(dq, whole.ds @ k), "dQ differs from α dS K")
        require(same(dk, whole.ds.T @ q), "dK differs from α dSᵀ Q")
        require(same(dv, whole.dv), "dV differs from Aᵀ dO")
    return said


def words(n: int, d: int, *, rows: int) -> int:
    """Loads and stores of slow memory: a block of queries, all keys and values, its outputs."""
    moved = 0
    for start in range(0, n, rows):
        block = len(range(start, min(start + rows, n)))
        moved += block * d + 2 * n * d + block * d
    return moved


def _require_traffic() -> None:
    for n, d, rows in itertools.product((4, 12, 48), (2, 8), (1, 2, 4)):
        claimed = 2 * n * d + n // rows * 2 * n * d
        require(words(n, d, rows=rows) == claimed, f"n = {n}: {words(n, d, rows=rows)} words")


def first_block_hidden() -> str:
    """Without the guard, -∞ - (-∞) makes NaN of a row whose first block is hidden."""
    out = Tiling(guarded=False).row([NOTHING, 0], exact.matrix([[1], [3]]), block=1)
    require(not same(out, [3]), "the row is right without the guard")
    return f"scores (-∞, 0) in blocks of one key, no guard: the row is {out[0]}, not 3"


def traffic() -> Proof:
    """Words moved: tiles read K and V once for each block of B_r = M / (4 d) queries."""
    n, d, m = sp.symbols("n d M", positive=True)
    blocks = n / (m / (4 * d))
    tiled = 2 * n * d + blocks * 2 * n * d
    plain = 4 * n * d + 4 * n**2
    return Proof(
        steps=(
            scalars("2nd + (n / B_r) 2nd = 2nd + 8n²d²/M", tiled, 2 * n * d + 8 * n**2 * d**2 / m),
            scalars(
                "to leading order M / (2 d²) times less than S, A written and read",
                sp.limit(plain / tiled, n, sp.oo),
                m / (2 * d**2),
            ),
        ),
        mutations={
            "linear in n": scalars("2nd + 8nd²/M", tiled, 2 * n * d + 8 * n * d**2 / m),
            "linear in d": scalars("2nd + 8n²d/M", tiled, 2 * n * d + 8 * n**2 * d / m),
        },
    )


# -- Parts merged by their lse --------------------------------------------------------------------


def partitions(items: list[int]) -> Iterator[list[list[int]]]:
    """All ways to split the keys into parts."""
    if not items:
        yield []
        return
    first, *rest = items
    for parts in partitions(rest):
        yield [[first], *parts]
        for at in range(len(parts)):
            yield [*parts[:at], [first, *parts[at]], *parts[at + 1 :]]


def by_sums(sums: list[Any], outs: list[Any]) -> Any:
    """Σ_b e^(lse_b - lse) O_b, with e^lse_b the sum of part b."""
    return sum(z / sum(sums) * o for z, o in zip(sums, outs, strict=True))


def every_partition(merge: Any) -> str:
    """The 52 partitions of 5 keys, in both orders, each with an empty part beside it."""
    q, k, v = integers((1, 2), seed=1), integers((5, 2), seed=2), integers((5, 3), seed=3)
    e = exponentials(q, k)[0]
    whole = attention(q, k, v)[0]
    for parts in partitions(list(range(5))):
        for order in (parts, [*parts[::-1], []]):
            sums = [Fraction(e[part].sum()) for part in order]
            outs = [exact.output(e[None, part], v[part])[0] for part in order]
            require(same(merge(sums, outs), whole), f"parts {order} differ")
    return "52 partitions of 5 keys, reversed and with an empty part, exactly"


def two_parts() -> Proof:
    """Two parts with sums Z_1 and Z_2, unnormalised outputs N_1 and N_2."""
    z1, z2 = sp.symbols("Z_1 Z_2", positive=True)
    n1, n2 = sp.symbols("N_1 N_2")
    lse1, lse2, lse = sp.log(z1), sp.log(z2), sp.log(z1 + z2)
    merged = sp.exp(lse1 - lse) * n1 / z1 + sp.exp(lse2 - lse) * n2 / z2
    whole = (n1 + n2) / (z1 + z2)
    return Proof(
        sizes="two parts of any length; more by repetition",
        steps=(scalars("Σ_b e^(lse_b - lse) O_b = (N_1 + N_2)/(Z_1 + Z_2)", merged, whole),),
        mutations={
            "the plain mean": scalars("(O_1 + O_2)/2", (n1 / z1 + n2 / z2) / 2, whole),
            "lse not subtracted": scalars("Σ_b Z_b O_b", n1 + n2, whole),
        },
    )


STATEMENTS = (
    Statement(
        id="sys.flash",
        where="Dao et al. 2022 and 2023; chapter 11, Section on complexity; lesson 3, section 7; "
        "the third document's listing",
        says="Attention in tiles, with a running maximum and sum, is exact for every tile; the "
        "backward pass recomputes P from lse; slow memory is read Θ(n²d²/M) times.",
        formula=r"O_i = \frac{\sum_b e^{m_b - m} N_b}{\sum_b e^{m_b - m} l_b}, \quad "
        r"dS = P \circ (dO\,V^\top - D\mathbf{1}^\top),\ D_i = \langle dO_i, O_i\rangle",
        verdict="conditional",
        hypotheses={"e^(-∞ - (-∞)) is taken as 0": first_block_hidden},
        proof=traffic,
        check=Check(
            run=forward_and_backward,
            subject=(Tiling(), "<dO, O>"),
            mutations={
                "the sum is not rescaled": (Tiling(rescaled=("output",)), "<dO, O>"),
                "the output is not rescaled": (Tiling(rescaled=("sum",)), "<dO, O>"),
                "no guard for hidden blocks": (Tiling(guarded=False), "<dO, O>"),
                "D is left out": (Tiling(), "0"),
            },
        ),
        properties=("parts-merge-by-lse", "every-length-averages-plainly"),
    ),
    Statement(
        id="sys.splitkv",
        where="Dao et al. 2023 (Flash-Decoding); beside the third document's listing of tiles",
        says="Keys split among workers: their outputs, weighted by e^(lse_b - lse), are the whole; "
        "an empty part adds nothing.",
        formula=r"O = \sum_b e^{\mathrm{lse}_b - \mathrm{lse}}\, O_b, \quad "
        r"\mathrm{lse} = \log \sum_b e^{\mathrm{lse}_b}",
        verdict="true",
        proof=two_parts,
        check=Check(
            run=every_partition,
            subject=by_sums,
            mutations={
                "the plain mean of the parts": lambda sums, outs: sum(outs) / Fraction(len(outs)),
                "the part of the largest lse": lambda sums, outs: outs[sums.index(max(sums))],
            },
        ),
        properties=("parts-merge-by-lse",),
    ),
)
