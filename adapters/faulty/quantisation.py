"""Operands in 8 bits, with one factor for all: hidden tokens decide how others are rounded."""

from __future__ import annotations

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.faulty.storing import float8
from attnspec.adapters.pipeline import Array, Pipeline, finite

__all__: list[str] = []

LEAKS = ("out", "later-tokens-have-no-influence", "hidden-keys-have-no-influence")


class Quantised(Pipeline):
    """The operand `quantised` has one factor for each slice along `axes`."""

    quantised = ""
    axes: tuple[int, ...] = (0, 1, 2, 3)

    def read(self, name: str, x: Array) -> Array:
        found = super().read(name, x)
        if name != self.quantised:
            return found
        largest = np.abs(finite(found)).max(axis=self.axes, keepdims=True, initial=0)
        factor = np.where(largest == 0, 1, largest)
        return np.where(np.isfinite(found), self.coarse(found / factor) * factor, found)

    def coarse(self, x: Array) -> Array:
        """Numbers of size at most 1 in 8 bits: float8 e4m3 holds up to 448."""
        return float8(x * 448) / 448


@fault(
    kind="quant-leak",
    reports=("NVIDIA/TransformerEngine#3248",),
    dtypes=("bfloat16",),
    shows=LEAKS,
)
class KeysInFloat8ByTheTensor(Quantised):
    """Keys are rounded to float8 with one factor for the whole tensor, hidden tokens included."""

    quantised = "k"


@fault(kind="quant-leak", dtypes=("bfloat16",), shows=LEAKS)
class ValuesInInt8ByTheTensor(Quantised):
    """Values are rounded to 8-bit integers with one factor for the whole tensor."""

    quantised = "v"

    def coarse(self, x: Array) -> Array:
        return np.asarray(np.rint(x * 127) / np.asarray(127, x.dtype))


@fault(kind="quant-leak", dtypes=("bfloat16",))
class QueriesInInt8ByTheHead(Quantised):
    """Queries are rounded to 8-bit integers with one factor a head."""

    quantised = "q"
    axes = (2, 3)

    def coarse(self, x: Array) -> Array:
        return np.asarray(np.rint(x * 127) / np.asarray(127, x.dtype))


@fault(kind="quant-leak", dtypes=("float16",))
class ValuesInFloat8ByTheChannel(Quantised):
    """Values are rounded to float8 with one factor a channel."""

    quantised = "v"
    axes = (2,)
