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
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from flint import arb, arb_mat, ctx

from attnspec.oracle.ball_outputs import Outputs
from attnspec.oracle.enclosure import Reference
from attnspec.oracle.formats import Float64Array
from attnspec.oracle.problem import Head, Problem

__all__ = ["enclose"]

TILE_SLOTS = 1 << 17  # scores a tile holds at once, about 100 bytes each
GUARD_BITS = 20  # for the sums over keys and channels: their lengths' logarithm, and a margin

_precision = threading.Lock()  # flint's working precision is one for the whole process


def enclose(
    problem: Problem, *, want: Sequence[str] = ("out", "lse"), bits: int = 120
) -> Reference:
    """A proven enclosure of each output in `want`, of tier `balls`.

    A score of 2^n costs n bits of absolute accuracy, which the exponential turns into relative
    accuracy, so the working precision is `bits` plus the largest logit's exponent plus a guard:
    bounds then come out near 2^-bits times the magnitudes that were added up, and at best near
    2^-106 of the value, where `value` + `low` ends. A bound of inf says that nothing finite is
    known (a NaN or Inf among the visible numbers, or a result beyond float64).

    Raises `ProblemError` for an output that the problem does not define. Holds a tile of at most
    about 2^17 scores, or one row, at a time. Not concurrent: calls from several threads queue.
    """
    shapes = {output: problem.shape_of(output) for output in want}
    extra = GUARD_BITS + max(_logit_exponent(head) for head in problem.heads())
    with _precision, ctx.workprec(bits + extra):
        outputs = Outputs(problem, shapes)
        for head in problem.heads():
            operands = _Operands.of(head)
            for rows in _tiles(problem):
                _add_tile(head, operands, rows, outputs)
        return Reference("balls", {output: outputs.enclosure(output) for output in want})


def _tiles(problem: Problem) -> Iterator[slice]:
    step = max(1, TILE_SLOTS // max(1, problem.key_count))
    for start in range(0, problem.query_count, step):
        yield slice(start, min(start + step, problem.query_count))


def _logit_exponent(head: Head) -> int:
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


@dataclass(frozen=True)
class _Operands:
    """A head's keys and values as exact balls, and their transposes."""

    key: arb_mat
    key_t: arb_mat
    value: arb_mat
    value_t: arb_mat

    @classmethod
    def of(cls, head: Head) -> _Operands:
        key, value = _matrix(head.key), _matrix(head.value)
        return cls(key, key.transpose(), value, value.transpose())


def _matrix(x: Float64Array) -> arb_mat:
    """The exact matrix: a float64 becomes a ball of radius 0 at any working precision."""
    height, width = x.shape
    return arb_mat(height, width, [arb(number) for number in x.ravel().tolist()])


def _add_tile(head: Head, operands: _Operands, rows: slice, outputs: Outputs) -> None:
    """Rows `rows` of one head: what they determine is set, what they contribute is added."""
    visible = head.visible[rows]
    seen = [np.flatnonzero(row).tolist() for row in visible]
    # A row that sees nothing enters no result; zero says so to the products below.
    sees = np.array([[bool(keys)] for keys in seen])
    query = _matrix(np.where(sees, head.query[rows], 0.0))
    dots = _gather((query * operands.key_t * arb(head.scale)).tolist(), seen)
    weights, sinks, lse = _softmax(head, rows, seen, dots)
    P = _scatter(weights, seen, visible.shape)
    out = P * operands.value
    outputs.set_rows("out", head, rows, out.entries())
    outputs.set_lse(head, rows, lse)
    if not outputs.gradients:
        return

    dout = _matrix(_cotangent(head.dout, rows, (len(seen), operands.value.ncols())))
    dlse = [arb(x) for x in _cotangent(head.dlse, rows, (len(seen),)).tolist()]
    # Σ_j P_ij dP_ij = dout_i · out_i, the shorter sum.
    shift = [
        g - _sum(map(arb.__mul__, do, o))
        for g, do, o in zip(dlse, dout.tolist(), out.tolist(), strict=True)
    ]
    dP = _gather((dout * operands.value_t).tolist(), seen)
    dS = [
        [p * (dp + c) for p, dp in zip(p_row, dp_row, strict=True)]
        for p_row, dp_row, c in zip(weights, dP, shift, strict=True)
    ]
    dX = _scatter(_through_cap(head, dS, dots), seen, visible.shape) * arb(head.scale)
    if "dq" in outputs.rows:
        outputs.set_rows("dq", head, rows, (dX * operands.key).entries())
    outputs.add_keys("dk", head, dX.transpose(), query)
    outputs.add_keys("dv", head, P.transpose(), dout)
    outputs.add_bias(head, rows, seen, dS)
    outputs.add_sink(head, _sum(map(arb.__mul__, sinks, shift)))


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
        terms = [logit.exp() for logit in logits]
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
    return [[row[j] for j in keys] for row, keys in zip(rows, seen, strict=True)]


def _scatter(rows: list[list[arb]], seen: list[list[int]], shape: tuple[int, int]) -> arb_mat:
    """The matrix with these balls at the visible slots, and exact zeros elsewhere."""
    full = [[arb(0)] * shape[1] for _ in range(shape[0])]
    for target, row, keys in zip(full, rows, seen, strict=True):
        for ball, j in zip(row, keys, strict=True):
            target[j] = ball
    return arb_mat(*shape, [ball for row in full for ball in row])
