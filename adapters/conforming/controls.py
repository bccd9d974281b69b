"""Controls: reported as faults, and right in everything that they claim."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from attnspec.adapters.catalogue import variant
from attnspec.adapters.conforming.storing import TwoPasses
from attnspec.adapters.pipeline import Array, Pipeline

__all__: list[str] = []


@variant(
    without=("return_lse", "sinks"),
    dtypes=("float32", "bfloat16"),
    reports=("vllm-project/vllm#945",),
)
class ScoresShiftedByOne(Pipeline):
    """Every score is one more: the softmax is the same, and lse is not claimed.

    It errs by u (1 + |s|) where a second key makes it matter; the declared arithmetic has
    u (log(1 + n) + 2 |s|), for n = 2 already more, since a split would store m + log l.
    """

    def sloped(self, s: Array, ahead: Array) -> Array:
        return super().sloped(s, ahead) + np.asarray(1, self.real)


@variant(without=("return_lse", "sinks"), reports=("tinygrad/tinygrad#2425",))
class CausalMaskOfOnes(Pipeline):
    """The causal mask adds 1 where it lets see: the softmax is the same, and lse is not claimed."""

    def sloped(self, s: Array, ahead: Array) -> Array:
        return super().sloped(s, ahead) + np.asarray(self.causal, self.real)


@variant(dtypes=("float32", "bfloat16"))
class HiddenScoresAreTheLeast(TwoPasses):
    """Hidden scores are the least finite number: a row that sees nothing is the mean of all values.

    Where a row sees a key, however low its score, the difference is far beyond what exp resolves.
    """

    declares: ClassVar = {"masked_row": "mean"}

    def hidden(self, s: Array, visible: Array) -> Array:
        return np.where(visible, s, np.finfo(np.float32).min)
