"""Cost: operations counted loop by loop, for all sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy as sp

from attnspec.spec.evidence.expressions import scalars
from attnspec.spec.evidence.operations import product_operations, softmax_operations
from attnspec.spec.evidence.statement import Check, Proof, Statement, Step, require

__all__ = ["STATEMENTS", "head", "loops", "product", "softmax", "total_cost"]

n, d, h, d_k, d_v = sp.symbols("n d h d_k d_v", integer=True, positive=True)


# -- Operations, as nests of loops ----------------------------------------------------------------


def loops(body: Any, *counts: Any) -> Any:
    """What `body` costs in this nest of loops."""
    for count in counts:
        body = sp.Sum(body, (sp.Dummy("i", integer=True), 1, count)).doit()
    return sp.expand(body)


def product(rows: Any, inner: Any, columns: Any) -> Any:
    """A product of matrices: `inner` products and one addition fewer, for each element."""
    return loops(loops(1, inner) + loops(1, inner - 1), rows, columns)


def softmax(rows: Any, keys: Any) -> Any:
    """In each row: greatest (keys - 1), differences, exponentials, sum (keys - 1), quotients."""
    return loops(2 * loops(1, keys - 1) + 3 * loops(1, keys), rows)


def head(tokens: Any, key_size: Any, value_size: Any) -> Any:
    """One head, from Q, K, V to its output; the scale is a product for each score."""
    scores = product(tokens, key_size, tokens) + loops(1, tokens, tokens)
    return scores + softmax(tokens, tokens) + product(tokens, tokens, value_size)


def total() -> Any:
    """h heads of size d/h, with the projections to Q, K, V and the one by W_O."""
    return sp.expand(h * head(n, d / h, d / h) + 4 * product(n, d, d))


def counts(text: str, found: Any, right: Any, wrong: dict[str, Any]) -> Proof:
    """found = right for all sizes, and none of the wrong."""
    return Proof(
        steps=(scalars(text, found, right),),
        mutations={what: scalars(f"{text}, {what}", found, form) for what, form in wrong.items()},
    )


def score_cost() -> Proof:
    """n² products of d_k."""
    return counts(
        "Q Kᵀ: n²(2 d_k - 1) operations",
        product(n, d_k, n),
        n**2 * (2 * d_k - 1),
        {"no additions": n**2 * d_k, "half the pairs": n * (n + 1) / 2 * (2 * d_k - 1)},
    )


def softmax_cost() -> Proof:
    """n rows of n."""
    return counts(
        "softmax: 5n² - 2n operations",
        softmax(n, n),
        5 * n**2 - 2 * n,
        {"without the maximum": 4 * n**2 - n, "without the quotients": 4 * n**2 - 2 * n},
    )


def value_cost() -> Proof:
    """n d_v sums over n keys."""
    return counts(
        "A V: n d_v (2n - 1) operations",
        product(n, n, d_v),
        n * d_v * (2 * n - 1),
        {"no additions": n**2 * d_v, "d_k for d_v": n * d_k * (2 * n - 1)},
    )


def total_cost() -> Proof:
    """The whole layer, its order as n grows, and as d grows."""
    form = 4 * n**2 * d + 8 * n * d**2 + 5 * h * n**2 - 2 * h * n - 5 * n * d
    in_n = sp.limit(total() / (n**2 * d), n, sp.oo)
    in_d = sp.limit(total() / (n**2 * d), d, sp.oo)
    return Proof(
        steps=(
            scalars("the layer: 4n²d + 8nd² + 5hn² - 2hn - 5nd", total(), form),
            scalars("over n²d, as n grows: 4 + 5h/d", in_n, 4 + 5 * h / d),
            Step("over n²d, as d grows: no bound", lambda: bool(in_d == sp.oo)),
        ),
        mutations={
            "without projections": scalars("4n²d + 5hn² - 2hn - nd", total(),
                                           form - 8 * n * d**2 + 4 * n * d),
            "softmax of one head": scalars("5n² for 5hn²", total(), form.subs(h, 1)),
            "exactly 4n²d": scalars("4n²d", total(), 4 * n**2 * d),
        },
    )  # fmt: skip


# -- Counted, by numbers that count ---------------------------------------------------------------

SHAPES = ((1, 1, 1), (3, 2, 5), (4, 6, 1), (5, 3, 3))


def counted(of: Callable[[int, int, int], int], run: Callable[[int, int, int], Any]) -> str:
    """The closed form against the operations that arithmetic really does."""
    for shape in SHAPES:
        found = run(*shape).total()
        require(found == of(*shape), f"{found} operations at (n, d_k, d_v) = {shape}")
    return f"every operation of explicit loops, (n, d_k, d_v) in {SHAPES}"


def counting(
    run: Callable[[int, int, int], Any],
    right: Callable[[int, int, int], int],
    **wrong: Callable[[int, int, int], int],
) -> Check:
    """A check of one closed form."""
    named = {what.replace("_", " "): form for what, form in wrong.items()}
    return Check(run=lambda of: counted(of, run), subject=right, mutations=named)


SCORE_CHECK = counting(
    lambda n, d_k, d_v: product_operations(n, d_k, n),
    lambda n, d_k, d_v: n * n * (2 * d_k - 1),
    twice_the_products=lambda n, d_k, d_v: 2 * n * n * d_k,
    over_values=lambda n, d_k, d_v: n * n * (2 * d_v - 1),
)
SOFTMAX_CHECK = counting(
    lambda n, d_k, d_v: softmax_operations(n, n),
    lambda n, d_k, d_v: 5 * n * n - 2 * n,
    five_for_each=lambda n, d_k, d_v: 5 * n * n,
    without_the_maximum=lambda n, d_k, d_v: 4 * n * n - n,
)
VALUE_CHECK = counting(
    lambda n, d_k, d_v: product_operations(n, n, d_v),
    lambda n, d_k, d_v: n * d_v * (2 * n - 1),
    twice_the_products=lambda n, d_k, d_v: 2 * n * n * d_v,
    over_keys_channels=lambda n, d_k, d_v: n * d_k * (2 * n - 1),
)


STATEMENTS = (
    Statement(
        id="ch11.cx.qk",
        where="Section on complexity, scores",
        says="The scores take O(n² d_k) operations and n² numbers, in each head.",
        formula=r"n^2 (2 d_k - 1) \text{ operations}, \quad n^2 \text{ numbers}",
        verdict="true",
        proof=score_cost,
        check=SCORE_CHECK,
    ),
    Statement(
        id="ch11.cx.softmax",
        where="Section on complexity, softmax",
        says="Softmax takes O(n²) operations and n² numbers, in each head.",
        formula=r"5n^2 - 2n \text{ operations}",
        verdict="true",
        proof=softmax_cost,
        check=SOFTMAX_CHECK,
    ),
    Statement(
        id="ch11.cx.av",
        where="Section on complexity, values",
        says="The weighted values take O(n² d_v) operations, and their result n d_v numbers.",
        formula=r"n\, d_v (2n - 1) \text{ operations}",
        verdict="true",
        proof=value_cost,
        check=VALUE_CHECK,
    ),
    Statement(
        id="ch11.cx.total",
        where="Section on complexity, total",
        says="In all, O(n² d) operations and O(n²) numbers.",
        formula=r"4n^2d + 8nd^2 + 5hn^2 - 2hn - 5nd",
        verdict="imprecise",
        exact="As n grows with d fixed. The projections add 8nd² operations, which exceed 4n²d "
        "while n < 2d; softmax adds 5hn²; memory is hn² + O(nd).",
        proof=total_cost,
    ),
)
