"""Input families for long contexts: a few query rows against very many keys.

What goes wrong at length alone: an index that wraps, a tile that is dropped or never rescaled,
a sum in too few bits. The hard bound of a sum of n terms grows as n u, to 6 % in float32 at a
million keys, so most families show a fault as a number that is wrong altogether: a key that
alone decides its row, or regions of keys that have an output channel to themselves.

Operands come, and stay, in float32.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from attnspec.conformance.inputs import Family, Operands, registered
from attnspec.conformance.options import Variant, lengths
from attnspec.oracle.formats import Format
from attnspec.oracle.problem import IntArray

__all__ = ["LONG_FAMILIES", "LONG_VARIANTS", "judged_rows"]

LONG_FAMILIES: dict[str, Family] = {}

MOST_ROWS = 8
"""Rows that are judged at most: certifying one costs as much as the kernel's."""


def judged_rows(queries: int, rng: np.random.Generator) -> tuple[int, ...] | None:
    """First, last, two on either side of a tile's edge and two at random; None where few: all."""
    if queries <= MOST_ROWS:
        return None
    edge = min(128, queries // 2)
    chosen = {0, edge - 1, edge, queries - 1, *rng.integers(queries, size=2).tolist()}
    return tuple(sorted(chosen))


LONG_VARIANTS: dict[str, dict[str, Variant]] = {
    "window": {"long": lambda rng, shape, form: {"window": (shape[3] // 32, 0)}},
    "key_lengths": {"long": lengths("key_lengths", axis=3, low=0.6)},
}
"""Variants that only long contexts have: a window of thousands of keys; most of the keys, so that
their number, too, lies beyond 16 bits."""


_family = partial(registered, LONG_FAMILIES)


@_family("long-normal", generic=True, shows="a wrong mean: keys counted twice or not at all")
def _normal(rng: np.random.Generator, form: Format, operands: Operands) -> Operands:
    return operands


@_family("long-sharp", generic=True, shows="wrong keys: some hundred of them share each row")
def _sharp(rng: np.random.Generator, form: Format, operands: Operands) -> Operands:
    q, k, v = operands
    return 4 * q, k, v


@_family("long-positive", generic=True, shows="accumulators: no cancellation hides a biased sum")
def _positive(rng: np.random.Generator, form: Format, operands: Operands) -> Operands:
    q, k, v = operands
    return np.abs(q), np.abs(k), np.abs(v) + 1


@_family(
    "long-uniform", generic=False, shows="counting: the sum of weights, and each region of keys"
)
def _uniform(rng: np.random.Generator, form: Format, operands: Operands) -> Operands:
    """Equal weights. A channel is 1 in a region of keys and 0 elsewhere, so its output is that
    region's share: regions double in length from either end, each with half of the channels."""
    q, k, v = operands
    keys, size = v.shape[2], v.shape[3]
    j = np.arange(keys)
    half = max(1, size // 2)
    value = np.zeros((keys, size), np.float32)
    value[j, np.minimum(_doublings(keys - j), half - 1)] = 1
    value[j, size - 1 - np.minimum(_doublings(j + 1), half - 1)] = 1
    return 0 * q, k, np.broadcast_to(value, v.shape).copy()


def _doublings(number: IntArray) -> IntArray:
    """floor(log2)."""
    return np.frexp(number.astype(np.float64))[1].astype(np.int64) - 1


@_family("long-needle", generic=False, shows="a key that is lost, or found by a wrapped index")
def _needle(rng: np.random.Generator, form: Format, operands: Operands) -> Operands:
    """The last row of head 0 looks for the last key, the others for those behind powers of two."""
    q, k, v = operands
    heads, rows, group = q.shape[1], q.shape[2], q.shape[1] // k.shape[1]
    places = np.array(needles(k.shape[2]))
    order = np.arange(heads)[:, None] * rows + np.arange(rows)[::-1]
    found = k[:, np.arange(heads)[:, None] // group, places[order % len(places)]]
    return 6 * found / np.sqrt(np.mean(found**2, axis=-1, keepdims=True)), k, v


def needles(keys: int) -> list[int]:
    """The last key, then the second behind each power of two below it, from the largest on."""
    powers = [2**p + 1 for p in range(keys.bit_length(), 3, -1)]
    return [keys - 1, *(place for place in powers if place < keys - 1)]


@_family("long-rising", generic=False, shows="a running maximum that stops, or a rescale left out")
def _rising(rng: np.random.Generator, form: Format, operands: Operands) -> Operands:
    """Scores rise by 256 over the keys: each tile brings a new maximum, and without it exp
    overflows."""
    q, k, v = operands
    size, keys = q.shape[3], k.shape[2]
    q, k = q.copy(), k.copy()
    q[..., 0] = 16 * size**0.5
    k[..., 0] = np.linspace(0, 16, keys, dtype=np.float32)
    return q, k, v
