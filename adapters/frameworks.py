"""The bridges between NumPy, in which problems are written, and the frameworks of the kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["FRAMEWORKS", "Bridge", "NoGradient", "bridge", "private_copy", "uninstalled"]

FRAMEWORKS = ("numpy", "torch", "jax")

Array = npt.NDArray[Any]
Arrays = Mapping[str, Any]
Outputs = tuple[Any, ...]


class NoGradient(Exception):  # noqa: N818, it is an answer, not a mistake
    """The framework cannot differentiate this output."""


class Bridge(Protocol):
    """What a framework must be able to do. Nothing may change a bit of an array."""

    array: str
    """What its arrays are called in messages."""

    def missing(self, device: str) -> str | None:
        """None where the device can be used; otherwise what to install or plug in."""

    def session(self, dtype: str) -> AbstractContextManager[Any]:
        """The settings without which the framework would not compute in `dtype`."""

    def put(self, array: Array, device: str) -> Any:
        """A private copy on the device; strides are kept where the framework has strides."""

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

    Odd layouts reach the kernel this way. The gaps between the elements hold NaN (all bits set),
    so that a kernel which ignores the strides reads NaN and cannot go unnoticed.
    """
    size = array.itemsize
    if array.size == 0 or any(stride % size for stride in array.strides):
        array = np.array(array, order="C")
    steps = [(n - 1) * stride // size for n, stride in zip(array.shape, array.strides, strict=True)]
    if array.size == 0:
        return array.reshape(-1), 0, array.strides
    low, high = sum(min(step, 0) for step in steps), sum(max(step, 0) for step in steps)
    buffer = np.full((high - low + 1) * size, 0xFF, dtype=np.uint8).view(array.dtype)
    np.lib.stride_tricks.as_strided(buffer[-low:], array.shape, array.strides)[...] = array
    return buffer, -low, array.strides
