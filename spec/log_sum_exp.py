"""The log-sum-exp: what a key adds to it, and its gradient."""

from __future__ import annotations

import numpy as np

from attnspec.oracle.problem import Problem
from attnspec.spec.claim import Claim, Trial
from attnspec.spec.derived import (
    answer,
    cast,
    evaluation_error,
    take_keys,
    visible,
    with_null_key,
)
from attnspec.spec.settings import SINGLES, without

__all__ = ["CLAIMS"]


def null_key(trial: Trial, problem: Problem) -> None:
    """A key of zeros with a value of zeros makes e^lse one more, and the output so much less.

    The output's factor is e^lse / (e^lse + 1), which moves by at most ¼ of what lse moves by.
    """
    (out, allowance), (lse, error) = answer(trial, problem), answer(trial, problem, "lse")
    other = with_null_key(problem)
    shrunk, shrunk_allowance = answer(trial, other)
    grown, grown_allowance = answer(trial, other, "lse")
    rows = visible(problem).any(-1)
    lse, error = np.where(rows, lse, 0), np.where(rows, error, 0)
    left, moved = np.exp(-np.logaddexp(0, -lse))[..., None], error[..., None] / 4
    expected = left * out
    within = (left + moved) * allowance + moved * np.abs(out) + shrunk_allowance
    # exp turns the roundings of its argument, below 1 + |lse|, into relative errors.
    within = within + evaluation_error(expected, steps=8) * (1 + np.abs(lse))[..., None]
    what = "a key and value of zeros do not shrink the output by e^lse / (e^lse + 1)"
    trial.close(shrunk[rows], expected[rows], within[rows], what=what)
    within = error + grown_allowance + 2.0**-50 * (1 + np.abs(lse))
    what = "a key of zeros does not add 1 to e^lse"
    trial.close(grown[rows], np.logaddexp(lse, 0)[rows], within[rows], what=what)


def doubled_key(trial: Trial, problem: Problem) -> None:
    """One key twice is one key with a bias of log 2.

    Its bias is log 2 + δ in the storage type, so that its term is off by a factor e^δ: its weight
    moves from w to w + w(1 - w)(e^δ - 1) / (1 + w(e^δ - 1)), by at most ¼ |e^δ - 1| e^|δ|, and an
    average of values by that times the distance of two of them.
    """
    key = int(trial.rng.integers(problem.key_count))
    twice = take_keys(problem, np.append(np.arange(problem.key_count), key))
    bias = np.zeros((1, problem.query_heads, problem.query_count, problem.key_count))
    bias[..., key] = np.log(2)
    bias = cast(problem, bias)
    out, allowance = answer(trial, twice)
    other, other_allowance = answer(trial, problem.replace(bias=bias))
    off = np.expm1(abs(float(bias[0, 0, 0, key]) - np.log(2)) + 2.0**-53)
    largest = np.abs(problem.v.astype(np.float64)).max()
    within = allowance + other_allowance + off * (1 + off) / 2 * largest
    rows = visible(problem).any(-1)
    what = f"key {key} twice differs from key {key} with a bias of log 2"
    trial.close(other[rows], out[rows], within[rows], what=what)


def gradient_is_mean_key(trial: Trial, problem: Problem) -> None:
    """∂lse/∂q = scale · Σⱼ Aⱼ kⱼ: the output with the keys as values, times the scale."""
    rows = visible(problem).any(-1)
    asked = problem.replace(
        v=problem.k, dout=np.zeros_like(problem.q), dlse=cast(problem, np.where(rows, 1.0, 0.0))
    )
    dq, allowance = answer(trial, asked, "dq")
    mean, mean_allowance = answer(trial, asked.replace(dout=None, dlse=None))
    expected = problem.scale * mean
    within = allowance + abs(problem.scale) * mean_allowance + evaluation_error(expected, steps=2)
    what = "the gradient of lse is not the scale times the mean of the keys"
    trial.close(dq[rows], expected[rows], within[rows], what=what)


PLACELESS = without("causal", "window", "alibi", "key_lengths", "bias")

CLAIMS = (
    Claim(
        id="null-key-adds-1-to-the-sum",
        statement="A key and value of zeros add 1 to e^lse and shrink the output accordingly.",
        source="ext.nullsink; ext.lse; heart.sink; KP25, KP23",
        hypotheses="no bias",
        check=null_key,
        settings=PLACELESS,
        options=("return_lse",),
    ),
    Claim(
        id="doubled-key-is-a-bias-of-log-2",
        statement="One key given twice is one key with a bias of log 2.",
        source="ext.duplicate; KP25",
        check=doubled_key,
        settings=PLACELESS,
        options=("bias",),
    ),
    Claim(
        id="lse-gradient-is-the-mean-key",
        statement="The gradient of lse in a query is the scale times the mean of the keys.",
        source="ext.lse; ext.hopfield; KP12, KP23",
        hypotheses="no soft-cap",
        check=gradient_is_mean_key,
        settings=without("softcap", among=(*SINGLES, "causal:on+gqa:grouped")),
        options=("return_lse", "gradients"),
    ),
)
