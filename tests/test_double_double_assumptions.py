"""What this tier believes of matrix products and log2, broken, is noticed at first use."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from attnspec.oracle import Problem, double_double
from attnspec.oracle.assumptions import AssumptionFailed
from attnspec.oracle.double_double import assumptions

MATMUL, LOG2 = np.matmul, np.log2


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    assumptions.check()  # the ones of `oracle.assumptions` are tested now, and not again
    assumptions._check_libraries.cache_clear()
    yield
    assumptions._check_libraries.cache_clear()


def into(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def matmul(a: Any, b: Any, *, out: Any) -> Any:
        out[...] = function(a, b)
        return out

    return matmul


def strassen(a: Any, b: Any) -> Any:
    """One level of Strassen's recursion (Higham, section 23.1), where sizes are even."""
    if any(size % 2 for size in (*a.shape[-2:], *b.shape[-2:])):
        return MATMUL(a, b)
    m, k, n = a.shape[-2] // 2, a.shape[-1] // 2, b.shape[-1] // 2
    a11, a12, a21, a22 = a[..., :m, :k], a[..., :m, k:], a[..., m:, :k], a[..., m:, k:]
    b11, b12, b21, b22 = b[..., :k, :n], b[..., :k, n:], b[..., k:, :n], b[..., k:, n:]
    p1, p2 = MATMUL(a11 + a22, b11 + b22), MATMUL(a21 + a22, b11)
    p3, p4 = MATMUL(a11, b12 - b22), MATMUL(a22, b21 - b11)
    p5, p6 = MATMUL(a11 + a12, b22), MATMUL(a21 - a11, b11 + b12)
    p7 = MATMUL(a12 - a22, b21 + b22)
    upper = np.concatenate([p1 + p4 - p5 + p7, p3 + p5], -1)
    return np.concatenate([upper, np.concatenate([p2 + p4, p1 + p3 - p2 + p6], -1)], -2)


def where(holds: Callable[[Any, Any], bool]) -> Callable[[Any, Any], Any]:
    """float32, but only in some layouts."""

    def matmul(a: Any, b: Any) -> Any:
        if not holds(a, b):
            return MATMUL(a, b)
        return MATMUL(a.astype(np.float32), b.astype(np.float32)).astype(np.float64)

    return matmul


def halves(a: Any, b: Any) -> Any:
    """Sums that lose three bits of 53: accumulated in a format of 50."""
    exact = MATMUL(a, b)
    mantissa, exponent = np.frexp(exact)
    return np.ldexp(np.rint(mantissa * 2.0**50), exponent - 50)


PRODUCTS: dict[str, Callable[[Any, Any], Any]] = {
    "Strassen": strassen,
    "float32": where(lambda a, b: True),
    "float32 of a batch of chunks": where(lambda a, b: a.ndim == 4),
    "float32 of one row": where(lambda a, b: a.shape[-2] == 1),
    "float32 of one column": where(lambda a, b: b.shape[-1] == 1),
    "float32 of a transposed left operand": where(
        lambda a, b: a.ndim == 3 and a.strides[-1] > a.strides[-2]
    ),
    "float32 of a transposed right operand": where(
        lambda a, b: b.ndim == 3 and b.strides[-1] > b.strides[-2]
    ),
    "50 bits": halves,
}


@pytest.mark.parametrize("broken", PRODUCTS.values(), ids=PRODUCTS)
def test_a_broken_product_is_noticed(
    monkeypatch: pytest.MonkeyPatch, broken: Callable[[Any, Any], Any]
) -> None:
    monkeypatch.setattr(np, "matmul", into(broken))
    with pytest.raises(AssumptionFailed, match=r"matrix product.*tier='balls'"):
        assumptions.check()


@pytest.mark.parametrize("call", ["enclose", "key_gradients"])
def test_it_is_noticed_at_first_use(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    q = np.ones((1, 1, 2, 2))
    problem = Problem(q=q, k=q, v=q, scale=1.0, dout=q)
    monkeypatch.setattr(np, "matmul", into(strassen))
    with pytest.raises(AssumptionFailed):
        getattr(double_double, call)(problem)


def test_a_broken_log2_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "log2", lambda x: LOG2(x) + 2.0**-13)
    with pytest.raises(AssumptionFailed, match="log2"):
        assumptions.check()


def seconds() -> float:
    start = time.process_time()
    assumptions.check()
    return time.process_time() - start


def test_this_machine_keeps_them_and_the_check_is_cheap() -> None:
    """The least of several: a busy machine makes any one of them dear."""
    first = []
    for _ in range(5):
        assumptions._check_libraries.cache_clear()
        first.append(seconds())
    assert min(first) < 0.1  # 6 ms on one core; a BLAS with several waits for them, and that counts
    assert min(seconds() for _ in range(9)) < 0.005
