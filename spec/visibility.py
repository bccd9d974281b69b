"""Who sees whom: what a row does not see has no influence on it, however large."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from attnspec.oracle.problem import Problem
from attnspec.spec.claim import Claim, Trial
from attnspec.spec.derived import (
    BoolArray,
    answer,
    cast,
    flooded,
    for_query_heads,
    take_keys,
    visible,
)
from attnspec.spec.settings import PAIRS, SINGLES, without

__all__ = ["CLAIMS"]


def later_tokens(trial: Trial, problem: Problem) -> None:
    """Row i is unchanged by any edit of the keys and values ahead of it, and of other rows."""
    _unaffected(trial, problem, _ranges(problem, trial.rng, earlier=False))


def outside_window(trial: Trial, problem: Problem) -> None:
    """Row i is unchanged by any edit beyond either edge of its window."""
    _unaffected(trial, problem, _ranges(problem, trial.rng, earlier=True))


def hidden_keys(trial: Trial, problem: Problem) -> None:
    """Keys that nobody sees, and each single key for the rows that do not see it."""
    _unaffected(trial, problem, _hidden(problem, trial.rng))


def other_heads(trial: Trial, problem: Problem) -> None:
    """A head is unchanged by any edit of another key head, or of another batch entry."""
    _unaffected(trial, problem, _heads(problem))


def _unaffected(trial: Trial, problem: Problem, edits: Iterable[BoolArray]) -> None:
    """Rows that see none of the edited keys (B, Hkv, Nk) keep their result.

    Closeness is asked, not equal bits: both results lie within the allowance of one exact result,
    but a tile that is skipped or not, or a dispatch on the content, may legally regroup the sum.
    """
    seen = visible(problem)
    before, allowance = answer(trial, problem)
    for edited in edits:
        touched = np.asarray((seen & for_query_heads(problem, edited)[:, :, None]).any(-1))
        rows = seen.any(-1) & ~touched
        if not rows.any():
            continue
        after = trial.ask(_flooded(problem, edited, touched, trial.rng))["out"]
        what = "hidden keys, values or other rows change the output"
        trial.close(after[rows], before[rows], 2 * allowance[rows], what=what)


def _flooded(
    problem: Problem, edited: BoolArray, touched: BoolArray, rng: np.random.Generator
) -> Problem:
    """Large finite numbers in the edited keys and values, and in the rows that see them."""
    full = flooded(problem, edited, rng)
    q = cast(problem, rng.standard_normal(problem.q.shape))
    return full.replace(q=np.where(touched[..., None], q, problem.q))


def _ranges(problem: Problem, rng: np.random.Generator, *, earlier: bool) -> Iterator[BoolArray]:
    """The keys from a cut on, and those before it, for a few cuts."""
    key = np.arange(problem.key_count)
    cuts = {1, problem.key_count - 1, *rng.integers(1, problem.key_count, size=4).tolist()}
    for cut in sorted(cuts):
        yield np.broadcast_to(key >= cut, problem.k.shape[:3])
        if earlier:
            yield np.broadcast_to(key < cut, problem.k.shape[:3])


def _hidden(problem: Problem, rng: np.random.Generator) -> Iterator[BoolArray]:
    """The keys that no row sees, in each entry and head; then some single keys."""
    seen = visible(problem).any(2)
    grouped = seen.reshape(problem.batch, problem.kv_heads, -1, problem.key_count)
    yield np.asarray(~grouped.any(2))
    for key in rng.choice(problem.key_count, size=min(4, problem.key_count), replace=False):
        yield np.broadcast_to(np.arange(problem.key_count) == key, problem.k.shape[:3])


def _heads(problem: Problem) -> Iterator[BoolArray]:
    """One key head of every entry; then one entry, whole."""
    batch, head = np.indices(problem.k.shape[:2])[..., None]
    yield np.broadcast_to(head == 0, problem.k.shape[:3])
    yield np.broadcast_to(batch == 0, problem.k.shape[:3])


def empty_rows(trial: Trial, problem: Problem) -> None:
    """A row that sees no key returns 0. With fewer keys than rows, causal rows see none."""
    for asked in _with_empty_rows(problem):
        rows = ~visible(asked).any(-1)
        if rows.any():
            out = trial.ask(asked)["out"][rows]
            trial.same(out, np.zeros_like(out), what="a row that sees no key does not return 0")


def empty_rows_lse(trial: Trial, problem: Problem) -> None:
    """A row that sees no key has lse -inf, or the logit of its sink."""
    for asked in _with_empty_rows(problem):
        rows = ~visible(asked).any(-1)
        if not rows.any():
            continue
        lse, allowance = answer(trial, asked, "lse")
        if asked.sinks is None:
            what = "a row that sees no key does not have lse -inf"
            trial.same(lse[rows], np.full(lse[rows].shape, -np.inf), what=what)
        else:
            sink = np.broadcast_to(asked.sinks.astype(np.float64)[:, None], lse.shape)
            what = "a row that sees only the sink does not have the sink's logit as lse"
            trial.close(lse[rows], sink[rows], allowance[rows], what=what)


def _with_empty_rows(problem: Problem) -> Iterator[Problem]:
    yield problem
    if problem.key_lengths is None:
        yield take_keys(problem, np.arange(max(1, problem.query_count // 2)))


def visible_nan(trial: Trial, problem: Problem) -> None:
    """A NaN query spoils its row, and a NaN key or value every row that sees it: none is lost."""
    seen = visible(problem)
    for name in ("q", "k", "v"):
        x = getattr(problem, name).copy()
        place = np.zeros(x.shape[:3], dtype=np.bool_)
        place[0, 0, x.shape[2] // 2] = True
        x[place] = np.nan
        out = trial.ask(problem.replace(**{name: x}))["out"]
        if name == "q":
            rows = place & seen.any(-1)
        else:
            rows = np.asarray((seen & for_query_heads(problem, place)[:, :, None]).any(-1))
        what = f"NaN in {name} is not NaN in the output"
        trial.same(out[rows], np.full_like(out[rows], np.nan), what=what)


EMPTY = ("mask:empty-rows", "causal:on", "window:sliding", "key_lengths:zero", "bias:empty-rows")

CLAIMS = (
    Claim(
        id="later-tokens-have-no-influence",
        statement="A causal row is unchanged by any edit of later keys and values or other rows.",
        source="ch11.def9 (14); ch11.pit3; heart.causal.rule; ch11.self; KP7",
        check=later_tokens,
        settings=tuple(s for s in (*SINGLES, *PAIRS) if "causal" in s),
    ),
    Claim(
        id="later-tokens-have-no-influence-self-attention",
        statement="With as many queries as keys, row i is unchanged by any edit after token i.",
        source="ch11.def9 (14); lesson3.sec5.parallel; KP7",
        check=later_tokens,
        settings=("causal:on", "causal:on+window:sliding", "causal:on+gqa:grouped"),
        self_attention=True,
    ),
    Claim(
        id="window-hides-both-sides",
        statement="A row is unchanged by any edit beyond either edge of its window.",
        source="sys.window; sys.streamingllm; KP3",
        check=outside_window,
        settings=tuple(s for s in (*SINGLES, *PAIRS) if "window" in s),
    ),
    Claim(
        id="hidden-keys-have-no-influence",
        statement="A row is unchanged by any finite content of the keys that it does not see.",
        source="ch11.def9 (14); ch11.def10 (15); heart.code.mask1e9; sys.sparse; KP3",
        check=hidden_keys,
        settings=(
            "mask:full",
            "mask:keys",
            "mask:empty-rows",
            "mask:first-keys-hidden",
            "bias:neg-inf",
            "key_lengths:ragged",
            *without("causal", "window", among=PAIRS),
            "causal:on+mask:full",
            "causal:on+key_lengths:ragged",
        ),
    ),
    Claim(
        id="heads-are-independent",
        statement="A head is unchanged by any edit of other key heads and other batch entries.",
        source="heart.tp; lesson3.sec6.single; KP14, KP15",
        check=other_heads,
        settings=(*SINGLES, "causal:on+gqa:grouped", "mask:full+gqa:grouped"),
    ),
    Claim(
        id="row-without-keys-returns-zero",
        statement="A row that sees no key returns 0, not NaN and not a mean of hidden values.",
        source="heart.code.mask1e9; heart.torch.module; heart.code.rowsum; KP4",
        hypotheses="the convention of this specification, where the kernel declares it",
        check=empty_rows,
        settings=EMPTY,
    ),
    Claim(
        id="row-without-keys-has-lse-minus-infinity",
        statement="A row that sees no key has lse -inf; beside a sink, the sink's logit.",
        source="ext.monoid (the identity); KP4, KP23",
        check=empty_rows_lse,
        settings=(*EMPTY, "causal:on+sinks:normal", "window:sliding+sinks:normal"),
        options=("return_lse",),
    ),
    Claim(
        id="visible-nan-is-not-lost",
        statement="NaN in a query, key or value makes the rows NaN that it enters.",
        source="ch11.def7 (8), in IEEE 754 arithmetic",
        check=visible_nan,
        settings=("", "causal:on", "mask:full", "softcap:tight", "sinks:normal", "gqa:grouped"),
    ),
)
