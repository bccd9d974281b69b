"""Inputs that a call writes into."""

from __future__ import annotations

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.pipeline import Array, Pipeline

__all__: list[str] = []

GRADIENTS = ("dq", "dk", "dv", "dbias", "dsinks")
"""What a backward pass with the inputs that a forward pass wrote into gets wrong."""


class Writing(Pipeline):
    """Inputs are written into once the answer is computed."""

    def answer(self) -> Array | tuple[Array, Array]:
        found = super().answer()
        self.write()
        return found

    def write(self) -> None:
        """What is written."""


@fault(kind="input-mutation", shows=("inputs-unchanged",), spoils=GRADIENTS)
class ScalesTheQueriesInPlace(Writing):
    """The queries are scaled in place."""

    def write(self) -> None:
        self.raw["q"][...] = (self.q * self.scale).astype(self.dtype)


@fault(kind="input-mutation", shows=("inputs-unchanged",), spoils=GRADIENTS)
class KeepsTheOutputInTheQueries(Writing):
    """The output is written over the queries."""

    def write(self) -> None:
        if self.size == self.value_size:
            self.raw["q"][...] = self.stored(self.forward()[0], self.raw["q"])


@fault(kind="input-mutation", shows=("inputs-unchanged",), spoils=GRADIENTS)
class CentresTheKeysInPlace(Writing):
    """The mean key is subtracted from the keys in place."""

    def write(self) -> None:
        key = self.raw["k"]
        if self.keys:
            key -= key.mean(axis=2, keepdims=True, dtype=np.float32).astype(key.dtype)


@fault(kind="input-mutation", shows=("inputs-unchanged",), spoils=())
class ZeroesValuesBeyondTheLengths(Writing):
    """Values beyond the length of a batch entry are set to zero in place."""

    def write(self) -> None:
        for entry, held in enumerate(self.key_lengths.ravel()):
            self.raw["v"][entry, :, held:] = 0


@fault(kind="input-mutation", shows=("inputs-unchanged",), spoils=GRADIENTS)
class FlipsTheMaskInPlace(Writing):
    """The mask is turned into one of what to hide, in place."""

    def write(self) -> None:
        if self.raw["mask"] is not None:
            np.logical_not(self.raw["mask"], out=self.raw["mask"])


@fault(kind="input-mutation", shows=("inputs-unchanged",), spoils=GRADIENTS)
class ClearsTheMinusInfinitiesOfTheBias(Writing):
    """-inf in the bias is replaced by a large number, in place."""

    def write(self) -> None:
        if self.raw["bias"] is not None:
            np.nan_to_num(self.raw["bias"], copy=False)


@fault(kind="input-mutation", shows=("inputs-unchanged",), spoils=GRADIENTS)
class AddsTheLengthsUpInPlace(Writing):
    """The lengths of the keys are replaced by their running sum, in place."""

    def write(self) -> None:
        if self.raw["key_lengths"] is not None:
            np.cumsum(self.raw["key_lengths"], out=self.raw["key_lengths"])


@fault(kind="input-mutation", shows=("inputs-unchanged-by-gradients",), spoils=())
class ScalesTheCotangentInPlace(Pipeline):
    """The backward pass scales the cotangent in place."""

    def gradients(self) -> dict[str, Array]:
        found = super().gradients()
        self.raw["dout"] *= np.asarray(self.scale, self.dtype)
        return found
