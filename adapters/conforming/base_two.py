"""Powers of two against a maximum that is rounded on its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from attnspec.adapters.catalogue import variant
from attnspec.adapters.pipeline import Array, Pipeline, State, rounded, shift

__all__: list[str] = []

LOG2_E = np.log2(np.e)


@variant(dtypes=("float32", "bfloat16"), reports=("gabrieldemarmiesse/torch-mojo-backend#398",))
class FusedAgainstRoundedMaximum(Pipeline):
    """Weights are 2^fma(score, log2 e, -m) with m = round(maximum · log2 e): the largest is not 1.

    The error is common to the row, and cancels but for P's rounding to storage, which is declared.
    """

    declares: ClassVar[Mapping[str, Any]] = {"probabilities": "storage"}

    def step(self, state: State, keys: slice) -> State:
        """See `Pipeline.step`."""
        before, total, sums = state
        s, _ = self.scores(keys)
        after = self.largest(before, s)
        held = (shift(after) * LOG2_E).astype(self.real).astype(np.float64)
        p = np.exp2(s.astype(np.float64) * LOG2_E - held).astype(self.real)
        earlier = (before * LOG2_E).astype(self.real).astype(np.float64)
        fade = np.exp2(earlier - held).astype(self.real)
        return after, self.added(total, p, fade), self.collected(sums, p, keys, fade)

    def probabilities(self, p: Array) -> Array:
        """In the storage type."""
        return rounded(p, self.dtype.name)
