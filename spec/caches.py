"""Caches: rows that come later, keys in pages, padded or evicted, give what the whole gives."""

from __future__ import annotations

import numpy as np

from attnspec.oracle.formats import Float64Array
from attnspec.oracle.problem import Problem
from attnspec.spec.claim import Claim, Trial
from attnspec.spec.derived import (
    BoolArray,
    Index,
    answer,
    flooded,
    masked,
    same_answer,
    take_keys,
    take_queries,
    visible,
)
from attnspec.spec.settings import PAIRS, SINGLES, without

__all__ = ["CLAIMS"]

PAGE = 8
TAIL = 9
SINK, WINDOW = 2, 4


def chunked_prefill(trial: Trial, problem: Problem) -> None:
    """Tokens a..b-1, asked with the keys up to theirs, are rows a..b-1; one at a time: decoding.

    Where the diagonal is fixed at the top left, a chunk says by a mask what it sees.
    """
    whole, asked = answer(trial, problem), problem
    if problem.diagonal == "top-left":
        if problem.alibi is not None:
            return  # it would measure from another place
        asked = masked(problem, visible(problem))
    count = problem.query_count
    for start, stop in ((0, 1), (1, 8), (8, count - 1), (count - 1, count)):
        rows = np.arange(start, stop)
        chunk = take_keys(take_queries(asked, rows), np.arange(stop))
        _same_rows(trial, chunk, whole, rows, what=f"tokens {start} to {stop - 1} as a chunk")


def hidden_left_out(trial: Trial, problem: Problem) -> None:
    """A row over the keys that it sees, the others not even given."""
    whole, seen = answer(trial, problem), visible(problem)
    for row in sorted({0, problem.query_count // 2, problem.query_count - 1}):
        cached = np.asarray(seen[:, :, row].any((0, 1)))
        _from_cache(trial, masked(problem, seen), whole, row, cached)


def window_and_sink(trial: Trial, problem: Problem) -> None:
    """A cache of the first keys and the last ones is the mask that leaves these (StreamingLLM)."""
    row, key = np.indices((problem.query_count, problem.key_count))
    kept = (key <= row) & ((key < SINK) | (row - key < WINDOW))
    asked = problem.replace(mask=kept)
    whole = answer(trial, asked)
    for at in (0, SINK, SINK + WINDOW, problem.query_count - 1):
        _from_cache(trial, asked, whole, at, kept[at])


def _from_cache(
    trial: Trial,
    problem: Problem,
    whole: tuple[Float64Array, Float64Array],
    row: int,
    cached: BoolArray,
) -> None:
    """One row of a masked problem, over some keys; with no mask where it sees all of these."""
    if not cached.any():
        return
    alone = take_keys(take_queries(problem, np.array([row])), np.nonzero(cached)[0])
    assert alone.mask is not None
    if alone.mask.all():
        alone = alone.replace(mask=None)
    what = f"row {row} over its {alone.key_count} cached keys"
    _same_rows(trial, alone, whole, np.array([row]), what=what)


def _same_rows(
    trial: Trial,
    part: Problem,
    whole: tuple[Float64Array, Float64Array],
    rows: Index,
    *,
    what: str,
) -> None:
    """The part's output is these rows of the whole's, within both allowances."""
    out, allowance = (x[:, :, rows] for x in whole)
    found, own = answer(trial, part)
    seen = visible(part).any(-1)
    what = f"{what} differs from the same rows of the whole"
    trial.close(found[seen], out[seen], (allowance + own)[seen], what=what)


def paged_keys(trial: Trial, problem: Problem) -> None:
    """Keys in pages, in any order, with large numbers in the slots of free pages."""
    count = problem.key_count
    pages = -(-count // PAGE)
    table = trial.rng.permutation(pages + 2)[:pages]
    slots = table[np.arange(count) // PAGE] * PAGE + np.arange(count) % PAGE
    used = np.zeros((pages + 2) * PAGE, np.bool_)
    index = np.zeros(used.size, np.intp)
    used[slots], index[slots] = True, np.arange(count)
    paged = take_keys(masked(problem, visible(problem)), index)
    assert paged.mask is not None
    paged = flooded(paged.replace(mask=paged.mask & used), _for_keys(paged, ~used), trial.rng)
    same_answer(trial, problem, paged, what="keys in pages differ from the same keys in a row")


def padded_keys(trial: Trial, problem: Problem) -> None:
    """Slots beyond the length, with large numbers in them, as if they were not there."""
    count, lengths = problem.key_count, problem.key_lengths
    index = np.concatenate([np.arange(count), np.zeros(TAIL, np.intp)])
    if lengths is None:
        lengths = np.full(problem.batch, count, np.int32)
    padded = take_keys(problem, index).replace(key_lengths=lengths)
    beyond = np.arange(count + TAIL) >= count
    padded = flooded(padded, _for_keys(padded, beyond), trial.rng)
    same_answer(trial, problem, padded, what=f"{TAIL} slots of padding change the output")


def _for_keys(problem: Problem, chosen: BoolArray) -> BoolArray:
    return np.broadcast_to(chosen, problem.k.shape[:3])


CAUSAL = tuple(s for s in (*SINGLES, *PAIRS) if "causal" in s)
PLAIN = ("", "softcap:tight", "gqa:grouped", "sinks:normal", "bias:full")

CLAIMS = (
    Claim(
        id="chunked-prefill-equals-prefill",
        statement="Tokens in chunks, or one by one, over a growing cache give the whole's rows.",
        source="sys.kvcache; lesson3.sec5.parallel; heart.causal.rule; KP16",
        hypotheses="a causal mask; where the diagonal is top-left, the chunk's mask instead",
        check=chunked_prefill,
        settings=without("key_lengths", among=CAUSAL),
        self_attention=True,
    ),
    Claim(
        id="hidden-keys-may-be-left-out",
        statement="A row gives the same over the keys that it sees alone.",
        source="ch11.def9 (14); sys.kvcache; sys.window; sys.sparse; KP3, KP16",
        hypotheses="no ALiBi, which measures places",
        check=hidden_left_out,
        settings=(
            "causal:on",
            "window:sliding",
            "window:both",
            "mask:two-dimensional",
            "mask:first-keys-hidden",
            "key_lengths:ragged",
            "causal:on+bias:full",
            "causal:on+softcap:tight",
            "window:sliding+bias:full",
            "window:sliding+sinks:normal",
            "window:sliding+gqa:grouped",
        ),
    ),
    Claim(
        id="window-and-sink-cache-is-a-mask",
        statement="A cache of the first and the last keys is a mask that leaves only these.",
        source="sys.streamingllm; heart.stream; sys.window; KP19",
        hypotheses="no positional code",
        check=window_and_sink,
        settings=PLAIN,
        options=("mask",),
        self_attention=True,
    ),
    Claim(
        id="paged-keys-equal-keys-in-a-row",
        statement="Keys in pages in any order, free slots hidden, give what keys in a row give.",
        source="sys.paged; ext.keyperm; KP16, KP6",
        hypotheses="no ALiBi, which measures places",
        check=paged_keys,
        settings=(*without("alibi"), "causal:on+gqa:grouped", "window:sliding+sinks:normal"),
        options=("mask",),
    ),
    Claim(
        id="padding-changes-nothing",
        statement="Slots beyond a sequence's length change nothing, whatever is in them.",
        source="sys.paged; ch11.def10 (15); KP3, KP16",
        check=padded_keys,
        settings=(*SINGLES, "causal:on+gqa:grouped", "causal:on+sinks:normal"),
        options=("key_lengths",),
    ),
)
