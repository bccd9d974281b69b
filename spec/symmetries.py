"""Symmetries: changes of the inputs that leave the output alone, or change it in a known way."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from attnspec.oracle.formats import Float64Array, format_of
from attnspec.oracle.problem import Problem
from attnspec.spec.claim import Claim, Trial
from attnspec.spec.derived import answer, cast, same_answer, take_keys, take_queries, visible
from attnspec.spec.settings import SINGLES, without

__all__ = ["CLAIMS"]


def query_order(trial: Trial, problem: Problem) -> None:
    """Attn(PQ, K, V) = P Attn(Q, K, V): rows know nothing of one another."""
    order = trial.rng.permutation(problem.query_count)
    out, allowance = answer(trial, problem)
    moved, moved_allowance = answer(trial, take_queries(problem, order))
    rows = np.asarray(visible(problem).any(-1))[:, :, order]
    within = moved_allowance + allowance[:, :, order]
    what = "the output of a row depends on its place"
    trial.close(moved[rows], out[:, :, order][rows], within[rows], what=what)


def key_order(trial: Trial, problem: Problem) -> None:
    """Attn(Q, PK, PV) = Attn(Q, K, V): a multiset of keys, in any order."""
    order = trial.rng.permutation(problem.key_count)
    backwards = np.arange(problem.key_count)[::-1]
    for index in (order, backwards):
        same_answer(trial, problem, take_keys(problem, index), what="the order of keys matters")


def score_shift(trial: Trial, problem: Problem) -> None:
    """softmax(s + c1) = softmax(s): a bias that is constant in a row changes nothing."""
    assert problem.bias is not None
    bias = _gridded(problem.bias, 8)
    shift = trial.rng.integers(-64, 65, size=(*bias.shape[:-1], 1)) / 8
    round_bias = format_of(problem.bias.dtype).round
    before = problem.replace(bias=round_bias(bias))
    after = problem.replace(bias=round_bias(bias + shift))
    same_answer(trial, before, after, what="a bias that is constant in a row changes the output")


def score_shift_of_lse(trial: Trial, problem: Problem) -> None:
    """lse(s + c1) = lse(s) + c."""
    assert problem.bias is not None
    bias = _gridded(problem.bias, 8)
    round_bias = format_of(problem.bias.dtype).round
    before, allowance = answer(trial, problem.replace(bias=round_bias(bias)), "lse")
    rows = visible(problem).any(-1)
    for shift in (3.0, -16.0):
        after, after_allowance = answer(
            trial, problem.replace(bias=round_bias(bias + shift)), "lse"
        )
        within = allowance + after_allowance + 2.0**-52 * (np.abs(after) + 16)
        what = f"a bias of {shift:g} does not add {shift:g} to lse"
        trial.close(after[rows], before[rows] + shift, within[rows], what=what)


def key_shift(trial: Trial, problem: Problem) -> None:
    """Attn(Q, K + 1cᵀ, V) = Attn(Q, K, V): q·c is the same for every key of a row."""
    k = _gridded(problem.k, 16)
    shift = trial.rng.integers(-64, 65, size=(*k.shape[:2], 1, k.shape[3])) / 16
    before, after = problem.replace(k=cast(problem, k)), problem.replace(k=cast(problem, k + shift))
    same_answer(trial, before, after, what="one vector added to every key changes the output")


def value_affine(trial: Trial, problem: Problem) -> None:
    """Attn(Q, K, aV + 1bᵀ) = a Attn(Q, K, V) + 1bᵀ: the weights sum to 1."""
    v = _gridded(problem.v, 16)
    out, allowance = answer(trial, problem.replace(v=cast(problem, v)))
    group = problem.query_heads // problem.kv_heads
    rows = visible(problem).any(-1)
    for a in (1.0, -2.0):
        b = trial.rng.integers(-64, 65, size=(*v.shape[:2], 1, v.shape[3])) / 16
        asked = problem.replace(v=cast(problem, a * v + b))
        moved, moved_allowance = answer(trial, asked)
        expected = a * out + np.repeat(b, group, axis=1)
        within = abs(a) * allowance + moved_allowance + 2.0**-53 * np.abs(expected)
        what = f"values times {a:g} plus a vector do not give the output times {a:g} plus it"
        trial.close(moved[rows], expected[rows], within[rows], what=what)


def scale_moves_to_query(trial: Trial, problem: Problem) -> None:
    """Attn(cQ, K; α) = Attn(Q, K; cα), exactly, for c a power of two."""
    for c in (2.0, 8.0):
        other = problem.replace(
            q=cast(problem, c * problem.q.astype(np.float64)), scale=problem.scale / c
        )
        what = f"{c:g} q with the scale over {c:g} changes the output: the scale is not applied"
        same_answer(trial, problem, other, what=what)


def scale_sign(trial: Trial, problem: Problem) -> None:
    """Attn(-Q, K; -α) = Attn(Q, K; α), and a scale of 0 is a query of 0."""
    other = problem.replace(q=-problem.q, scale=-problem.scale)
    same_answer(trial, problem, other, what="a negative scale is not a factor of the scores")
    silent = problem.replace(q=np.zeros_like(problem.q))
    what = "a scale of 0 does not make the scores 0"
    same_answer(trial, silent, problem.replace(scale=0.0), what=what)


def channel_order(trial: Trial, problem: Problem) -> None:
    """Attn(QG, KG, V) = Attn(Q, K, V) for G that permutes channels and flips signs (GGᵀ = I)."""
    order = trial.rng.permutation(problem.head_size)
    signs = trial.rng.choice([-1, 1], problem.head_size).astype(problem.q.dtype)
    other = problem.replace(q=problem.q[..., order] * signs, k=problem.k[..., order] * signs)
    same_answer(trial, problem, other, what="the order or sign of the channels matters")


def value_columns(trial: Trial, problem: Problem) -> None:
    """Attn(Q, K, VP) = Attn(Q, K, V) P: the columns of the values know nothing of one another."""
    order = trial.rng.permutation(problem.value_size)
    out, allowance = answer(trial, problem)
    moved, moved_allowance = answer(trial, problem.replace(v=problem.v[..., order]))
    rows = visible(problem).any(-1)
    within = (moved_allowance + allowance[..., order])[rows]
    what = "the order of the value columns matters"
    trial.close(moved[rows], out[..., order][rows], within, what=what)


def _gridded(x: npt.NDArray[Any], steps: int) -> Float64Array:
    """Multiples of 1/steps in [-4, 4] (and -inf), so that sums of a few stay exact in 8 bits."""
    x = x.astype(np.float64)
    return np.where(np.isneginf(x), x, np.rint(x.clip(-4, 4) * steps) / steps)


PLACELESS = without("causal", "window", "alibi", "key_lengths")
BIASED = ("bias:full", "bias:neg-inf", "bias:keys", "causal:on+bias:full", "bias:full+gqa:grouped")

CLAIMS = (
    Claim(
        id="queries-in-any-order",
        statement="Reordered queries give the reordered output.",
        source="ext.equivariance; lesson3.recap.perm; heart.misc.perm; ch11.exer8; KP6",
        hypotheses="nothing that depends on places; mask and bias reordered along",
        check=query_order,
        settings=(*PLACELESS, "key_lengths:ragged"),
    ),
    Claim(
        id="keys-in-any-order",
        statement="Keys and values reordered together give the same output.",
        source="ext.keyperm; heart.take.perm; KP6",
        hypotheses="nothing that depends on places; mask and bias reordered along",
        check=key_order,
        settings=PLACELESS,
    ),
    Claim(
        id="constant-bias-changes-nothing",
        statement="A bias that is constant in a row changes nothing.",
        source="ext.shift; heart.flash.max; KP5",
        hypotheses="no sink",
        check=score_shift,
        settings=BIASED,
    ),
    Claim(
        id="constant-bias-adds-to-lse",
        statement="A constant bias adds itself to lse.",
        source="ext.shift; ext.lse; KP23",
        hypotheses="no sink",
        check=score_shift_of_lse,
        settings=BIASED,
        options=("return_lse",),
    ),
    Claim(
        id="constant-key-changes-nothing",
        statement="One vector added to every key changes nothing.",
        source="ext.keyshift; KP25",
        hypotheses="no soft-cap, no sink",
        check=key_shift,
        settings=without("softcap", "sinks"),
    ),
    Claim(
        id="output-is-affine-in-values",
        statement="Values times a plus b give the output times a plus b.",
        source="ext.valueaffine; KP25",
        hypotheses="no sink",
        check=value_affine,
        settings=without("sinks"),
    ),
    Claim(
        id="channels-in-any-order",
        statement="Channels of queries and keys reordered or negated together change nothing.",
        source="ext.gauge; ch11.def5 (3); KP17, KP25",
        check=channel_order,
        settings=SINGLES,
    ),
    Claim(
        id="value-columns-in-any-order",
        statement="Reordered columns of the values give the reordered columns of the output.",
        source="ch11.thm2.row (11); ext.valueaffine; KP25",
        check=value_columns,
        settings=SINGLES,
    ),
    Claim(
        id="scale-multiplies-queries",
        statement="Queries times a power of two, with the scale divided by it, change nothing.",
        source="ext.scale; ch11.def6 (7); lesson3.sec3.config; heart.take; KP11",
        check=scale_moves_to_query,
        settings=SINGLES,
        options=("scale",),
    ),
    Claim(
        id="scale-of-any-sign",
        statement="A negative scale is the same as negative queries, and 0 as queries of 0.",
        source="ext.scale; ext.templimits; KP11",
        check=scale_sign,
        settings=("", "causal:on", "mask:full", "bias:full", "softcap:tight", "sinks:normal"),
        options=("scale",),
    ),
)
