"""The scores: what they select, and how the options act on them."""

from __future__ import annotations

import numpy as np

from attnspec.oracle.formats import Float64Array
from attnspec.oracle.problem import Problem
from attnspec.spec.claim import Claim, Trial
from attnspec.spec.derived import (
    cast,
    evaluation_error,
    for_query_heads,
    read_weights,
    take_keys,
    visible,
)
from attnspec.spec.settings import without

__all__ = ["CLAIMS"]


def single_key(trial: Trial, problem: Problem) -> None:
    """A row that sees one key returns the value of that key."""
    for key in {0, problem.key_count - 1}:
        _returns_the_only_value(trial, take_keys(problem, np.array([key])))
    _returns_the_only_value(trial, problem)


def _returns_the_only_value(trial: Trial, problem: Problem) -> None:
    seen = visible(problem)
    rows = seen.sum(-1) == 1
    if rows.any():
        v = for_query_heads(problem, problem.v.astype(np.float64))
        out = trial.ask(problem)["out"]
        only = (seen @ v)[rows]
        what = "a row that sees one key does not return its value"
        trial.close(out[rows], only, trial.allowance(problem)[rows], what=what)


def dominant_key(trial: Trial, problem: Problem) -> None:
    """A key whose score is far above the others is returned: each row gets the value it chose.

    The keys spell their own number in signs; another order in each batch entry and key head
    makes a row that reads the wrong head, or the wrong entry, choose another value.
    """
    seen = visible(problem)
    rows = seen.any(-1)
    chosen = np.where(seen, trial.rng.random(seen.shape), -1.0).argmax(-1)
    codes, distance = _codes(problem, trial.rng)
    wanted = np.take_along_axis(for_query_heads(problem, codes), chosen[..., None], 2)
    v = np.take_along_axis(
        for_query_heads(problem, problem.v.astype(np.float64)), chosen[..., None], 2
    )
    for gap in (64.0, 1024.0):
        asked = problem.replace(
            q=cast(problem, 1.02 * gap / (problem.scale * distance) * wanted),
            k=cast(problem, codes),
        )
        out = trial.ask(asked)["out"]
        what = f"one score is {gap:g} above the others: the output is not the value of that key"
        others = np.exp(-gap) * 2 * problem.key_count * np.abs(v).max()
        within = trial.allowance(asked)[rows] + others
        trial.close(out[rows], v[rows], within, what=what)


def _codes(problem: Problem, rng: np.random.Generator) -> tuple[Float64Array, int]:
    """Keys of signs (B, Hkv, Nk, D), and the least difference of k·k and k·k' for two of them."""
    bits = max(1, (problem.key_count - 1).bit_length())
    order = rng.permuted(
        np.broadcast_to(np.arange(problem.key_count), problem.k.shape[:3]), axis=-1
    )
    digits = order[..., None] >> (np.arange(problem.head_size) % bits) & 1
    codes: Float64Array = np.where(digits == 1, 1.0, -1.0)
    return codes, 2 * (problem.head_size // bits)


def odds(trial: Trial, problem: Problem) -> None:
    """Two scores apart by δ have weights in the ratio e^δ."""
    high = np.arange(problem.key_count) % 3 == 0
    k = np.broadcast_to(high[:, None], problem.k.shape).astype(problem.k.dtype)
    for gap in (2.0, -5.0):
        query = cast(problem, np.full(problem.q.shape, gap / (problem.scale * problem.head_size)))
        score = problem.scale * problem.head_size * float(query.flat[0])
        if problem.softcap is not None:
            score = problem.softcap * float(np.tanh(score / problem.softcap))
        _check_softmax(trial, problem.replace(q=query, k=k), np.where(high, score, 0.0))


def added_to_scores(trial: Trial, problem: Problem) -> None:
    """With q = 0 only what is added to the scores is left: bias - slope · |i + offset - j|."""
    silent = problem.replace(q=np.zeros_like(problem.q))
    ahead = np.array([problem.ahead(b) for b in range(problem.batch)])[:, None]
    scores = np.zeros(visible(problem).shape)
    if problem.bias is not None:
        scores = scores + problem.bias.astype(np.float64)
    if problem.alibi is not None:
        scores = scores - problem.alibi.astype(np.float64)[:, None, None] * np.abs(ahead)
    _check_softmax(trial, silent, scores)


def _check_softmax(trial: Trial, problem: Problem, scores: Float64Array) -> None:
    """The weights of `problem` are the softmax of the visible `scores`."""
    weights, allowance = read_weights(trial, problem)
    seen = visible(problem)
    rows = np.nonzero(seen.any(-1))
    scores = np.where(seen, np.broadcast_to(scores, seen.shape), -np.inf)[rows]
    terms = np.exp(scores - scores.max(-1, keepdims=True))
    expected = terms / terms.sum(-1, keepdims=True)
    # exp turns the roundings of its argument into relative errors.
    steps = 2 * problem.key_count + 4 * int(np.abs(scores[np.isfinite(scores)]).max(initial=1))
    within = allowance[rows] + evaluation_error(expected, steps=steps)
    trial.close(weights[rows], expected, within, what="the weights are not e^score over their sum")


CLAIMS = (
    Claim(
        id="only-key-returns-its-value",
        statement="A row that sees a single key returns the value of that key.",
        source="ch11.def7 (8), n = 1; ch11.ex2; KP2",
        hypotheses="no sink",
        check=single_key,
        settings=("", "causal:on", "mask:full", "bias:full", "softcap:tight", "alibi:standard"),
    ),
    Claim(
        id="dominant-key-returns-its-value",
        statement="A row with one score far above the others returns the value of that key.",
        source="ext.templimits; heart.gqa.def; KP5, KP15",
        hypotheses="no soft-cap, bias or sink; a gap of 64 and more",
        check=dominant_key,
        settings=(
            *without("bias", "softcap", "sinks", "alibi"),
            "causal:on+gqa:grouped",
            "mask:full+gqa:grouped",
        ),
    ),
    Claim(
        id="odds-are-exponential",
        statement="Two scores apart by d have weights in the ratio e^d; a soft-cap acts on scores.",
        source="ext.ratio; ch11.def3.high; lesson3.ex.weights",
        hypotheses="no bias or sink",
        check=odds,
        settings=("", "causal:on", "mask:full", "softcap:tight", "gqa:grouped"),
    ),
    Claim(
        id="biases-add-to-scores",
        statement="Under q = 0 the weights are the softmax of bias and ALiBi alone.",
        source="lesson3.sec2.attn; ch11.def10 (15); ext.ratio",
        hypotheses="no sink",
        check=added_to_scores,
        settings=(
            "bias:full",
            "bias:keys",
            "bias:heads",
            "bias:batch",
            "bias:two-dimensional",
            "bias:neg-inf",
            "alibi:standard",
            "causal:on+bias:full",
            "causal:on+alibi:standard",
            "bias:full+softcap:tight",
            "bias:full+alibi:standard",
            "alibi:standard+key_lengths:ragged",
        ),
    ),
)
