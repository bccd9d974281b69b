"""Composition: a problem asked in parts gives the answer of the whole."""

from __future__ import annotations

import numpy as np

from attnspec.oracle.formats import Float64Array
from attnspec.oracle.problem import Problem
from attnspec.spec.claim import Claim, Trial
from attnspec.spec.derived import (
    answer,
    evaluation_error,
    same_answer,
    take_batch,
    take_heads,
    take_keys,
    take_queries,
    visible,
    with_equal_scores,
)
from attnspec.spec.settings import PAIRS, SINGLES, without

__all__ = ["CLAIMS"]


def split_and_merge(trial: Trial, problem: Problem) -> None:
    """o = Σ_b e^(lse_b - lse) o_b over any split of the keys, with lse = log Σ_b e^lse_b."""
    out, out_allowance = answer(trial, problem)
    lse, lse_allowance = answer(trial, problem, "lse")
    rows = visible(problem).any(-1)
    keys = np.arange(problem.key_count)
    splits = {
        f"the parts before and after key {first}": np.split(keys, [first])
        for first in sorted({1, problem.key_count // 2, problem.key_count - 1})
    }
    splits["every third key, last first,"] = [keys[start::3][::-1] for start in range(3)]
    for name, parts in splits.items():
        merged, merged_lse, bound, lse_bound = _merged(trial, problem, parts)
        what = f"{name} do not merge to the whole"
        trial.close(merged[rows], out[rows], (bound + out_allowance)[rows], what=what)
        trial.close(merged_lse[rows], lse[rows], (lse_bound + lse_allowance)[rows], what=what)


def _merged(
    trial: Trial, problem: Problem, parts: list[np.ndarray[tuple[int], np.dtype[np.intp]]]
) -> tuple[Float64Array, Float64Array, Float64Array, Float64Array]:
    """The merged output and lse of rows that see a key, and how far they may be off.

    Where each lse_b is off by at most e, lse is too, so each weight by a factor e^(±2e): the
    output moves by at most Σ w_b (allowance_b + (e^2e - 1) (|o_b| + allowance_b)).
    """
    asked = [take_keys(problem, part) for part in parts]
    outs, bounds = map(np.array, zip(*(answer(trial, p) for p in asked), strict=True))
    lses, errors = map(np.array, zip(*(answer(trial, p, "lse") for p in asked), strict=True))
    error = errors.max(0)
    largest = lses.max(0)
    largest = np.where(np.isneginf(largest), 0, largest)
    terms = np.exp(lses - largest)
    total = terms.sum(0)
    total = np.where(total == 0, 1, total)
    weights = (terms / total)[..., None]
    grown = np.expm1(2 * error + 2.0**-50 * (1 + np.abs(largest)))[..., None]
    bound = (weights * (bounds + grown * (np.abs(outs) + bounds))).sum(0)
    lse = largest + np.log(total)
    return (weights * outs).sum(0), lse, bound, error + 2.0**-50 * (1 + np.abs(lse))


def doubled_keys(trial: Trial, problem: Problem) -> None:
    """Every key twice: twice every term of numerator and denominator."""
    other = take_keys(problem, np.tile(np.arange(problem.key_count), 2))
    same_answer(trial, problem, other, what="every key given twice changes the output")


def doubled_keys_lse(trial: Trial, problem: Problem) -> None:
    """Every key twice adds log 2 to lse."""
    lse, allowance = answer(trial, problem, "lse")
    other = take_keys(problem, np.tile(np.arange(problem.key_count), 2))
    doubled, doubled_allowance = answer(trial, other, "lse")
    rows = visible(problem).any(-1)
    expected = lse[rows] + np.log(2)
    within = (allowance + doubled_allowance)[rows] + evaluation_error(expected, steps=4)
    what = "every key given twice does not add log 2 to lse"
    trial.close(doubled[rows], expected, within + 2.0**-52, what=what)


def batch_entries_alone(trial: Trial, problem: Problem) -> None:
    """A batch entry alone gives its rows of the batch."""
    out, allowance = answer(trial, problem)
    for b in range(problem.batch):
        alone = take_batch(problem, np.array([b]))
        part, part_allowance = answer(trial, alone)
        rows = visible(alone).any(-1)
        within = (part_allowance + allowance[b : b + 1])[rows]
        what = "a batch entry alone differs from itself in the batch"
        trial.close(part[rows], out[b : b + 1][rows], within, what=what)


def heads_alone(trial: Trial, problem: Problem) -> None:
    """Each key head alone, with the query heads that read it, is that part of all together."""
    out, allowance = answer(trial, problem)
    group = problem.query_heads // problem.kv_heads
    for head in range(problem.kv_heads):
        alone = take_heads(problem, np.array([head]))
        part, part_allowance = answer(trial, alone)
        among = slice(head * group, (head + 1) * group)
        rows = visible(alone).any(-1)
        within = (part_allowance + allowance[:, among])[rows]
        what = f"key head {head} alone differs from itself among {problem.kv_heads}"
        trial.close(part[rows], out[:, among][rows], within, what=what)


def rows_alone(trial: Trial, problem: Problem) -> None:
    """The rows next to the fixed corner of the diagonal, alone: decoding equals prefill."""
    out, allowance = answer(trial, problem)
    for count in sorted({1, 9, problem.query_count - 1} & set(range(1, problem.query_count))):
        index = np.arange(count)
        if problem.diagonal == "bottom-right":  # the last query meets the last key
            index = index + problem.query_count - count
        alone = take_queries(problem, index)
        part, part_allowance = answer(trial, alone)
        rows = np.nonzero(visible(alone).any(-1))
        within = part_allowance + allowance[:, :, index]
        what = f"{count} rows alone differ from the same rows among others"
        trial.close(part[rows], out[:, :, index][rows], within[rows], what=what)


def prefix_alone(trial: Trial, problem: Problem) -> None:
    """Causal attention over the first t tokens is the first t rows of the whole."""
    out, allowance = answer(trial, problem)
    for count in sorted({1, problem.key_count // 2, problem.key_count - 1}):
        index = np.arange(count)
        alone = take_keys(take_queries(problem, index), index)
        part, part_allowance = answer(trial, alone)
        rows = np.nonzero(visible(alone).any(-1))
        within = part_allowance + allowance[:, :, :count]
        what = f"the first {count} tokens alone differ from the first rows of the whole"
        trial.close(part[rows], out[:, :, :count][rows], within[rows], what=what)


def lse_between_bounds(trial: Trial, problem: Problem) -> None:
    """max s <= lse <= max s + log n over the n visible scores.

    Both are attained: by equal scores, and by a row that sees one key.
    """
    _between_bounds(trial, problem)
    _between_bounds(trial, with_equal_scores(problem, 1.0)[0])
    lengths = problem.key_lengths
    one = problem.replace(key_lengths=None if lengths is None else np.minimum(lengths, 1))
    _between_bounds(trial, take_keys(one, np.arange(1)))


def _between_bounds(trial: Trial, problem: Problem) -> None:
    scores = _scores(problem)
    seen = visible(problem)
    rows = np.nonzero(seen.any(-1))
    largest = np.where(seen, scores, -np.inf).max(-1)[rows]
    lse, allowance = answer(trial, problem, "lse")
    inside = np.clip(lse[rows], largest, largest + np.log(seen.sum(-1)[rows]))
    size = _scores(problem, magnitude=True).max(-1)[rows]
    within = allowance[rows] + 2.0**-53 * (problem.head_size + 8) * (size + 8)
    trial.close(lse[rows], inside, within, what="lse is not in [max, max + log n]")


def _scores(problem: Problem, *, magnitude: bool = False) -> Float64Array:
    """scale q kᵀ + bias in float64, or the sum of its terms' magnitudes: (B, Hq, Nq, Nk)."""
    size = np.abs if magnitude else np.positive
    q, k = size(problem.q.astype(np.float64)), size(problem.k.astype(np.float64))
    group = problem.query_heads // problem.kv_heads
    scores: Float64Array = size(problem.scale) * (q @ np.repeat(k, group, axis=1).swapaxes(-1, -2))
    if problem.bias is not None:
        bias = problem.bias.astype(np.float64)
        scores = scores + size(np.where(np.isneginf(bias), 0, bias))
    return scores


SPLITTABLE = without("causal", "window", "alibi", "key_lengths", "sinks")
SLICED = (*SINGLES, *PAIRS)

CLAIMS = (
    Claim(
        id="parts-merge-by-lse",
        statement="Keys split in parts, in any order, merged by their lse, give the whole.",
        source="ext.splitkv; ext.monoid; sys.splitkv; KP10",
        hypotheses="no sink; mask and bias split along; nothing that depends on places",
        check=split_and_merge,
        settings=(*SPLITTABLE, "mask:full+gqa:grouped", "mask:full+softcap:tight"),
        options=("return_lse",),
    ),
    Claim(
        id="doubled-keys-change-nothing",
        statement="Every key given twice gives the same output.",
        source="ext.duplicate; heart.misc.perm; KP25",
        hypotheses="no sink; mask and bias doubled along; nothing that depends on places",
        check=doubled_keys,
        settings=SPLITTABLE,
    ),
    Claim(
        id="doubled-keys-add-log-2-to-lse",
        statement="Every key given twice adds log 2 to lse.",
        source="ext.duplicate; ext.lse; KP23, KP25",
        hypotheses="as for the output",
        check=doubled_keys_lse,
        settings=SPLITTABLE,
        options=("return_lse",),
    ),
    Claim(
        id="batch-entries-are-independent",
        statement="A batch entry alone gives its rows of the batch.",
        source="heart.code.sdpa; KP24",
        check=batch_entries_alone,
        settings=SLICED,
    ),
    Claim(
        id="heads-alone-equal-heads-together",
        statement="Each key head alone, with its query heads, gives what it gives among others.",
        source="sys.tp; heart.tp; ch11.def8 (12); KP14, KP15",
        check=heads_alone,
        settings=(*SINGLES, "mask:heads", "bias:heads", "causal:on+gqa:grouped"),
    ),
    Claim(
        id="decoding-equals-prefill",
        statement="The last rows, asked alone, are the last rows of the whole.",
        source="sys.kvcache; ch11.self; KP16",
        hypotheses="a bottom-right diagonal; the first rows where it is fixed at the top left",
        check=rows_alone,
        settings=SLICED,
    ),
    Claim(
        id="prefix-equals-first-rows",
        statement="Causal attention over the first t tokens gives the first t rows of the whole.",
        source="lesson3.sec5.parallel; heart.causal.rule; KP7, KP16",
        check=prefix_alone,
        settings=without("key_lengths", among=tuple(s for s in SLICED if "causal" in s)),
        self_attention=True,
    ),
    Claim(
        id="lse-between-max-and-max-plus-log-n",
        statement="lse lies between the largest visible score and log n above it.",
        source="ext.lse; KP23",
        hypotheses="no soft-cap, ALiBi or sink",
        check=lse_between_bounds,
        settings=without("softcap", "alibi", "sinks"),
        options=("return_lse",),
    ),
)
