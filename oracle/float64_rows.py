"""The float64 engine's quick way: one error bound a row and block of keys, not one a score.

The forward pass costs what attention itself does: two matrix products, one exp, one row sum, over
blocks of keys that the caches hold (`float64_blocks.py` has the bounds). Scores are not shifted by
their maximum: they are known not to exceed `LIMIT`, and e^±LIMIT is far from float64's ends.
Where that is not so, or the bounds may be poor, `forward` declines, and the sharp way of
`float64_softmax.py` has to do: scores that are large, a sink or a bias far above them, overflow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnspec.oracle.assumptions import ELEMENTARY_ERROR
from attnspec.oracle.float64_blocks import BLOCK, Blocks, absolute_product, norm, parts
from attnspec.oracle.formats import Float64Array
from attnspec.oracle.heads import Heads, transposed
from attnspec.oracle.problem import BoolArray
from attnspec.oracle.running_error import SLACK, TINY, Ball, U, gamma

__all__ = ["LEAST", "RowForward", "forward", "sizes"]

LIMIT = 100.0
"""What no exponent exceeds, and no row sum of e^score is below the inverse exponential of."""
CALM = 24.0
"""The same where gradients are wanted. Scores in the tens let one key win a row; the bounds here do
not know that its errors cancel, most of all in dS."""
VANISHED = 746.0
"""e^x and the computed exp(x) of an x <= 1 - VANISHED are below 2^-1021 (assumption 2)."""
LEAST = 2.0**-1019
"""Absolute error of an exponential, beside its relative one."""
MEAGRE = 2.0**-100
"""Added to the error of an exponent for every underflow there: far below exp's own error."""
WIDEST = 2.0**900
"""The widest soft-cap for which MEAGRE covers tanh's underflows: 66 · 2^-1074 · 2^900."""
SHARP = 2.0**-36
"""Relative error of a row sum above which the sharp way is taken: the bound on out is then about
2^-34 of the values, 2^-10 of the unit roundoff of float32."""


@dataclass(frozen=True, eq=False)
class RowForward:
    """The forward pass of a tile. B blocks of keys; rows that see nothing have l = 1.

    exponentials: e^x, (H, R, M); one block's room where they were not kept.
    mass, relative: of each block, (H, R, B): the sum of its exponentials; their errors, which are
        at most exponential · relative · SLACK + LEAST.
    total, spread, least: l, the bound on its error, and what it is not below, (H, R, 1).
    sink: its exponential, (H, 1, 1).
    """

    query: Float64Array
    exponentials: Float64Array
    mass: Float64Array
    relative: Float64Array
    total: Float64Array
    spread: Float64Array
    least: Float64Array
    sink: Float64Array | None
    out: Ball
    lse: Ball


def forward(heads: Heads, key: Blocks, value: Blocks, *, keep: bool) -> RowForward | None:
    """The forward pass of a tile, or None where this is not the way to bound it.

    Each sum has at most BLOCK terms in a block, one more addition a block and the sink. With
    t = gamma_(BLOCK + B + 2) of the sum of magnitudes,
        |l - l^| <= sum_b relative_b mass_b + t l^ + (M + 1) LEAST,
        |a - a^| <= sum_b (relative_b + t) sum_j e_j |v_j| + (M + 1) (LEAST max|v|) + M 2^-1074
    for a = sum p_j v_j, up to SLACK (a computed sum of e_j is within t of itself).
    """
    visible, everything = heads.visible, list(parts(heads.keys))
    rows: BoolArray = np.asarray(visible.any(axis=-1, keepdims=True))
    query = np.where(rows, heads.query, 0.0)  # a row that sees no key may hold anything
    scaled = query * heads.scale
    limit = CALM if keep else LIMIT
    errors = _exponent_errors(heads, sizes(norm(scaled), key, heads), limit)
    if errors is None:
        return None
    relative = (1 + errors) * errors + ELEMENTARY_ERROR  # float64_softmax._exp_error, any x, g <= 1
    t, keys = gamma(BLOCK + len(everything) + 2), visible.shape[-1]
    exponentials = np.empty((*visible.shape[:2], keys if keep else min(keys, BLOCK)))
    mass = np.empty(relative.shape)
    product, lost = np.zeros((2, *visible.shape[:2], value.largest.shape[-1]))
    largest = np.zeros((len(visible), 1, value.largest.shape[-1]))
    for at, (number, part) in enumerate(everything):
        x = exponentials[..., part] if keep else exponentials[..., : part.stop - part.start]
        full = _exponentials(heads, scaled, part, x)
        v, most = heads.value_of(part), value.largest[:, number, None]
        np.maximum(largest, most, out=largest)
        mass[..., at] = x @ np.ones(x.shape[-1])
        product += x @ v
        even = most if full and value.even[number] else None
        own = absolute_product(x, mass[..., at, None], v, even)
        own *= relative[..., at, None] + t
        lost += own
    lost += (keys + 1) * (LEAST * largest) + (keys + len(everything) + 2) * TINY
    sink = None if heads.sink is None else np.exp(heads.sink)
    total, spread, least = _row_sums(mass, relative, sink, rows, t, keys)
    if not np.all(spread <= SHARP * least) or not np.all(least > np.exp(-limit)):
        return None
    out, lse = _outputs(product, lost, total, spread, least, rows if sink is None else None)
    if not np.all(np.isfinite(out.radius)):
        return None
    return RowForward(
        query, exponentials, mass, relative, total, spread, least, sink,
        Ball(np.where(rows, out.value, 0.0), np.where(rows, out.radius, 0.0)), lse,
    )  # fmt: skip


def sizes(rows: Float64Array, columns: Blocks, heads: Heads) -> Float64Array:
    """max_j ‖row_i‖ ‖column_j‖ over the keys j of each block that row i sees: (H, R, B)."""
    largest = []
    for _, part in parts(heads.keys):
        start = heads.keys.start
        norms = columns.norms[:, None, start + part.start : start + part.stop]
        visible = heads.visible[..., part]
        largest.append((norms if visible.all() else np.where(visible, norms, 0.0)).max(axis=-1))
    shape = (*rows.shape, len(largest))
    each = np.stack([np.broadcast_to(x, rows.shape) for x in largest], -1) if largest else None
    return np.zeros(shape) if each is None else rows[..., None] * each


def _exponent_errors(heads: Heads, most: Float64Array, limit: float) -> Float64Array | None:
    """g with |x - x^| <= g for every exponent above -VANISHED, by block; None where an exponent
    may exceed the limit, or an error 1/2. `most` is what scale |q| |k| is at most.

    The query is scaled first, q' = fl(scale q). A product then errs by at most
        |scale q - q'| |k| + gamma_D |q'| |k| + D 2^-1075 (1 + gamma_D)
    <= gamma_(D+2) |q'| |k| + 2^-1075 (sum |k| + 2 D). The norms are at least 2^-500: where their
    product is at most the limit, neither exceeds 2^510, and MEAGRE is far above the last term.
    Soft-cap: z = s / c errs by rad s / c + u |z|, tanh' <= 1 passes that on, tanh errs by E of
    itself, and the product rounds once: rad s + u |s| + (E + u) c |tanh|, c |tanh| <= min(|s|, c).
    Bias and ALiBi: let P <= limit bound the sum of the positive parts. Where x >= -VANISHED, the
    negative ones sum to P + VANISHED at most; so the product, either sum and their parts are no
    larger, and round once each: 3u (P + VANISHED). Where x is lower, they are no larger than
    P + |x|, so that exactly, too, x < 1 - VANISHED.
    """
    g = most * (gamma(heads.query.shape[-1] + 2) * SLACK) + MEAGRE
    wide = heads.softcap is not None and heads.softcap > WIDEST
    if heads.softcap is not None:
        g += U * SLACK * most
        most = np.minimum(most, heads.softcap)
        g += (ELEMENTARY_ERROR + U) * SLACK * most + MEAGRE
    if heads.bias is not None:
        most = most + heads.bias.max(axis=(-2, -1), initial=0.0)[:, None, None]
    if heads.slope is not None:
        most = most + np.abs(heads.ahead).max(initial=0) * np.maximum(-heads.slope, 0)
    if heads.bias is not None or heads.slope is not None:
        g += 3 * U * SLACK * (most + VANISHED)
    sink = -np.inf if heads.sink is None else heads.sink.max()
    ordinary = np.all(most * SLACK <= limit) and np.all(g <= 0.5) and sink <= limit
    return g if ordinary and not wide else None


def _exponentials(heads: Heads, scaled: Float64Array, part: slice, x: Float64Array) -> bool:
    """Write e^score of these keys into x, 0 where hidden. Whether all rows see all of them."""
    np.matmul(scaled, transposed(heads.key_of(part)), out=x)
    if heads.softcap is not None:
        x /= heads.softcap
        np.tanh(x, out=x)
        x *= heads.softcap
    if heads.bias is not None:
        x += heads.bias[..., part]
    if heads.slope is not None:
        x -= np.abs(heads.ahead_of(part)) * heads.slope
    visible = heads.visible[..., part]
    full = bool(visible.all())
    if not full:
        np.copyto(x, -np.inf, where=~visible)
    np.exp(x, out=x)
    return full


def _row_sums(
    mass: Float64Array,
    relative: Float64Array,
    sink: Float64Array | None,
    rows: BoolArray,
    t: float,
    keys: int,
) -> tuple[Float64Array, Float64Array, Float64Array]:
    """total, spread and least of `RowForward`, by the bound in `forward`."""
    total = mass.sum(axis=-1, keepdims=True)
    spread = np.einsum("...b,...b->...", mass, relative)[..., None]
    if sink is not None:
        total, spread = total + sink, spread + ELEMENTARY_ERROR * sink
    spread = (spread + t * total + (keys + 1) * LEAST) * SLACK
    if sink is None:
        total, spread = np.where(rows, total, 1.0), np.where(rows, spread, 0.0)
    return total, spread, (total - spread) * (1 - 2 * U)


def _outputs(
    product: Float64Array,
    lost: Float64Array,
    total: Float64Array,
    spread: Float64Array,
    least: Float64Array,
    rows: BoolArray | None,
) -> tuple[Ball, Ball]:
    """out = a / l, and lse = log l, exactly -inf unless in `rows`.

    |a/l - a^/l^| <= (rad a + |a^/l^| rad l) / l, and the quotient rounds once.
    |log l - log l^| <= rad l / least (mean value), and log errs by E of itself.
    """
    out, log = product / total, np.log(total)
    size = np.abs(out)
    around = ((lost + size * spread) / least + U * size) * SLACK + 2 * TINY
    error = (spread / least + ELEMENTARY_ERROR * np.abs(log)) * SLACK
    if rows is not None:
        log, error = np.where(rows, log, -np.inf), np.where(rows, error, 0.0)
    return Ball(out, around), Ball(log[..., 0], error[..., 0])
