"""The bridge to torch. Importing this file imports no torch; using it does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from attnspec.adapters.frameworks import NoGradient, digest, litter, private_copy, uninstalled

__all__ = ["BRIDGE", "TorchBridge"]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

Array = npt.NDArray[Any]


class TorchBridge:
    """See `attnspec.adapters.frameworks.Bridge`."""

    array = "torch tensor"
    strides = "positive"

    def missing(self, device: str) -> str | None:
        """The processor needs torch alone; anything else is looked for."""
        reason = uninstalled("torch")
        if reason or device == "cpu":
            return reason
        import torch

        try:
            wanted = torch.device(device)
            if wanted.type == "cuda" and not torch.cuda.is_available():
                build = "has" if torch.version.cuda else "is a build without"
                return f"no CUDA device: it needs one, and torch {torch.__version__} {build} CUDA"
            torch.empty(0, device=wanted)
        except (RuntimeError, AssertionError, NotImplementedError):
            return f"no device {device!r} in this torch"
        return None

    def session(self, dtype: str) -> AbstractContextManager[Any]:
        """Torch needs no settings."""
        return nullcontext()

    def put(self, array: Array, device: str) -> Any:
        """A tensor with the same strides; contiguous where a stride is negative."""
        import torch

        if min(array.strides, default=0) < 0:
            array = np.array(array, order="C")
        buffer, offset, strides = private_copy(array)
        # torch reads no ml_dtypes: bfloat16 crosses as the integers of the same bits.
        bits = buffer.view(np.int16) if array.dtype == BFLOAT16 else buffer
        tensor = torch.from_numpy(bits).to(device)
        tensor = tensor.view(torch.bfloat16) if array.dtype == BFLOAT16 else tensor
        steps = [stride // array.itemsize for stride in strides]
        return tensor.as_strided(array.shape, steps, offset)

    def digest(self, value: Any) -> bytes:
        """Of the whole storage that the tensor is a view of."""
        value = value.detach()
        count = value.untyped_storage().nbytes() // value.element_size()
        return digest(self.get(value.as_strided((count,), (1,), 0)))

    def litter(self, shapes: Iterable[tuple[int, ...]], dtype: str, device: str) -> None:
        """See `Bridge.litter`."""
        import torch

        kind = getattr(torch, dtype)
        litter(lambda shape: torch.full(shape, torch.nan, dtype=kind, device=device), shapes)

    def get(self, value: Any) -> Array:
        """A contiguous NumPy copy, from any device."""
        import torch

        value = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        if value.dtype == torch.bfloat16:
            bits: Array = value.view(torch.int16).numpy()
            return bits.view(BFLOAT16)
        array: Array = value.numpy()
        return array

    def describe(self, value: Any) -> tuple[str, tuple[int, ...]] | None:
        """See `Bridge.describe`."""
        import torch

        if not isinstance(value, torch.Tensor):
            return None
        return str(value.dtype).removeprefix("torch."), tuple(value.shape)

    def derive(
        self,
        forward: Callable[[Mapping[str, Any]], tuple[Any, ...]],
        arrays: Mapping[str, Any],
        *,
        inputs: Sequence[str],
        cotangents: Sequence[Any],
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Gradients by autograd."""
        import torch

        leaves = [arrays[name].requires_grad_() for name in inputs]
        outputs = forward(arrays)
        pairs = [(o, c) for o, c in zip(outputs, cotangents, strict=True) if c is not None]
        if not all(output.requires_grad for output, _ in pairs):
            raise NoGradient("the output has no autograd graph")
        gradients = torch.autograd.grad(
            [output for output, _ in pairs],
            leaves,
            [cotangent for _, cotangent in pairs],
            materialize_grads=True,  # an input that the kernel does not read has gradient 0
        )
        return outputs, tuple(gradients)


BRIDGE = TorchBridge()
