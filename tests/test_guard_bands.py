"""The memory around a kernel's inputs: what stands there, and that writing there is seen."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from attnspec.adapters import Kernel, call, kernel
from attnspec.adapters.frameworks import bridge
from attnspec.oracle.formats import FORMATS
from attnspec.oracle.problem import Problem

RNG = np.random.default_rng(0)
SIZE = 4


def numbers(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def ask(**fields: Any) -> Problem:
    operands = {"q": numbers(1, 2, 3, SIZE), "k": numbers(1, 2, 5, SIZE)}
    return Problem(**operands, v=numbers(1, 2, 5, SIZE), scale=SIZE**-0.5, **fields)


def returns(value: Any, **declared: Any) -> Kernel:
    """A kernel whose answer is value(q, k, v)."""

    @kernel(name="returns", **declared)
    def attention(q: Any, k: Any, v: Any, *, scale: float) -> Any:
        return value(q, k, v)

    return attention


def needs(framework: str) -> None:
    if framework != "numpy":
        pytest.importorskip(framework)


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("name", ["q", "k", "v", "mask", "bias", "dout"])
def test_writing_around_an_input_is_seen(framework: str, name: str) -> None:
    needs(framework)
    fields = {"mask": np.ones((3, 5), bool), "bias": numbers(3, 5), "dout": numbers(1, 2, 3, SIZE)}
    problem, seen = ask(**fields), {}

    @kernel(framework=framework)
    def attention(q: Any, k: Any, v: Any, *, scale: float, mask: Any, bias: Any) -> Any:
        seen.update(q=q, k=k, v=v, mask=mask, bias=bias)
        if name != "dout":
            write_behind(seen[name])
        return q * 1

    def backward(q: Any, k: Any, v: Any, dout: Any, **options: Any) -> Any:
        if name == "dout":
            write_behind(dout)
        return q, k, v

    want = ("out",)
    if framework == "numpy":
        attention.backward = backward
        want = ("out", "dq")
    elif name == "dout":
        return  # autograd hands the cotangent on
    assert call(attention, problem, want=want).changed == (f"outside {name}",)


def write_behind(array: Any) -> None:
    """Flip one element behind the end of a contiguous array."""
    if isinstance(array, np.ndarray):
        last = array.reshape(-1)[-1:]
        behind = np.lib.stride_tricks.as_strided(last, (2,), last.strides)[1:]
    else:
        start = array.storage_offset() + array.numel()
        behind = array.detach().as_strided((1,), (1,), start)
    behind[...] = ~behind if str(behind.dtype).endswith("bool") else 0


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_nan_stands_before_and_behind_every_input(framework: str) -> None:
    needs(framework)
    around: list[float] = []

    def look(q: Any, k: Any, v: Any) -> Any:
        for x in (q, k, v):
            flat = x if framework == "numpy" else x.numpy()
            size = flat.itemsize
            start = np.lib.stride_tricks.as_strided(flat.reshape(-1)[:1], (1,), (size,))
            before = start.__array_interface__["data"][0] - size
            behind = before + size * (flat.size + 1)
            for place in (before, behind):
                around.append(ctypes.c_float.from_address(place).value)
        return q

    call(returns(look, framework=framework), ask())
    assert len(around) == 6
    assert np.isnan(around).all()


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_an_odd_address_stays_odd(framework: str) -> None:
    needs(framework)
    addresses: list[int] = []

    def look(q: Any, k: Any, v: Any) -> Any:
        flat = k if framework == "numpy" else k.numpy()
        addresses.append(flat.__array_interface__["data"][0] % 16)
        return q

    problem = ask()
    shifted = np.zeros(problem.k.size + 1, np.float32)[1:].reshape(problem.k.shape)
    for key in (problem.k, shifted):
        call(returns(look, framework=framework), problem.replace(k=key))
    assert addresses == [0, 4]


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_littered_memory_does_no_harm(framework: str) -> None:
    needs(framework)
    for dtype in FORMATS:
        found = bridge(framework)
        with found.session(dtype):
            found.litter([(2, 3), (0,)], dtype, "cpu")
    memory = [np.empty(1000, np.float32) for _ in range(20)]
    assert len(memory) == 20
