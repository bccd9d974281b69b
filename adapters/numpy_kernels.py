"""Attention in NumPy: the plain formula, and the tiled online softmax of FlashAttention.

Both compute in float32, or in float64 for float64 inputs, and round each result once. What a row
does not see, NaN and infinities included, never reaches its result.
"""

from __future__ import annotations

from attnspec.adapters.pipeline import Array, Pipeline, kernel_of, shift

__all__ = ["flash", "naive"]


class Whole(Pipeline):
    """softmax(scale · q kᵀ, …) v with all scores in memory; backward takes P from the softmax."""

    tile = 2**62

    def forward(self) -> tuple[Array, Array]:
        """See `Pipeline.forward`."""
        self.largest_score, self.total, sums = self.attend()
        lse = self.log_sum_exp(self.largest_score, self.total)
        return self.normalised(sums, self.total), lse

    def weights(self, s: Array, lse: Array) -> Array:
        """exp(s - largest) / Σ."""
        return self.normalised(self.exp(s - shift(self.largest_score)), self.total)


class Tiled(Pipeline):
    """The same in tiles of keys, with a running maximum and sum."""


naive = kernel_of(Whole, name="numpy", tile=32)
flash = kernel_of(Tiled, name="numpy-flash", memory="linear")
