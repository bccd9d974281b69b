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
    "answer",
    "cast",
    "evaluation_error",
    "for_query_heads",
    "read_weights",
    "same_answer",
    "striped_values",
    "take_batch",
    "take_keys",
    "take_queries",
    "visible",
    "with_equal_scores",
    "with_keys",
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
    lengths = problem.key_lengths
    return problem.replace(
        q=problem.q[index],
        dout=None,
        k=problem.k[index],
        v=problem.v[index],
        mask=_take(problem.mask, index, axis=-4),
        bias=_take(problem.bias, index, axis=-4),
        key_lengths=None if lengths is None else lengths[index],
    )


def _take(array: Array | None, index: Index, *, axis: int) -> Array | None:
    """Along an axis that may be absent or broadcast."""
    if array is None or array.ndim < -axis or array.shape[axis] == 1:
        return array
    return np.take(array, index, axis=axis)


# -- planted numbers -------------------------------------------------------------------------------


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
