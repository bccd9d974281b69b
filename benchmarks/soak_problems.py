"""The problems of the soak: every option, crossed, on ordinary numbers and on every extreme.

Hypothesis draws shapes, options and families of numbers; the numbers follow from a seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from attnspec.oracle.formats import FORMATS, Float64Array, Format
from attnspec.oracle.problem import Problem

__all__ = ["Drawn", "drawn"]

Generator = np.random.Generator
Shape = tuple[int, ...]
HIGHEST, LOWEST = 1023, -1074  # exponents of float64


@dataclass(frozen=True)
class Drawn:
    """A problem, with what is needed to ask it in other ways.

    `hidden` is the problem with NaN and infinities in slots that nothing sees. `whole` is the
    problem whose rows `rows` are asked about, where some are. `recipe` says what was drawn.
    """

    problem: Problem
    hidden: Problem
    whole: Problem | None
    rows: list[int]
    recipe: dict[str, Any]


# -- numbers -----------------------------------------------------------------------------------


def signed(rng: Generator, shape: Shape, exponents: Any) -> Float64Array:
    """±m 2^e, 1 <= m < 2."""
    return np.ldexp(rng.choice([-1.0, 1.0], shape) * rng.uniform(1, 2, shape), exponents)


def span(rng: Generator, low: int, high: int, shape: Shape = ()) -> Any:
    """Exponents from low to high."""
    return rng.integers(low, high + 1, shape)


Family = Callable[[Generator, Shape], Float64Array]
NUMBERS: dict[str, Family] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "positive": lambda rng, shape: 1 + np.abs(rng.standard_normal(shape)),
    "large": lambda rng, shape: rng.standard_normal(shape) * 2.0 ** span(rng, 0, 40),
    "small": lambda rng, shape: rng.standard_normal(shape) * 2.0 ** span(rng, -40, 0),
    "huge": lambda rng, shape: signed(rng, shape, span(rng, 200, HIGHEST - 1)),
    "largest": lambda rng, shape: signed(rng, shape, HIGHEST),
    "tiny": lambda rng, shape: signed(rng, shape, span(rng, -1000, -200)),
    "subnormal": lambda rng, shape: signed(rng, shape, span(rng, LOWEST, -1021, shape)),
    "spread": lambda rng, shape: signed(rng, shape, span(rng, -60, 60, shape)),
    "spread over the range": lambda rng, s: signed(rng, s, span(rng, LOWEST, HIGHEST, s)),
    "channels": lambda rng, shape: signed(rng, shape, span(rng, -300, 300, shape[-1:])),
    "channels over the range": lambda rng, s: signed(rng, s, span(rng, LOWEST, HIGHEST, s[-1:])),
    "rows": lambda rng, shape: signed(rng, shape, span(rng, -60, 60, (*shape[:-1], 1))),
    "zero": lambda rng, shape: np.zeros(shape),
    "constant": lambda rng, shape: np.full(shape, float(rng.standard_normal())),
    "integers": lambda rng, shape: rng.integers(-3, 4, shape).astype(np.float64),
    "outlier": lambda rng, shape: (
        rng.standard_normal(shape) * np.where(rng.random(shape) < 0.1, 2.0**20, 1)
    ),
    "cancelling": lambda rng, shape: (
        rng.choice([-1.0, 1.0], shape) * 2.0 ** span(rng, 10, 60) + rng.standard_normal(shape)
    ),
}
ORDINARY = ("normal", "positive", "large", "small", "integers", "outlier")
families = st.sampled_from([*["normal"] * 8, *["large"] * 2, *NUMBERS])
ordinary = st.sampled_from(ORDINARY)


def tied(rng: Generator, q: Float64Array, k: Float64Array) -> tuple[Float64Array, Float64Array]:
    """All keys alike."""
    return q, np.broadcast_to(k[..., :1, :], k.shape).copy()


def nearly_tied(rng: Generator, q: Float64Array, k: Float64Array) -> Any:
    """All keys alike but for some units in the last place."""
    steps = rng.integers(-3, 4, k.shape)
    return q, tied(rng, q, k)[1] * (1 + steps * 2.0 ** -span(rng, 8, 52))


def saturated(rng: Generator, q: Float64Array, k: Float64Array) -> Any:
    """Scores of 2^5 to 2^60."""
    return q * 2.0 ** span(rng, 5, 60), k


def opposed(rng: Generator, q: Float64Array, k: Float64Array) -> Any:
    """Channels spread over the range in q, and inversely in k."""
    exponents = span(rng, -1000, 1000, q.shape[-1:])
    return np.ldexp(q, exponents), np.ldexp(k, -exponents)


def cancelling(rng: Generator, q: Float64Array, k: Float64Array) -> Any:
    """Scores that are the small difference of large sums."""
    half = q.shape[-1] // 2
    large = 2.0 ** span(rng, 5, 200)
    q[..., half : 2 * half] = q[..., :half]
    k[..., :half] *= large
    noise = rng.standard_normal(k[..., :half].shape) * 2.0 ** -span(rng, 0, 60)
    k[..., half : 2 * half] = -k[..., :half] * (1 + noise)
    return q / (large if rng.random() < 0.5 else 1), k


SCORES: dict[str, Any] = {
    "as drawn": lambda rng, q, k: (q, k),
    "tied": tied,
    "nearly tied": nearly_tied,
    "saturated": saturated,
    "opposed": opposed,
    "cancelling": cancelling,
}
VALUES: dict[str, Callable[[Generator, Float64Array], Float64Array]] = {
    "as drawn": lambda rng, v: v,
    "constant": lambda rng, v: np.broadcast_to(v[..., :1, :], v.shape).copy(),
    "cancelling": lambda rng, v: (
        v + 2.0 ** span(rng, 5, 900) * np.where(np.arange(v.shape[-2]) % 2, 1.0, -1.0)[:, None]
    ),
}
scores_alike = st.sampled_from([*["as drawn"] * 4, *SCORES])
values_alike = st.sampled_from([*["as drawn"] * 4, *VALUES])


def stored(form: Format, x: Float64Array) -> Any:
    """Rounded to the format, and finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        x = np.nan_to_num(x, nan=1.0, posinf=form.largest, neginf=-form.largest)
        return form.round(np.clip(x, -form.largest, form.largest))


# -- options -----------------------------------------------------------------------------------

scales = st.sampled_from(
    [*[None] * 6, 1.0, -0.3, 0.0, 1e-3, 50.0, -1e6, 1e20, 1e300, 1e-300, 5e-324, -(2.0**-1060)]
)
caps = st.sampled_from([None] * 6 + [0.5, 1.0, 20.0, 50.0, 1e4, 1e-8, 1e-300, 1e300])
reach = st.none() | st.integers(0, 5)
windows = st.none() | st.none() | st.tuples(reach, reach)
diagonals = st.sampled_from(["bottom-right"] * 3 + ["top-left"]) | st.integers(-4, 9)
dtypes = st.sampled_from(["float64", "float64", "float32", "bfloat16", "float16"])
exact_dtypes = st.sampled_from(["float64", "float64", "float32"])
tiny = st.tuples(st.integers(0, 4), st.integers(0, 6), st.integers(1, 4), st.integers(1, 3))
medium = st.tuples(st.integers(1, 40), st.integers(1, 70), st.integers(1, 33), st.integers(1, 17))
long = st.tuples(st.integers(1, 3), st.integers(1500, 5000), st.integers(1, 4), st.just(1))
very_long = st.tuples(st.integers(1, 2), st.integers(33_000, 70_000), st.just(1), st.just(1))
tall = st.tuples(st.integers(150, 500), st.integers(1, 9), st.integers(1, 4), st.just(1))
frequent = {"tiny": 70, "medium": 20, "long": 5, "tall": 4, "very long": 1}
sizes = st.sampled_from([size for size, share in frequent.items() for _ in range(share)])
SIZES = {"tiny": tiny, "medium": medium, "long": long, "tall": tall, "very long": very_long}
"""Queries, keys and the sizes of a head: past the edges of the engines' tiles and blocks."""


@st.composite
def drawn(draw: st.DrawFn) -> Drawn:
    """A problem of the soak."""
    seed, size = draw(st.integers(0, 2**32)), draw(sizes)
    rng = np.random.default_rng(seed)
    batch, kv_heads, group = (draw(st.sampled_from(s)) for s in ((1, 1, 2), (1, 2), (1, 2, 3)))
    if size not in ("tiny", "medium"):
        batch, kv_heads, group = 1, 1, min(group, 2)
    rows, keys, head_size, value_size = draw(SIZES[size])
    scores = (batch, kv_heads * group, rows, keys)
    recipe: dict[str, Any] = {"numbers": seed, "size": size}
    pool = families if size in ("tiny", "medium") else ordinary
    form = FORMATS[draw(dtypes)]

    def numbers(name: str, *shape: int) -> Float64Array:
        recipe[name] = draw(pool)
        return NUMBERS[recipe[name]](rng, shape)

    arrays = {
        "q": numbers("q", *scores[:3], head_size),
        "k": numbers("k", batch, kv_heads, keys, head_size),
        "v": numbers("v", batch, kv_heads, keys, value_size),
    }
    recipe |= {"scores": draw(scores_alike), "values": draw(values_alike)}
    with np.errstate(all="ignore"):
        arrays["q"], arrays["k"] = SCORES[recipe["scores"]](rng, arrays["q"], arrays["k"])
        arrays["v"] = VALUES[recipe["values"]](rng, arrays["v"])
    scale = draw(scales)
    problem = Problem(
        **{name: stored(form, array) for name, array in arrays.items()},
        scale=head_size**-0.5 if scale is None else scale,
        softcap=draw(caps),
        causal=draw(st.booleans()),
        diagonal=draw(diagonals),
        window=draw(windows),
        **_options(draw, rng, scores, numbers, recipe),
        **_cotangents(draw, scores, value_size, numbers),
    )
    return _asked(draw, problem, rng, recipe)


def _cotangents(
    draw: st.DrawFn, scores: Shape, value_size: int, numbers: Callable[..., Float64Array]
) -> dict[str, Any]:
    shapes = {"dout": (*scores[:3], value_size), "dlse": scores[:3]}
    names = draw(st.sampled_from([("dout",), ("dout",), ("dout", "dlse"), ("dlse",), ()]))
    return {n: stored(FORMATS[draw(exact_dtypes)], numbers(n, *shapes[n])) for n in names}


def _options(
    draw: st.DrawFn,
    rng: Generator,
    scores: Shape,
    numbers: Callable[..., Float64Array],
    recipe: dict[str, Any],
) -> dict[str, Any]:
    """What hides keys and what is added to scores."""
    chosen = draw(st.sets(st.sampled_from(["mask", "bias", "sinks", "alibi", "keys", "queries"])))
    found: dict[str, Any] = {}

    def broadcast() -> Shape:
        shape = tuple(n if draw(st.booleans()) else 1 for n in scores)
        return shape[draw(st.integers(0, 3)) :]

    for name in sorted(chosen & {"sinks", "alibi"}):
        found[name] = stored(FORMATS[draw(exact_dtypes)], numbers(name, scores[1]))
    if "bias" in chosen:
        shape = broadcast()
        bias = stored(FORMATS[draw(exact_dtypes)], numbers("bias", *shape))
        hides = rng.random(shape) < draw(st.sampled_from([0.0, 0.0, 0.3]))
        found["bias"] = np.where(hides, bias.dtype.type(-np.inf), bias)
    if "mask" in chosen:
        found["mask"] = rng.random(broadcast()) < draw(st.sampled_from([0.1, 0.6, 0.95]))
    if "keys" in chosen:
        found["key_lengths"] = rng.integers(0, scores[3] + 1, scores[0])
    if "queries" in chosen:
        found["query_lengths"] = rng.integers(0, scores[2] + 1, scores[0])
    recipe["options"] = sorted(chosen)
    return found


def _asked(draw: st.DrawFn, problem: Problem, rng: Generator, recipe: dict[str, Any]) -> Drawn:
    """All rows of the problem or some, with what is hidden as it is or poisoned."""
    whole, rows = None, list(range(problem.query_count))
    if len(rows) > 1 and draw(st.integers(0, 3)) == 0:
        rows = draw(st.lists(st.sampled_from(rows), min_size=1, max_size=6))
        whole, problem = problem, problem.at(rows)
        recipe["rows"] = rows
    poison = draw(st.sampled_from([None, None, np.nan, np.inf]))
    hidden = problem if poison is None else _poisoned(problem, poison)
    recipe["hidden"] = poison
    return Drawn(problem, hidden, whole, rows, recipe)


def _poisoned(problem: Problem, content: float) -> Problem:
    """With this content in the queries that see nothing, and the keys that nothing sees."""
    seen = np.array(
        [[problem.visible(b, h) for h in range(problem.query_heads)] for b in range(problem.batch)]
    )
    group = problem.query_heads // problem.kv_heads
    groups = seen.reshape(problem.batch, problem.kv_heads, group, *seen.shape[2:])
    unseen = ~groups.any(axis=(2, 3))
    arrays = {"q": problem.q.copy(), "k": problem.k.copy(), "v": problem.v.copy()}
    arrays["q"][~seen.any(axis=3)] = content
    arrays["k"][unseen] = content
    arrays["v"][unseen] = content
    return problem.replace(**arrays)
