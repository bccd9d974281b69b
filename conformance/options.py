"""The option settings that cases are made of: for each option its variants, by name.

A variant turns a generator, the full score shape (B, Hq, Nq, Nk) and the format under test into
fields of `Problem`. Broadcast patterns are variants: code paths differ by them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from attnspec.oracle.formats import FORMATS, Format

__all__ = ["OPTIONS", "Variant", "lengths"]

ScoreShape = tuple[int, int, int, int]
Variant = Callable[[np.random.Generator, ScoreShape, Format], dict[str, Any]]
BoolArray = npt.NDArray[np.bool_]


def _fixed(**fields: Any) -> Variant:
    return lambda rng, shape, form: fields


def _axes(shape: ScoreShape, axes: str) -> tuple[int, ...]:
    """`bhqk` keeps every axis, `k` only the keys'; the others have length 1."""
    return tuple(n if axis in axes else 1 for n, axis in zip(shape, "bhqk", strict=True))


# -- mask --------------------------------------------------------------------------------------


def _mask(axes: str) -> Variant:
    def draw(rng: np.random.Generator, shape: ScoreShape, form: Format) -> dict[str, Any]:
        mask = rng.random(_axes(shape, axes)) < 0.7
        return {"mask": _never_empty(mask)}

    return draw


def _never_empty(mask: BoolArray) -> BoolArray:
    """A row that would see nothing sees key 0: empty rows are a variant of their own."""
    mask[..., :1] |= ~mask.any(axis=-1, keepdims=True)
    return mask


def _mask_two_dimensional(
    rng: np.random.Generator, shape: ScoreShape, form: Format
) -> dict[str, Any]:
    return {"mask": _mask("qk")(rng, shape, form)["mask"][0, 0]}


def _mask_empty_rows(rng: np.random.Generator, shape: ScoreShape, form: Format) -> dict[str, Any]:
    mask: BoolArray = _mask("bhqk")(rng, shape, form)["mask"]
    return {"mask": mask & (np.arange(shape[2]) % 3 != 1)[:, None]}


def _mask_first_keys(rng: np.random.Generator, shape: ScoreShape, form: Format) -> dict[str, Any]:
    return {"mask": np.broadcast_to(np.arange(shape[3]) >= shape[3] // 2, _axes(shape, "qk"))}


def _mask_three_dimensional(
    rng: np.random.Generator, shape: ScoreShape, form: Format
) -> dict[str, Any]:
    return {"mask": _mask("hqk")(rng, shape, form)["mask"][0]}


def _mask_rows(rng: np.random.Generator, shape: ScoreShape, form: Format) -> dict[str, Any]:
    return {"mask": rng.random(_axes(shape, "bhq")) < 0.7}  # a row sees every key or none


def _mask_blocks(rng: np.random.Generator, shape: ScoreShape, form: Format) -> dict[str, Any]:
    """Half of the blocks of 8 rows and 16 keys, others for each head, and most of their keys."""
    batch, heads, rows, keys = shape
    blocks = rng.random((batch, heads, rows // 8 + 1, keys // 16 + 1)) < 0.5
    spread: BoolArray = np.repeat(np.repeat(blocks, 8, axis=2), 16, axis=3)[:, :, :rows, :keys]
    return {"mask": _never_empty(spread & (rng.random(shape) < 0.9))}


def _mask_all_true(rng: np.random.Generator, shape: ScoreShape, form: Format) -> dict[str, Any]:
    return {"mask": np.ones(_axes(shape, "qk"), dtype=np.bool_)}


# -- bias --------------------------------------------------------------------------------------


def _bias(axes: str, size: float = 1.0) -> Variant:
    def draw(rng: np.random.Generator, shape: ScoreShape, form: Format) -> dict[str, Any]:
        return {"bias": form.round(size * rng.standard_normal(_axes(shape, axes)))}

    return draw


def _bias_two_dimensional(
    rng: np.random.Generator, shape: ScoreShape, form: Format
) -> dict[str, Any]:
    return {"bias": _bias("qk")(rng, shape, form)["bias"][0, 0]}


def _bias_three_dimensional(
    rng: np.random.Generator, shape: ScoreShape, form: Format
) -> dict[str, Any]:
    return {"bias": _bias("hqk")(rng, shape, form)["bias"][0]}


def _bias_hiding(rng: np.random.Generator, shape: ScoreShape, form: Format) -> dict[str, Any]:
    mask: BoolArray = _mask("bqk")(rng, shape, form)["mask"]
    noise = rng.standard_normal(_axes(shape, "bqk"))
    return {"bias": form.round(np.where(mask, noise, -np.inf))}


def _bias_empty_rows(rng: np.random.Generator, shape: ScoreShape, form: Format) -> dict[str, Any]:
    bias: npt.NDArray[Any] = _bias_hiding(rng, shape, form)["bias"]
    hidden = (np.arange(shape[2]) % 3 == 1)[:, None]
    return {"bias": np.where(hidden, -np.inf, bias).astype(bias.dtype)}


def _bias_far_below(rng: np.random.Generator, shape: ScoreShape, form: Format) -> dict[str, Any]:
    """Every third row far below the finite numbers that stand in for -inf, and some keys at it."""
    bias: npt.NDArray[Any] = _bias_hiding(rng, shape, form)["bias"].astype(np.float64)
    low = np.where(np.arange(shape[2]) % 3 == 0, 60000.0, 0.0)[:, None]
    return {"bias": form.round(np.round(bias * 2) / 2 - low)}


def _bias_finite_minimum(
    rng: np.random.Generator, shape: ScoreShape, form: Format
) -> dict[str, Any]:
    mask: BoolArray = _mask("qk")(rng, shape, form)["mask"]
    # Half of the most negative number: the number itself may overflow when a score is added.
    return {"bias": form.round(np.where(mask, 0.0, -form.largest / 2))}


# -- the others --------------------------------------------------------------------------------


def _side_format(form: Format) -> Format:
    """Sinks and slopes come in float32, or in float64 under float64."""
    return FORMATS["float64" if form.name == "float64" else "float32"]


def _sinks(rng: np.random.Generator, shape: ScoreShape, form: Format) -> dict[str, Any]:
    return {"sinks": _side_format(form).round(2 * rng.standard_normal(shape[1]))}


def _alibi(first: float) -> Variant:
    """2^-first in the first head, half of it in each next one; far keys count from about 6 on."""

    def draw(rng: np.random.Generator, shape: ScoreShape, form: Format) -> dict[str, Any]:
        slopes = 2.0 ** -(first + np.arange(shape[1]))
        return {"alibi": _side_format(form).round(slopes)}

    return draw


def lengths(name: str, *, axis: int, low: float) -> Variant:
    """From `low` of all queries or keys to all of them, at random."""

    def draw(rng: np.random.Generator, shape: ScoreShape, form: Format) -> dict[str, Any]:
        most = shape[axis]
        found = rng.integers(int(low * most), most, size=shape[0], endpoint=True)
        if low == 0:
            found[0] = 0
        return {name: found.astype(np.int32)}

    return draw


def _whole_tiles(rng: np.random.Generator, shape: ScoreShape, form: Format) -> dict[str, Any]:
    """Lengths that fill tiles of keys: a kernel must not round them."""
    keys = shape[3]
    tile = next((tile for tile in (128, 16) if tile <= keys), max(1, keys))
    found = tile * rng.integers(1, max(1, keys // tile), size=shape[0], endpoint=True)
    return {"key_lengths": np.minimum(found, keys).astype(np.int32)}


def _lse_cotangent(rng: np.random.Generator, shape: ScoreShape, form: Format) -> dict[str, Any]:
    return {"dlse": form.round(rng.standard_normal(shape[:3]))}


OPTIONS: dict[str, dict[str, Variant]] = {
    "causal": {"on": _fixed(causal=True)},
    "window": {
        "sliding": _fixed(window=(7, 0)),
        "both": _fixed(window=(3, 2)),
        "left": _fixed(window=(4, None)),
        "right": _fixed(window=(None, 1)),
        "self": _fixed(window=(0, 0)),
        "wide": _fixed(window=(50, 10)),
        "far": _fixed(window=(300, 150)),
    },
    "mask": {
        "full": _mask("bhqk"),
        "keys": _mask("bk"),
        "heads": _mask("hqk"),
        "batch": _mask("bqk"),
        "two-dimensional": _mask_two_dimensional,
        "all-true": _mask_all_true,
        "empty-rows": _mask_empty_rows,
        "first-keys-hidden": _mask_first_keys,
        "three-dimensional": _mask_three_dimensional,
        "keys-alone": _mask("k"),
        "rows": _mask_rows,
        "blocks": _mask_blocks,
    },
    "bias": {
        "full": _bias("bhqk"),
        "keys": _bias("bk"),
        "heads": _bias("hqk"),
        "batch": _bias("bqk"),
        "two-dimensional": _bias_two_dimensional,
        "large": _bias("qk", size=20.0),
        "neg-inf": _bias_hiding,
        "finite-minimum": _bias_finite_minimum,
        "three-dimensional": _bias_three_dimensional,
        "keys-alone": _bias("k"),
        "rows": _bias("bhq"),
        "far-below": _bias_far_below,
        "empty-rows": _bias_empty_rows,
    },
    "softcap": {"tight": _fixed(softcap=1.5), "loose": _fixed(softcap=30.0)},
    "sinks": {"normal": _sinks},
    "alibi": {"standard": _alibi(1), "gentle": _alibi(6.5)},
    "key_lengths": {
        "ragged": lengths("key_lengths", axis=3, low=0.4),
        "zero": lengths("key_lengths", axis=3, low=0),
        "whole-tiles": _whole_tiles,
    },
    "query_lengths": {
        "ragged": lengths("query_lengths", axis=2, low=0.4),
        "zero": lengths("query_lengths", axis=2, low=0),
    },
    "scale": {
        "no-power-of-two": _fixed(scale=0.3),
        "negative": _fixed(scale=-0.25),
        "zero": _fixed(scale=0.0),
        "large": _fixed(scale=2.0),
    },
    "return_lse": {"differentiated": _lse_cotangent},
    "gqa": {"grouped": _fixed(), "single": _fixed(), "eight": _fixed()},
}
"""option -> variant -> fields. `gqa` changes the shape instead (see `cases`)."""
