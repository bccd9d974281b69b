"""Each assumption of the float64 engine, broken, is noticed; this machine keeps them all."""

from __future__ import annotations

import ctypes
import ctypes.util
import platform
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from attnspec.oracle import assumptions, float64
from attnspec.oracle.assumptions import AssumptionFailed
from attnspec.oracle.problem import Problem

EXP, LOG, TANH, MATMUL = np.exp, np.log, np.tanh, np.matmul


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    assumptions._check_libraries.cache_clear()
    yield
    assumptions._check_libraries.cache_clear()


def strassen(a: Any, b: Any) -> Any:
    """One level of Strassen's recursion (Higham, section 23.1)."""
    if any(size % 2 for size in (*a.shape, *b.shape)):
        return MATMUL(a, b)
    m, k, n = a.shape[0] // 2, a.shape[1] // 2, b.shape[1] // 2
    a11, a12, a21, a22 = a[:m, :k], a[:m, k:], a[m:, :k], a[m:, k:]
    b11, b12, b21, b22 = b[:k, :n], b[:k, n:], b[k:, :n], b[k:, n:]
    p1, p2 = MATMUL(a11 + a22, b11 + b22), MATMUL(a21 + a22, b11)
    p3, p4 = MATMUL(a11, b12 - b22), MATMUL(a22, b21 - b11)
    p5, p6 = MATMUL(a11 + a12, b22), MATMUL(a21 - a11, b11 + b12)
    p7 = MATMUL(a12 - a22, b21 + b22)
    return np.block([[p1 + p4 - p5 + p7, p3 + p5], [p2 + p4, p1 + p3 - p2 + p6]])


def only_in_tails(function: Callable[..., Any]) -> Callable[..., Any]:
    """An error of 2^-40 that only short arrays show."""
    return lambda x, **k: function(x, **k) * (1 + 2.0**-40 * (np.size(x) < 8))


def flushed(x: Any) -> Any:
    return np.where(np.abs(x) < 2.0**-1022, 0.0, x)


BREAKS: dict[str, tuple[str, Callable[..., Any]]] = {
    "exp off by 100 ulp": ("exp", lambda x, **k: EXP(x, **k) * (1 + 100 * 2.0**-52)),
    "exp off in tails": ("exp", only_in_tails(EXP)),
    "exp in float32": ("exp", lambda x, **k: EXP(np.asarray(x, np.float32)).astype(np.float64)),
    "exp large near zero": ("exp", lambda x, **k: np.maximum(EXP(x, **k), 2.0**-1020)),
    "exp of -inf": ("exp", lambda x, **k: np.where(np.isinf(x), 2.0**-1022, EXP(x))),
    "log off by 2^-44": ("log", lambda x, **k: LOG(x, **k) * (1 + 2.0**-44)),
    "log absolutely off": ("log", lambda x, **k: LOG(x, **k) + 2.0**-60),
    "tanh off by 2^-44": ("tanh", lambda x, **k: TANH(x, **k) * (1 + 2.0**-44)),
    "tanh off in tails": ("tanh", only_in_tails(TANH)),
    "tanh absolutely off": ("tanh", lambda x, **k: TANH(x, **k) + 2.0**-200),
    "tanh flushes": ("tanh", lambda x, **k: flushed(TANH(x, **k))),
    "Strassen": ("matmul", strassen),
    "product in float32": (
        "matmul",
        lambda a, b: MATMUL(a.astype(np.float32), b.astype(np.float32)).astype(np.float64),
    ),
    "product flushes": ("matmul", lambda a, b: flushed(MATMUL(a, b))),
}


@pytest.mark.parametrize("name, broken", BREAKS.values(), ids=BREAKS)
def test_a_broken_library_is_noticed(
    monkeypatch: pytest.MonkeyPatch, name: str, broken: Callable[..., Any]
) -> None:
    monkeypatch.setattr(np, name, broken)
    with np.errstate(all="ignore"), pytest.raises(AssumptionFailed, match="tier='balls'"):
        assumptions.check()


@pytest.mark.parametrize("mode", [0x400, 0x800, 0xC00], ids=["down", "up", "to zero"])
def test_another_rounding_mode_is_noticed(mode: int) -> None:
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        pytest.skip("the constants of fesetround are those of x86-64 Linux")
    math = ctypes.CDLL(ctypes.util.find_library("m"))
    assert math.fesetround(mode) == 0
    try:
        with pytest.raises(AssumptionFailed, match="round to nearest"):
            assumptions.check()
    finally:
        math.fesetround(0)


def test_flushed_subnormals_are_noticed_at_every_use() -> None:
    torch = pytest.importorskip("torch")
    q = np.ones((1, 1, 1, 1))
    problem = Problem(q=q, k=q, v=q, scale=1.0)
    float64.enclose(problem)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        with pytest.raises(AssumptionFailed, match="subnormal"):
            float64.enclose(problem)
    finally:
        torch.set_flush_denormal(False)


def test_this_machine_keeps_them_and_the_check_is_cheap() -> None:
    assumptions.check()

    def seconds() -> float:
        start = time.process_time()
        assumptions.check()
        return time.process_time() - start

    assert min(seconds() for _ in range(9)) < 0.005  # the others had the machine to share
