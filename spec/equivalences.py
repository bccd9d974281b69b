"""Equivalences: one meaning written in two ways gives one answer."""

from __future__ import annotations

import numpy as np

from attnspec.oracle.problem import Problem
from attnspec.spec.claim import Claim, Trial
from attnspec.spec.derived import (
    answer,
    cast,
    masked,
    same_answer,
    visible,
    with_null_key,
)
from attnspec.spec.settings import BROADCASTS, PAIRS, SINGLES, without

__all__ = ["CLAIMS"]


def hiding_is_masking(trial: Trial, problem: Problem) -> None:
    """Causality, windows, lengths and bias -inf are masks: the one mask of who sees whom."""
    other = masked(problem, visible(problem))
    same_answer(trial, problem, other, what="the mask of the same visible keys differs")


def mask_is_bias(trial: Trial, problem: Problem) -> None:
    """A mask is a bias of 0 and -inf."""
    assert problem.mask is not None
    bias = np.where(problem.mask, 0.0, -np.inf).astype(problem.q.dtype)
    other = problem.replace(mask=None, bias=bias)
    same_answer(trial, problem, other, what="the mask as a bias of 0 and -inf differs")


def true_mask_is_none(trial: Trial, problem: Problem) -> None:
    """A mask that is true everywhere hides nothing."""
    full = (problem.batch, 1, problem.query_count, problem.key_count)
    for shape in (full, full[2:], (problem.batch, 1, 1, problem.key_count)):
        other = problem.replace(mask=np.ones(shape, np.bool_))
        same_answer(trial, problem, other, what=f"a true mask of shape {shape} changes the output")


def zero_bias_is_none(trial: Trial, problem: Problem) -> None:
    """A bias of 0 adds nothing."""
    full = (1, problem.query_heads, problem.query_count, problem.key_count)
    for shape in (full, full[2:]):
        other = problem.replace(bias=np.zeros(shape, problem.q.dtype))
        same_answer(trial, problem, other, what=f"a zero bias of shape {shape} changes the output")


def wide_window_is_none(trial: Trial, problem: Problem) -> None:
    """A window that just reaches every key hides nothing; causal rows need no right side."""
    ahead = np.array([problem.ahead(b) for b in range(problem.batch)])
    left, right = max(0, int(ahead.max())), max(0, -int(ahead.min()))
    right = 0 if problem.causal else right
    for window in ((left, right), (None, right), (left + 100, right + 1)):
        other = problem.replace(window=window)
        same_answer(trial, problem, other, what=f"the window {window} hides a key")


def alibi_is_bias(trial: Trial, problem: Problem) -> None:
    """ALiBi is the bias -slope · |i + offset - j|; slopes that are powers of two make it exact."""
    assert problem.alibi is not None
    slopes = 2.0 ** -np.arange(1.0, 1 + problem.query_heads)
    ahead = np.array([problem.ahead(b) for b in range(problem.batch)])[:, None]
    bias = cast(problem, -slopes[:, None, None] * np.abs(ahead))
    sloped = problem.replace(alibi=slopes.astype(problem.alibi.dtype))
    other = problem.replace(alibi=None, bias=bias)
    same_answer(trial, sloped, other, what="ALiBi differs from the same numbers as a bias")


def broadcast_is_expanded(trial: Trial, problem: Problem) -> None:
    """A broadcast mask or bias is the expanded one."""
    full = (problem.batch, problem.query_heads, problem.query_count, problem.key_count)
    expanded = {
        name: np.broadcast_to(array, full).copy()
        for name in ("mask", "bias")
        if (array := getattr(problem, name)) is not None
    }
    other = problem.replace(**expanded)
    same_answer(trial, problem, other, what="the expanded mask or bias differs from the broadcast")


def grouped_is_repeated(trial: Trial, problem: Problem) -> None:
    """Query head a reads key head a // group: repeat each key head, one beside the other."""
    group = problem.query_heads // problem.kv_heads
    other = problem.replace(
        k=np.repeat(problem.k, group, axis=1), v=np.repeat(problem.v, group, axis=1)
    )
    same_answer(trial, problem, other, what="repeated key heads differ from grouped heads")


def sink_is_null_key(trial: Trial, problem: Problem) -> None:
    """A sink of 0 is one more key of zeros with a value of zeros."""
    assert problem.sinks is not None
    with_key = with_null_key(problem.replace(sinks=None))
    with_sink = problem.replace(sinks=np.zeros_like(problem.sinks))
    same_answer(trial, with_sink, with_key, what="a sink of 0 differs from a key of zeros")


def low_sink_is_none(trial: Trial, problem: Problem) -> None:
    """A sink far below every score takes no weight, and one far above takes all of it."""
    assert problem.sinks is not None
    low = problem.replace(sinks=np.full_like(problem.sinks, -1000))
    same_answer(trial, low, problem.replace(sinks=None), what="a sink far below takes weight")
    high = problem.replace(sinks=np.full_like(problem.sinks, 1000))
    out, allowance = answer(trial, high)
    rows = visible(problem).any(-1)
    within = allowance[rows] + 1e-300
    trial.close(out[rows], np.zeros_like(out[rows]), within, what="a sink far above leaves weight")


HIDING = ("causal", "window", "key_lengths", "bias:neg-inf")

CLAIMS = (
    Claim(
        id="hiding-is-masking",
        statement="Causality, windows, lengths and a bias of -inf are masks.",
        source="ch11.def10 (15); ch11.exer5; sys.causal; sys.window; KP3, KP8",
        hypotheses="ALiBi measures from the lengths, so not with both",
        check=hiding_is_masking,
        settings=tuple(
            s
            for s in without("alibi", among=(*SINGLES, *PAIRS))
            if any(option in s for option in HIDING)
        ),
        options=("mask",),
    ),
    Claim(
        id="mask-is-a-bias",
        statement="A mask is a bias of 0 and minus infinity.",
        source="ch11.def10 (15); heart.steps.mask; KP3",
        check=mask_is_bias,
        settings=("mask:full", "mask:keys", "mask:empty-rows", "causal:on+mask:full"),
        options=("bias",),
    ),
    Claim(
        id="true-mask-hides-nothing",
        statement="A mask that is true everywhere changes nothing.",
        source="heart.code.polarity; ch11.def10 (15); KP8",
        check=true_mask_is_none,
        settings=without("mask"),
        options=("mask",),
    ),
    Claim(
        id="zero-bias-adds-nothing",
        statement="A bias of 0 changes nothing.",
        source="ext.shift; lesson3.sec2.attn",
        check=zero_bias_is_none,
        settings=without("bias"),
        options=("bias",),
    ),
    Claim(
        id="wide-window-hides-nothing",
        statement="A window that just reaches every key changes nothing.",
        source="sys.window; sys.streamingllm",
        check=wide_window_is_none,
        settings=without("window"),
        options=("window",),
    ),
    Claim(
        id="alibi-is-a-bias",
        statement="ALiBi is the bias -slope times the distance from the diagonal.",
        source="lesson3.recap.pe; ch11.def10 (15)",
        check=alibi_is_bias,
        settings=(
            "alibi:standard",
            "causal:on+alibi:standard",
            "alibi:standard+key_lengths:ragged",
            "softcap:tight+alibi:standard",
        ),
        options=("bias",),
    ),
    Claim(
        id="broadcast-is-expanded",
        statement="A broadcast mask or bias is the same as the expanded one.",
        source="heart.code.causal.use; KP24",
        check=broadcast_is_expanded,
        settings=BROADCASTS,
    ),
    Claim(
        id="grouped-heads-are-repeated-heads",
        statement="Query head a reads key head a // group.",
        source="heart.gqa.def; sys.gqa; KP15",
        check=grouped_is_repeated,
        settings=(
            "gqa:grouped",
            "gqa:single",
            "causal:on+gqa:grouped",
            "mask:full+gqa:grouped",
            "bias:full+gqa:grouped",
            "sinks:normal+gqa:grouped",
        ),
    ),
    Claim(
        id="sink-is-a-null-key",
        statement="A sink of 0 is one more key of zeros, with a value of zeros.",
        source="ext.nullsink; heart.sink; KP25",
        hypotheses="no bias",
        check=sink_is_null_key,
        settings=(
            "sinks:normal",
            "mask:full+sinks:normal",
            "softcap:tight+sinks:normal",
            "sinks:normal+gqa:grouped",
        ),
    ),
    Claim(
        id="sink-takes-nothing-or-all",
        statement="A sink far below the scores takes no weight, and one far above takes it all.",
        source="ext.templimits; ext.nullsink; heart.sink",
        check=low_sink_is_none,
        settings=(
            "sinks:normal",
            "causal:on+sinks:normal",
            "window:sliding+sinks:normal",
            "mask:full+sinks:normal",
        ),
    ),
)
