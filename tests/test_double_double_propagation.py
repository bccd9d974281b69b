"""Errors as large as a step claims, put into that step: the bounds of the outputs cover them.

Real errors are far below what is claimed, so that a bound which forgot a step would hold too. Here
each step in turn claims much more, and errs by all of it with random signs, in many small problems
side by side. What comes out is compared with what comes out without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attnspec.oracle import Problem, Reference
from attnspec.oracle.double_double import enclose, forward, gradients, products, softmax
from attnspec.oracle.double_double.pairs import Pair

HEADS, RUNS = 200, 4
BIG = 2.0**-36
"""What a step errs by."""
CLAIM = BIG * (1 + 2.0**-14)
"""What it claims: a little more, as putting an error in rounds too."""
Inject = Callable[[pytest.MonkeyPatch, np.random.Generator], None]


def problem(rng: np.random.Generator, **options: Any) -> Problem:
    """Of two keys and a channel each, where the worst signs are likely; many zeros and ones."""

    def some(*shape: int) -> Any:
        kind = rng.integers(0, 4, shape)
        return np.choose(kind, [0.0, 1.0, -1.0, rng.standard_normal(shape)])

    shapes = {"q": (1, 1), "k": (2, 1), "v": (2, 1), "dout": (1, 1), "dlse": (1,), "bias": (1, 2)}
    arrays = {name: some(1, HEADS, *shape) for name, shape in shapes.items()}
    arrays |= {"q": arrays["q"] + 1, "sinks": rng.choice([-3.0, -0.5, 0.5], HEADS)}
    return Problem(**{"scale": 1.5} | arrays | options)


def signs(rng: np.random.Generator, x: Any) -> Any:
    return rng.choice([-1.0, 1.0], np.shape(x))


def exponentials(patch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    plain = softmax.exponential

    def worse(ticks: Pair, below: Any, **options: Any) -> None:
        plain(ticks, below, **options)
        np.multiply(ticks.high, 1 + BIG * signs(rng, ticks.high), out=ticks.high)

    patch.setattr(softmax, "exponential", worse)
    patch.setattr(softmax, "EXP_ERROR", CLAIM)


def rows_of(module: Any) -> Inject:
    """Scores, or dP: each off by a part of Σ|A|."""

    def inject(patch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
        plain = module.row_products

        def worse(rows: Any, size: Any, *args: Any, out: Pair, **options: Any) -> Any:
            error = plain(rows, size, *args, out=out, **options)
            np.add(out.high, BIG * size * signs(rng, out.high), out=out.high)
            return error + CLAIM * size

        patch.setattr(module, "row_products", worse)

    return inject


def caps(patch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    plain = softmax.tanh

    def worse(z: Pair, **options: Any) -> tuple[Pair, Pair]:
        value, slope = plain(z, **options)
        value = Pair(value.high + BIG * signs(rng, z.high), value.low)
        return value, Pair(slope.high * (1 + BIG * signs(rng, z.high)), slope.low)

    patch.setattr(softmax, "tanh", worse)
    patch.setattr(softmax, "TANH_ERROR", CLAIM)


def logarithms(patch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    plain = forward.logarithm

    def worse(x: Pair) -> tuple[Any, Pair]:
        count, rest = plain(x)
        return count, Pair(rest.high + BIG * signs(rng, count), rest.low)

    patch.setattr(forward, "logarithm", worse)
    patch.setattr(forward, "LOG_ERROR", CLAIM)


def products_of(module: Any) -> Inject:
    """Sums over keys, or over rows: each off by a part of Σ|A| times the largest |B|."""

    def inject(patch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
        plain, plain_error = module.product, module.product_error

        def most(b: Any) -> Any:
            return b.size.max(-2, keepdims=True)

        def worse(a: Any, b: Any, *, work: Any, out: Pair) -> Pair:
            plain(a, b, work=work, out=out)
            size = np.abs(a.front).sum(-1, keepdims=True)
            np.add(out.high, BIG * size * most(b) * signs(rng, out.high), out=out.high)
            return out

        def claimed(a: Any, b: Any, size: Any, column: Any, **options: Any) -> Any:
            error = plain_error(a, b, size, column, **options)
            # Rows of products have one error for all keys, the largest.
            return np.add(error, CLAIM * size * most(b).max(-1, keepdims=True), out=error)

        patch.setattr(module, "product", worse)
        patch.setattr(module, "product_error", claimed)

    return inject


ALL = ("out", "lse", "dq", "dk", "dv", "dbias", "dsinks")
STEPS: dict[str, tuple[Inject, dict[str, Any], tuple[str, ...]]] = {
    "exponentials": (exponentials, {}, ALL),
    "scores": (rows_of(softmax), {}, ALL),
    "dP": (rows_of(gradients), {}, ("dq", "dk", "dbias")),
    "dP under one bias": (
        rows_of(gradients),
        {"bias": np.zeros((1, HEADS, 1, 1))},
        ("dq", "dk", "dbias"),
    ),
    "caps": (caps, {"softcap": 2.0}, ALL),
    "scores of a cap's slope": (rows_of(softmax), {"softcap": 0.1}, ("dq", "dk")),
    "logarithms": (logarithms, {}, ("lse",)),
    "sums over keys": (products_of(products), {}, ALL),
    "sums over rows": (products_of(gradients), {}, ("dk", "dv")),
}


def worst(found: Reference, exact: Reference) -> dict[str, float]:
    """Of each output, the largest error as a part of its bound."""
    shares = {}
    for name, enclosure in found.outputs.items():
        assert np.all(np.isfinite(enclosure.bound)), name
        difference = enclosure.value - exact[name].value + (enclosure.low - exact[name].low)
        error = np.maximum(np.abs(difference) - exact[name].bound, 0)
        share = np.divide(error, enclosure.bound, out=np.zeros_like(error), where=error > 0)
        shares[name] = float(share.max())
    return shares


@pytest.mark.parametrize("step", STEPS)
def test_bounds_cover_what_a_step_claims_and_not_much_more(step: str) -> None:
    inject, options, spoiled = STEPS[step]
    shares = dict.fromkeys(ALL, 0.0)
    for seed in range(RUNS):
        rng = np.random.default_rng(seed)
        p = problem(rng, **options)
        exact = enclose(p, want=ALL)
        with pytest.MonkeyPatch.context() as patch:
            inject(patch, rng)
            found = worst(enclose(p, want=ALL), exact)
        shares = {name: max(shares[name], share) for name, share in found.items()}
    assert max(shares.values()) <= 1, shares
    assert all(shares[name] >= 0.6 for name in spoiled), shares


@pytest.mark.parametrize(
    "ticks, enough", [(5.6, True), (5.9, False), (1e4, False), (np.nan, False)]
)
def test_scores_that_are_hardly_known_are_not_used(
    monkeypatch: pytest.MonkeyPatch, ticks: float, enough: bool
) -> None:
    """An error of 2^-10 in the exponent is 5.77 ticks; beyond, the proof does not say how much."""
    plain = softmax.row_products
    monkeypatch.setattr(softmax, "row_products", lambda *args, **o: plain(*args, **o) + ticks)
    answer = enclose(problem(np.random.default_rng(0)), want=ALL)
    for name, enclosure in answer.outputs.items():
        assert np.all(np.isfinite(enclosure.bound) == enough), name
