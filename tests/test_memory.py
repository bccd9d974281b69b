"""The memory that a kernel declares is measured: a false declaration is red, a true one green."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from attnspec.adapters import CallFailed, KernelError, kernel, load
from attnspec.conformance import memory
from attnspec.conformance.case import Case, Shape
from attnspec.conformance.memory import LIMITS, exponent, extra_memory
from attnspec.conformance.question import Question, Violation
from attnspec.conformance.test_contract import test_memory as judge

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it is measured on Linux alone")

SIZES = (512, 1024, 2048, 4096)
CASE = Case("normal", Shape(1, 1, 1, 4096, 4096, 64, 64))

KERNELS = '''
import os
import numpy as np
from attnspec.adapters import kernel

STEP, KEPT = 128, {}

@kernel(memory="linear")
def whole(q, k, v, *, scale):
    s = q @ k.swapaxes(-1, -2) * q.dtype.type(scale)
    p = np.exp(s - s.max(-1, keepdims=True))
    return p @ v / p.sum(-1, keepdims=True)

@kernel(memory="linear")
def rows(q, k, v, *, scale):
    print("a kernel may print, even without an end of line", end="")
    parts = [whole.function(q[:, :, i : i + STEP], k, v, scale=scale)
             for i in range(0, q.shape[2], STEP)]
    return np.concatenate(parts, axis=2)

@kernel(memory="linear")
def kept(q, k, v, *, scale):
    """Holds n x n numbers from the first call on, and takes nothing more later."""
    n = q.shape[2]
    KEPT.setdefault(n, np.ones((n, n), np.float32))
    return rows.function(q, k, v, scale=scale)

@kernel(memory="linear")
def ends(q, k, v, *, scale):
    os._exit(3)

@kernel(memory="linear")
def short(q, k, v, *, scale):
    if q.shape[2] > 1024:
        raise NotImplementedError("at most 1024 queries")
    return rows.function(q, k, v, scale=scale)

quadratic = kernel(memory="quadratic")(whole.function)
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "kernels.py"
    path.write_text(KERNELS)
    return path


def question(impl: str) -> Question:
    return Question(impl, load(impl), "memory-grows-as-declared", "float32", CASE, 0)


@pytest.mark.parametrize(
    "name, grows", [("rows", False), ("whole", True), ("kept", True), ("quadratic", False)]
)
def test_a_false_declaration_is_red_and_a_true_one_green(file, name, grows):
    asked = question(f"{file}:{name}")
    if not grows:
        judge(asked)
        assert 0 < asked.findings[0].fraction < 0.9
        return
    with pytest.raises(Violation, match=r"declared linear, but n = 512, 1024, 2048, 4096 takes"):
        judge(asked)
    assert asked.findings[0].fraction > 1.15


@pytest.mark.parametrize("name", ["numpy-flash", "torch-sdpa-flash"])
def test_the_registered_ones_that_declare_it_are_linear(name):
    pytest.importorskip(name.partition("-")[0])
    assert load(name).memory == "linear"
    judge(question(name))


@pytest.mark.parametrize("name", ["numpy", "torch-eager", "torch-sdpa-math"])
def test_those_that_hold_the_scores_would_fail(name):
    pytest.importorskip(name.partition("-")[0])
    assert load(name).memory is None
    assert exponent(extra_memory(name, CASE, "float32")) > LIMITS["linear"]


def test_what_cannot_be_measured_is_not_claimed(file, monkeypatch):
    @kernel(memory="linear")
    def local(q, k, v, *, scale):
        """Stands in no file."""

    asked = Question("local", local, "memory-grows-as-declared", "float32", CASE, 0)
    with pytest.raises(CallFailed, match="not claimed: memory: not loaded by itself: local"):
        judge(asked)
    with pytest.raises(CallFailed, match="not claimed: declares no memory="):
        judge(question("numpy"))
    with pytest.raises(CallFailed, match="not claimed: at most 1024 queries"):
        judge(question(f"{file}:short"))
    monkeypatch.setattr(memory, "SECONDS", 0.01)
    with pytest.raises(CallFailed, match=r"not claimed: memory at 3 sizes takes more than 0.01 s"):
        judge(question(f"{file}:rows"))


def test_a_process_that_ends_is_an_error(file):
    with pytest.raises(CallFailed, match="error: the process that measures its memory ended by 3"):
        judge(question(f"{file}:ends"))


def test_the_exponent_is_that_of_the_three_largest():
    assert exponent({n: 7 * n**2 for n in SIZES}) == pytest.approx(2)
    assert exponent({n: 500 * n**2 for n in (2048, 512, 4096, 1024)} | {512: 1}) == pytest.approx(2)
    assert exponent({n: 4096 * n for n in SIZES}) == pytest.approx(1)
    assert abs(exponent({n: n for n in SIZES})) < 1e-9  # less than is told apart


def test_only_what_can_be_judged_is_declared():
    with pytest.raises(KernelError, match="memory: expected one of None, 'linear', 'quadratic'"):
        kernel(memory="constant")(lambda q, k, v: v)
