"""Dropout at work although nobody asked for it, in the ways in which it goes wrong.

The mask is pseudo-random and the same in every call, so that nothing else is at fault.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.pipeline import Array, Pipeline, State

__all__: list[str] = []

ALL = ("dq", "dk", "dv")
EVERY = (*ALL, "dbias", "dsinks")


class Dropping(Pipeline):
    """Weights are dropped at a small rate."""

    rate: ClassVar[float] = 0.02

    def kept(self, keys: slice, seed: int) -> Array:
        """1 / (1 - rate) where a weight stays and 0 where it is dropped: (B, H, Nq, c)."""
        shape = (self.batch, self.heads, self.rows, self.keys)
        drawn = np.random.default_rng(seed).random(shape)[..., keys]
        return ((drawn >= self.rate) / (1 - self.rate)).astype(self.real)

    def step(self, state: State, keys: slice) -> State:
        self.turn = keys
        return super().step(state, keys)


@fault(kind="dropout-eval")
class DropoutInInference(Dropping):
    """Dropout is active though nobody asked for it."""

    def probabilities(self, p: Array) -> Array:
        return p * self.kept(self.turn, seed=1)


@fault(kind="dropout-order")
class DropoutBeforeTheSum(Dropping):
    """Weights are dropped before their sum is taken, which the kept ones then share."""

    def hidden(self, s: Array, visible: Array) -> Array:
        if self.returning:
            return super().hidden(s, visible)
        return super().hidden(s, visible & (self.kept(self.turn, seed=1) > 0))


@fault(kind="dropout-bwd", shows=("dq", "dk"), spoils=EVERY, reports=("aws-neuron/nki-samples#81",))
class DropoutInTheSoftmaxGradient(Dropping):
    """The softmax gradient takes the weights after dropout."""

    def dweights(self, dout: Array, keys: slice) -> Array:
        self.turn = keys
        return super().dweights(dout, keys)

    def dscores(self, p: Array, dp: Array, inner: Array) -> Array:
        return super().dscores(p * self.kept(self.turn, seed=1), dp, inner)


@fault(kind="dropout-rng", shows=ALL, spoils=EVERY)
class DropoutDrawnAgainForTheBackward(Dropping):
    """The backward pass drops weights by random numbers that the forward pass did not use."""

    rate = 0.005

    def scores(self, keys: slice) -> tuple[Array, Array | float]:
        self.turn = keys
        return super().scores(keys)

    def weights(self, s: Array, lse: Array) -> Array:
        return super().weights(s, lse) * self.kept(self.turn, seed=2)


@fault(kind="bwd-scale", shows=ALL, spoils=ALL, reports=("NVIDIA/apex#816",))
class DropoutScaleOfTheBackward(Pipeline):
    """Gradients are multiplied by the rate of dropout, 0, instead of 1 / (1 - rate)."""

    def backward(self) -> dict[str, Array]:
        rate = self.real.type(0)
        return {name: x * rate if name in ALL else x for name, x in super().backward().items()}
