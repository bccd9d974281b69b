"""Poison: what nobody may read, in hidden slots, padding, other entries and freed memory.

Finite poison is the largest whose products with the other inputs stay finite, and asked of every
kernel; NaN and infinities only of those that claim `hidden_nan`, except in other batch entries
and in memory that no input holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from attnspec.adapters import CallFailed
from attnspec.adapters.frameworks import bridge
from attnspec.conformance.question import Question
from attnspec.conformance.trials import agree, asked_under, wanted
from attnspec.oracle.formats import format_of
from attnspec.oracle.problem import Problem
from attnspec.spec.derived import BoolArray, take_batch, visible

Array = npt.NDArray[Any]

HIDING = ("causal", "mask:full", "bias:neg-inf", "window:both", "key_lengths:ragged")
UNSEEN = ("mask:first-keys-hidden", "window:sliding", "key_lengths:ragged")
LENGTHS = ("key_lengths:ragged", "query_lengths:ragged", "key_lengths:ragged+query_lengths:ragged")
BIASED = (
    "causal:on+bias:full",
    "mask:full+bias:full",
    "window:sliding+bias:full",
    "key_lengths:ragged+bias:full",
)
ENTRIES = ("", "mask:full", "causal:on", "bias:full", "key_lengths:ragged", "gqa:grouped")

_hiding = asked_under(*HIDING, smoke=len(HIDING))


@pytest.mark.attnspec("hidden-nan", cases=_hiding)
def test_hidden_nan(question: Question) -> None:
    """NaN and Inf in slots that a row does not see are harmless to it, where that is claimed."""
    _claims_hidden_nan(question)
    problem = question.problem
    expected, within = question.ask(problem)["out"], 2 * question.allowance(problem)
    seen = visible(problem)
    for key in (0, problem.key_count // 2, problem.key_count - 1):
        rows = ~seen[..., key]  # of the rows, those that do not see this key
        if not rows.any():
            continue
        for poison in (np.nan, np.inf, -np.inf):
            k, v = problem.k.copy(), problem.v.copy()
            k[:, :, key], v[:, :, key] = poison, poison
            out = question.ask(problem.replace(k=k, v=v))["out"]
            what = f"{poison} in key and value {key}, in a row that does not see them"
            question.close(out[rows], expected[rows], within[rows], what=what)


@pytest.mark.attnspec(
    "hidden-nan-gradients", "hidden-extremes-gradients", cases=asked_under(*UNSEEN)
)
def test_unseen_keys(question: Question) -> None:
    """Keys and values that no row sees reach no gradient, and have none."""
    problem, want = question.problem, wanted(question)
    unseen = _unseen(problem)
    if not unseen.any():
        raise CallFailed("not claimed", "every key is seen")
    poisons = _poisons(question, question.claim.startswith("hidden-nan"))
    first = question.ask(problem, want=want)
    for poison in poisons:
        k, v = (_filled(problem, name, unseen, poison) for name in ("k", "v"))
        got = question.ask(problem.replace(k=k, v=v), want=want)
        what = f"{poison} in keys and values that no row sees"
        agree(question, problem, got, first, what=what)
        for name in ("dk", "dv"):
            away = got[name][unseen]
            question.same(away, np.zeros_like(away), what=f"{what}: {name} there is not 0")


@pytest.mark.attnspec(
    "padding-is-not-read", "padding-is-not-read-gradients", cases=asked_under(*LENGTHS, smoke=3)
)
def test_padding(question: Question) -> None:
    """What stands beyond the lengths of queries and keys, in every operand, has no effect."""
    problem, want = question.problem, wanted(question)
    beyond = dict.fromkeys(("k", "v"), _beyond(problem.key_lengths, problem.k))
    beyond |= dict.fromkeys(("q", "dout"), _beyond(problem.query_lengths, problem.q))
    first = question.ask(problem, want=want)
    for poison in _poisons(question, question.kernel.hidden_nan):
        filled = {n: _filled(problem, n, places, poison) for n, places in beyond.items()}
        got = question.ask(problem.replace(**filled), want=want)
        agree(question, problem, got, first, what=f"{poison} in the padding")


@pytest.mark.attnspec("hidden-bias", "hidden-bias-gradients", cases=asked_under(*BIASED))
def test_hidden_bias(question: Question) -> None:
    """A bias in slots that causality, mask, window or length hide has no effect."""
    problem, want = question.problem, wanted(question)
    assert problem.bias is not None
    hidden = ~visible(problem)
    first = question.ask(problem, want=want)
    for poison in _poisons(question, question.kernel.hidden_nan):
        if poison == "inf":
            continue  # it has no meaning as a bias
        bias = problem.bias.copy()
        bias[hidden] = _number(problem, "bias", poison)
        got = question.ask(problem.replace(bias=bias), want=want)
        agree(question, problem, got, first, what=f"a bias of {poison} in hidden slots")


@pytest.mark.attnspec("batch-position", "batch-position-gradients", cases=asked_under(*ENTRIES))
def test_batch_position(question: Question) -> None:
    """A batch entry alone gives what it gives at each place of a batch of others, all NaN."""
    want = tuple(name for name in wanted(question) if name not in ("dbias", "dsinks"))
    alone = take_batch(question.problem, np.array([0]))
    first = question.ask(alone, want=want)
    for place in range(3):
        order = np.where(np.arange(3) == place, 0, question.problem.batch - 1)
        batch = take_batch(question.problem, order)
        others = np.arange(3) != place
        filled = {n: _filled(batch, n, others, "NaN") for n in ("q", "k", "v", "dout")}
        got = question.ask(batch.replace(**filled), want=want)
        entry = {name: x[place : place + 1] for name, x in got.items()}
        agree(question, alone, entry, first, what=f"entry {place} of 3, beside NaN entries")


@pytest.mark.attnspec(
    "freed-memory", "freed-memory-gradients", cases=asked_under("", "mask:empty-rows")
)
def test_freed_memory(question: Question) -> None:
    """NaN in memory that has just been freed, of the sizes that a kernel takes, does not show."""
    problem, want = question.problem, wanted(question)
    kernel = question.kernel
    first = question.ask(problem, want=want)
    for _ in range(2):
        for dtype in dict.fromkeys((problem.dtype_name, "float32", "float64")):
            framework = bridge(kernel.framework)
            with framework.session(dtype):
                framework.litter(_sizes(problem), dtype, kernel.device)
        got = question.ask(problem, want=want)
        agree(question, problem, got, first, what="NaN in freed memory changes the result")


def _claims_hidden_nan(question: Question) -> None:
    if not question.kernel.hidden_nan:
        raise CallFailed("not claimed", "declared hidden_nan=False")


def _poisons(question: Question, nan: bool) -> Iterator[str]:
    """What to fill with: `huge` in both signs, and what is no finite number."""
    if question.claim.startswith("hidden-nan"):
        _claims_hidden_nan(question)
    else:
        yield from ("huge", "-huge")
    if nan:
        yield from ("NaN", "inf", "-inf")


def _number(problem: Problem, name: str, poison: str) -> float:
    """The poison for an operand; `huge` is finite, and so are its products with the others.

    A cotangent is finite in any problem.
    """
    poison = "huge" if name == "dout" else poison
    largest = format_of(problem.q.dtype).largest
    if poison.endswith("huge"):
        sign = -1.0 if poison.startswith("-") else 1.0
        if name == "bias":
            return sign * largest / 4
        # Beside each: the largest number of any operand, as many terms as a product has, and 4.
        other = max(4.0, *(float(np.abs(_finite(x)).max(initial=0)) for x in _operands(problem)))
        terms = 4 * max(problem.head_size, problem.value_size)
        if name in ("v", "dout"):
            return sign * min(float(np.sqrt(largest)), largest / (terms * other)) / 4
        return sign * min(500.0, largest / (terms * other * 500))
    return float(poison)


def _operands(problem: Problem) -> tuple[Array, ...]:
    found = (problem.q, problem.k, problem.v, problem.dout)
    return tuple(x for x in found if x is not None)


def _finite(x: Array) -> Array:
    x = x.astype(np.float64)
    return np.where(np.isfinite(x), x, 0)


def _filled(problem: Problem, name: str, places: Array, poison: str) -> Array | None:
    """An operand with poison at some places: an index of its first axes."""
    operand: Array | None = getattr(problem, name)
    if operand is None:
        return None
    filled = operand.copy()
    filled[places] = _number(problem, name, poison)
    return filled


def _unseen(problem: Problem) -> BoolArray:
    """Which keys no row sees: (B, Hkv, Nk)."""
    seen = visible(problem).any(2)
    grouped = seen.reshape(problem.batch, problem.kv_heads, -1, problem.key_count)
    return np.asarray(~grouped.any(2))


def _beyond(lengths: Array | None, operand: Array) -> BoolArray:
    """Which slots of (B, H, N, D) are padding: (B, H, N)."""
    batch, heads, count, _ = operand.shape
    most = np.full(batch, count) if lengths is None else lengths
    return np.broadcast_to((np.arange(count) >= most[:, None])[:, None], (batch, heads, count))


def _sizes(problem: Problem) -> list[tuple[int, ...]]:
    """Shapes of outputs and of what a kernel works with."""
    rows = problem.shape_of("lse")
    sizes = [problem.q.shape, problem.k.shape, problem.v.shape, problem.shape_of("out"), rows]
    return list(dict.fromkeys([*sizes, (*rows, 1), (*rows, problem.key_count)]))
