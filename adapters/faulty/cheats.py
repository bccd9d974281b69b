"""Answers that are good enough for a weak test: cheats, and kernels that ignore the question."""

from __future__ import annotations

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.pipeline import Array, Pipeline, finite, rounded

__all__ = ["Answering"]


class Answering(Pipeline):
    """The output can be replaced; lse is right."""

    def forward(self) -> tuple[Array, Array]:
        """See `Pipeline.forward`."""
        out, lse = super().forward()
        return np.broadcast_to(self.instead(out), out.shape).astype(out.dtype), lse

    def instead(self, out: Array) -> Array:
        """The output, from the right one."""
        return out

    def mean(self) -> Array:
        """The mean of the values: (B, H, 1, Dv)."""
        mean: Array = finite(self.v).sum(axis=2, keepdims=True) / max(1, self.keys)
        return mean


# -- the question is ignored -----------------------------------------------------------------------


@fault(kind="harness", sentinel=True)
class Zeros(Answering):
    """The output is zero."""

    def instead(self, out: Array) -> Array:
        return np.zeros_like(out)


@fault(kind="harness", sentinel=True)
class Ones(Answering):
    """The output is one."""

    def instead(self, out: Array) -> Array:
        return np.ones_like(out)


@fault(kind="harness", sentinel=True)
class NanEverywhere(Answering):
    """The output is NaN."""

    def instead(self, out: Array) -> Array:
        return np.full_like(out, np.nan)


@fault(kind="harness", sentinel=True)
class InfinityEverywhere(Answering):
    """The output is infinite."""

    def instead(self, out: Array) -> Array:
        return np.full_like(out, np.inf)


@fault(kind="harness", sentinel=True)
class NoiseEverywhere(Answering):
    """The output is noise."""

    def instead(self, out: Array) -> Array:
        return np.random.default_rng(0).standard_normal(out.shape)


@fault(kind="harness", sentinel=True)
class MeanOfTheValues(Answering):
    """The output is the mean of all values: queries and keys are ignored."""

    def instead(self, out: Array) -> Array:
        return self.mean()


@fault(kind="harness", sentinel=True)
class CopiesTheValues(Answering):
    """The output is a copy of the values."""

    def instead(self, out: Array) -> Array:
        return np.resize(self.v, out.shape) if self.v.size else out


@fault(kind="harness", sentinel=True)
class CopiesTheQueries(Answering):
    """The output is a copy of the queries."""

    def instead(self, out: Array) -> Array:
        return np.resize(self.q, out.shape) if self.q.size else out


@fault(kind="harness", sentinel=True)
class ValueOfTheLargestScore(Answering):
    """Each row returns the value of its largest score."""

    def instead(self, out: Array) -> Array:
        if not self.keys:
            return out
        s, _ = self.scores(slice(0, self.keys))
        return np.take_along_axis(self.v, s.argmax(axis=-1)[..., None], axis=2)


@fault(kind="harness", shows=("lse",), spoils=("lse",), sentinel=True)
class LseZero(Answering):
    """lse is zero."""

    def log_sum_exp(self, largest: Array, total: Array) -> Array:
        found = super().log_sum_exp(largest, total)
        return found if self.returning or self.raw["dout"] is not None else np.zeros_like(found)


@fault(kind="harness", shows=("lse",), spoils=("lse",))
class LseOfTheLogOfTheLength(Answering):
    """lse is the largest score and the log of the number of keys."""

    def log_sum_exp(self, largest: Array, total: Array) -> Array:
        found = super().log_sum_exp(largest, total)
        if self.raw["dout"] is not None:
            return found
        return np.where(total > 0, largest + np.log(max(1, self.keys)), found).astype(self.real)


# -- nearly right ----------------------------------------------------------------------------------


@fault(kind="harness", shows=("out", "lse"))
class FirstKeysOnly(Pipeline):
    """Only the first 64 keys are looked at."""

    def seen_by_length(self, keys: slice) -> Array:
        return super().seen_by_length(keys) & (self.key_index(keys) < 64)


@fault(kind="harness", shows=("out", "lse"))
class EveryTwentiethKeyLeftOut(Pipeline):
    """Every twentieth key is left out."""

    def seen_by_length(self, keys: slice) -> Array:
        return super().seen_by_length(keys) & (self.key_index(keys) % 20 != 13)


@fault(kind="harness")
class NoiseOfOneThousandth(Answering):
    """The output has a relative noise of 1/1000."""

    def instead(self, out: Array) -> Array:
        return out * (1 + 1e-3 * np.random.default_rng(0).standard_normal(out.shape))


@fault(kind="harness")
class OutputTwoPercentTooLarge(Answering):
    """The output is 2 % too large."""

    def instead(self, out: Array) -> Array:
        return out * 1.02


@fault(kind="harness")
class LastRowOnePercentTooLarge(Answering):
    """The last row is 1 % too large."""

    def instead(self, out: Array) -> Array:
        return np.where(self.row_index() == self.rows - 1, 1.01 * out, out)


@fault(kind="harness")
class OneNumberInEachHeadLost(Answering):
    """One number of each head is zero."""

    def instead(self, out: Array) -> Array:
        lost = (self.row_index() == self.rows // 2) & (np.arange(self.value_size) == 0)
        return np.where(lost, 0, out)


@fault(kind="harness")
class ComputedInHalf(Pipeline):
    """float32 inputs are rounded to float16 first."""

    def read(self, name: str, x: Array) -> Array:
        return rounded(super().read(name, x), "float16")


@fault(kind="harness")
class OutputOfTheNorm(Answering):
    """The output of a row has the right norm and, in half of its numbers, the wrong sign."""

    def instead(self, out: Array) -> Array:
        return np.where(np.arange(self.value_size) % 2 == 1, -out, out)


@fault(kind="harness")
class ClippedToTheUsualRange(Answering):
    """The output is clipped to ±64."""

    def instead(self, out: Array) -> Array:
        return np.clip(out, -64, 64)
