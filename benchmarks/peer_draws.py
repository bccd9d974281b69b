"""Draws problems as other suites do: their distributions, masks, lengths and the like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from attnspec.conformance.case import Shape
from attnspec.oracle.formats import FORMATS
from attnspec.oracle.problem import Problem

__all__ = [
    "Draws",
    "bias",
    "blocks",
    "counting",
    "empty_rows",
    "first_keys_hidden",
    "lengths",
    "mask",
    "normal",
    "powers",
    "sinks",
    "slopes",
    "sparse_integers",
    "thousandths",
    "uniform",
]

Array = npt.NDArray[Any]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Array]
Full = tuple[int, int, int, int]
Option = Callable[[np.random.Generator, Full], Array]

# -- numbers -------------------------------------------------------------------------------------


def normal(size: float = 1.0) -> Draw:
    """N(0, size²)."""
    return lambda rng, shape: size * rng.standard_normal(shape)


def uniform(low: float, high: float) -> Draw:
    """[low, high); torch.rand is uniform(0, 1)."""
    return lambda rng, shape: rng.uniform(low, high, shape)


def counting(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """0, 1, 2, … over (B, N, H, D), as Keras lays it out."""
    b, h, n, d = shape
    return np.arange(b * h * n * d, dtype=np.float64).reshape(b, n, h, d).swapaxes(1, 2)


def sparse_integers(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """-2 … 2, most of them 0."""
    return rng.integers(-2, 3, shape) * (rng.random(shape) < 0.3)


def thousandths(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """0.001 · an integer below 200."""
    return 0.001 * rng.integers(0, 200, shape)


# -- options -------------------------------------------------------------------------------------


def _axes(full: Full, axes: str) -> tuple[int, ...]:
    return tuple(n if axis in axes else 1 for n, axis in zip(full, "bhqk", strict=True))


def mask(axes: str, share: float = 0.5) -> Option:
    """A boolean mask that keeps a share of the keys, and at least the first of each row."""

    def draw(rng: np.random.Generator, full: Full) -> Array:
        found = rng.random(_axes(full, axes)) < share
        found[..., 0] = True
        return found

    return draw


def empty_rows(rng: np.random.Generator, full: Full) -> Array:
    """A boolean mask in which a quarter of the rows see nothing."""
    return mask("bhqk")(rng, full) & (np.arange(full[2]) % 4 != 0)[:, None]


def blocks(count: int) -> Option:
    """Documents: row i sees the keys of its own block."""

    def draw(rng: np.random.Generator, full: Full) -> Array:
        row, key = np.arange(full[2]) * count // full[2], np.arange(full[3]) * count // full[3]
        return (row[:, None] == key)[None, None]

    return draw


def bias(axes: str, draw: Draw, hidden: float = 0.0) -> Option:
    """Numbers added to the scores; a share of them -inf, but the first key of no row."""

    def drawn(rng: np.random.Generator, full: Full) -> Array:
        found = draw(rng, _axes(full, axes))
        hide = rng.random(found.shape) < hidden
        hide[..., 0] = False
        return np.where(hide, -np.inf, found)

    return drawn


def first_keys_hidden(rng: np.random.Generator, full: Full) -> Array:
    """A bias that is -inf at the first keys."""
    found = rng.standard_normal(_axes(full, "bhqk"))
    found[..., : full[3] // 4] = -np.inf
    return found


def lengths(axis: int, low: float = 0.5) -> Option:
    """How many of the queries (axis 2) or keys (axis 3) of each batch entry there are."""
    return lambda rng, full: rng.integers(max(1, int(low * full[axis])), full[axis] + 1, full[0])


def slopes(most: float) -> Option:
    """Random ALiBi slopes."""
    return lambda rng, full: rng.uniform(0, most, full[1])


def powers(rng: np.random.Generator, full: Full) -> Array:
    """The usual ALiBi slopes: 2^(-8 h / H)."""
    return 2.0 ** (-8 * np.arange(1, full[1] + 1) / full[1])


def sinks(draw: Draw) -> Option:
    """A logit a head."""
    return lambda rng, full: draw(rng, (full[1],))


class Draws:
    """Draws problems of one type: call it with a shape, b2h4g2q19k37d32v32, and options.

    An option is a value or, for arrays, a function of the generator and (B, Hq, Nq, Nk).
    """

    def __init__(self, dtype: str, seed: int, values: Draw, cotangent: Draw | None = None) -> None:
        self.form, self.rng = FORMATS[dtype], np.random.default_rng(seed)
        self.values, self.cotangent = values, cotangent or values

    def __call__(self, shape: str, **options: Any) -> Problem:
        """The next problem. q_factor multiplies q."""
        s, q_factor = Shape.parse(shape), options.pop("q_factor", 1.0)
        queries, keys = (s.batch, s.heads, s.queries), (s.batch, s.kv_heads, s.keys)
        q, k, v, dout = (
            draw(self.rng, full)
            for draw, full in (
                (self.values, (*queries, s.size)),
                (self.values, (*keys, s.size)),
                (self.values, (*keys, s.value_size)),
                (self.cotangent, (*queries, s.value_size)),
            )
        )
        fields: dict[str, Any] = {"scale": s.size**-0.5}
        for name, value in options.items():
            fields[name] = self._option(name, value, (*queries, s.keys))
        r = self.form.round
        return Problem(q=r(q_factor * q), k=r(k), v=r(v), dout=r(dout), **fields)

    def _option(self, name: str, value: Any, full: Full) -> Any:
        found = value(self.rng, full) if callable(value) else value
        if name in ("sinks", "alibi"):
            return found.astype(np.float32)
        return self.form.round(found) if name == "bias" else found
