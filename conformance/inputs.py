"""The input families: what the numbers of a problem look like, and which fault each one shows.

A family is *generic* where the roundings that its numbers cause are independent, so that the
variance model of the tolerance holds; on the others only the hard bound judges: repeated keys,
equal weights and constants round alike, a bias that no variance describes. Inputs decide as
much as tolerances: attention averages, so on flat weights and small zero-mean values a kernel
that ignores q and k comes within most tolerances.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from attnspec.oracle.formats import Format

__all__ = ["FAMILIES", "Family", "Operands", "registered"]

Operands = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]
"""q (B, Hq, Nq, D), k (B, Hkv, Nk, D), v (B, Hkv, Nk, Dv), not yet rounded to the type."""

Transform = Callable[[np.random.Generator, Format, Operands], Operands]


@dataclass(frozen=True)
class Family:
    """A way of drawing q, k and v. `shape` turns standard normal operands into the family's."""

    name: str
    generic: bool
    shows: str
    transform: Transform

    def draw(self, rng: np.random.Generator, form: Format, operands: Operands) -> Operands:
        """The family's operands from standard normal ones of the same shapes."""
        return self.transform(rng, form, operands)


FAMILIES: dict[str, Family] = {}


def registered(
    families: dict[str, Family], name: str, *, generic: bool, shows: str
) -> Callable[[Transform], Transform]:
    """A decorator: the transform becomes a family of this name among `families`."""

    def register(transform: Transform) -> Transform:
        families[name] = Family(name, generic, shows, transform)
        return transform

    return register


_family = partial(registered, FAMILIES)


@_family("normal", generic=True, shows="a wrong formula")
def _normal(rng: np.random.Generator, form: Format, operands: Operands) -> Operands:
    return operands


@_family("large", generic=True, shows="scale, exp and QK accumulation: saturated rows")
def _large(rng: np.random.Generator, form: Format, operands: Operands) -> Operands:
    q, k, v = operands
    return 5 * q, 5 * k, v


@_family("positive", generic=True, shows="accumulators: no cancellation hides a biased sum")
def _positive(rng: np.random.Generator, form: Format, operands: Operands) -> Operands:
    q, k, v = operands
    return np.abs(q), np.abs(k), np.abs(v) + 1


@_family("peaked", generic=True, shows="rescaling and ties of precision: a few outlier channels")
def _peaked(rng: np.random.Generator, form: Format, operands: Operands) -> Operands:
    q, k, v = operands
    channels = np.where(np.arange(q.shape[-1]) < max(1, q.shape[-1] // 16), 1.0, 0.0)
    return q * (1 + 2 * channels), k * (1 + 19 * channels), v


@_family("cancel", generic=True, shows="P rounded or accumulated too coarsely: values cancel")
def _cancel(rng: np.random.Generator, form: Format, operands: Operands) -> Operands:
    q, k, v = operands
    sign = np.where(np.arange(v.shape[2]) % 2 == 0, 100.0, -100.0)[:, None]
    return 0.05 * q, k, 0.01 * v + sign


@_family("offset", generic=True, shows="a row sum that does not match the weights: common values")
def _offset(rng: np.random.Generator, form: Format, operands: Operands) -> Operands:
    q, k, v = operands
    # In 16 bits the values must differ by some of their own ulps, or their mean is every answer.
    return q, k, max(0.1, 3200 * form.unit_roundoff) * v + 100


@_family("correlated", generic=True, shows="layout and tile faults that independent inputs hide")
def _correlated(rng: np.random.Generator, form: Format, operands: Operands) -> Operands:
    q, k, v = operands
    shared = rng.standard_normal((1, 1, 1, q.shape[-1]))
    drift = np.cumsum(v, axis=2) / np.sqrt(1 + np.arange(v.shape[2]))[:, None]
    return q + 2 * shared, k + 2 * shared, drift


@_family("needle", generic=False, shows="a dropped, repeated or misplaced key: one key wins a row")
def _needle(rng: np.random.Generator, form: Format, operands: Operands) -> Operands:
    q, k, v = operands
    rows, keys, group = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    if keys:
        target = (np.arange(rows) * 7 + 3) % keys  # every row looks for a key of its own
        found = np.repeat(k, group, axis=1)[:, :, target]
        q = 6 * found / np.sqrt(np.mean(found**2, axis=-1, keepdims=True))
    return q, k, v


@_family("ties", generic=False, shows="the row maximum and tied keys: few distinct keys repeated")
def _ties(rng: np.random.Generator, form: Format, operands: Operands) -> Operands:
    q, k, v = operands
    return np.round(2 * q) / 2, k[:, :, np.arange(k.shape[2]) % 3 if k.shape[2] else []], v


@_family(
    "negative", generic=False, shows="a running maximum that starts at 0: all scores far below"
)
def _negative(rng: np.random.Generator, form: Format, operands: Operands) -> Operands:
    q, k, v = operands
    size = np.sqrt(40.0)  # scores near -40 · sqrt(D), where exp(score) itself underflows
    return 0.1 * q + size, 0.1 * k - size, v


@_family("saturated", generic=False, shows="scores that overflow, or that are cut: by thousands")
def _saturated(rng: np.random.Generator, form: Format, operands: Operands) -> Operands:
    q, k, v = operands
    return 60 * q, 60 * k, v  # q·k beyond 65504, and rows that are one value


@_family("abyss", generic=False, shows="a finite number for -inf: all scores lie below -50,000")
def _abyss(rng: np.random.Generator, form: Format, operands: Operands) -> Operands:
    q, k, v = operands
    return q + 130, k - 130, v


@_family("uniform", generic=False, shows="counting: equal weights, so each key counts once")
def _uniform(rng: np.random.Generator, form: Format, operands: Operands) -> Operands:
    q, k, v = operands
    return 0 * q, k, v


@_family("huge", generic=False, shows="overflow: values near the largest number of the type")
def _huge(rng: np.random.Generator, form: Format, operands: Operands) -> Operands:
    q, k, v = operands
    # The result is representable, but a sum of unnormalised products is up to Nk times larger:
    # only float16 has accumulators of a wider range.
    room = 1.0 if form.name == "float16" else 2.0 * max(1, v.shape[2])
    return q, k, np.clip(v / 4, -1, 1) * (form.largest / room)


@_family("tiny", generic=False, shows="subnormal inputs flushed to zero")
def _tiny(rng: np.random.Generator, form: Format, operands: Operands) -> Operands:
    q, k, v = operands
    # Accumulators of float32 may flush the products of every key: what is left must be larger.
    room = 4 if form.name == "float16" else 16 * max(4, v.shape[2])
    return q, k, v * form.smallest_normal * room
