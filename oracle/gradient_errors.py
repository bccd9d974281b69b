"""Errors of P, dP, D and dS, entry by entry, from those of the forward pass.

The model. P is recomputed as exp(s - lse) from a stored lse, or kept from a softmax that did not
rescale; D = sum_c dout · out from the rounded output, or sum_j P dP; dS = P (dP - D + dlse). P
enters dv = Pᵀ dout, and dS enters dq and dk, each possibly rounded to storage (`probabilities`);
in an eager framework every step is stored (`scores`). With computed values P + p, E + e:
|(P + p)(E + e) - P E| <= |p| |E| + (P + |p|) |e|, products of errors kept.

Magnitudes named `…_most` bound the exact quantity from above, float64's own error included.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attnspec.oracle.formats import Float64Array
from attnspec.oracle.forward_deviation import lse_deviation, weight_variance
from attnspec.oracle.forward_rounding import Forward, weight_error
from attnspec.oracle.problem import BoolArray
from attnspec.oracle.roundoffs import Roundoffs, flush, growth
from attnspec.oracle.statistics import U64, Statistics

__all__ = ["GradientErrors"]


@dataclass(frozen=True, eq=False)
class GradientErrors:
    """Bounds and variances of a stack of heads. The sink, if any, is the last of M keys."""

    st: Statistics
    r: Roundoffs
    forward: Forward

    # -- what the heads hold ----------------------------------------------------------------------

    @cached_property
    def keys(self) -> slice:
        """The real keys among M."""
        return slice(0, self.st.heads.visible.shape[-1])

    @cached_property
    def seen(self) -> BoolArray:
        """(Nq, Nk)."""
        return self.st.visible[..., self.keys]

    @cached_property
    def weights(self) -> Float64Array:
        """P: (Nq, Nk)."""
        return self.st.weights[..., self.keys]

    @cached_property
    def weights_most(self) -> Float64Array:
        """(Nq, Nk)."""
        return self.st.upper[..., self.keys]

    @cached_property
    def dout(self) -> Float64Array:
        """(Nq, Dv); 0 where the problem has none."""
        dout = self.st.heads.dout
        return np.zeros_like(self.st.mean) if dout is None else dout

    @cached_property
    def dlse(self) -> Float64Array:
        """(Nq, 1); 0 where the problem has none."""
        dlse = self.st.heads.dlse
        return (np.zeros(self.st.lse.shape) if dlse is None else dlse)[..., None]

    # -- P -----------------------------------------------------------------------------------------

    @cached_property
    def weight(self) -> Float64Array:
        """|P̂ - P|, P rounded as it enters dv. (Nq, M)

        The exponent s - lse: the score's error, the stored lse's, and two more roundings of
        |s - lse| <= |x| + log l. A kept P has the row sum's error, which is part of the lse's,
        and the division's.
        """
        st, r = self.st, self.r
        lse = self.forward.lse[..., None]
        stored = lse + r.lse.unit_roundoff * (np.abs(st.lse)[..., None] + lse) + flush(r.lse)
        apart = growth(2, r.unit) * (np.log(np.maximum(st.row_sum, 1)) + stored)
        factor = self.forward.exponent + stored + apart
        error = weight_error(st, r, factor - np.log1p(-r.exp) - 2 * np.log1p(-r.unit))
        rounded = (1 + r.probability) * (1 + r.operand) ** 2 - 1
        error = error + np.maximum(rounded * (st.upper + error), r.probability_eta)
        return np.where(st.visible, error, 0.0)

    # -- dP and D ----------------------------------------------------------------------------------

    @cached_property
    def dp(self) -> Float64Array:
        """dout vᵀ: (Nq, Nk)."""
        return np.where(self.seen, self.st.values.scores(self.dout), 0.0)

    @cached_property
    def dp_terms(self) -> Float64Array:
        """|dout| |v|ᵀ: (Nq, Nk)."""
        terms = self.st.values.scores(np.abs(self.dout), "magnitude")
        return np.where(self.seen, terms, 0.0)

    @cached_property
    def dp_most(self) -> Float64Array:
        """(Nq, Nk)."""
        return np.abs(self.dp) + growth(self.dout.shape[-1] + 2, U64) * self.dp_terms

    @cached_property
    def dp_error(self) -> Float64Array:
        """A dot product over Dv, its underflow, and its rounding where stored. (Nq, Nk)"""
        r, size = self.r, self.dout.shape[-1]
        grown = (1 + growth(size + 1, r.unit)) * (1 + growth(2, r.operand)) - 1
        inputs = np.abs(self.dout).sum(-1)[..., None] + self.st.values.sums()
        error = grown * self.dp_terms + 2 * r.eta * (size + 1 + inputs)
        stored = np.maximum(r.score * (self.dp_most + error), r.score_eta)
        return np.asarray(error + stored)

    @cached_property
    def delta(self) -> Float64Array:
        """D = sum_c dout · out: (Nq, 1)."""
        return np.asarray((self.dout * self.st.mean).sum(-1, keepdims=True))

    @cached_property
    def delta_most(self) -> Float64Array:
        """(Nq, 1)."""
        lost = self.st.mean_error + growth(self.dout.shape[-1] + 4, U64) * np.abs(self.st.mean)
        return np.asarray(np.abs(self.delta) + (np.abs(self.dout) * lost).sum(-1, keepdims=True))

    @cached_property
    def delta_error(self) -> Float64Array:
        """|D̂ - D|, the larger of the two ways to compute it. (Nq, 1)"""
        st, r, size = self.st, self.r, self.dout.shape[-1]
        most, error = st.absolute_output, self.forward.out
        error = error + r.output * (most + error) + flush(r.storage)
        chain = growth(size + 1, r.unit)
        terms = np.abs(self.dout) * (error + chain * (most + error))
        from_output = terms.sum(-1, keepdims=True)
        p, dp, e = self.weight[..., self.keys], self.dp_most, self.dp_error
        terms = p * dp + (self.weights_most + p) * (e + growth(st.count + 2, r.unit) * (dp + e))
        from_weights = np.where(self.seen, terms, 0.0).sum(-1, keepdims=True)
        lost = 2 * r.eta * (size + st.count + 1)
        return np.asarray(np.maximum(from_output, from_weights) + lost)

    # -- dS = P E, E = dP - D + dlse ---------------------------------------------------------------

    @cached_property
    def common(self) -> Float64Array:
        """dlse - D, the part of E that a row shares: (Nq, 1)."""
        return self.dlse - self.delta

    @cached_property
    def common_most(self) -> Float64Array:
        """(Nq, 1)."""
        return np.abs(self.common) + (self.delta_most - np.abs(self.delta))

    @cached_property
    def common_error(self) -> Float64Array:
        """Three roundings of the parts at most: two differences and the product. (Nq, 1)"""
        size = self.delta_most + np.abs(self.dlse) + self.delta_error
        return self.delta_error + growth(3, self.r.unit) * size

    @cached_property
    def ds(self) -> Float64Array:
        """(Nq, Nk)."""
        return self.weights * np.where(self.seen, self.dp + self.common, 0.0)

    @cached_property
    def _inner(self) -> tuple[Float64Array, Float64Array]:
        """E from above, and |Ê - E|. (Nq, Nk)"""
        lost = (self.dp_most - np.abs(self.dp)) + (self.delta_most - np.abs(self.delta))
        most = np.where(self.seen, np.abs(self.dp + self.common) + lost, 0.0)
        error = self.dp_error + self.delta_error
        size = self.dp_most + self.delta_most + np.abs(self.dlse)
        return most, error + growth(3, self.r.unit) * (size + error)

    @cached_property
    def ds_most(self) -> Float64Array:
        """(Nq, Nk)."""
        return self.weights_most * self._inner[0]

    @cached_property
    def ds_underflow(self) -> float:
        """What rounding dS to storage, or flushing it, may lose at most."""
        return 2 * self.r.eta + self.r.probability_eta + self.r.score_eta

    @cached_property
    def ds_error(self) -> Float64Array:
        """|dŜ - dS|, rounded as it enters dq and dk. (Nq, Nk)"""
        r, p, (most, error) = self.r, self.weight[..., self.keys], self._inner
        found = p * most + (self.weights_most + p) * error
        rounded = (1 + growth(2, r.unit)) * (1 + r.probability) * (1 + r.operand) ** 2
        rounded = rounded * (1 + growth(r.score_roundings + 1, r.score)) - 1
        found = found + rounded * (self.ds_most + found) + self.ds_underflow
        return np.where(self.seen, found, 0.0)

    @cached_property
    def overflows(self) -> BoolArray:
        """Rows in which the model admits an overflow: (Nq, 1)."""
        st, r, forward = self.st, self.r, self.forward
        holds = r.accumulate.largest
        stored = r.storage.largest if r.probability or r.score else holds
        bad = forward.overflow.copy()
        bad |= 2 * self.dp_terms.max(-1, initial=0) >= (stored if r.score else holds)
        largest = (self.ds_most + self.ds_error).max(-1, initial=0)
        bad |= ~(largest < stored)  # NaN counts as unknown
        output = (st.absolute_output + forward.out).max(-1, initial=0)
        bad |= ~(output < r.storage.largest * (1 - r.output))
        bad |= ~(np.abs(st.lse) + forward.lse < r.lse.largest * (1 - r.lse.unit_roundoff))
        return np.asarray((bad & (st.count[..., 0] > 0))[..., None])

    def _unknown(self, seen: BoolArray) -> BoolArray:
        """Weights of which nothing is known. (Nq, ·)

        Where float64 fails the kernel may not, and what is hidden has weight 0. Where the kernel
        overflows, a sum of the row is NaN or infinite, and 0 times it is NaN: at hidden keys too.
        """
        used = self.st.count[..., 0] > 0
        return (seen & (~self.st.usable & used)[..., None]) | self.overflows

    @cached_property
    def weight_bound(self) -> Float64Array:
        """`weight`, inf where nothing is known. (Nq, M)"""
        return np.where(self._unknown(self.st.visible), np.inf, self.weight)

    @cached_property
    def ds_bound(self) -> Float64Array:
        """`ds_error`, inf where nothing is known. (Nq, Nk)"""
        return np.where(self._unknown(self.seen), np.inf, self.ds_error)

    # -- the soft-cap's slope ----------------------------------------------------------------------

    @cached_property
    def slope(self) -> Float64Array:
        """1 - tanh²; 1 without soft-cap. (Nq, Nk)"""
        return self.st.slope[..., self.keys]

    @cached_property
    def _slope_own(self) -> float:
        """tanh's error enters twice; three roundings."""
        return 2 * self.r.exp * (1 + self.r.exp) + float(growth(4, self.r.unit)) + 2.0**-43

    @cached_property
    def slope_error(self) -> Float64Array:
        """|d(1 - tanh²)/dx| = 2 |tanh| (1 - tanh²) <= min(0.77, 2 (1 - tanh²)), taken at the
        steepest point within reach (mean value theorem). (Nq, Nk)
        """
        cap, score = self.st.heads.softcap, self.forward.score[..., self.keys]
        if cap is None:
            return np.zeros_like(self.slope)
        nearest = np.maximum(np.abs(self.st.score[..., self.keys]) - score, 0) / cap
        steepest = np.minimum(0.77, 2 * (1 - np.tanh(nearest) ** 2) + 2.0**-43)
        return np.where(self.seen, steepest * score / cap + self._slope_own, 0.0)

    @cached_property
    def capped(self) -> tuple[Float64Array, Float64Array, Float64Array, Float64Array]:
        """dS times the slope, as dq and dk use it: value, from above, error, variance. (Nq, Nk)

        They multiply it by the scale. Where a step stores the product scale · dS, for the next
        one or as the operand of dq and dk, it loses up to eta of it, which is eta / |scale| of dS.
        Both store it in the same format, and what has been rounded to a format rounds to itself.
        """
        eta = max(self.r.score_eta, self.r.probability_eta)
        scaled = eta / abs(self.st.heads.scale) if self.st.heads.scale else 0.0
        stored = np.where(self.seen, scaled, 0.0)
        if self.st.heads.softcap is None:
            variance = self.ds_variance + stored**2
            return self.ds, self.ds_most, self.ds_bound + stored, variance
        slope, lost = self.slope, np.where(self.seen, self.ds_underflow, 0.0) + stored
        error = self.ds_bound * (slope + self.slope_error) + self.ds_most * self.slope_error + lost
        variance = self.ds_variance * slope**2 + self.ds**2 * self.slope_variance + lost**2
        return self.ds * slope, self.ds_most * slope, error, variance

    # -- predicted deviations ----------------------------------------------------------------------

    @cached_property
    def weight_variance(self) -> Float64Array:
        """Of P, relative, from its own score and exp. (Nq, M)"""
        return weight_variance(self.forward.score_variance) + self.r.exp**2 / 3

    @cached_property
    def row_variance(self) -> Float64Array:
        """Of P, relative, from the lse: common to a row. (Nq, 1)"""
        lse = np.where(self.st.count[..., 0] > 0, self.st.lse, 0.0)
        stored = self.r.lse.unit_roundoff**2 / 3 * lse**2
        return (self.forward.lse_sigma**2 + stored)[..., None]

    @cached_property
    def delta_variance(self) -> Float64Array:
        """Of D, the larger of the two ways to compute it: common to a row. (Nq, 1)

        <dout, out> errs as out does. sum P̂ dP̂ with P̂ = P (1 + θ_j + φ), φ the row's, is off by
        sum P θ (dP - D) + φ D + sum P δ(dP): what the scores err is in the lse that they made, so
        that sum P̂ is 1 but for what the exps and the lse itself round (`_mass_variance`).

        Where products round their operands, dout is rounded once for all keys: dP shares
        sum_c dout_c δ_c v_c, on average over the keys as much as an error of out of δ_c out_c.
        """
        st, r = self.st, self.r
        mean2, dout2, third = st.mean**2, self.dout**2, r.unit**2 / 3
        size = self.dout.shape[-1]
        output = self.forward.out_sigma**2 + (r.output**2 / 3 + third * size) * mean2
        from_output = (dout2 * output).sum(-1, keepdims=True) + third * size * self.delta**2
        centred = self.weight_variance[..., self.keys] * (self.dp - self.delta) ** 2
        terms = self.weights**2 * (centred + third * st.count * self.dp**2 + self.dp_variance)
        from_weights = np.where(self.seen, terms, 0.0).sum(-1, keepdims=True)
        from_weights = from_weights + self._mass_variance * self.delta**2
        shared = r.operand**2 / 3 * (dout2 * mean2).sum(-1, keepdims=True)
        return np.asarray(np.maximum(from_output, from_weights) + shared)

    @cached_property
    def _mass_variance(self) -> Float64Array:
        """Of sum P̂ over a row: the roundings of the lse, and of the exps in it and in P. (Nq, 1)"""
        exps = 2 * self.r.exp**2 / 3 * self.st.weights**2
        lse = lse_deviation(self.st, self.r, exps) ** 2
        size = np.where(self.st.count[..., 0] > 0, self.st.lse, 0.0)
        found = lse + self.r.lse.unit_roundoff**2 / 3 * size**2
        return np.asarray(np.where(np.isfinite(size), found, 0.0)[..., None])

    @cached_property
    def dp_variance(self) -> Float64Array:
        """Of dP. (Nq, Nk)"""
        r, third, size = self.r, self.r.unit**2 / 3, self.dout.shape[-1]
        dp = (third * size + 2 * r.operand**2 / 3) * (self.st.values.scores(self.dout**2, "square"))
        return np.asarray(dp + (third * (size + 1) + r.score**2 / 3) * self.dp**2)

    @cached_property
    def ds_variance(self) -> Float64Array:
        """Without what the row shares (lse and D). (Nq, Nk)"""
        r, third = self.r, self.r.unit**2 / 3
        inner = self.dp_variance + third * (self.delta**2 + self.dlse**2)
        stored = r.probability**2 + (r.score_roundings + 1) * r.score**2 + 2 * r.operand**2
        relative = self.weight_variance[..., self.keys] + stored / 3 + 3 * third
        found = self.ds**2 * relative + self.weights**2 * inner + self.ds_underflow**2
        return np.where(self.seen, found, 0.0)

    @cached_property
    def slope_variance(self) -> Float64Array:
        """(2 tanh (1 - tanh²) / cap)² times the variance before the cap; the latter times
        (1 - tanh²)² is the one behind it. (Nq, Nk)
        """
        cap = self.st.heads.softcap
        if cap is None:
            return np.zeros_like(self.slope)
        variance = self.forward.score_variance[..., self.keys] * (1 - self.slope)
        return np.where(self.seen, (2 / cap) ** 2 * variance + self._slope_own**2 / 3, 0.0)
