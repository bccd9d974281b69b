"""The weights of a row: softmax makes a probability vector of the visible scores."""

from __future__ import annotations

import numpy as np

from attnspec.oracle.problem import Problem
from attnspec.spec.claim import Claim, Trial
from attnspec.spec.derived import (
    evaluation_error,
    for_query_heads,
    read_weights,
    visible,
    with_equal_scores,
    with_keys,
)
from attnspec.spec.settings import SINGLES, without

__all__ = ["CLAIMS"]


def sum_to_one(trial: Trial, problem: Problem) -> None:
    """Σⱼ Aᵢⱼ = 1, so values that are all 1 give 1."""
    ones = problem.replace(v=np.ones_like(problem.v))
    rows = visible(problem).any(-1)
    out = trial.ask(ones)["out"][rows]
    what = "values of 1 average to 1: the weights of a row do not sum to 1"
    trial.close(out, np.ones(out.shape), trial.allowance(ones)[rows], what=what)


def probability_vector(trial: Trial, problem: Problem) -> None:
    """Aᵢⱼ >= 0, exactly 0 at hidden keys, and Σⱼ Aᵢⱼ = 1 (at most 1 beside a sink)."""
    weights, allowance = read_weights(trial, problem)
    seen = visible(problem)
    rows = seen.any(-1)
    hidden = weights[rows][~seen[rows]]
    trial.same(hidden, np.zeros_like(hidden), what="a hidden key has weight")
    trial.close(weights, np.maximum(weights, 0), allowance, what="a weight is negative")
    total, within = weights.sum(-1)[rows], allowance.sum(-1)[rows]
    one = np.ones_like(total) if problem.sinks is None else np.minimum(total, 1)
    within = within + evaluation_error(total, steps=problem.key_count)
    trial.close(total, one, within, what="the weights of a row do not sum to 1")


def averages_values(trial: Trial, problem: Problem) -> None:
    """oᵢ = Σⱼ Aᵢⱼ vⱼ: the same weights whatever the values."""
    weights, allowance = read_weights(trial, problem)
    rows = visible(problem).any(-1)
    v = for_query_heads(problem, problem.v.astype(np.float64))
    within = trial.allowance(problem) + allowance @ np.abs(v)
    within = within + evaluation_error(weights @ np.abs(v), steps=problem.key_count + 1)
    out = trial.ask(problem)["out"]
    what = "the output is not the average of the values with the weights that one-hot values read"
    trial.close(out[rows], (weights @ v)[rows], within[rows], what=what)


def within_hull(trial: Trial, problem: Problem) -> None:
    """min vⱼ <= oᵢ <= max vⱼ over the visible keys, column by column; a sink adds the value 0.

    Equal values leave one point, and one value apart from them an edge that is nearly reached.
    """
    _within_hull(trial, problem)
    v = np.array(np.broadcast_to(problem.v[:, :, :1], problem.v.shape))
    _within_hull(trial, problem.replace(v=v))


def _within_hull(trial: Trial, problem: Problem) -> None:
    seen = visible(problem)[..., None]
    v = for_query_heads(problem, problem.v.astype(np.float64))[:, :, None]
    low = np.where(seen, v, np.inf).min(-2)
    high = np.where(seen, v, -np.inf).max(-2)
    if problem.sinks is not None:
        low, high = np.minimum(low, 0), np.maximum(high, 0)
    rows = seen[..., 0].any(-1)
    out = trial.ask(problem)["out"].astype(np.float64)[rows]
    hull = np.clip(out, low[rows], high[rows])
    what = "the output lies outside the hull of the visible values"
    trial.close(out, hull, trial.allowance(problem)[rows], what=what)


def long_rows(trial: Trial, problem: Problem) -> None:
    """Σⱼ Aᵢⱼ = 1 over thousands of keys: no mass is lost in sums or in small weights."""
    for count in (2048, 4099):
        long = with_keys(problem, count, trial.rng)
        sum_to_one(trial, long)
        sum_to_one(trial, with_equal_scores(long)[0])


CLAIMS = (
    Claim(
        id="weights-sum-to-one",
        statement="The weights of a row that sees a key sum to 1: values of 1 give 1.",
        source="ch11.def7 (8); lesson3.sec2.stoch; heart.code.rowsum; KP1",
        hypotheses="no sink",
        check=sum_to_one,
        settings=(*without("sinks"), "causal:on+bias:full", "causal:on+softcap:tight"),
    ),
    Claim(
        id="weights-are-probabilities",
        statement="Weights are >= 0, 0 at hidden keys, and sum to 1, or less beside a sink.",
        source="ch11.def3.prop; ch11.def9 (14); lesson3.sec5.tri; KP1, KP3",
        check=probability_vector,
        settings=(
            *SINGLES,
            "causal:on+mask:full",
            "causal:on+bias:full",
            "causal:on+softcap:tight",
            "causal:on+gqa:grouped",
            "mask:full+softcap:tight",
        ),
    ),
    Claim(
        id="output-averages-values",
        statement="The output is the average of the values, with weights that ignore the values.",
        source="ch11.thm2.row (11); ch11.def2",
        check=averages_values,
        settings=("", "causal:on", "mask:full", "bias:full", "softcap:tight", "sinks:normal"),
    ),
    Claim(
        id="output-in-hull-of-values",
        statement="Each output lies between the least and greatest visible values of its column.",
        source="ch11.exer2; ch11.thm2.row (11); KP2",
        hypotheses="a sink adds the value 0",
        check=within_hull,
        settings=SINGLES,
    ),
    Claim(
        id="long-rows-keep-their-mass",
        statement="The weights of thousands of keys sum to 1.",
        source="ch11.def7 (8); KP1",
        hypotheses="no sink",
        check=long_rows,
        settings=("", "gqa:grouped"),
    ),
)
