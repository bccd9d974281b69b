"""Gradients: what the symmetries of the forward pass force upon dq, dk and dv."""

from __future__ import annotations

import math

import numpy as np

from attnspec.oracle.formats import Float64Array
from attnspec.oracle.problem import Problem
from attnspec.spec.claim import Claim, Trial
from attnspec.spec.derived import answer, cast, evaluation_error, for_query_heads, visible
from attnspec.spec.settings import PAIRS, SINGLES, without

__all__ = ["CLAIMS"]


def values_share_the_cotangent(trial: Trial, problem: Problem) -> None:
    """Σⱼ dvⱼ = Σᵢ doutᵢ over the rows that see a key: each row's weights sum to 1."""
    problem = _cotangent_where_seen(problem)
    dv, allowance = answer(trial, problem, "dv")
    dout = _dout(problem)
    expected = _over_group(problem, dout).sum((2, 3))
    terms = np.abs(dv).sum(2) + _over_group(problem, np.abs(dout)).sum((2, 3))
    within = allowance.sum(2) + evaluation_error(terms, steps=_terms(problem))
    what = "the sum of dv over the keys is not the sum of dout over the rows"
    trial.close(dv.sum(2), expected, within, what=what)


def values_return_the_output(trial: Trial, problem: Problem) -> None:
    """Σⱼ dvⱼ vⱼ = Σᵢ doutᵢ oᵢ, column by column: the output is linear in the values."""
    problem = _cotangent_where_seen(problem)
    dv, dv_allowance = answer(trial, problem, "dv")
    out, out_allowance = answer(trial, problem)
    rows = np.asarray(visible(problem).any(-1))[..., None]
    dout, v = _dout(problem), problem.v.astype(np.float64)
    out, out_allowance = np.where(rows, out, 0), np.where(rows, out_allowance, 0)
    left, right = (dv * v).sum(2), _over_group(problem, dout * out).sum((2, 3))
    within = (dv_allowance * np.abs(v)).sum(2)
    within = within + _over_group(problem, np.abs(dout) * out_allowance).sum((2, 3))
    terms = np.abs(dv * v).sum(2) + _over_group(problem, np.abs(dout * out)).sum((2, 3))
    within = within + evaluation_error(terms, steps=_terms(problem))
    trial.close(left, right, within, what="<dv, v> differs from <dout, out>")


def keys_sum_to_zero(trial: Trial, problem: Problem) -> None:
    """Σⱼ dkⱼ = 0: one vector added to every key changes nothing."""
    dk, allowance = answer(trial, problem, "dk")
    total = dk.sum(2)
    within = allowance.sum(2) + evaluation_error(np.abs(dk).sum(2), steps=_terms(problem))
    trial.close(total, np.zeros_like(total), within, what="the sum of dk over the keys is not 0")


def queries_and_keys_agree(trial: Trial, problem: Problem) -> None:
    """Qᵀ dQ = dKᵀ K: the output depends on Q Kᵀ alone, so (QG, KG⁻ᵀ) changes nothing."""
    dq, dq_allowance = answer(trial, problem, "dq")
    dk, dk_allowance = answer(trial, problem, "dk")
    q, k = problem.q.astype(np.float64), problem.k.astype(np.float64)
    left = _outer(_over_group(problem, q), _over_group(problem, dq))
    right = _outer(dk[:, :, None], k[:, :, None])
    dq_error = dq_allowance + evaluation_error(dq, steps=_terms(problem))
    dk_error = dk_allowance + evaluation_error(dk, steps=_terms(problem))
    within = _outer(_over_group(problem, np.abs(q)), _over_group(problem, dq_error))
    within = within + _outer(dk_error[:, :, None], np.abs(k)[:, :, None])
    what = "Q^T dQ differs from dK^T K: dq and dk belong to different scores"
    trial.close(left, right, within, what=what)


def equal_values_have_no_score_gradient(trial: Trial, problem: Problem) -> None:
    """Equal values average to themselves whatever the scores, so dq = dk = 0."""
    ones = problem.replace(v=np.ones_like(problem.v))
    for output in ("dq", "dk"):
        gradient, allowance = answer(trial, ones, output)
        what = f"{output} is not 0 although all values are equal: rows of dS do not sum to 0"
        trial.close(gradient, np.zeros_like(gradient), allowance, what=what)


def hidden_keys_have_no_gradient(trial: Trial, problem: Problem) -> None:
    """A cotangent on one row alone: dk, dv are exactly 0 where it sees nothing, dq elsewhere."""
    problem, seen = _cotangent_where_seen(problem), visible(problem)
    for row in {0, problem.query_count // 2, problem.query_count - 1}:
        only = np.arange(problem.query_count) == row
        dout = cast(problem, np.where(only[:, None], _dout(problem), 0))
        asked = problem.replace(dout=dout)
        got = trial.ask(asked, want=("dq", "dk", "dv"))
        hidden = ~seen[:, :, row].reshape(*problem.k.shape[:2], -1, problem.key_count).any(2)
        for output in ("dk", "dv"):
            away = got[output][hidden]
            what = f"{output} is not 0 at a key hidden from the only row with a cotangent"
            trial.same(away, np.zeros_like(away), what=what)
        others = got["dq"][:, :, ~only]
        what = "dq is not 0 in rows without a cotangent"
        trial.same(others, np.zeros_like(others), what=what)


def unseen_has_no_gradient(trial: Trial, problem: Problem) -> None:
    """dq is 0 in rows that see no key, and dk, dv at keys that no row sees: not NaN."""
    problem, seen = _cotangent_where_seen(problem), visible(problem)
    got = trial.ask(problem, want=("dq", "dk", "dv"))
    rows = ~seen.any(-1)
    what = "dq is not 0 in a row that sees no key"
    trial.same(got["dq"][rows], np.zeros_like(got["dq"][rows]), what=what)
    grouped = seen.any(2).reshape(*problem.k.shape[:2], -1, problem.key_count)
    keys = ~grouped.any(2)
    for output in ("dk", "dv"):
        away = got[output][keys]
        trial.same(away, np.zeros_like(away), what=f"{output} is not 0 at a key that no row sees")


def scale_reaches_gradients(trial: Trial, problem: Problem) -> None:
    """With 2q and half the scale the scores are the same: dk and dv too, and dq halves."""
    other = problem.replace(
        q=cast(problem, 2 * problem.q.astype(np.float64)), scale=problem.scale / 2
    )
    for output, factor in (("dq", 0.5), ("dk", 1.0), ("dv", 1.0)):
        first, first_allowance = answer(trial, problem, output)
        second, second_allowance = answer(trial, other, output)
        within = factor * first_allowance + second_allowance
        what = f"{output} does not follow the scale"
        trial.close(second, factor * first, within, what=what)


def grouped_gradients_add(trial: Trial, problem: Problem) -> None:
    """dk and dv of a key head are the sums over the query heads that share it."""
    repeated = problem.replace(
        k=for_query_heads(problem, problem.k), v=for_query_heads(problem, problem.v)
    )
    for output in ("dk", "dv"):
        grouped, allowance = answer(trial, problem, output)
        single, single_allowance = answer(trial, repeated, output)
        expected = _over_group(problem, single).sum(2)
        within = allowance + _over_group(problem, single_allowance).sum(2)
        terms = _over_group(problem, np.abs(single)).sum(2)
        within = within + evaluation_error(terms, steps=problem.query_heads)
        what = f"{output} is not the sum over the query heads of the group"
        trial.close(grouped, expected, within, what=what)


def bias_rows_sum_to_zero(trial: Trial, problem: Problem) -> None:
    """Σⱼ dSᵢⱼ = 0: a constant added to a row of scores changes nothing."""
    dbias, allowance = answer(trial, problem, "dbias")
    total = dbias.sum(-1)
    within = allowance.sum(-1) + evaluation_error(np.abs(dbias).sum(-1), steps=_terms(problem))
    trial.close(total, np.zeros_like(total), within, what="a row of dbias does not sum to 0")


def bias_and_sinks_sum_to_zero(trial: Trial, problem: Problem) -> None:
    """Σ dbias + dsink = 0 in each head: the sink is one more score of every row."""
    dbias, bias_allowance = answer(trial, problem, "dbias")
    dsinks, sink_allowance = answer(trial, problem, "dsinks")
    # Rounded once: over all rows and keys, an ordinary sum would err more than a float64 kernel.
    per_head = dbias.swapaxes(0, 1).reshape(problem.query_heads, -1)
    total = np.array([math.fsum([*row, sink]) for row, sink in zip(per_head, dsinks, strict=True)])
    within = bias_allowance.sum((0, 2, 3)) + sink_allowance
    within = within * (1 + 2.0**-30) + evaluation_error(total, steps=1)
    trial.close(total, np.zeros_like(total), within, what="dbias and dsinks do not sum to 0")


def _dout(problem: Problem) -> Float64Array:
    assert problem.dout is not None, "a gradient is asked of a problem with a cotangent"
    return problem.dout.astype(np.float64)


def _cotangent_where_seen(problem: Problem) -> Problem:
    """A cotangent of 0 in rows that see no key: what those return is a convention."""
    rows = np.asarray(visible(problem).any(-1))[..., None]
    return problem.replace(dout=cast(problem, np.where(rows, _dout(problem), 0)))


def _over_group(problem: Problem, x: Float64Array) -> Float64Array:
    """(B, Hq, N, …) as (B, Hkv, group, N, …)."""
    return x.reshape(problem.batch, problem.kv_heads, -1, *x.shape[2:])


def _outer(a: Float64Array, b: Float64Array) -> Float64Array:
    """Σ over the group and the rows of a bᵀ: (B, Hkv, D, D)."""
    total: Float64Array = np.einsum("bhgna,bhgnc->bhac", a, b)
    return total


def _terms(problem: Problem) -> int:
    """At least the additions in a sum over keys, or over the rows of a group."""
    return problem.key_count + problem.query_count * problem.query_heads + 4


GRADIENTS = ("gradients",)
MASKS = ("", "causal:on", "window:sliding", "mask:full", "mask:empty-rows", "gqa:grouped")

CLAIMS = (
    Claim(
        id="dv-sums-to-dout",
        statement="The sum of dv over the keys is the sum of dout over the rows.",
        source="ext.dVsum; ch11.prop7 (16); KP13",
        hypotheses="no sink",
        check=values_share_the_cotangent,
        settings=(*without("sinks"), "causal:on+gqa:grouped"),
        options=GRADIENTS,
    ),
    Claim(
        id="dv-with-v-equals-dout-with-out",
        statement="The products <dv, v> and <dout, out> agree, column by column.",
        source="ch11.prop7 (16); ext.D; KP13",
        check=values_return_the_output,
        settings=(*SINGLES, "causal:on+gqa:grouped"),
        options=GRADIENTS,
    ),
    Claim(
        id="dk-sums-to-zero",
        statement="The sum of dk over the keys is 0.",
        source="ext.keyshift; ext.dVsum; ext.rowsum0; KP13",
        hypotheses="no soft-cap, no sink",
        check=keys_sum_to_zero,
        settings=without("softcap", "sinks"),
        options=GRADIENTS,
    ),
    Claim(
        id="dq-and-dk-share-scores",
        statement="Q^T dQ = dK^T K.",
        source="ext.gauge; ch11.prop9 (18); KP13",
        check=queries_and_keys_agree,
        settings=(*SINGLES, "causal:on+gqa:grouped", "causal:on+softcap:tight"),
        options=GRADIENTS,
    ),
    Claim(
        id="equal-values-have-no-score-gradient",
        statement="Where all values are equal, dq and dk are 0.",
        source="ext.response; ch11.prop8 (17); ext.rowsum0; KP13",
        hypotheses="no sink",
        check=equal_values_have_no_score_gradient,
        settings=without("sinks"),
        options=GRADIENTS,
    ),
    Claim(
        id="hidden-keys-have-no-gradient",
        statement="A cotangent on one row leaves dk and dv exactly 0 at keys hidden from it.",
        source="ch11.prop8 (17); ch11.def9 (14); KP7, KP13",
        check=hidden_keys_have_no_gradient,
        settings=(*SINGLES[1:], *PAIRS),
        options=GRADIENTS,
    ),
    Claim(
        id="unseen-has-no-gradient",
        statement="Rows that see nothing, and keys that nothing sees, have gradient 0, not NaN.",
        source="heart.torch.module; ch11.prop8 (17); KP4",
        check=unseen_has_no_gradient,
        settings=(
            "mask:empty-rows",
            "mask:first-keys-hidden",
            "key_lengths:ragged",
            "window:sliding",
        ),
        options=GRADIENTS,
    ),
    Claim(
        id="gradients-follow-scale",
        statement="Queries doubled under half the scale halve dq and leave dk and dv.",
        source="ext.scale; ch11.prop9 (18); KP11, KP12",
        check=scale_reaches_gradients,
        settings=(*MASKS, "softcap:tight", "sinks:normal"),
        options=("scale", *GRADIENTS),
    ),
    Claim(
        id="grouped-gradients-add",
        statement="dk and dv of a key head are the sums over the query heads that share it.",
        source="sys.gqa; heart.gqa.def; KP15",
        check=grouped_gradients_add,
        settings=("gqa:grouped", "gqa:single", "causal:on+gqa:grouped", "mask:full+gqa:grouped"),
        options=GRADIENTS,
    ),
    Claim(
        id="dbias-rows-sum-to-zero",
        statement="Each row of dbias sums to 0.",
        source="ext.rowsum0; ch11.prop8 (17); KP13",
        hypotheses="no sink; a bias for each key",
        check=bias_rows_sum_to_zero,
        settings=("bias:full", "causal:on+bias:full", "bias:full+gqa:grouped"),
        options=GRADIENTS,
    ),
    Claim(
        id="dbias-and-dsinks-sum-to-zero",
        statement="In each head dbias and dsinks sum to 0 together.",
        source="ext.rowsum0; ext.nullsink; KP13",
        hypotheses="a bias for each head and key",
        check=bias_and_sinks_sum_to_zero,
        settings=("bias:full+sinks:normal", "bias:heads+sinks:normal"),
        options=GRADIENTS,
    ),
)
