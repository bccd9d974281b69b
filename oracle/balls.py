"""Attention in ball arithmetic: rigorous by construction, at any magnitude, for any option.

Every number is a ball [midpoint ± radius] of FLINT's Arb, and every operation returns a ball that
contains the exact result for all numbers in its operands (F. Johansson, "Arb: efficient
arbitrary-precision midpoint-radius interval arithmetic", IEEE Trans. Comput. 66, 2017). So
whatever follows from exact operands by these operations encloses the exact answer: a mistake here
can make a bound wide or the formula wrong, but cannot lose a rounding error.

The formula is that of `definition`, arranged for speed: tiles of rows, matrix products for the
bulk, exponentials only where a key is visible, and a hidden slot's weight an exact zero.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import repeat
from operator import add, mul

import numpy as np
import numpy.typing as npt
from flint import arb, arb_mat, ctx

from attnspec.oracle.ball_outputs import Outputs
from attnspec.oracle.enclosure import Reference
from attnspec.oracle.formats import Float64Array
from attnspec.oracle.problem import Head, Problem

__all__ = ["enclose", "logit_exponent"]

TILE_SLOTS = 1 << 17  # scores a tile holds at once, about 100 bytes each
BLOCK_NUMBERS = 1 << 19  # of keys or values held at once, about 50 bytes each
GUARD_BITS = 16  # a margin, beside the logarithm of the longest sum
TERM_BITS = 53
MOST_TERMS = 40  # from 2^1024 down to 2^-1074, a float64 at a time

_precision = threading.Lock()  # flint's working precision is one for the whole process


def enclose(
    problem: Problem, *, want: Sequence[str] = ("out", "lse"), bits: int = 120
) -> Reference:
    """A proven enclosure of each output in `want`, of tier `balls`.

    A score of 2^n costs n bits of absolute accuracy, which the exponential turns into relative
    accuracy, and a sum of 2^m terms m bits at most, so the working precision is `bits` plus the
    largest logit's exponent, the logarithm of the longest sum and a guard: bounds then come out
    near 2^-bits times the magnitudes that were added up. An enclosure has a `rest` for what `bits`
    holds beyond the 106 of `value` + `low`. A bound is 0 or at least 2^-1074, below which float64
    has no numbers. A bound of inf says that nothing finite is known (a NaN or Inf among the
    visible numbers, or a result beyond float64).

    Raises `ProblemError` for an output that the problem does not define. Holds a tile of at most
    about 2^17 scores, or one row, and 2^19 numbers of the keys and values at a time, beside the
    balls of gradients that are sums over rows. Not concurrent: calls from several threads queue.
    """
    shapes = {output: problem.shape_of(output) for output in want}
    extra = _sum_bits(problem) + max(logit_exponent(head) for head in problem.heads())
    terms = min(max(2, -(-bits // TERM_BITS)), MOST_TERMS)
    with _precision, ctx.workprec(bits + extra + GUARD_BITS):
        outputs = Outputs(problem, shapes, terms)
        for head in problem.heads():
            operands = _Blocks(head.key), _Blocks(head.value)
            for rows in _tiles(problem):
                _add_tile(head, *operands, rows, outputs)
        return Reference("balls", {output: outputs.enclosure(output) for output in want})


def _sum_bits(problem: Problem) -> int:
    """The logarithm of how many terms the longest sum has: over channels, keys, or all rows."""
    rows = problem.batch * problem.query_heads * problem.query_count
    longest = max(problem.head_size, problem.value_size, problem.key_count, rows)
    return longest.bit_length()


def _tiles(problem: Problem) -> Iterator[slice]:
    step = max(1, TILE_SLOTS // max(1, problem.key_count))
    for start in range(0, problem.query_count, step):
        yield slice(start, min(start + step, problem.query_count))


def logit_exponent(head: Head) -> int:
    """About the largest e >= 0 with a logit of magnitude 2^e. Sets the cost, not the rigour."""
    query = head.query[head.visible.any(axis=1)]
    dots = _exponent(query, axis=0) + _exponent(head.key, axis=0)
    channels = math.ceil(math.log2(head.query.shape[1]))
    parts = [0, int(dots.max()) + channels + int(_exponent(head.scale))]
    if head.bias is not None:
        parts.append(int(_exponent(head.bias)))
    if head.slope is not None:
        parts.append(int(_exponent(head.slope) + _exponent(head.ahead)))
    if head.sink is not None:
        parts.append(int(_exponent(head.sink)))
    return max(parts)


def _exponent(x: npt.ArrayLike, axis: int | None = None) -> npt.NDArray[np.int64]:
    """The least e with |x| < 2^e for all finite elements; 0 where there are none but zeros."""
    x = np.asarray(x, np.float64)
    largest = np.max(np.abs(np.where(np.isfinite(x), x, 0.0)), axis=axis, initial=0.0)
    return np.asarray(np.frexp(largest)[1], np.int64)


# -- one tile ----------------------------------------------------------------------------------


class _Blocks:
    """A head's keys or values as exact balls: a matrix, or many one after the other."""

    def __init__(self, x: Float64Array) -> None:
        self.x = x
        self.step = max(1, BLOCK_NUMBERS // x.shape[1])
        self.only = _matrix(x) if len(x) <= self.step else None

    def __iter__(self) -> Iterator[tuple[int, arb_mat]]:
        """Each block, and the number of its first key."""
        if self.only is not None:
            yield 0, self.only
            return
        for start in range(0, len(self.x), self.step):
            yield start, _matrix(self.x[start : start + self.step])

    def products(self, left: arb_mat, scale: arb | int = 1) -> list[list[arb]]:
        """scale · left · their transpose: a row of balls for each row."""
        rows: list[list[arb]] = [[] for _ in range(left.nrows())]
        for _, block in self:
            for row, more in zip(rows, (left * block.transpose() * scale).tolist(), strict=True):
                row += more
        return rows

    def mixed(self, weights: _Slots) -> arb_mat:
        """The weights' rows times them all."""
        total = arb_mat(len(weights.rows), self.x.shape[1])
        for start, block in self:
            total += weights.columns(start, block.nrows()) * block
        return total


class _Slots:
    """A row of balls for each query row: those given at the keys it sees, exact zeros elsewhere."""

    def __init__(self, balls: list[list[arb]], seen: list[list[int]], keys: int) -> None:
        zero = arb(0)
        self.keys = keys
        self.rows: list[list[arb]] = []
        for row, places in zip(balls, seen, strict=True):
            if len(places) < keys:
                full = [zero] * keys
                for j, ball in zip(places, row, strict=True):
                    full[j] = ball
                row = full
            self.rows.append(row)

    @cached_property
    def _all(self) -> arb_mat:
        return self._between(0, self.keys)

    def _between(self, start: int, stop: int) -> arb_mat:
        shape = len(self.rows), stop - start
        return arb_mat(*shape, [ball for row in self.rows for ball in row[start:stop]])

    def columns(self, start: int, count: int) -> arb_mat:
        """The matrix of `count` keys' columns."""
        return self._all if count == self.keys else self._between(start, start + count)


def _matrix(x: Float64Array) -> arb_mat:
    """The exact matrix: a float64 becomes a ball of radius 0 at any working precision."""
    height, width = x.shape
    return arb_mat(height, width, list(map(arb, x.ravel().tolist())))


def _add_tile(head: Head, key: _Blocks, value: _Blocks, rows: slice, outputs: Outputs) -> None:
    """Rows `rows` of one head: what they determine is set, what they contribute is added."""
    visible = head.visible[rows]
    seen = [np.flatnonzero(row).tolist() for row in visible]
    # A row that sees nothing enters no result; zero says so to the products below.
    sees = np.array([[bool(keys)] for keys in seen])
    query = _matrix(np.where(sees, head.query[rows], 0.0))
    scale = arb(head.scale)
    dots = _gather(key.products(query, scale), seen)
    weights, sinks, lse = _softmax(head, rows, seen, dots)
    P = _Slots(weights, seen, visible.shape[1])
    out = value.mixed(P)
    outputs.set_rows("out", head, rows, out.entries())
    outputs.set_lse(head, rows, lse)
    if not outputs.gradients:
        return

    dout = _matrix(_cotangent(head.dout, rows, (len(seen), head.value.shape[1])))
    shift = _shifts(_cotangent(head.dlse, rows, (len(seen),)), dout, out)
    outputs.add_sink(head, _sum(map(mul, sinks, shift)))
    for start, block in value:
        outputs.add_keys("dv", head, start, P.columns(start, block.nrows()).transpose(), dout)
    if not outputs.shapes.keys() & {"dq", "dk", "dbias"}:
        return
    dP = _gather(value.products(dout), seen)
    dS = [
        list(map(mul, p_row, map(add, dp_row, repeat(c))))
        for p_row, dp_row, c in zip(weights, dP, shift, strict=True)
    ]
    outputs.add_bias(head, rows, seen, dS)
    dX = _Slots(_through_cap(head, dS, dots), seen, visible.shape[1])
    if "dq" in outputs.rows:
        outputs.set_rows("dq", head, rows, (key.mixed(dX) * scale).entries())
    for start, block in key:
        left = dX.columns(start, block.nrows()).transpose() * scale
        outputs.add_keys("dk", head, start, left, query)


def _shifts(dlse: Float64Array, dout: arb_mat, out: arb_mat) -> list[arb]:
    """dlse_i - D_i for each row; D_i = Σ_j P_ij dP_ij = dout_i · out_i, the shorter sum."""
    rows = zip(dlse.tolist(), dout.tolist(), out.tolist(), strict=True)
    return [arb(g) - _sum(map(mul, do, o)) for g, do, o in rows]


def _softmax(
    head: Head, rows: slice, seen: list[list[int]], dots: list[list[arb]]
) -> tuple[list[list[arb]], list[arb], list[arb | None]]:
    """For each row: its weights at the visible keys, the sink's weight, and lse (None: -inf)."""
    weights: list[list[arb]] = []
    sinks: list[arb] = []
    lse: list[arb | None] = []
    for i, keys, row in zip(range(rows.start, rows.stop), seen, dots, strict=True):
        logits = _logits(head, i, keys, row)
        if head.sink is not None:
            logits = [*logits, arb(head.sink)]
        if not logits:
            weights.append([])
            sinks.append(arb(0))
            lse.append(None)
            continue
        # Without subtracting the maximum: an arb's exponent has no limit that a logit could reach.
        terms = list(map(arb.exp, logits))
        total = _sum(terms)
        inverse = 1 / total
        weights.append([term * inverse for term in terms[: len(keys)]])
        sinks.append(arb(0) if head.sink is None else terms[-1] * inverse)
        lse.append(total.log())
    return weights, sinks, lse


def _logits(head: Head, i: int, keys: list[int], dots: list[arb]) -> list[arb]:
    """Row i's logits at the visible keys: capped, then biased, then sloped."""
    logits = dots
    if head.softcap is not None:
        cap = arb(head.softcap)
        logits = [(x / cap).tanh() * cap for x in logits]
    if head.bias is not None:
        logits = [x + arb(b) for x, b in zip(logits, head.bias[i, keys].tolist(), strict=True)]
    if head.slope is not None:
        slope, distances = arb(head.slope), np.abs(head.ahead[i, keys]).tolist()
        logits = [x - slope * n for x, n in zip(logits, distances, strict=True)]
    return logits


def _through_cap(head: Head, dS: list[list[arb]], dots: list[list[arb]]) -> list[list[arb]]:
    """dS times the slope of c tanh(s / c), which is sech²(s / c)."""
    if head.softcap is None:
        return dS
    cap = arb(head.softcap)
    return [
        [ds * (x / cap).sech() ** 2 for ds, x in zip(ds_row, x_row, strict=True)]
        for ds_row, x_row in zip(dS, dots, strict=True)
    ]


def _cotangent(x: Float64Array | None, rows: slice, shape: tuple[int, ...]) -> Float64Array:
    """A cotangent that was not given is zero."""
    return np.zeros(shape) if x is None else x[rows]


def _sum(balls: Iterable[arb]) -> arb:
    return sum(balls, arb(0))


def _gather(rows: list[list[arb]], seen: list[list[int]]) -> list[list[arb]]:
    """Of each row, the balls at the keys it sees."""
    return [
        row if len(row) == len(keys) else [row[j] for j in keys]
        for row, keys in zip(rows, seen, strict=True)
    ]
