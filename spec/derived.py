"""Problems derived from a problem: the moves that the properties are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from attnspec.oracle.formats import Float64Array, format_of
from attnspec.oracle.problem import Problem
from attnspec.spec.claim import Trial

__all__ = [
    "BoolArray",
    "Index",
    "answer",
    "cast",
    "evaluation_error",
    "flooded",
    "for_query_heads",
    "masked",
    "read_weights",
    "same_answer",
    "striped_values",
    "take_batch",
    "take_heads",
    "take_keys",
    "take_queries",
    "visible",
    "with_equal_scores",
    "with_keys",
    "with_null_key",
]

Array = npt.NDArray[Any]
BoolArray = npt.NDArray[np.bool_]
Index = npt.NDArray[np.intp]


def cast(problem: Problem, x: npt.ArrayLike) -> Array:
    """`x` rounded to the storage type of the problem."""
    return format_of(problem.q.dtype).round(x)


def visible(problem: Problem) -> BoolArray:
    """Which key each row sees: (B, Hq, Nq, Nk)."""
    heads = range(problem.query_heads)
    return np.array([[problem.visible(b, h) for h in heads] for b in range(problem.batch)])


def for_query_heads(problem: Problem, x: Array) -> Array:
    """An array of key heads (B, Hkv, ...), as the query heads read it: (B, Hq, ...)."""
    return np.repeat(x, problem.query_heads // problem.kv_heads, axis=1)


def evaluation_error(expected: Float64Array, *, steps: int) -> Float64Array:
    """What `steps` roundings may have done to a float64 `expected` made of positive terms."""
    return np.abs(expected) * (steps * 2.0**-53)


# -- asking ----------------------------------------------------------------------------------------


def answer(
    trial: Trial, problem: Problem, output: str = "out"
) -> tuple[Float64Array, Float64Array]:
    """One output in float64, and its allowance."""
    value = trial.ask(problem, want=("out", "lse") if output == "lse" else (output,))[output]
    return value.astype(np.float64), trial.allowance(problem, output=output)


def same_answer(trial: Trial, problem: Problem, other: Problem, *, what: str) -> None:
    """Both have the same exact output, so theirs differ by no more than their two allowances."""
    first, first_allowance = answer(trial, problem)
    second, second_allowance = answer(trial, other)
    rows = visible(problem).any(-1)
    trial.close(second[rows], first[rows], (first_allowance + second_allowance)[rows], what=what)


# -- the same problem, other keys, rows or batch entries -------------------------------------------


def take_keys(problem: Problem, index: Index) -> Problem:
    """The keys (and their values, mask and bias) at `index`: a part, an order, or repeats."""
    return problem.replace(
        k=problem.k[:, :, index],
        v=problem.v[:, :, index],
        mask=_take(problem.mask, index, axis=-1),
        bias=_take(problem.bias, index, axis=-1),
    )


def take_queries(problem: Problem, index: Index) -> Problem:
    """The rows (and their mask and bias) at `index`."""
    return problem.replace(
        q=problem.q[:, :, index],
        dout=None,
        mask=_take(problem.mask, index, axis=-2),
        bias=_take(problem.bias, index, axis=-2),
    )


def take_batch(problem: Problem, index: Index) -> Problem:
    """The batch entries at `index`."""
    fields = {name: getattr(problem, name) for name in ("key_lengths", "query_lengths", "dout")}
    return problem.replace(
        q=problem.q[index],
        k=problem.k[index],
        v=problem.v[index],
        mask=_take(problem.mask, index, axis=-4),
        bias=_take(problem.bias, index, axis=-4),
        **{name: None if x is None else x[index] for name, x in fields.items()},
    )


def take_heads(problem: Problem, index: Index) -> Problem:
    """The key heads at `index`, and the query heads that read them."""
    group = problem.query_heads // problem.kv_heads
    read = (index[:, None] * group + np.arange(group)).reshape(-1)
    return problem.replace(
        q=problem.q[:, read],
        dout=None,
        k=problem.k[:, index],
        v=problem.v[:, index],
        mask=_take(problem.mask, read, axis=-3),
        bias=_take(problem.bias, read, axis=-3),
        sinks=None if problem.sinks is None else problem.sinks[read],
        alibi=None if problem.alibi is None else problem.alibi[read],
    )


def masked(problem: Problem, seen: BoolArray) -> Problem:
    """All that hides, bias of -inf included, replaced by one mask; ALiBi stays as it is."""
    bias = problem.bias
    if bias is not None:
        bias = np.where(np.isneginf(bias.astype(np.float64)), 0, bias).astype(bias.dtype)
    return problem.replace(causal=False, window=None, key_lengths=None, bias=bias, mask=seen)


def _take(array: Array | None, index: Index, *, axis: int) -> Array | None:
    """Along an axis that may be absent or broadcast."""
    if array is None or array.ndim < -axis or array.shape[axis] == 1:
        return array
    return np.take(array, index, axis=axis)


# -- planted numbers -------------------------------------------------------------------------------


def flooded(problem: Problem, edited: BoolArray, rng: np.random.Generator) -> Problem:
    """Large finite numbers in the edited keys and values (B, Hkv, Nk).

    Values of half the largest number make a leak of any weight visible; keys of a million put a
    score far above any finite stand-in for -inf, -1e4 say, and stay small enough for the products
    to be finite in every format.
    """
    largest = format_of(problem.q.dtype).largest
    query = max(4.0, float(np.abs(problem.q.astype(np.float64)).max()))
    size = min(2.0**20, largest / (4 * problem.head_size * query))
    k = cast(problem, size * rng.uniform(-1, 1, problem.k.shape))
    v = cast(problem, largest / 2 * rng.choice([-1.0, 1.0], problem.v.shape))
    return problem.replace(
        k=np.where(edited[..., None], k, problem.k), v=np.where(edited[..., None], v, problem.v)
    )


def with_null_key(problem: Problem) -> Problem:
    """One more key, of zeros, with a value of zeros, that every row sees; for no bias."""
    mask = problem.mask
    if mask is not None:
        wide = (*mask.shape[:-1], problem.key_count)
        true = np.ones((*mask.shape[:-1], 1), np.bool_)
        mask = np.concatenate([np.broadcast_to(mask, wide), true], axis=-1)
    return problem.replace(
        k=np.concatenate([problem.k, np.zeros_like(problem.k[:, :, :1])], axis=2),
        v=np.concatenate([problem.v, np.zeros_like(problem.v[:, :, :1])], axis=2),
        mask=mask,
    )


def with_keys(problem: Problem, count: int, rng: np.random.Generator) -> Problem:
    """The first batch entry with `count` fresh normal keys and values; no per-key options."""
    shape = (1, problem.kv_heads, count)
    return problem.replace(
        q=problem.q[:1],
        dout=None,
        k=cast(problem, rng.standard_normal((*shape, problem.head_size))),
        v=cast(problem, rng.standard_normal((*shape, problem.value_size))),
    )


def with_equal_scores(problem: Problem, level: float = 0.0) -> tuple[Problem, float]:
    """Every visible score the same number near `level`; returns that number too.

    A bias or ALiBi keeps only what it hides: finite bias and slopes become 0.
    """
    query = level / (problem.scale * problem.head_size) if problem.scale else 0.0
    filled = cast(problem, np.full(problem.q.shape, query))
    score = problem.scale * problem.head_size * float(filled.flat[0])
    if problem.softcap is not None:
        score = problem.softcap * float(np.tanh(score / problem.softcap))
    bias = problem.bias
    if bias is not None:
        bias = np.where(np.isneginf(bias.astype(np.float64)), bias, 0).astype(bias.dtype)
    alibi = None if problem.alibi is None else np.zeros_like(problem.alibi)
    k = np.ones_like(problem.k)
    return problem.replace(q=filled, k=k, bias=bias, alibi=alibi), score


def striped_values(problem: Problem) -> Array:
    """Key j has a 1 in column j mod Dv, so each column counts the keys of its stripe."""
    key = np.arange(problem.key_count)[:, None]
    stripe = key % problem.value_size == np.arange(problem.value_size)
    return np.broadcast_to(stripe, problem.v.shape).astype(problem.v.dtype)


def read_weights(trial: Trial, problem: Problem) -> tuple[Float64Array, Float64Array]:
    """The weights (B, Hq, Nq, Nk), read through one-hot values, and their allowance.

    The values keep their size Dv: each call reads the weights of Dv keys.
    """
    weights, allowances = [], []
    for first in range(0, problem.key_count, problem.value_size):
        hot = np.arange(problem.key_count)[:, None] - first == np.arange(problem.value_size)
        v = np.broadcast_to(hot, problem.v.shape).astype(problem.v.dtype)
        asked = problem.replace(v=v)
        weights.append(trial.ask(asked)["out"].astype(np.float64))
        allowances.append(trial.allowance(asked))
    keys = slice(problem.key_count)
    return np.concatenate(weights, -1)[..., keys], np.concatenate(allowances, -1)[..., keys]
