"""The properties judged: an honest kernel keeps every one, and each one catches its fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from attnspec.conformance.cases import Case, Shape, draw, parse_settings
from attnspec.oracle.formats import format_of
from attnspec.oracle.problem import Head, Problem
from attnspec.oracle.rounding import Arithmetic, tolerance
from attnspec.spec import derived
from attnspec.spec.claim import Claim, all_claims

Array = npt.NDArray[Any]
Outputs = Mapping[str, Array]
Kernel = Callable[[Problem, Sequence[str]], Outputs]

CLAIMS = {claim.id: claim for claim in all_claims()}
DTYPES = ("float64", "float32", "float16", "bfloat16")


# -- an honest kernel ------------------------------------------------------------------------------


def working(problem: Problem) -> type:
    return np.float64 if problem.dtype_name == "float64" else np.float32


def honest(problem: Problem, want: Sequence[str], **hooks: Any) -> dict[str, Array]:
    """The plain formula in float32 (float64 for float64), each result rounded once."""
    form = format_of(problem.q.dtype)
    found = evaluate(problem, working(problem), want, **hooks)
    return {n: x if n == "lse" else form.round(x.astype(np.float64)) for n, x in found.items()}


def evaluate(
    problem: Problem,
    dtype: type,
    want: Sequence[str],
    *,
    shift: Callable[[Array], Array] = lambda m: m,
    weigh: Callable[[Array], Array] = lambda p: p,
    inner_factor: float = 1.0,
) -> dict[str, Array]:
    """Attention head by head. The hooks serve the faults: they change the maximum that is
    subtracted, the weights, and the term D = <dout, out> of the backward pass.
    """
    backward = any(name.startswith("d") for name in want)
    names = ["out", "lse"]
    if backward:
        names += ["dq", "dk", "dv"]
        names += [f"d{n}" for n in ("bias", "sinks") if getattr(problem, n) is not None]
    found = {name: np.zeros(problem.shape_of(name), dtype) for name in names}
    for head in problem.heads():
        at, kv = (head.batch, head.index), (head.batch, head.kv_index)
        q, k, v = (x.astype(dtype) for x in (head.query, head.key, head.value))
        s, slope = scores(head, q, k)
        sink = None if head.sink is None else dtype(head.sink)
        m = s.max(-1, keepdims=True, initial=-np.inf if sink is None else sink)
        m = shift(np.where(np.isneginf(m), 0, m).astype(dtype))
        p = np.exp(s - m)
        total = p.sum(-1, keepdims=True)
        total = total if sink is None else total + np.exp(sink - m)
        p = weigh(p / np.where(total == 0, 1, total))
        out = found["out"][at] = p @ v
        found["lse"][at] = (m + np.log(total))[:, 0]
        if not backward:
            continue
        dout = head.dout.astype(dtype)
        inner = inner_factor * (dout * out).sum(-1, keepdims=True)
        ds = p * (dout @ v.T - inner)
        if head.bias is not None:
            found["dbias"] += broadcast_sum(ds, at, found["dbias"].shape)
        if sink is not None:
            found["dsinks"][head.index] -= (np.exp(sink - m) / total * inner).sum()
        ds = ds * slope * dtype(head.scale)
        found["dq"][at] = ds @ k
        found["dk"][kv] += ds.T @ q
        found["dv"][kv] += p.T @ dout
    return found


def scores(head: Head, q: Array, k: Array) -> tuple[Array, Array]:
    """The scores, -inf where hidden, and the derivative of the soft-cap."""
    dtype = q.dtype.type
    s, slope = (q @ k.T) * dtype(head.scale), np.ones((), dtype)
    if head.softcap is not None:
        t = np.tanh(s / dtype(head.softcap))
        s, slope = t * dtype(head.softcap), 1 - t * t
    if head.bias is not None:
        s = s + head.bias.astype(dtype)
    if head.slope is not None:
        s = s - dtype(head.slope) * np.abs(head.ahead).astype(dtype)
    return np.where(head.visible, s, -np.inf).astype(dtype), slope


def broadcast_sum(ds: Array, at: tuple[int, int], shape: tuple[int, ...]) -> Array:
    """One head's dS, summed over the axes along which a bias of this shape was broadcast."""
    padded = (1,) * (4 - len(shape)) + shape
    full = np.zeros((max(padded[0], at[0] + 1), max(padded[1], at[1] + 1), *ds.shape), ds.dtype)
    full[at] = ds
    axes = tuple(axis for axis, n in enumerate(padded) if n == 1)
    summed = full.sum(axes, keepdims=True)
    return summed.reshape(shape)


# -- a trial ---------------------------------------------------------------------------------------


class ViolationError(Exception):
    pass


@dataclass
class OneTrial:
    """Compares at once, as the suite's own trial does; `worst` is the fraction of the bound."""

    kernel: Kernel
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))
    worst: float = 0.0
    compared: int = 0

    def ask(self, problem: Problem, *, want: Sequence[str] = ("out",)) -> Outputs:
        with np.errstate(all="ignore"):
            return self.kernel(problem, want)

    def allowance(self, problem: Problem, *, output: str = "out") -> npt.NDArray[np.float64]:
        groups = (("out", "lse"), ("dq", "dk", "dv"), ("dbias",), ("dsinks",))
        return allowances(problem, next(g for g in groups if output in g))[output]

    def close(self, actual: Array, expected: Array, within: Array, *, what: str) -> None:
        a, e = actual.astype(np.float64), expected.astype(np.float64)
        assert a.shape == e.shape == within.shape, "a comparison broadcasts by accident"
        assert np.all(within >= 0)
        self.compared += a.size
        with np.errstate(all="ignore"):
            ratio = np.where(a == e, 0.0, np.abs(a - e) / within)
        self.worst = max(self.worst, float(ratio.max(initial=0.0)))
        if not np.all(ratio <= 1):
            raise ViolationError(what)

    def same(self, actual: Array, expected: Array, *, what: str) -> None:
        assert actual.shape == expected.shape
        self.compared += actual.size
        a, e = actual.astype(np.float64), expected.astype(np.float64)
        if not np.all((a == e) | (np.isnan(a) & np.isnan(e))):
            raise ViolationError(what)


@lru_cache(maxsize=8)
def allowances(problem: Problem, want: tuple[str, ...]) -> dict[str, npt.NDArray[np.float64]]:
    """The proven bound for the declared arithmetic, and the rounding of the result."""
    allowed = tolerance(problem, arithmetic=Arithmetic(accumulate="float32"), want=want)
    with np.errstate(all="ignore"):
        exact = evaluate(problem, np.float64, want)
    found = {}
    for name, bound in allowed.items():
        size = np.abs(np.where(np.isfinite(exact[name]), exact[name], 0)) + bound.hard
        form = bound.format
        found[name] = bound.hard + form.unit_roundoff * size + form.smallest_subnormal
    return found


# -- faulty kernels --------------------------------------------------------------------------------


def of(change: Callable[[Problem], Problem], **hooks: Any) -> Kernel:
    """The honest kernel on a problem misread."""
    return lambda problem, want: honest(change(problem), want, **hooks)


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
    """Every row sees one key too many: the offset of another row, group or length."""
    return problem.replace(diagonal=problem.offset(0) + 1)


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


def mean_where_empty(problem: Problem, out: Array) -> Array:
    empty = ~derived.visible(problem).any(-1)
    return np.where(empty[..., None], np.float32(0.25), out)


def nan_where_empty(problem: Problem, dq: Array) -> Array:
    return np.where(derived.visible(problem).any(-1)[..., None], dq, np.nan)


def small_weights_vanish(p: Array) -> Array:
    """Weights in a coarse type: below 2^-11 they are lost."""
    return np.where(p < 2.0**-11, 0, p)


FAULTS: dict[str, Kernel] = {
    "parts-merge-by-lse": spoiled("lse", lambda p, x: x / np.log(2)),
    "doubled-keys-change-nothing": of(padding_counts),
    "doubled-keys-add-log-2-to-lse": spoiled("lse", lambda p, x: x - np.log(p.key_count)),
    "batch-entries-are-independent": of(first_entry),
    "decoding-equals-prefill": of(decoding_path),
    "prefix-equals-first-rows": of(one_diagonal_for_groups_of_rows),
    "lse-between-max-and-max-plus-log-n": spoiled("lse", lambda p, x: x - 5),
    "visible-set": of(exclusive_window),
    "equal-scores-average-plainly": of(lambda p: p, shift=lambda m: np.maximum(m, 0)),
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
    "dk-sums-to-zero": of(lambda p: p, inner_factor=0.0),
    "dq-and-dk-share-scores": spoiled("dk", lambda p, x: x / p.scale),
    "equal-values-have-no-score-gradient": of(lambda p: p, inner_factor=0.0),
    "hidden-keys-have-no-gradient": backward_of(
        forgotten("causal", "window", "mask", "key_lengths")
    ),
    "unseen-has-no-gradient": spoiled("dq", nan_where_empty),
    "gradients-follow-scale": spoiled("dk", lambda p, x: x / p.scale),
    "grouped-gradients-add": spoiled("dk", lambda p, x: x * p.kv_heads / p.query_heads),
    "dbias-rows-sum-to-zero": of(lambda p: p, inner_factor=0.0),
    "dbias-and-dsinks-sum-to-zero": spoiled("dsinks", lambda p, x: 0 * x),
    "only-key-returns-its-value": of(lambda p: p, weigh=lambda p: p * 0.98),
    "dominant-key-returns-its-value": of(first_entry),
    "odds-are-exponential": of(lambda p: p.replace(scale=p.scale * np.log(2))),
    "biases-add-to-scores": of(scaled_bias),
    "queries-in-any-order": of(lambda p: p.replace(causal=True)),
    "keys-in-any-order": of(drop_last_key),
    "constant-bias-changes-nothing": of(clip("bias", -4, 4)),
    "constant-bias-adds-to-lse": of(clip("bias", -4, 4)),
    "constant-key-changes-nothing": of(lambda p: p.replace(softcap=3.0)),
    "output-is-affine-in-values": of(clip("v", -4, 4)),
    "scale-multiplies-queries": of(lambda p: p.replace(scale=p.head_size**-0.5)),
    "scale-of-any-sign": of(lambda p: p.replace(scale=abs(p.scale))),
    "later-tokens-have-no-influence": of(shifted_diagonal),
    "later-tokens-have-no-influence-self-attention": of(one_diagonal_for_groups_of_rows),
    "window-hides-both-sides": of(wider_window),
    "hidden-keys-have-no-influence": of(finite_hiding),
    "heads-are-independent": of(shared_quantisation),
    "row-without-keys-returns-zero": spoiled("out", mean_where_empty),
    "row-without-keys-has-lse-minus-infinity": spoiled("lse", lambda p, x: np.maximum(x, -5e4)),
    "weights-sum-to-one": of(padding_counts),
    "weights-are-probabilities": of(finite_hiding),
    "output-averages-values": of(shared_quantisation),
    "output-in-hull-of-values": spoiled("out", lambda p, x: x.astype(np.float32) * 1.5),
    "long-rows-keep-their-mass": of(lambda p: p, weigh=small_weights_vanish),
}
"""For each property a kernel that is wrong in the way that the property is about."""


# -- the tests -------------------------------------------------------------------------------------


def problems(claim: Claim, dtype: str) -> Iterator[tuple[str, Problem]]:
    """Small problems in the claim's settings, drawn as the suite draws them."""
    queries, keys = (13, 13) if claim.self_attention else (7, 19)
    for setting in claim.settings:
        heads = 4 if "gqa" in setting else 2
        shape = Shape(2, heads, heads, queries, keys, 16, 8)
        case = Case("normal", shape, parse_settings(setting))
        yield setting, draw(case, dtype=dtype, diagonal="bottom-right", seed=3)


def test_every_property_has_its_fault() -> None:
    assert FAULTS.keys() == CLAIMS.keys()
    assert len(CLAIMS) == sum(1 for _ in all_claims()), "two claims share an id"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CLAIMS)
def test_an_honest_kernel_keeps_it(name: str, dtype: str) -> None:
    claim, compared = CLAIMS[name], 0
    for number, (_, problem) in enumerate(problems(claim, dtype)):
        if number % 4 == DTYPES.index(dtype) or len(claim.settings) < 4:
            trial = OneTrial(honest)
            claim.check(trial, problem)
            compared += trial.compared
    assert compared, "nothing was compared"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CLAIMS)
def test_its_fault_breaks_it(name: str, dtype: str) -> None:
    for _, problem in problems(CLAIMS[name], dtype):
        try:
            CLAIMS[name].check(OneTrial(FAULTS[name]), problem)
        except ViolationError:
            return
    pytest.fail("the faulty kernel passes in every setting")
