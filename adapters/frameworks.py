"""The bridges between NumPy, in which problems are written, and the frameworks of the kernels."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from attnspec.oracle.formats import FORMATS

__all__ = [
    "FRAMEWORKS",
    "Bridge",
    "NoGradient",
    "bridge",
    "digest",
    "litter",
    "private_copy",
    "uninstalled",
]

FRAMEWORKS = ("numpy", "torch", "jax")

Array = npt.NDArray[Any]
Arrays = Mapping[str, Any]
Outputs = tuple[Any, ...]

BAND = 64
"""Elements of a guard band: before and after each input, on the same memory."""


class NoGradient(Exception):  # noqa: N818, it is an answer, not a mistake
    """The framework cannot differentiate this output."""


class Bridge(Protocol):
    """What a framework must be able to do. Nothing may change a bit of an array."""

    array: str
    """What its arrays are called in messages."""

    strides: str
    """The strides that its arrays may have: `any`, `positive`, or `none` where it has none."""

    def missing(self, device: str) -> str | None:
        """None where the device can be used; otherwise what to install or plug in."""

    def session(self, dtype: str) -> AbstractContextManager[Any]:
        """The settings without which the framework would not compute in `dtype`."""

    def put(self, array: Array, device: str) -> Any:
        """A private copy on the device; strides are kept where the framework has strides."""

    def digest(self, value: Any) -> bytes:
        """A hash of an array, and of all memory around it that the framework shows."""

    def litter(self, shapes: Iterable[tuple[int, ...]], dtype: str, device: str) -> None:
        """Leave freed memory of these sizes full of NaN, where the framework frees memory."""

    def get(self, value: Any) -> Array:
        """A NumPy copy of an array of the framework."""

    def describe(self, value: Any) -> tuple[str, tuple[int, ...]] | None:
        """The dtype's name and the shape; None for what is not an array of the framework."""

    def derive(
        self,
        forward: Callable[[Arrays], Outputs],
        arrays: Arrays,
        *,
        inputs: Sequence[str],
        cotangents: Sequence[Any],
    ) -> tuple[Outputs, Outputs]:
        """The outputs, and the gradients of <cotangents, outputs> with respect to `inputs`.

        A cotangent of None stands for zero. Raises `NoGradient`.
        """


class NumPyBridge:
    """Arrays as they are, on private memory."""

    array = "NumPy array"
    strides = "any"

    def missing(self, device: str) -> str | None:
        """NumPy is always there."""
        return None

    def session(self, dtype: str) -> AbstractContextManager[Any]:
        """NumPy needs no settings."""
        return nullcontext()

    def put(self, array: Array, device: str) -> Array:
        """A copy with the same strides."""
        buffer, offset, strides = private_copy(array)
        return np.lib.stride_tricks.as_strided(buffer[offset:], array.shape, strides)

    def digest(self, value: Any) -> bytes:
        """Of the whole buffer that the array is a view of."""
        while value.base is not None:
            value = value.base
        return digest(value)

    def litter(self, shapes: Iterable[tuple[int, ...]], dtype: str, device: str) -> None:
        """See `Bridge.litter`."""
        litter(lambda shape: np.full(shape, np.nan, FORMATS[dtype].dtype), shapes)

    def get(self, value: Any) -> Array:
        """A contiguous copy."""
        return np.array(value, order="C")

    def describe(self, value: Any) -> tuple[str, tuple[int, ...]] | None:
        """See `Bridge.describe`."""
        return (value.dtype.name, value.shape) if isinstance(value, np.ndarray) else None

    def derive(
        self,
        forward: Callable[[Arrays], Outputs],
        arrays: Arrays,
        *,
        inputs: Sequence[str],
        cotangents: Sequence[Any],
    ) -> tuple[Outputs, Outputs]:
        """NumPy differentiates nothing: its kernels bring their own backward."""
        raise NoGradient("NumPy does not differentiate")


def bridge(framework: str) -> Bridge:
    """The bridge to one of `FRAMEWORKS`; imports that framework only when it is used."""
    if framework == "numpy":
        return NumPyBridge()
    module = import_module(f"attnspec.adapters.{framework}_bridge")
    found: Bridge = module.BRIDGE
    return found


def uninstalled(package: str) -> str | None:
    """What to install where a package is missing, without importing it."""
    if find_spec(package) is not None:
        return None
    return f"{package} is not installed: pip install 'attnspec[{package}]'"


def private_copy(array: Array) -> tuple[Array, int, tuple[int, ...]]:
    """The array's layout on new memory: (flat buffer, offset in elements, strides in bytes).

    Odd layouts reach the kernel this way, and addresses that are no multiple of 16 bytes. The gaps
    between the elements, and a band before and after them, hold NaN (all bits set; in a mask True
    and False in turn): a kernel that ignores the strides, or reads beyond an end, cannot go
    unnoticed.
    """
    size = array.itemsize
    if array.size == 0 or any(stride % size for stride in array.strides):
        array = np.array(array, order="C")
    steps = [(n - 1) * stride // size for n, stride in zip(array.shape, array.strides, strict=True)]
    steps = steps if array.size else [0]
    low, high = sum(min(step, 0) for step in steps), sum(max(step, 0) for step in steps)
    first = BAND + array.__array_interface__["data"][0] % ALIGNED // size - low
    count = first + high + 1 + BAND
    if array.dtype == np.bool_:
        buffer: Array = np.arange(count) % 2 == 0
    else:
        buffer = np.full(count * size, 0xFF, dtype=np.uint8).view(array.dtype)
    np.lib.stride_tricks.as_strided(buffer[first:], array.shape, array.strides)[...] = array
    return buffer, first, array.strides


ALIGNED = 16
"""Bytes: what NumPy aligns new memory to."""


def digest(array: Array) -> bytes:
    """A hash of a contiguous array's bits."""
    return hashlib.blake2b(np.ascontiguousarray(array).view(np.uint8).data).digest()


def litter(filled: Callable[[tuple[int, ...]], Any], shapes: Iterable[tuple[int, ...]]) -> None:
    """Allocate arrays of each shape and free them; several, as the inputs take some of them."""
    held = [filled(shape) for shape in shapes for _ in range(COPIES)]
    held.clear()


COPIES = 8
