"""The properties have power: each one catches a kernel that is wrong in the way it is about."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from attnspec.adapters import call, load
from attnspec.conformance.case import Case, Shape, parse_settings
from attnspec.conformance.question import Question, Violation
from attnspec.oracle.problem import Problem
from attnspec.spec import derived
from attnspec.spec.claim import all_claims

Array = npt.NDArray[Any]
Outputs = Mapping[str, Array]
Kernel = Callable[[Problem, Sequence[str]], Outputs]

CLAIMS = {claim.id: claim for claim in all_claims()}
HONEST = load("numpy")


def honest(problem: Problem, want: Sequence[str]) -> dict[str, Array]:
    return dict(call(HONEST, problem, want=tuple(want)).outputs)


@dataclass(eq=False)
class FaultyQuestion(Question):
    """The suite's own trial, with another kernel behind it."""

    fault: Kernel = honest

    def ask(self, problem: Problem, *, want: Sequence[str] = ("out",)) -> Outputs:
        return self.fault(problem, want)


# -- faulty kernels --------------------------------------------------------------------------------


def of(change: Callable[[Problem], Problem]) -> Kernel:
    """The honest kernel on a problem misread."""
    return lambda problem, want: honest(change(problem), want)


def spoiled(output: str, change: Callable[[Problem, Array], Array]) -> Kernel:
    """The honest kernel with one output spoiled."""

    def faulty(problem: Problem, want: Sequence[str]) -> Outputs:
        found = honest(problem, want)
        if output in found:
            found[output] = change(problem, found[output]).astype(found[output].dtype)
        return found

    return faulty


def backward_of(change: Callable[[Problem], Problem]) -> Kernel:
    """Right forward, and the gradients of another problem."""

    def faulty(problem: Problem, want: Sequence[str]) -> Outputs:
        return honest(change(problem), want) | honest(problem, ("out",))

    return faulty


def shifted_diagonal(problem: Problem) -> Problem:
    """Every causal row sees one key too many."""
    ahead = np.array([problem.ahead(b) for b in range(problem.batch)])[:, None]
    seen = derived.visible(problem.replace(causal=False)) & (ahead >= -1)
    return problem.replace(causal=False, mask=seen)


def one_diagonal_for_groups_of_rows(problem: Problem) -> Problem:
    """Causality by the last row of each four, as in pytorch#195910."""
    seen = np.array([problem.ahead(b) for b in range(problem.batch)])[:, None] >= 0
    last = np.minimum(np.arange(problem.query_count) // 4 * 4 + 3, problem.query_count - 1)
    return problem.replace(causal=False, mask=seen[:, :, last])


def finite_hiding(problem: Problem) -> Problem:
    """Hides by adding -8, which leaves a weight of e^-8."""
    seen = derived.visible(problem)
    bias = 0.0 if problem.bias is None else np.maximum(problem.bias.astype(np.float64), -8)
    bias = derived.cast(problem, np.where(seen, bias, -8.0))
    return problem.replace(causal=False, window=None, mask=None, key_lengths=None, bias=bias)


def padding_counts(problem: Problem) -> Problem:
    """One zero key of padding stays in the denominator."""
    return problem.replace(sinks=np.zeros(problem.query_heads, np.float32))


def tiled_heads(problem: Problem) -> Problem:
    """Query head a reads key head a mod Hkv, not a // group."""
    group = problem.query_heads // problem.kv_heads
    k, v = (np.tile(x, (1, group, 1, 1)) for x in (problem.k, problem.v))
    return problem.replace(k=k, v=v)


def shared_quantisation(problem: Problem) -> Problem:
    """Values in 8 bits under one scale for the whole tensor, as in TransformerEngine#3248."""
    v = problem.v.astype(np.float64)
    step = np.abs(v).max(initial=1e-30) / 127
    return problem.replace(v=derived.cast(problem, np.rint(v / step) * step))


def first_entry(problem: Problem) -> Problem:
    """The keys of the first batch entry serve all."""
    return problem.replace(k=np.broadcast_to(problem.k[:1], problem.k.shape))


def flat_index(problem: Problem) -> Problem:
    """A mask or bias without heads is indexed as if it had some, as in onnxruntime#24017."""
    pair = np.arange(problem.batch * problem.query_heads).reshape(problem.batch, -1)
    wrong = {
        name: x[pair % problem.batch, 0]
        for name in ("mask", "bias")
        if (x := getattr(problem, name)) is not None and x.ndim == 4 and x.shape[1] == 1 < len(x)
    }
    return problem.replace(**wrong)


def drop_last_key(problem: Problem) -> Problem:
    return derived.take_keys(problem, np.arange(max(1, problem.key_count - 1)))


def drop_key_of_a_short_tile(problem: Problem) -> Problem:
    """The last tile of 16 is skipped where it holds one key."""
    alone = problem.key_count % 16 == 1 and problem.key_count > 1
    return derived.with_equal_scores(drop_last_key(problem))[0] if alone else problem


def decoding_path(problem: Problem) -> Problem:
    """A separate path for few rows, which loses a key."""
    short = problem.query_count < 4 and problem.mask is None and problem.bias is None
    return drop_last_key(problem) if short and problem.key_lengths is None else problem


def clip(name: str, low: float, high: float) -> Callable[[Problem], Problem]:
    def change(problem: Problem) -> Problem:
        x = getattr(problem, name)
        kept = np.where(np.isneginf(x.astype(np.float64)), x, np.clip(x, low, high))
        return problem.replace(**{name: kept.astype(x.dtype)})

    return change


def exclusive_window(problem: Problem) -> Problem:
    if problem.window is None or not problem.window[0]:
        return problem
    return problem.replace(window=(problem.window[0] - 1, problem.window[1]))


def wider_window(problem: Problem) -> Problem:
    left, right = problem.window
    return problem.replace(window=(left + 1, right))


def scale_twice_with_bias(problem: Problem) -> Problem:
    return problem if problem.bias is None else problem.replace(scale=problem.scale**2)


def scaled_bias(problem: Problem) -> Problem:
    """The bias is added before the scale."""
    if problem.bias is None:
        return forgotten("alibi")(problem)
    return problem.replace(bias=problem.bias.astype(np.float64) * problem.scale)


def forgotten(*names: str) -> Callable[[Problem], Problem]:
    nothing = {"causal": False}
    return lambda problem: problem.replace(**{n: nothing.get(n) for n in names})


def unread_channel(name: str) -> Callable[[Problem], Problem]:
    """The last channel is not read."""

    def change(problem: Problem) -> Problem:
        x = getattr(problem, name).copy()
        x[..., -1] = 0
        return problem.replace(**{name: x})

    return change


def top_left(problem: Problem) -> Problem:
    """The diagonal starts at key 0, whatever the lengths."""
    return derived.masked(problem, derived.visible(problem.replace(diagonal="top-left")))


def next_head(problem: Problem) -> Problem:
    """Each query head reads the keys of the head after its own."""
    return problem.replace(k=np.roll(problem.k, 1, axis=1))


def mean_where_empty(problem: Problem, out: Array) -> Array:
    empty = ~derived.visible(problem).any(-1)
    return np.where(empty[..., None], np.float32(0.25), out)


def nan_where_empty(problem: Problem, dq: Array) -> Array:
    return np.where(derived.visible(problem).any(-1)[..., None], dq, np.nan)


def unread_tail(problem: Problem) -> Problem:
    """Values beyond the 4,000th key are not read, though their weights count."""
    read = np.arange(problem.key_count) < 4000
    return problem.replace(v=np.where(read[:, None], problem.v, 0).astype(problem.v.dtype))


def maximum_from_zero(problem: Problem, out: Array) -> Array:
    """The running maximum starts from 0 and exp underflows, as in flash-attention#2082."""
    underflow = -746 if problem.dtype_name == "float64" else -104
    lse = honest(problem, ("out", "lse"))["lse"]
    return np.where((lse < underflow)[..., None], 0, out)


def without_inner(problem: Problem, want: Sequence[str]) -> Outputs:
    """dS = P dP: the term -<dout, out> is forgotten, that is, cancelled by a cotangent of lse."""
    if not any(name.startswith("d") for name in want):
        return honest(problem, want)
    out = honest(problem, ("out",))["out"].astype(np.float64)
    dlse = derived.cast(problem, (problem.dout.astype(np.float64) * out).sum(-1))
    return honest(problem.replace(dlse=dlse), want)


FAULTS: dict[str, Kernel] = {
    "chunked-prefill-equals-prefill": of(top_left),
    "hidden-keys-may-be-left-out": of(finite_hiding),
    "window-and-sink-cache-is-a-mask": of(finite_hiding),
    "paged-keys-equal-keys-in-a-row": of(finite_hiding),
    "padding-changes-nothing": of(forgotten("key_lengths")),
    "null-key-adds-1-to-the-sum": spoiled("lse", lambda p, x: x / np.log(2)),
    "doubled-key-is-a-bias-of-log-2": of(scaled_bias),
    "lse-gradient-is-the-mean-key": backward_of(forgotten("dlse")),
    "parts-merge-by-lse": spoiled("lse", lambda p, x: x / np.log(2)),
    "doubled-keys-change-nothing": of(padding_counts),
    "doubled-keys-add-log-2-to-lse": spoiled("lse", lambda p, x: x - np.log(p.key_count)),
    "batch-entries-are-independent": of(first_entry),
    "heads-alone-equal-heads-together": of(next_head),
    "decoding-equals-prefill": of(decoding_path),
    "prefix-equals-first-rows": of(one_diagonal_for_groups_of_rows),
    "lse-between-max-and-max-plus-log-n": spoiled("lse", lambda p, x: x - 5),
    "visible-set": of(exclusive_window),
    "equal-scores-average-plainly": spoiled("out", maximum_from_zero),
    "equal-keys-average-plainly": of(drop_last_key),
    "every-length-averages-plainly": of(drop_key_of_a_short_tile),
    "lse-of-equal-scores": spoiled("lse", lambda p, x: x * np.log(2)),
    "hiding-is-masking": of(shifted_diagonal),
    "mask-is-a-bias": of(lambda p: finite_hiding(p) if p.mask is None else p),
    "true-mask-hides-nothing": of(lambda p: p if p.mask is None else p.replace(mask=~p.mask)),
    "zero-bias-adds-nothing": of(scale_twice_with_bias),
    "wide-window-hides-nothing": of(exclusive_window),
    "alibi-is-a-bias": of(lambda p: p if p.alibi is None else p.replace(alibi=p.alibi[::-1])),
    "broadcast-is-expanded": of(flat_index),
    "grouped-heads-are-repeated-heads": of(tiled_heads),
    "sink-is-a-null-key": of(forgotten("sinks")),
    "sink-takes-nothing-or-all": of(lambda p: p if p.sinks is None else clip("sinks", -1, 1)(p)),
    "dv-sums-to-dout": backward_of(
        lambda p: p.replace(dout=p.dout * (np.arange(p.query_count) > 0)[:, None].astype(p.q.dtype))
    ),
    "dv-with-v-equals-dout-with-out": spoiled("dv", lambda p, x: x * 1.5),
    "dk-sums-to-zero": without_inner,
    "dq-and-dk-share-scores": spoiled("dk", lambda p, x: x / p.scale),
    "equal-values-have-no-score-gradient": without_inner,
    "hidden-keys-have-no-gradient": backward_of(
        forgotten("causal", "window", "mask", "key_lengths")
    ),
    "unseen-has-no-gradient": spoiled("dq", nan_where_empty),
    "gradients-follow-scale": spoiled("dk", lambda p, x: x / p.scale),
    "grouped-gradients-add": spoiled("dk", lambda p, x: x * p.kv_heads / p.query_heads),
    "dbias-rows-sum-to-zero": without_inner,
    "dbias-and-dsinks-sum-to-zero": spoiled("dsinks", lambda p, x: 0 * x),
    "only-key-returns-its-value": spoiled("out", lambda p, x: x.astype(np.float64) * 0.98),
    "dominant-key-returns-its-value": of(first_entry),
    "odds-are-exponential": of(lambda p: p.replace(scale=p.scale * np.log(2))),
    "biases-add-to-scores": of(scaled_bias),
    "queries-in-any-order": of(lambda p: p.replace(causal=True)),
    "keys-in-any-order": of(drop_last_key),
    "constant-bias-changes-nothing": of(clip("bias", -4, 4)),
    "constant-bias-adds-to-lse": of(clip("bias", -4, 4)),
    "constant-key-changes-nothing": of(lambda p: p.replace(softcap=3.0)),
    "output-is-affine-in-values": of(clip("v", -4, 4)),
    "channels-in-any-order": of(unread_channel("q")),
    "value-columns-in-any-order": of(unread_channel("v")),
    "scale-multiplies-queries": of(lambda p: p.replace(scale=p.head_size**-0.5)),
    "scale-of-any-sign": of(lambda p: p.replace(scale=abs(p.scale))),
    "later-tokens-have-no-influence": of(shifted_diagonal),
    "later-tokens-have-no-influence-self-attention": of(one_diagonal_for_groups_of_rows),
    "window-hides-both-sides": of(wider_window),
    "hidden-keys-have-no-influence": of(finite_hiding),
    "heads-are-independent": of(shared_quantisation),
    "row-without-keys-returns-zero": spoiled("out", mean_where_empty),
    "row-without-keys-has-lse-minus-infinity": spoiled("lse", lambda p, x: np.maximum(x, -5e4)),
    "visible-nan-is-not-lost": spoiled("out", lambda p, x: np.nan_to_num(x.astype(np.float64))),
    "weights-sum-to-one": of(padding_counts),
    "weights-are-probabilities": of(finite_hiding),
    "output-averages-values": of(shared_quantisation),
    "output-in-hull-of-values": spoiled("out", lambda p, x: x.astype(np.float64) * 1.5),
    "long-rows-keep-their-mass": of(unread_tail),
}
"""For each property a kernel that is wrong in the way that the property is about."""


# -- the tests -------------------------------------------------------------------------------------


def test_every_property_has_its_fault() -> None:
    assert FAULTS.keys() == CLAIMS.keys()
    assert len(CLAIMS) == sum(1 for _ in all_claims()), "two claims share an id"


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", CLAIMS)
def test_its_fault_breaks_it(name: str, dtype: str) -> None:
    claim = CLAIMS[name]
    queries, keys = (13, 13) if claim.self_attention else (7, 19)
    for setting in claim.settings:
        heads = 4 if "gqa" in setting else 2
        shape = Shape(2, heads, heads, queries, keys, 16, 8)
        case = Case("normal", shape, parse_settings(setting))
        question = FaultyQuestion("faulty", HONEST, name, dtype, case, 3, fault=FAULTS[name])
        try:
            claim.check(question, question.problem)
        except Violation:
            return
    pytest.fail("the faulty kernel passes in every setting")
