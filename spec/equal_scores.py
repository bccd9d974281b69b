"""Equal scores: the weights are known exactly, so they show who is seen, and how often."""

from __future__ import annotations

import numpy as np

from attnspec.oracle.formats import Float64Array
from attnspec.oracle.problem import Problem
from attnspec.spec.claim import Claim, Trial
from attnspec.spec.derived import (
    BoolArray,
    evaluation_error,
    for_query_heads,
    read_weights,
    striped_values,
    visible,
    with_equal_scores,
    with_keys,
)
from attnspec.spec.settings import BROADCASTS, PAIRS, SINGLES, without

__all__ = ["CLAIMS"]

LEVELS = (0.0, 150.0, -150.0, -1000.0)
"""Sizes of equal scores. exp underflows float32 at -104 and float64 at -746: a kernel that keeps
a maximum from elsewhere (0, or a hidden key's) loses the row there."""

LENGTHS = (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257)
"""Around the sizes of tiles and vectors."""


def equal_scores(trial: Trial, problem: Problem) -> None:
    """Equal scores, of any size, give equal weights: the plain mean of the visible values."""
    for level in LEVELS:
        _mean_of_stripes(trial, problem, level)


def equal_scores_at_every_length(trial: Trial, problem: Problem) -> None:
    """The same at lengths around the tile sizes: no key is dropped, or counted twice."""
    low = -1000.0 if problem.dtype_name == "float64" else -150.0
    for count in LENGTHS:
        short = with_keys(problem, count, trial.rng)
        if problem.causal or problem.window is not None:
            shape = (1, problem.query_heads, count, problem.head_size)
            short = short.replace(q=np.zeros(shape, problem.q.dtype))
        _mean_of_stripes(trial, short, 0.0)
        _mean_of_stripes(trial, short, low)


def _mean_of_stripes(trial: Trial, problem: Problem, level: float) -> None:
    equal, score = with_equal_scores(problem, level)
    equal = equal.replace(v=striped_values(equal))
    seen = visible(equal)
    rows = seen.any(-1)
    stripes = seen @ for_query_heads(equal, equal.v.astype(np.float64))
    expected = stripes[rows] / _mass(equal, seen, score)[rows]
    within = trial.allowance(equal)[rows] + evaluation_error(expected, steps=8)
    what = f"{equal.key_count} keys, every score {score:g}: not the mean of the visible values"
    trial.close(trial.ask(equal)["out"][rows], expected, within, what=what)


def _mass(problem: Problem, seen: BoolArray, score: float) -> Float64Array:
    """The denominator over e^score: the visible keys, and the sink's share."""
    mass: Float64Array = seen.sum(-1, keepdims=True).astype(np.float64)
    if problem.sinks is not None:
        with np.errstate(over="ignore"):
            mass = mass + np.exp(problem.sinks.astype(np.float64) - score)[:, None, None]
    return mass


def equal_keys(trial: Trial, problem: Problem) -> None:
    """Equal keys give a row equal scores, whatever its query: the mean of the visible values."""
    k = np.broadcast_to(problem.k[:, :, :1], problem.k.shape)
    equal = problem.replace(k=k.copy(), v=striped_values(problem))
    seen = visible(equal)
    rows = seen.any(-1)
    stripes = seen @ for_query_heads(equal, equal.v.astype(np.float64))
    expected = (stripes / np.maximum(seen.sum(-1, keepdims=True), 1))[rows]
    within = trial.allowance(equal)[rows] + evaluation_error(expected, steps=8)
    what = "all keys are equal, but the output is not the mean of the visible values"
    trial.close(trial.ask(equal)["out"][rows], expected, within, what=what)


def visible_set(trial: Trial, problem: Problem) -> None:
    """Under equal scores a visible key weighs 1/n and a hidden one 0: exactly who sees whom."""
    equal, score = with_equal_scores(problem)
    weights, allowance = read_weights(trial, equal)
    seen = visible(equal)
    rows = seen.any(-1)
    expected = seen[rows] / _mass(equal, seen, score)[rows]
    within = allowance[rows] + evaluation_error(expected, steps=8)
    what = "the keys that carry weight are not the visible keys"
    trial.close(weights[rows], expected, within, what=what)


def equal_lse(trial: Trial, problem: Problem) -> None:
    """n equal scores s have lse = s + log n; a sink joins the sum."""
    for level in LEVELS:
        equal, score = with_equal_scores(problem, level)
        seen = visible(equal)
        rows = seen.any(-1)
        with np.errstate(divide="ignore"):
            expected = score + np.log(seen.sum(-1))
        if equal.sinks is not None:
            expected = np.logaddexp(expected, equal.sinks.astype(np.float64)[:, None])
        lse = trial.ask(equal, want=("out", "lse"))["lse"][rows]
        within = trial.allowance(equal, output="lse")[rows]
        within = within + 2.0**-52 * (abs(score) + 8)
        trial.close(
            lse, expected[rows], within, what=f"lse of n scores {score:g} is not that + log n"
        )


CLAIMS = (
    Claim(
        id="visible-set",
        statement="The keys that carry weight are the visible keys: edges, offset and polarity.",
        source="ch11.def9 (14); ch11.def10 (15); heart.code.polarity; sys.causal; sys.window; KP8",
        check=visible_set,
        settings=(*SINGLES, *BROADCASTS, *PAIRS),
    ),
    Claim(
        id="equal-scores-average-plainly",
        statement="Equal scores of any size give the plain mean of the visible values.",
        source="ext.templimits; ext.bounds; ext.shift; ext.nope; KP5",
        hypotheses="finite scores; a sink joins the denominator",
        check=equal_scores,
        settings=(
            *SINGLES,
            "mask:first-keys-hidden",
            "causal:on+mask:full",
            "causal:on+sinks:normal",
            "causal:on+key_lengths:ragged",
            "window:sliding+gqa:grouped",
            "window:sliding+sinks:normal",
        ),
    ),
    Claim(
        id="equal-keys-average-plainly",
        statement="Equal keys give the plain mean of the visible values, whatever the query.",
        source="ext.templimits; ext.ratio; ext.keyshift; KP5",
        hypotheses="no bias, ALiBi or sink",
        check=equal_keys,
        settings=without("bias", "alibi", "sinks", among=(*SINGLES, "causal:on+gqa:grouped")),
    ),
    Claim(
        id="every-length-averages-plainly",
        statement="At every length about a tile's, each visible key counts exactly once.",
        source="ext.templimits; ext.loopinv; heart.code.flash; KP9",
        hypotheses="equal scores",
        check=equal_scores_at_every_length,
        settings=(
            "",
            "gqa:grouped",
            "sinks:normal",
            "softcap:tight",
            "causal:on",
            "window:sliding",
        ),
    ),
    Claim(
        id="lse-of-equal-scores",
        statement="n equal scores s have lse s + log n, in natural logarithms.",
        source="ext.lse; KP23",
        hypotheses="a sink joins the sum",
        check=equal_lse,
        settings=SINGLES,
        options=("return_lse",),
    ),
)
