"""The float64 engine's quick way: its magnitudes, its worst errors, and when it declines."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from attnspec.oracle import (
    FORMATS,
    Problem,
    ProblemError,
    balls,
    float64,
    float64_blocks,
    float64_row_gradients,
    float64_rows,
    workers,
)
from attnspec.oracle.enclosure import Reference
from attnspec.oracle.float64_blocks import (
    Blocks,
    absolute_product,
    even_shares,
    norm,
    parts,
    weighted_columns,
)
from attnspec.oracle.heads import stacked, transposed
from attnspec.oracle.problem import OUTPUTS
from attnspec.oracle.running_error import SLACK

exactly = np.frompyfunc(Fraction, 1, 1)
MODULES = (float64_blocks, float64_rows, float64_row_gradients)


@pytest.fixture
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 4 keys, all of which count as even: the cheap bounds everywhere."""
    for module in MODULES:
        monkeypatch.setattr(module, "BLOCK", 4)
    monkeypatch.setattr(float64_blocks, "EVEN", np.inf)


def magnitudes(rng: np.random.Generator, *shape: int) -> Any:
    """Numbers of mixed size; now and then so small that products underflow."""
    spread, shift = rng.choice([0, 3, 40]), rng.choice([0, 0, -520, -1040])
    return rng.standard_normal(shape) * 2.0 ** (rng.integers(-spread, spread + 1, shape) + shift)


def problem(seed: int = 0, *, rows: int = 11, keys: int = 14, **options: Any) -> Problem:
    rng = np.random.default_rng(seed)
    arrays = {
        "q": rng.standard_normal((1, 4, rows, 8)),
        "k": rng.standard_normal((1, 2, keys, 8)),
        "v": rng.standard_normal((1, 2, keys, 3)),
        "dout": rng.standard_normal((1, 4, rows, 3)),
        "dlse": rng.standard_normal((1, 4, rows)),
    }
    return Problem(**{"scale": 0.6, **arrays, **options})


def defined(p: Problem) -> tuple[str, ...]:
    def defines(output: str) -> bool:
        try:
            p.shape_of(output)
        except ProblemError:
            return False
        return True

    return tuple(filter(defines, OUTPUTS))


def used(fast: Reference, sure: Reference) -> dict[str, float]:
    """The largest share of each output's bound that its error takes; it must not exceed 1."""
    shares = {}
    for name, one in fast.outputs.items():
        both = np.isfinite(one.bound) & (sure[name].bound > 0)
        error = np.abs((one.value[both] - sure[name].value[both]) - sure[name].low[both])
        share = error / (one.bound[both] + sure[name].bound[both])
        shares[name] = float(share.max(initial=0))
        assert shares[name] <= 1, name
    return shares


# -- magnitudes --------------------------------------------------------------------------------


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("seed", range(12))
def test_products_of_magnitudes_from_above(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, weights = np.abs(magnitudes(rng, 1, 3, 4)), np.abs(magnitudes(rng, 1, 3, 1))
    matrix, rows = magnitudes(rng, 1, 4, 5), magnitudes(rng, 1, 3, 5)
    exact = (exactly(x[0]) @ abs(exactly(matrix[0]))) / Fraction(SLACK)
    mass, largest = x.sum(-1, keepdims=True), np.abs(matrix).max(-2, keepdims=True)
    for most in (None, largest):
        assert np.all(exactly(absolute_product(x, mass, matrix, most)[0]) >= exact)
    columns = exactly(x[0]).T @ (exactly(weights[0]) * abs(exactly(rows[0]))) / Fraction(SLACK)
    lost = 3 * 2.0**-1074 * (1 + x.max()) * (1 + np.abs(rows).max())
    shares = even_shares(rows)
    assert shares is not None
    for some in (None, shares):
        found = exactly(weighted_columns(x, weights, rows, some)[0])
        assert np.all(found + Fraction(lost) >= columns)
    assert np.all(exactly(norm(rows)[0]) ** 2 >= (exactly(rows[0]) ** 2).sum(-1))


def test_blocks_are_cut_at_the_same_keys_in_every_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = np.random.default_rng(0).standard_normal((2, 700, 3))
    whole = Blocks(lambda part: matrix[:, part], 700)
    monkeypatch.setattr(float64_blocks, "CHUNK", 256)
    pieces = Blocks(lambda part: matrix[:, part], 700)
    for name in ("norms", "largest", "even"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(pieces, name))
    assert whole.even.tolist() == [True, True, False]  # the last is short
    assert list(parts(slice(0, 0))) == []
    for number, part in parts(slice(130, 600)):
        assert (130 + part.start) // 256 == number == (130 + part.stop - 1) // 256
        most = np.abs(matrix[:, 130 + part.start : 130 + part.stop]).max(1)
        assert np.all(most <= whole.largest[:, number])
    assert sum(part.stop - part.start for _, part in parts(slice(130, 600))) == 470


def test_a_block_with_one_large_key_is_not_even() -> None:
    matrix = np.ones((1, 512, 2))
    matrix[0, 300, 1] = 1000
    assert Blocks(lambda part: matrix[:, part], 512).even.tolist() == [True, False]
    rows = np.ones((1, 256, 2))
    assert even_shares(rows) is not None
    assert even_shares(np.eye(256)[None]) is None


PLAIN = ("none", "causal", "alibi", "bias", "negative", "small")
ALONE = {"scale": 1e-9, "bias": np.random.default_rng(3).standard_normal((11, 14)) * 15}


# -- lemmas ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("name", [*PLAIN, "bias alone"])
@pytest.mark.parametrize("seed", range(4))
def test_the_errors_of_the_exponents(seed: int, name: str) -> None:
    """Against exact rationals; bias and ALiBi count for as much as they may be."""
    worst = 0.0
    for heads in stacked(problem(seed, **ALONE if name == "bias alone" else OPTIONS[name])):
        scaled = heads.query * heads.scale
        key = Blocks(heads.operands.key, heads.key.shape[1])
        errors = float64_rows._exponent_errors(
            heads, float64_rows.sizes(norm(scaled), key, heads), 100.0
        )
        assert errors is not None
        exact = exactly(heads.query) @ exactly(transposed(heads.key)) * Fraction(heads.scale)
        if heads.bias is not None:
            exact = exact + exactly(heads.bias)
        if heads.slope is not None:
            distance = np.abs(heads.ahead).astype(np.float64)
            exact = exact - exactly(distance) * exactly(heads.slope)
        computed = scaled @ transposed(heads.key)
        if heads.bias is not None:
            computed += heads.bias
        if heads.slope is not None:
            computed -= np.abs(heads.ahead) * heads.slope
        error = abs(exactly(computed) - exact)
        for number, part in parts(heads.keys):
            seen = heads.visible[..., part]
            share = error[..., part] / exactly(errors[..., number, None])
            worst = max(worst, float(share[seen].max(initial=0)))
    least = {"small": 0.0, "alibi": 1e-4, "bias": 1e-4}
    assert least.get(name, 0.01) <= worst <= 1


def test_a_large_key_counts_for_the_rows_that_see_it() -> None:
    p = problem(8, causal=True)
    p.k[:, :, -1] *= 1000
    (heads,) = stacked(p)
    key = Blocks(heads.operands.key, 14)
    size = float64_rows.sizes(norm(heads.query), key, heads)[..., 0] / norm(heads.query)
    assert np.all(size[:, -1] > 300)
    assert np.all(size[:, :-1] < 10)


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("name", ["exp", "log"])
@pytest.mark.parametrize("ulps", [-63, 63])
def test_what_the_assumptions_allow_is_covered(
    name: str, ulps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact, off = getattr(np, name), 1 + ulps * 2.0**-52
    problems = [problem(seed, keys=1 + 13 * (seed % 2), scale=1e-6, dlse=None) for seed in range(6)]
    sure = [balls.enclose(p, want=("out", "lse", "dv")) for p in problems]
    float64.enclose(problems[0])  # the assumptions are tested now, and not again
    monkeypatch.setattr(np, name, lambda x, out=None: np.multiply(exact(x), off, out=out))
    for p, known in zip(problems, sure, strict=True):
        used(float64.enclose(p, want=("out", "lse", "dv")), known)


# -- against the balls -------------------------------------------------------------------------

OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"causal": True},
    "window": {"window": (5, 1)},
    "mask": {"mask": np.random.default_rng(1).random((1, 4, 11, 14)) < 0.5},
    "alibi": {"alibi": np.array([0.5, -0.25, 2.0, 0.0])},
    "sinks": {"sinks": np.array([0.5, -3.0, 20.0, -1e9])},
    "bias": {"bias": np.random.default_rng(2).standard_normal((11, 14))},
    "bias that hides": {"bias": np.where(np.arange(14) % 3, 0.0, -1e30)},
    "softcap": {"softcap": 2.0},
    "lengths": {"key_lengths": np.array([9]), "query_lengths": np.array([7])},
    "negative": {"scale": -1.0},
    "zero": {"scale": 0.0},
    "small": {"scale": 2.0**-1070},
}


def spy(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each tile was served by the quick way."""
    served: list[bool] = []
    quick = float64._quick

    def watched(*args: Any) -> Any:
        found = quick(*args)
        served.append(found is not None)
        return found

    monkeypatch.setattr(float64, "_quick", watched)
    return served


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("name", OPTIONS)
def test_the_cheap_bounds_hold(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    served = spy(monkeypatch)
    monkeypatch.setattr(float64, "ROWS", 4)
    for seed in range(6):
        p = problem(seed, **OPTIONS[name])
        for want in (("out", "lse"), tuple(w for w in defined(p) if w != "dbias")):
            used(float64.enclose(p, want=want), balls.enclose(p, want=want))
    assert all(served) or name == "softcap"
    assert any(served)


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", ["none", "causal", "sinks", "bias", "alibi"])
def test_the_worst_errors_of_the_scores_are_covered(
    name: str, sign: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each exponent off by all that its bound is made to allow, with signs that add up."""
    p, slip = problem(3, **OPTIONS[name]), 1e-9
    want = tuple(w for w in defined(p) if w != "dbias")
    exponentials, errors = float64_rows._exponentials, float64_rows._exponent_errors
    monkeypatch.setattr(float64_rows, "SHARP", 1e-6)
    monkeypatch.setattr(float64_rows, "_exponent_errors", lambda *a: errors(*a) + slip)

    def off(heads: Any, scaled: Any, part: slice, x: Any) -> bool:
        full = exponentials(heads, scaled, part, x)
        high = heads.value_of(part)[..., :1] > 0  # those that pull out one way
        x *= np.exp(np.where(high, sign, -sign) * slip).swapaxes(-1, -2)
        return full

    monkeypatch.setattr(float64_rows, "_exponentials", off)
    shares = used(float64.enclose(p, want=want), balls.enclose(p, want=want))
    assert shares["out"] > 0.1
    assert all(share > 1e-3 for share in shares.values()), shares


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("sign", [1, -1])
def test_the_worst_errors_of_the_score_gradients_are_covered(
    sign: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """dP off by as much of ‖dout‖ ‖v‖ as gamma is made to allow; sums as they are."""
    p, slip = problem(4), 1e-9
    exact, gamma = float64_row_gradients._score_gradient, float64_row_gradients.gamma
    size = p.value_size + 2
    monkeypatch.setattr(
        float64_row_gradients, "gamma", lambda k: gamma(k) + (slip if k == size else 0)
    )

    def off(heads: Any, f: Any, rows: Any, part: slice, room: Any) -> Any:
        ds = exact(heads, f, rows, part, room)
        dout, value = norm(rows.dout)[..., None], norm(heads.value_of(part))[:, None]
        ds += sign * slip * dout * value * f.exponentials[..., part] / f.total
        return ds

    monkeypatch.setattr(float64_row_gradients, "_score_gradient", off)
    want = ("dq", "dk")
    shares = used(float64.enclose(p, want=want), balls.enclose(p, want=want))
    assert min(shares.values()) > 0.05, shares


# -- which way, and how many workers -----------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"scale": 100.0},
        {"sinks": np.full(4, 101.0)},
        {"bias": np.full(14, 101.0)},
        {"bias": np.full(14, -120.0)},
        {"alibi": np.full(4, -20.0)},
        {"softcap": 2.0**901},
    ],
)
def test_what_it_does_not_serve_it_leaves_to_the_sharp_way(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = spy(monkeypatch)
    p = problem(5, **options)
    used(float64.enclose(p), balls.enclose(p))
    assert not any(served)


def test_both_ways_agree_and_the_quick_one_loses_little(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(6)
    q, k, v, dout = (
        FORMATS["float32"].round(rng.standard_normal((1, 1, n, 32))) for n in (300, 600, 600, 300)
    )
    p = Problem(q=q, k=k, v=v, dout=dout, scale=0.2, causal=True)
    served = spy(monkeypatch)
    quick = float64.enclose(p, want=defined(p))
    assert all(served)
    monkeypatch.setattr(float64, "_quick", lambda *_: None)
    sharp = float64.enclose(p, want=defined(p))
    for name in defined(p):
        apart = np.abs(quick[name].value - sharp[name].value)
        assert np.all(apart <= quick[name].bound + sharp[name].bound), name
        ratio = quick[name].bound / np.maximum(sharp[name].bound, 1e-300)
        assert np.median(ratio) < 32, name


@pytest.fixture
def _two_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "FEW", 0)
    monkeypatch.setattr(workers, "_workers", lambda: 2)
    monkeypatch.setattr(float64, "ROWS", 4)


@pytest.mark.usefixtures("_two_workers")
@pytest.mark.parametrize("name", ["none", "causal", "sinks", "bias"])
def test_workers_change_no_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    p = problem(7, **OPTIONS[name])
    many = float64.enclose(p, want=defined(p))
    monkeypatch.setattr(workers, "_workers", lambda: 1)
    one = float64.enclose(p, want=defined(p))
    for output in defined(p):
        np.testing.assert_array_equal(many[output].value, one[output].value)
        np.testing.assert_array_equal(many[output].bound, one[output].bound)


@pytest.mark.usefixtures("_two_workers")
def test_results_come_in_order_and_errors_come_through() -> None:
    squares = workers.in_order(lambda x: x * x, range(20), scores=1)
    assert list(squares) == [x * x for x in range(20)]
    inner = lambda x: list(workers.in_order(str, range(x), scores=1))  # noqa: E731
    assert list(workers.in_order(inner, [1, 2], scores=1)) == [["0"], ["0", "1"]]
    with pytest.raises(ZeroDivisionError):
        list(workers.in_order(lambda x: 1 // x, [1, 0], scores=1))
    assert list(workers.in_order(abs, [-1], scores=1)) == [1]  # they are free again
