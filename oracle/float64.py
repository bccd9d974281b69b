"""Tier `float64`: attention and its gradients in NumPy float64, with a proven error bound.

The proof is in the pieces: `running_error.py` (the model and the lemmas); the quick way, with one
bound a row and block of keys (`float64_blocks.py`, `float64_rows.py`, `float64_row_gradients.py`);
and the sharp way, with one a score (`float64_softmax.py`, `float64_gradients.py`), for the tiles of
rows that the quick one does not serve. What must be assumed of the machine is in `assumptions.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator

import numpy as np

from attnspec.oracle import assumptions, float64_gradients, float64_row_gradients, float64_rows
from attnspec.oracle.enclosure import Reference
from attnspec.oracle.float64_blocks import Blocks
from attnspec.oracle.float64_softmax import scores, softmax
from attnspec.oracle.formats import Float64Array
from attnspec.oracle.heads import Heads, Operands, stacked
from attnspec.oracle.problem import BoolArray, Problem
from attnspec.oracle.running_error import Ball, Place, Total, exact_zero, operand_product
from attnspec.oracle.workers import in_order

__all__ = ["enclose"]

TILE = 2**22
"""Scores of a tile of rows: what the gradients keep of the forward pass, 32 MiB a worker."""
ROWS = 256
"""Rows that are worked on together, at most: with BLOCK keys, what the caches hold."""
SHARP_TILE = 2**16
"""Scores that the sharp way works on together, in a dozen arrays."""

OWN = ("out", "lse", "dq")
"""Outputs to whose rows one tile contributes, and no other."""
Found = list[tuple[str, Ball]]


def enclose(problem: Problem, *, want: Collection[str] = ("out", "lse")) -> Reference:
    """Enclose the outputs named in `want` (of `OUTPUTS`), each in its shape of `Problem.shape_of`.

    A bound of inf means that float64 does not reach: something overflows, or the scores are too
    large for their rounding errors. The same problem gets the same bits, however many workers
    there are. Raises `AssumptionFailed`.
    """
    assumptions.check()
    totals = {name: Total(_total_shape(problem, name)) for name in want}
    rows = max(1, min(ROWS, TILE // max(1, problem.key_count)))

    alone = problem.query_count <= rows and problem.query_heads == problem.kv_heads
    caller = threading.get_ident()

    def answer(tile: _Tile) -> list[tuple[Heads, Found]]:
        if threading.get_ident() != caller:
            assumptions.check_thread()
        with np.errstate(all="ignore"):
            return _answer(problem, tile, want)

    work = problem.batch * problem.query_heads * problem.query_count * problem.key_count
    with np.errstate(all="ignore"):
        for parts in in_order(answer, _tiles(problem, rows), scores=work):
            for heads, found in parts:
                for name, ball in found:
                    total, place = totals[name], _place(problem, heads, name)
                    own = name in OWN or (alone and len(parts) == 1 and name in ("dk", "dv"))
                    (total.put if own else total.add)(place, ball)
        enclosures = {n: total.enclosure(problem.shape_of(n)) for n, total in totals.items()}
    return Reference("float64", enclosures)


_Tile = tuple[Heads, Blocks, Blocks]
"""Some rows of some heads, and the magnitudes of all keys and values of these heads."""


def _tiles(problem: Problem, rows: int) -> Iterator[_Tile]:
    operands: Operands | None = None
    for heads in stacked(problem, rows=rows):
        if operands is not heads.operands:
            operands = heads.operands
            key = Blocks(operands.key, problem.key_count)
            value = Blocks(operands.value, problem.key_count)
        yield heads, key, value


def _answer(problem: Problem, tile: _Tile, want: Collection[str]) -> list[tuple[Heads, Found]]:
    """What these rows contribute to every output of `want`, by the way that serves them."""
    found = _quick(*tile, want)
    if found is not None:
        return [(tile[0], found)]
    step = max(1, SHARP_TILE // max(1, tile[0].visible.shape[-1]))
    return [(part, list(_sharp(problem, part, want))) for part in tile[0].tiles(step)]


def _quick(heads: Heads, key: Blocks, value: Blocks, want: Collection[str]) -> Found | None:
    if not float64_row_gradients.serves(heads, want):
        return None
    alone = set(want) <= {"out", "lse"}
    f = float64_rows.forward(heads, key, value, keep=not alone)
    if f is None:
        return None
    found = [(name, ball) for name, ball in (("out", f.out), ("lse", f.lse)) if name in want]
    if alone:
        return found
    gradients = list(float64_row_gradients.gradients(heads, f, key, value, want))
    known = all(np.all(np.isfinite(ball.radius)) for _, ball in gradients)
    return [*found, *gradients] if known else None


def _total_shape(problem: Problem, output: str) -> tuple[int, ...]:
    """The shape that heads add into: the output's, with dbias's missing leading axes."""
    shape = problem.shape_of(output)
    return (1,) * (4 - len(shape)) + shape if output == "dbias" else shape


def _place(problem: Problem, heads: Heads, output: str) -> Place:
    """Where a tile of each head adds into the output: at which head, and at which part of that."""
    if output == "dbias":
        batches, several, row_count, key_count = _total_shape(problem, output)
        rows = heads.rows if row_count > 1 else slice(None)
        keys = heads.keys if key_count > 1 else slice(None)
        return heads.batch * (batches > 1), heads.index * (several > 1), rows, keys
    if output == "dsinks":
        return (heads.index,)
    if output in ("dk", "dv"):
        return heads.batch, heads.kv_index, heads.keys
    return heads.batch, heads.index, heads.rows


# -- the sharp way -----------------------------------------------------------------------------


def _sharp(problem: Problem, heads: Heads, want: Collection[str]) -> Iterator[tuple[str, Ball]]:
    """This tile's part of every output of `want`."""
    rows: BoolArray = np.asarray(heads.visible.any(axis=-1))
    # A row that sees no key may be padding, with anything in it.
    query = np.where(rows[..., None], heads.query, 0.0)
    hidden = ~heads.visible
    ball, slope = scores(heads, query, hidden)
    keys = heads.visible.shape[-1]
    if heads.sink is not None or keys == 0:
        ball, hidden = _with_sink(ball, hidden, heads.sink)
    terms = sum(hidden.shape[-2:])  # no sum has more; dbias sums over one axis, then the other
    all_weights, lse = softmax(ball, hidden, terms=terms)
    weights = Ball(all_weights.value[..., :keys], all_weights.radius[..., :keys])
    out = exact_zero(operand_product(weights, heads.value), unless=rows)
    yield from ((name, ball) for name, ball in (("out", out), ("lse", lse)) if name in want)
    if not set(want) <= {"out", "lse"}:
        sink = Ball(all_weights.value[..., keys:], all_weights.radius[..., keys:])
        forward = float64_gradients.Forward(heads, query, weights, sink, out, slope, terms)
        shape = _total_shape(problem, "dbias")[2:] if "dbias" in want else ()
        yield from float64_gradients.gradients(forward, want, bias_shape=shape)


def _with_sink(ball: Ball, hidden: BoolArray, sink: Float64Array | None) -> tuple[Ball, BoolArray]:
    """With a last column: the exact logit of the sink, or hidden where there is none (Nk = 0)."""
    column = (*hidden.shape[:-1], 1)
    logit = np.broadcast_to(-np.inf if sink is None else sink, column)
    value = np.concatenate([ball.value, logit], axis=-1)
    radius = np.concatenate([ball.radius, np.zeros(column)], axis=-1)
    return Ball(value, radius), np.concatenate([hidden, np.full(column, sink is None)], axis=-1)
