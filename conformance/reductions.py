"""Smaller problems made from a problem: fewer slots along an axis, fewer options, plainer numbers.

Each function returns another `Problem`, or raises `ProblemError` where there is none. The layout
of every array is kept in kind (order of the axes, gaps, signs), because a fault may lie there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from attnspec.adapters.declaration import NEUTRAL
from attnspec.adapters.frameworks import ALIGNED
from attnspec.oracle.formats import Format, format_of
from attnspec.oracle.problem import Problem

__all__ = [
    "ARRAYS",
    "AXES",
    "Array",
    "axis_size",
    "cut",
    "edited",
    "is_plain",
    "laid_out_plainly",
    "plainer_numbers",
    "relaid",
    "simpler_options",
]

Array = npt.NDArray[Any]

ARRAYS = ("q", "k", "v", "dout", "dlse", "bias", "mask", "sinks", "alibi")

AXES = ("batch", "kv head", "group", "token", "query", "key", "channel", "size", "value")
"""`kv head` takes its query heads along; `group` is a query head's place among those of one key
head; `size` and `value` are the channels of q and k, and of v. `token` is query and key together,
where there are as many, and `channel` size and value."""

TOGETHER = {"token": ("query", "key"), "channel": ("size", "value")}

WHERE: dict[str, dict[str, int]] = {
    "batch": {**dict.fromkeys(("q", "k", "v", "dout", "mask", "bias"), -4), "dlse": -3},
    "kv head": {"k": -3, "v": -3},
    "group": {},
    "query": {**dict.fromkeys(("q", "dout", "mask", "bias"), -2), "dlse": -1},
    "key": {"k": -2, "v": -2, "mask": -1, "bias": -1},
    "size": {"q": -1, "k": -1},
    "value": {"v": -1, "dout": -1},
}
HEADS = {**dict.fromkeys(("q", "dout", "mask", "bias"), -3), "dlse": -2, "sinks": -1, "alibi": -1}
"""Where the query heads are, from the last axis."""


def axis_size(problem: Problem, axis: str) -> int:
    """How many slots there are along one of `AXES`; 0 where two do not go together."""
    if axis in TOGETHER:
        one, other = (axis_size(problem, part) for part in TOGETHER[axis])
        return one if one == other else 0
    return {
        "batch": problem.batch,
        "kv head": problem.kv_heads,
        "group": problem.query_heads // problem.kv_heads,
        "query": problem.query_count,
        "key": problem.key_count,
        "size": problem.head_size,
        "value": problem.value_size,
    }[axis]


def cut(problem: Problem, axis: str, kept: Array) -> Problem:
    """The slots `kept` (increasing numbers) along an axis; lengths count those that remain.

    A scale of 1/sqrt(D) follows D. The diagonal follows the lengths, and may thereby move.
    """
    if axis in TOGETHER:
        one, other = TOGETHER[axis]
        return cut(cut(problem, one, kept), other, kept)
    fields: dict[str, Any] = {}
    for name, at in WHERE[axis].items():
        fields[name] = _taken(getattr(problem, name), kept, at)
    if axis in ("kv head", "group"):
        grouped = np.arange(problem.query_heads).reshape(problem.kv_heads, -1)
        heads = (grouped[kept] if axis == "kv head" else grouped[:, kept]).reshape(-1)
        fields |= {n: _taken(getattr(problem, n), heads, at) for n, at in HEADS.items()}
    for name in ("query_lengths", "key_lengths"):
        lengths = getattr(problem, name)
        if lengths is not None and axis == "batch":
            fields[name] = lengths[kept]
        elif lengths is not None and name.startswith(axis):
            remaining = (kept < lengths[:, None]).sum(axis=1)
            fields[name] = remaining.astype(lengths.dtype)
    if axis == "size" and problem.scale == problem.head_size**-0.5:
        fields["scale"] = float(len(kept)) ** -0.5
    return problem.replace(**fields)


def _taken(array: Array | None, kept: Array, at: int) -> Array | None:
    """Along an axis that may be absent or broadcast."""
    if array is None or array.ndim < -at or (array.shape[at] == 1 and len(kept) > 0):
        return array
    return relaid(np.take(array, kept, axis=at), array)


# -- layout ------------------------------------------------------------------------------------


def relaid(values: Array, like: Array) -> Array:
    """The same numbers in the kind of layout that `like` has.

    Its axes in their order, with gaps (of up to twice an axis), its place between two multiples
    of 16 bytes, and numbers that share an address where they are equal.
    """
    if is_plain(like) or like.size == 0 or values.size == 0:
        return np.ascontiguousarray(values)
    item = like.itemsize
    strides, extent, span = [0] * values.ndim, 1, 1  # span: what the axes so far span in `like`
    for axis in sorted(range(like.ndim), key=lambda a: abs(like.strides[a])):
        step = abs(like.strides[axis]) // item
        if like.shape[axis] > 1 and step > 0:
            extent *= max(1, min(step // span, 3))
            span = step * like.shape[axis]
        if step > 0:
            strides[axis] = extent if like.strides[axis] > 0 else -extent
            extent *= values.shape[axis]
    low = sum(min(s * (n - 1), 0) for s, n in zip(strides, values.shape, strict=True))
    high = sum(max(s * (n - 1), 0) for s, n in zip(strides, values.shape, strict=True))
    buffer = np.zeros(high - low + 1 + ALIGNED, values.dtype)
    missing = (_address(like) - _address(buffer) + low * item) % ALIGNED
    first = missing // item - low
    bytes_ = [step * item for step in strides]
    view = np.lib.stride_tricks.as_strided(buffer[first:], values.shape, bytes_)
    view[...] = values
    same = view.tobytes() == values.tobytes()  # not where numbers along a stride of 0 differ
    return view if same else np.ascontiguousarray(values)


def is_plain(array: Array) -> bool:
    """Whether it lies in memory as a new array does."""
    return bool(array.flags.c_contiguous) and _address(array) % ALIGNED == 0


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def laid_out_plainly(problem: Problem) -> Iterator[Problem]:
    """With one array as a new one, each in turn that is not."""
    for name in ARRAYS:
        array = getattr(problem, name)
        if array is not None and not is_plain(array):
            yield problem.replace(**{name: np.array(array, order="C")})


# -- options -----------------------------------------------------------------------------------


def simpler_options(problem: Problem) -> Iterator[Problem]:
    """With one option neutral, or nearer to that, each in turn, the simplest first."""
    for name, neutral in NEUTRAL.items():
        if name in ("return_lse", "scale") or getattr(problem, name) is neutral:
            continue
        yield problem.replace(**{name: neutral})
    for name in ("mask", "bias"):
        yield from _narrower(problem, name)
    yield from _smaller_window(problem)
    for name, most in (
        ("key_lengths", problem.key_count),
        ("query_lengths", problem.query_count),
    ):
        yield from _plainer_lengths(problem, name, most)
    for name, plain in (("scale", (1.0, 2.0, 0.5, -1.0)), ("softcap", (1.0,))):
        value = getattr(problem, name)
        if value is not None:
            for other in plain[: plain.index(value) if value in plain else None]:
                yield problem.replace(**{name: other})


def _narrower(problem: Problem, name: str) -> Iterator[Problem]:
    """Broadcast along an axis of the mask or bias, which then counts for all."""
    array = getattr(problem, name)
    for axis in range(0 if array is None else array.ndim):
        if array.shape[axis] > 1:
            yield problem.replace(**{name: relaid(np.take(array, [0], axis=axis), array)})


def _smaller_window(problem: Problem) -> Iterator[Problem]:
    if problem.window is None:
        return
    for side, reach in enumerate(problem.window):
        fewer = sorted({0, 1, reach // 2, reach - 1} & set(range(reach))) if reach else []
        for other in (*fewer, *([None] if reach is not None else [])):
            window = (other, problem.window[1]) if side == 0 else (problem.window[0], other)
            yield problem.replace(window=window)


def _plainer_lengths(problem: Problem, name: str, most: int) -> Iterator[Problem]:
    lengths = getattr(problem, name)
    for entry, length in enumerate(() if lengths is None else lengths.tolist()):
        plain = [n for n in (most, 0, 1, most - 1) if 0 <= n <= most]
        for other in plain[: plain.index(length) if length in plain else None]:
            changed = lengths.copy()
            changed[entry] = other
            yield problem.replace(**{name: changed})


# -- numbers -----------------------------------------------------------------------------------


def edited(problem: Problem, name: str, values: npt.ArrayLike) -> Problem:
    """With other numbers, rounded to the array's type, in one array."""
    array = getattr(problem, name)
    if array.dtype == np.bool_:
        return problem.replace(**{name: relaid(np.asarray(values, np.bool_), array)})
    return problem.replace(**{name: relaid(format_of(array.dtype).round(values), array)})


def plainer_numbers(array: Array) -> list[Array]:
    """Arrays of plainer numbers than these, the plainest first; float64, or bool for a mask.

    Plain is, in this order: 0, 1, -1, a small integer, one digit and zeros, an integer, a multiple
    of a tenth; True in a mask.
    """
    if array.dtype == np.bool_:
        return [] if array.all() else [np.ones_like(array)]
    form, x = format_of(array.dtype), array.astype(np.float64)
    with np.errstate(all="ignore"):
        whole = np.rint(x)
        found = [np.zeros_like(x), np.ones_like(x), -np.ones_like(x), np.sign(x)]
        found += [np.clip(whole, -9, 9), _one_digit(x), whole, np.round(x, 1)]
    plainness = _unplain(x, form)
    found = [form.round(y + 0.0).astype(np.float64) for y in found]  # + 0: no negative zeros
    return [y for y in found if _unplain(y, form) < plainness]


def _one_digit(x: Array) -> Array:
    """Rounded to one decimal digit, whatever the size."""
    unit = 10.0 ** np.floor(np.log10(np.abs(x)))
    return np.where(np.isfinite(unit) & (unit > 0), np.rint(x / unit) * unit, x)


def _unplain(x: Array, form: Format) -> float:
    """How far from plain an array is, element by element together."""
    with np.errstate(all="ignore"):
        kinds = np.select(
            [
                x == 0,
                x == 1,
                x == -1,
                x == np.clip(np.rint(x), -9, 9),
                (np.abs(x) > 9) & (x == form.round(_one_digit(x)).astype(np.float64)),
                x == np.rint(x),
                x == form.round(np.round(x, 1)).astype(np.float64),
            ],
            [0.0, 1.0, 2.0, 3.0 + np.abs(x) / 10, 5.0, 6.0, 7.0],
            8.0,
        )
    return float(kinds.sum())
