"""Complexity against a recurrent network: operations, memory, order of work, length of paths."""

from __future__ import annotations

from typing import Any

import numpy as np
import sympy as sp

from attnspec.spec.evidence import binary, costs
from attnspec.spec.evidence.expressions import scalars
from attnspec.spec.evidence.statement import Check, Proof, Statement, require
from attnspec.spec.heart import listings
from attnspec.spec.lesson3.recap import attend_causally

__all__ = ["STATEMENTS"]

n, d = sp.symbols("n d", positive=True)
ATTENTION = costs.attention(n, d) + costs.projections(n, d)
RNN = 2 * n * 2 * d**2
"""Two d × d matrices a token: one for the input, one for the state before."""
LSTM = 4 * RNN
"""Four gates."""

# -- operations -----------------------------------------------------------------------------------


def operations() -> Proof:
    """What the table compares, and what it leaves out on one side."""
    bare, lead = costs.attention(n, d), 4 * n * d * (2 * d - n)
    equal = (ATTENTION / RNN).subs(n, d)
    return Proof(
        steps=(
            scalars("attention with projections", ATTENTION, 4 * n * d * (n + 2 * d)),
            scalars("over the RNN's: 2 + n/d, never below 2", ATTENTION / RNN, 2 + n / d),
            scalars("without projections: n/d", bare / RNN, n / d),
            scalars("LSTM's minus attention's: > 0 iff n < 2d", LSTM - ATTENTION, lead),
        ),
        mutations={
            "projections free": scalars("8nd² not counted", ATTENTION, bare),
            "equal at n = d": scalars("attention = RNN at n = d", equal, 1),
        },
    )


def short_and_wide() -> Proof:
    """n = 512, d = 4096, the edge that is named: the ratio of the table and the true one.

    `operations` has them for all n and d.
    """
    here = {n: 512, d: 4096}
    bare = (costs.attention(n, d) / RNN).subs(here)
    whole = (ATTENTION / RNN).subs(here)
    return Proof(
        sizes="the named",
        steps=(
            scalars("n²d over nd²: 1/8", bare, sp.Rational(1, 8)),
            scalars("with projections: 2.125", whole, sp.Rational(17, 8)),
            scalars("over an LSTM's", (ATTENTION / LSTM).subs(here), sp.Rational(17, 32)),
        ),
        mutations={
            "projections free": scalars("with projections: 1/8", whole, sp.Rational(1, 8)),
            "the RNN dearer": scalars("with projections: 1/2", whole, sp.Rational(1, 2)),
        },
    )


# -- memory ---------------------------------------------------------------------------------------


def scores_held(closed_form: Any) -> str:
    """Numbers in the weights of a batch of heads, counted."""
    for heads, tokens in ((1, 4), (3, 4), (3, 9)):
        q, k, v = listings.inputs(*[(heads, tokens, 2)] * 3)
        held = listings.attention(q, k, v)[1].size
        require(held == closed_form(heads, tokens), f"{heads} heads hold {held} scores")
    return "1 and 3 heads, 4 and 9 tokens: h n² weights held, each head its own"


# -- order of work --------------------------------------------------------------------------------

X = binary.integers((5, 3), seed=1)


def rows_by_themselves(step: Any) -> str:
    """Each row of a causal layer from the tokens up to it, last row first."""
    whole = attend_causally(X)
    state: Any = None
    for i in reversed(range(5)):
        row, state = step(X, i, state)
        require(binary.same(row, whole[i]), f"row {i} needs another row first")
    return "5 tokens: the rows in reverse order, each by itself, are the whole run, exactly"


def own_row(x: Any, i: int, state: Any) -> tuple[Any, Any]:
    """Row i from tokens 0 … i."""
    return attend_causally(x[: i + 1])[i], state


def after_the_last(x: Any, i: int, state: Any) -> tuple[Any, Any]:
    """A recurrence: what was computed last enters."""
    row = attend_causally(x[: i + 1])[i]
    row = row if state is None else row + state
    return row, row


def generation() -> str:
    """A token drawn from the output before: the second step changes with the first."""
    ends = []
    for first in (0, 1):
        tokens = [X[0], X[1], X[3] + first]
        ends.append(attend_causally(np.array(tokens, object))[-1])
    require(not binary.same(*ends), "the next row does not wait for the token before")
    return "in generation the next row depends on the token that the row before made"


# -- paths ----------------------------------------------------------------------------------------


def steps_between(edges: Any, start: int, end: int) -> int:
    """Layers or steps until what stands at `start` can reach `end`."""
    reached, count = np.arange(len(edges)) == start, 0
    while not reached[end] and count <= len(edges):
        reached = reached | (edges.astype(int) @ reached.astype(int) > 0)
        count += 1
    return count


def is_one_step(edges: Any) -> str:
    """From token 0 to token n - 1, for n = 2 … 40; a recurrence takes n - 1."""
    for length in (2, 5, 40):
        found = steps_between(edges(length), 0, length - 1)
        require(found == 1, f"{found} steps for {length} tokens")
        chain = steps_between(np.eye(length, k=-1), 0, length - 1)
        require(chain == length - 1, "the recurrence is shorter")
    return "n = 2, 5, 40: one layer of causal attention; n - 1 steps of a recurrence"


def window(length: int, width: int = 3) -> Any:
    """Token i reads i - width + 1 … i."""
    return np.tri(length) - np.tri(length, k=-width)


def through_a_window() -> str:
    """Width 3."""
    found = steps_between(window(41), 0, 40)
    require(found == 20, f"{found} layers")
    return "a window of 3 needs 20 layers for a distance of 40: 2 a layer"


def is_two_gibibytes(bytes_of: Any) -> str:
    """n = 32768 in half precision, one head."""
    require(bytes_of(32768) == 2 * 2**30, f"{bytes_of(32768)} bytes")
    return "32768² scores of 2 bytes are 2 147 483 648 bytes, 2 GiB, for one head of one layer"


STATEMENTS = (
    Statement(
        id="heart.cx.time",
        where="Complexity analysis, time",
        says="O(n²d) against O(nd²) of a recurrent network.",
        formula=r"4n^2d + 8nd^2 \quad\text{against}\quad 4nd^2",
        verdict="imprecise",
        exact="The 8nd² of attention's projections are left out, while nd² is all that is counted "
        "of the RNN: with them attention costs 2 + n/d times a plain RNN.",
        proof=operations,
    ),
    Statement(
        id="heart.cx.mem",
        where="Complexity analysis, memory",
        says="O(n²) against O(nd).",
        formula=r"h\,n^2 + O(nd) \quad\text{against}\quad O(nd)\ \text{(training)},\ O(d)",
        verdict="imprecise",
        exact="n² is of each head, O(nd) comes on top; the RNN keeps O(nd) for training only and "
        "O(d) in use.",
        check=Check(
            run=scores_held,
            subject=lambda heads, tokens: heads * tokens**2,
            mutations={
                "n² for all heads": lambda heads, tokens: tokens**2,
                "n d": lambda heads, tokens: tokens * 2,
            },
        ),
    ),
    Statement(
        id="heart.cx.par",
        where="Complexity analysis, parallel or not",
        says="All tokens at once, against one after the other.",
        verdict="conditional",
        hypotheses={"known tokens: training and prefill": generation},
        check=Check(
            run=rows_by_themselves,
            subject=own_row,
            mutations={
                "a recurrence": after_the_last,
                "the next token too": lambda x, i, state: (attend_causally(x)[min(i + 1, 4)], None),
            },
        ),
        properties=("prefix-equals-first-rows", "decoding-equals-prefill"),
    ),
    Statement(
        id="heart.cx.path",
        where="Complexity analysis, long-range dependencies",
        says="Paths of length O(1), against O(n).",
        verdict="conditional",
        hypotheses={"no window": through_a_window, "a layer counted as one step": None},
        check=Check(
            run=is_one_step,
            subject=np.tri,
            mutations={
                "a window of 3": window,
                "a recurrence": lambda length: np.eye(length, k=-1),
            },
        ),
    ),
    Statement(
        id="heart.cx.rnn",
        where="Complexity analysis, first remark",
        says="Below n = 512 and from d = 4096 the RNN's d² dominates and attention wins.",
        formula=r"\frac{4n^2d}{4nd^2} = \frac nd \le \frac18,\qquad "
        r"\frac{4n^2d + 8nd^2}{4nd^2} = 2 + \frac nd",
        verdict="imprecise",
        exact="True of n²d against nd². With its projections attention needs 2 + n/d times the "
        "operations of a plain RNN at any n (2.125 here); it wins by parallel work. Against an "
        "LSTM's 16nd² it needs fewer iff n < 2d.",
        proof=short_and_wide,
    ),
    Statement(
        id="heart.cx.32k",
        where="Complexity analysis, second remark",
        says="Beyond n = 32K the n² memory becomes the bottleneck.",
        formula=r"32768^2 \cdot 2\,\mathrm{B} = 2\,\mathrm{GiB}",
        verdict="narrative",
        reason="Where a bottleneck begins depends on the machine. The number behind it is checked.",
        check=Check(
            run=is_two_gibibytes,
            subject=lambda tokens: costs.scores_bytes(tokens, size=2),
            mutations={
                "single precision": lambda tokens: costs.scores_bytes(tokens, size=4),
                "32 000 tokens": lambda tokens: costs.scores_bytes(32000, size=2),
            },
        ),
    ),
)
