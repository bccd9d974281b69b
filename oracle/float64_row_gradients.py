"""Gradients of the float64 engine's quick way: one error bound a row and block of keys.

With the exponentials e and l of the forward pass, 1 / l goes into the rows of dout, so that
nothing divides a weight: dv = eᵀ (dout / l), dS = e (dout / l · v + (dlse - D) / l), dq = dS k,
dk = dSᵀ q. Five matrix products, and three passes over the scores.

By `float64_rows.forward`, P = p / l differs from e / l^ by at most (e / l^) θ + LEAST / least,
θ = relative l^ / least + spread / least: see `float64_softmax.softmax`. Because |dout · v| <=
‖dout‖ ‖v‖, dS errs by (e / l^) ε with one ε a row and block, besides what underflows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from attnspec.oracle.assumptions import ELEMENTARY_ERROR
from attnspec.oracle.float64_blocks import (
    BLOCK,
    Blocks,
    absolute_product,
    even_shares,
    norm,
    parts,
    weighted_columns,
)
from attnspec.oracle.float64_gradients import row_shift, sink_gradient
from attnspec.oracle.float64_rows import LEAST, RowForward, sizes
from attnspec.oracle.formats import Float64Array
from attnspec.oracle.heads import Heads, transposed
from attnspec.oracle.problem import BoolArray
from attnspec.oracle.running_error import FLOOR, SLACK, TINY, Ball, U, exact_zero, gamma, scaled

__all__ = ["gradients", "serves"]


def serves(heads: Heads, want: Collection[str]) -> bool:
    """Whether this way has what is wanted: dbias and soft-cap have a bound for each score."""
    return set(want) <= {"out", "lse"} or not (heads.softcap or "dbias" in want)


@dataclass(frozen=True, eq=False)
class _Rows:
    """What the rows of a tile bring to the gradients; (H, R, B) has one number a block.

    dout: of the problem; divided: dout / l^, rounded. shift: dlse - D.
    weight: θ. entry: ε. most: N + r, where |dS| <= (e / l^) (N + r) + underflow.
    lost: (H, 1, 1), what dS errs besides, by underflow.
    """

    dout: Float64Array
    divided: Float64Array
    shift: Ball
    weight: Float64Array
    entry: Float64Array
    most: Float64Array
    lost: Float64Array


def _rows(heads: Heads, f: RowForward, value: Blocks) -> _Rows:
    """N = ‖dout‖ ‖v‖ + |shift|, and inner = dout · v + shift errs, times l^, by at most
        r = gamma_(Dv+2) ‖dout‖ ‖v‖ + rad shift + 3u N
    (dout / l^, the sum, shift / l^, their sum), besides l^ times the underflows, of which there are
    Dv of products, one of each quotient, times v: l^ 2^-1075 (2 Dv + 2 + sum |v|). Then
        |P inner - fl(e inner^)| <= |P - e / l^| |inner| + (e / l^) (r + u (N + r)) + 2^-1075
    is at most (e / l^) ε + LEAST (N + r) / least, with ε = θ (N + r) + r + u (N + r).
    """
    dout = np.zeros_like(f.out.value) if heads.dout is None else heads.dout
    shift = row_shift(heads, dout, f.out)
    products = sizes(norm(dout), value, heads)
    size, around = np.abs(shift.value)[..., None], shift.radius[..., None]
    n = products + size
    r = (gamma(dout.shape[-1] + 2) * products + around + 3 * U * n) * SLACK
    weight = (f.relative * (f.total / f.least) + f.spread / f.least) * SLACK
    most = n + r
    entry = (weight * most + r + U * most) * SLACK
    widest = value.norms.max(axis=-1, initial=0.0)[:, None, None]
    lost = TINY * (1 + f.total * (4 * dout.shape[-1]) * (1 + widest)) + LEAST * SLACK * (
        most.max(axis=-1, keepdims=True, initial=0.0) / f.least
    )
    lost = lost.max(axis=-2, keepdims=True, initial=0.0) * SLACK
    return _Rows(dout, dout / f.total, shift, weight, entry, most, lost)


def gradients(
    heads: Heads, f: RowForward, key: Blocks, value: Blocks, want: Collection[str]
) -> Iterator[tuple[str, Ball]]:
    """This tile's part of every gradient of `want`."""
    rows = _rows(heads, f, value)
    if "dsinks" in want and f.sink is not None:
        yield "dsinks", _dsinks(f, rows)
    if not {"dq", "dk", "dv"} & set(want):
        return
    columns = {}
    if "dk" in want:
        columns["dk"] = _Columns(heads, f, f.query, rows.lost, heads.scale)
    if "dv" in want:
        columns["dv"] = _Columns(heads, f, rows.dout, LEAST / f.least, 1.0)
    dq = _QueryGradient(heads, f, rows, key)
    room = np.empty((*f.query.shape[:2], min(BLOCK, heads.visible.shape[-1])))
    t = gamma(f.query.shape[-2] + 2)
    for at, (number, part) in enumerate(parts(heads.keys)):
        if "dv" in want:
            factor = rows.weight[..., at, None] + t
            columns["dv"].put(part, f.exponentials[..., part], rows.divided, factor)
        if not {"dq", "dk"} & set(want):
            continue
        ds = _score_gradient(heads, f, rows, part, room)
        if "dk" in want:
            factor = rows.entry[..., at, None] + t * rows.most[..., at, None]
            columns["dk"].put(part, ds, f.query, factor)
        if "dq" in want:
            dq.add(at, number, part, ds)
    if "dq" in want:
        yield "dq", dq.ball()
    yield from ((name, Ball(x.value, x.radius)) for name, x in columns.items())


def _score_gradient(
    heads: Heads, f: RowForward, rows: _Rows, part: slice, room: Float64Array
) -> Float64Array:
    """dS of these keys, in `room`."""
    ds = room[..., : part.stop - part.start]
    np.matmul(rows.divided, transposed(heads.value_of(part)), out=ds)
    ds += rows.shift.value[..., None] / f.total
    ds *= f.exponentials[..., part]
    return ds


class _Columns:
    """dk or dv: scale · Xᵀ Y over the rows of a tile, X being dS or e and Y the query or dout / l.

    With |X^ - X| <= (e / l^) a_i + lost and |X^| <= (e / l^) b_i + lost, a sum over R rows errs by
        sum_i (e_ij / l^_i) (a_i + gamma_R b_i) |y_ic| + R lost max|y_c| + R 2^-1075,
    and what has underflowed in dout / l, or in computing this, is at most e 2^-1074 a row.
    """

    def __init__(
        self, heads: Heads, f: RowForward, matrix: Float64Array, lost: Float64Array, scale: float
    ) -> None:
        self.heads, self.f, self.matrix, self.scale = heads, f, matrix, scale
        self.shares = even_shares(matrix)
        shape = (len(matrix), heads.visible.shape[-1], matrix.shape[-1])
        self.value, self.radius = np.empty(shape), np.empty(shape)
        largest = np.abs(matrix).max(axis=-2, keepdims=True, initial=0.0)
        most = 1 + f.total.max(axis=-2, keepdims=True, initial=0.0)
        lost = lost.max(axis=-2, keepdims=True, initial=0.0)
        self.lost = matrix.shape[-2] * (lost * largest + 4 * TINY * most * (1 + largest))

    def put(self, part: slice, x: Float64Array, y: Float64Array, factor: Float64Array) -> None:
        """The block of these keys, exactly 0 for those that no row sees. `factor`: a + gamma b."""
        e, visible = self.f.exponentials[..., part], self.heads.visible[..., part]
        around = weighted_columns(e, factor / self.f.total, self.matrix, self.shares)
        around += self.lost
        ball = scaled(Ball(transposed(x) @ y, around * SLACK), self.scale)
        used: BoolArray = np.asarray(visible.any(axis=-2))
        self.value[:, part], self.radius[:, part] = (
            ball if used.all() else exact_zero(ball, unless=used)
        )


class _QueryGradient:
    """dq: scale · dS k over the blocks of keys. As in `float64_rows.forward`, a sum errs by
    t = gamma_(BLOCK + B + 2) of its magnitudes, so in all by at most
        sum_b (ε_b + t (N + r)_b) / l^ sum_j e_j |k_j| + M lost max|k| + M 2^-1075.
    """

    def __init__(self, heads: Heads, f: RowForward, rows: _Rows, key: Blocks) -> None:
        self.heads, self.f, self.key, self.rows = heads, f, key, rows
        self.value, self.radius = np.zeros_like(f.query), np.zeros_like(f.query)
        t = gamma(BLOCK + rows.entry.shape[-1] + 2)
        self.factor = (rows.entry + t * rows.most) / f.total

    def add(self, at: int, number: int, part: slice, ds: Float64Array) -> None:
        """The block of these keys."""
        e, k = self.f.exponentials[..., part], self.heads.key_of(part)
        self.value += ds @ k
        even = self.key.even[number] and self.heads.visible[..., part].all()
        largest = self.key.largest[:, number, None] if even else None
        around = absolute_product(e, self.f.mass[..., at, None], k, largest)
        around *= self.factor[..., at, None]
        self.radius += around

    def ball(self) -> Ball:
        """The sum times scale, exactly 0 for rows that see no key."""
        visible = self.heads.visible
        largest = self.key.largest.max(axis=-2, keepdims=True, initial=0.0)
        underflow = 4 * TINY * (1 + self.f.total) * (1 + largest)
        self.radius += visible.shape[-1] * (self.rows.lost * largest + underflow)
        ball = scaled(Ball(self.value, self.radius * SLACK), self.heads.scale)
        return exact_zero(ball, unless=np.asarray(visible.any(axis=-1)))


def _dsinks(f: RowForward, rows: _Rows) -> Ball:
    """The sink's weight e / l, exp erring by E of itself, as `float64_gradients` wants it."""
    assert f.sink is not None
    value, count = f.sink / f.total, f.query.shape[-2]
    relative = ELEMENTARY_ERROR * (f.total / f.least) + f.spread / f.least
    radius = value * (relative + gamma(count) + 2 * U) * SLACK + 4 * FLOOR / f.least
    return sink_gradient(Ball(value, radius), rows.shift, count)
