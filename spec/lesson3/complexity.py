"""Costs: operations, memory, and where attention overtakes the MLP."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import sympy as sp

from attnspec.spec.evidence import binary, costs, exact
from attnspec.spec.evidence.expressions import scalars
from attnspec.spec.evidence.figure import Figure
from attnspec.spec.evidence.operations import attention_operations
from attnspec.spec.evidence.statement import Check, Proof, Statement, Step, require

__all__ = ["STATEMENTS"]

n, d, h, c, dk, dv = sp.symbols("n d h c d_k d_v", positive=True)

# -- operations -----------------------------------------------------------------------------------


def products() -> Proof:
    """Entries times operations: n² dots of d_k, n d_v averages of n; h heads of d/h."""
    scores, averages = n**2 * 2 * dk, n * dv * 2 * n
    one = (scores + averages).subs({dk: d / h, dv: d / h})
    share = costs.projections(n, d) / costs.attention(n, d)
    return Proof(
        steps=(
            scalars("all heads: h · (2n² d/h + 2n² d/h) = 4n²d", h * one, costs.attention(n, d)),
            scalars("projections beside it: 2d/n of that", share, 2 * d / n),
        ),
        mutations={
            "the sum forgotten": scalars("one head: 4n²d", one, costs.attention(n, d)),
            "linear in n": scalars("all heads: 4nd", h * one, 4 * n * d),
        },
    )


def counts_every_operation(closed_form: Any) -> str:
    """Multiplications of one head, counted as they happen."""
    for size in ((3, 2, 4), (5, 3, 2), (8, 4, 4)):
        counted = attention_operations(*size)["multiply"]
        require(counted == closed_form(*size), f"{counted} multiplications at {size}")
    return "3 heads counted: n² d_k + n² d_v multiplications, and n² for the scale"


def short_sequences() -> str:
    """n < 2d."""
    share = costs.projections(512, 4096) / costs.attention(512, 4096)
    require(share > 1, "the projections do not dominate")
    return f"at n = 512, d = 4096 the projections, not counted here, cost {share:g} times as much"


# -- memory ---------------------------------------------------------------------------------------


def in_tiles(q: Any, k: Any, v: Any, rows: int, columns: int) -> tuple[exact.Matrix, int]:
    """Attention at the scale ln 2, tile by tile, and the most scores held at once."""
    blocks, held = [], 0
    for i in range(0, len(q), rows):
        total, acc = 0, 0
        for j in range(0, len(k), columns):
            e = binary.power_of_two(q[i : i + rows] @ k[j : j + columns].T)
            held = max(held, e.size)
            total, acc = total + e.sum(1, keepdims=True), acc + e @ v[j : j + columns]
        blocks.append(acc / total)
    return np.concatenate(blocks), held


def last_tile_lost(q: Any, k: Any, v: Any, rows: int, columns: int) -> tuple[exact.Matrix, int]:
    """Wrong: keys beyond the last full tile are dropped."""
    kept = max(len(k) // columns * columns, 1)
    return in_tiles(q, k[:kept], v[:kept], rows, columns)


def whole(q: Any, k: Any, v: Any, rows: int, columns: int) -> tuple[exact.Matrix, int]:
    """Wrong: the whole matrix is written."""
    return in_tiles(q, k, v, len(q), len(k))


def tiles_hold_little(tiled: Any) -> str:
    """Every tile shape up to 7 × 7, for 7 tokens."""
    q, k, v = (binary.integers((7, 2), seed=seed) for seed in (1, 2, 3))
    expected = binary.attention(q, k, v)
    for rows in range(1, 8):
        for columns in range(1, 8):
            out, held = tiled(q, k, v, rows, columns)
            require(binary.same(out, expected), f"tiles {rows} × {columns} give another output")
            require(held <= rows * columns, f"{held} scores held, not {rows * columns}")
    return "7 tokens, 49 tile shapes: the same output exactly, never more scores than one tile"


# -- crossover ------------------------------------------------------------------------------------


def crossing(attention: Any, other: Any) -> Any:
    """The one n > 0 where both cost the same."""
    [length] = sp.solve(sp.Eq(attention, other), n)
    return length


QUADRATIC, OWN, MLP = costs.attention(n, d), costs.projections(n, d), costs.mlp(n, d)


def in_widths(attention: Any, other: Any) -> int:
    """The crossing as a multiple of d."""
    return int(sp.simplify(crossing(attention, other) / d))


def crossings() -> Proof:
    """Solved for n."""
    softmax = costs.softmax(n, h, c)

    def at(text: str, attention: Any, other: Any, length: Any) -> Step:
        return Step(text, lambda: bool(sp.simplify(crossing(attention, other) - length) == 0))

    grouped = {"mlp": 2 * n * 3 * 4096 * 14336, "own": 2 * n * (2 * 4096**2 + 2 * 4096 * 1024)}
    quadratic = QUADRATIC.subs(d, 4096)
    return Proof(
        steps=(
            at("n²d terms = MLP at 4d", QUADRATIC, MLP, 4 * d),
            at("n²d terms, future skipped = MLP at 8d", QUADRATIC / 2, MLP, 8 * d),
            at("whole layer of attention = MLP at 2d", QUADRATIC + OWN, MLP, 2 * d),
            at("n²d terms = own projections at 2d", QUADRATIC, OWN, 2 * d),
            at("n²d terms = everything linear at 6d", QUADRATIC, MLP + OWN, 6 * d),
            at("with softmax", QUADRATIC + softmax, MLP, 16 * d**2 / (4 * d + c * h)),
            at("Llama-3-8B, n²d terms: 21504", quadratic, grouped["mlp"], 21504),
            at("Llama-3-8B, layer: 16384", quadratic + grouped["own"], grouped["mlp"], 16384),
        ),
        mutations={
            "printed": at("n²d terms = MLP at d", QUADRATIC, MLP, d),
            "printed, for the whole layer": at("whole layer = MLP at d", QUADRATIC + OWN, MLP, d),
        },
    )


def crosses_once(length: Any) -> str:
    """Cheaper before, dearer after, over n = 1 … 40 000 at d = 4096."""
    lengths = np.arange(1, 40001, dtype=object)
    dearer = costs.attention(lengths, 4096) > costs.mlp(lengths, 4096)
    require(np.count_nonzero(dearer[1:] != dearer[:-1]) == 1, "the curves do not cross once")
    last = int(lengths[~dearer.astype(bool)][-1])
    require(last == length, f"the curves meet at {last}")
    return f"n = 1 … 40 000, d = 4096: one crossing, at n = {last} = 4d"


STATEMENTS = (
    Statement(
        id="lesson3.sec7.compute",
        where="Section 7, compute",
        says="The two products cost O(n² d_k) and O(n² d_v); over the heads O(n² d) a layer.",
        formula=r"h\,(2n^2 d_k + 2n^2 d_v) = 4n^2 d",
        verdict="conditional",
        hypotheses={
            "the 8nd² of the projections counted elsewhere": short_sequences,
            "h = O(d), for the c·h·n² of softmax": None,
        },
        proof=products,
        check=Check(
            run=counts_every_operation,
            subject=lambda n, dk, dv: n**2 * (dk + dv) + n**2,
            mutations={
                "the second product forgotten": lambda n, dk, dv: n**2 * dk + n**2,
                "linear in n": lambda n, dk, dv: n * (dk + dv) + n,
            },
        ),
    ),
    Statement(
        id="lesson3.sec7.memory",
        where="Section 7, memory",
        says="A written matrix is O(n²) a head; in tiles the same result takes O(n).",
        formula=r"\text{scores held: } n^2 \text{ or } B_r B_c",
        verdict="true",
        check=Check(
            run=tiles_hold_little,
            subject=in_tiles,
            mutations={
                "the whole matrix written": whole,
                "keys beyond the last full tile dropped": last_tile_lost,
            },
        ),
        properties=(
            "memory-grows-as-declared",
            "every-length-averages-plainly",
            "parts-merge-by-lse",
        ),
    ),
    Statement(
        id="lesson3.sec7.mlp",
        where="Section 7, the MLP's term",
        says="The MLP costs n d², linear in n.",
        formula=r"2 \cdot n \cdot 8d^2 = 16\,n\,d^2",
        verdict="true",
        proof=lambda: Proof(
            steps=(scalars("n rows times 4d² and 4d², 2 each", 2 * n * (4 + 4) * d**2, MLP),),
            mutations={
                "quadratic in n": scalars("16 n² d", 16 * n**2 * d, MLP),
                "one matrix": scalars("8 n d²", 2 * n * 4 * d**2, MLP),
            },
        ),
    ),
    Statement(
        id="lesson3.sec7.crossover",
        where="Section 7, crossover",
        says="Attention dominates once n exceeds about d.",
        formula=r"4n^2 d = 16 n d^2 \iff n = 4d",
        verdict="imprecise",
        exact="The quadratic part equals the MLP at n = 4d (8d where the future is skipped), its "
        "own projections at 2d, both together at 6d; attention with its projections equals the "
        "MLP at 2d. Where softmax takes c operations for each score of each of h heads, the "
        "quadratic part equals the MLP at 16d²/(4d + ch).",
        proof=crossings,
        figures=tuple(
            Figure(
                what=f"{what}, in d",
                printed="1",
                exact=partial(in_widths, a, b),
            )
            for what, a, b in (
                ("quadratic part = MLP", QUADRATIC, MLP),
                ("attention layer = MLP", QUADRATIC + OWN, MLP),
                ("quadratic part = all linear parts", QUADRATIC, MLP + OWN),
            )
        ),
    ),
    Statement(
        id="lesson3.fig3",
        where="Figure 3",
        says="There is a length at which attention overtakes the MLP.",
        formula=r"n^* = 4d",
        verdict="true",
        check=Check(
            run=crosses_once,
            subject=4 * 4096,
            mutations={"at d": 4096, "at 8d": 8 * 4096},
        ),
    ),
)
