"""The tolerance does not depend on how rows and keys are cut into tiles and pieces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attnspec.oracle import FORMATS, Problem, backward_rounding, moments, statistics, workers
from attnspec.oracle.gradient_sums import GradientSum, Terms
from attnspec.oracle.heads import Operands
from attnspec.oracle.rounding import EAGER, FLOAT32_INSIDE, STORAGE_GRADIENTS, tolerance
from attnspec.oracle.statistics import Again

ROWS, KEYS = 11, 23
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"causal": True},
    "window": {"window": (4, 1), "softcap": 3.0},
    "sinks": {"sinks": np.array([0.5, -1, 2, 0], np.float32)},
    "bias": {"bias": np.random.default_rng(1).standard_normal((4, 1, KEYS)).astype(np.float32)},
    "full bias": {"bias": np.random.default_rng(1).standard_normal((4, ROWS, KEYS))},
    "mask": {"mask": np.random.default_rng(2).random((ROWS, KEYS)) < 0.6},
    "large": {"scale": 20.0},
}


def problem(kv_heads: int = 2, dtype: str = "bfloat16", **options: Any) -> Problem:
    rng, form = np.random.default_rng(0), FORMATS[dtype]
    q, dout = (form.round(rng.standard_normal((2, 4, ROWS, 8))) for _ in range(2))
    k, v = (form.round(rng.standard_normal((2, kv_heads, KEYS, 8))) for _ in range(2))
    return Problem(**{"q": q, "k": k, "v": v, "dout": dout, "scale": 0.4} | options)


def wanted(p: Problem) -> list[str]:
    extra = [("dbias", p.bias), ("dsinks", p.sinks)]
    return ["out", "lse", "dq", "dk", "dv", *(n for n, x in extra if x is not None)]


@pytest.mark.parametrize("kv_heads", [2, 4])
@pytest.mark.parametrize("name", OPTIONS)
def test_tiles_pieces_and_workers_change_nothing(
    name: str, kv_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = problem(kv_heads, **OPTIONS[name])
    whole = [tolerance(p, arithmetic=a, want=wanted(p)) for a in (EAGER, STORAGE_GRADIENTS)]
    for module, names in (
        (statistics, {"TILE": KEYS, "FEW_ROWS": 2}),
        (moments, {"KEPT": 0, "CHUNK": 5}),
        (backward_rounding, {"CHUNK": 5}),
        (workers, {"FEW": 0, "_workers": lambda: 2}),
    ):
        for constant, value in names.items():
            monkeypatch.setattr(module, constant, value)
        cut = [tolerance(p, arithmetic=a, want=wanted(p)) for a in (EAGER, STORAGE_GRADIENTS)]
        for one, other in zip(whole, cut, strict=True):
            for output in wanted(p):
                for field in ("hard", "sigma"):
                    found, expected = getattr(other[output], field), getattr(one[output], field)
                    np.testing.assert_allclose(found, expected, rtol=1e-9, err_msg=output)


def test_many_statistics_are_found_again_and_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    p = problem(causal=True)
    kept = tolerance(p, arithmetic=EAGER, statistics=statistics.statistics(p))["out"]
    monkeypatch.setattr(statistics, "KEPT_SCORES", 0)
    monkeypatch.setattr(statistics, "FEW_ROWS", 2)
    monkeypatch.setattr(statistics, "TILE", 1)
    again = statistics.statistics(p)
    assert isinstance(again, Again)
    assert len(list(again)) == 6
    for _ in range(2):
        found = tolerance(p, arithmetic=EAGER, statistics=again)["out"]
        np.testing.assert_allclose(found.hard, kept.hard, rtol=1e-9)


def test_a_long_context_is_never_copied_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows of 2^17 keys: no more than CHUNK of them are converted at a time."""
    rng = np.random.default_rng(3)
    k, v = (rng.standard_normal((1, 1, 2**17, 129)).astype(np.float32) for _ in range(2))
    q = rng.standard_normal((1, 1, 2, 129)).astype(np.float32)
    most, converted = 0, Operands._converted

    def watched(self: Operands, array: Any, part: slice) -> Any:
        nonlocal most
        found = converted(self, array, part)
        most = max(most, found.shape[1])
        return found

    monkeypatch.setattr(Operands, "_converted", watched)
    p = Problem(q=q, k=k, v=v, dout=q, scale=0.1)
    found = tolerance(p, arithmetic=FLOAT32_INSIDE, want=("out", "dq", "dk"))
    assert most == moments.CHUNK
    assert all(np.all(np.isfinite(t.hard)) and np.all(t.hard > 0) for t in found.values())


def test_each_head_may_flush_its_stored_share_once() -> None:
    r, form = EAGER.resolve("float16"), FORMATS["float16"]
    zero = np.zeros((2, 3))
    terms = Terms(zero, zero, zero, zero, zero, zero + 1)
    bounds = []
    for heads in (1, 2):
        total = GradientSum((1, 3), r, stored=form)
        for _ in range(heads):
            place = (np.array([0]),)
            total.add(place, (), terms.map(lambda field: field[:1]))
            total.close(place)
        bounds.append(total.result()[0].min())
    assert bounds[1] - bounds[0] >= 0.99 * form.smallest_subnormal / 2
