"""The bridge to JAX. Importing this file imports no JAX; using it does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from attnspec.adapters.frameworks import digest, litter, uninstalled

__all__ = ["BRIDGE", "JaxBridge"]

Array = npt.NDArray[Any]


class JaxBridge:
    """See `attnspec.adapters.frameworks.Bridge`."""

    array = "JAX array"
    strides = "none"

    def missing(self, device: str) -> str | None:
        """The processor needs JAX alone; anything else is looked for."""
        reason = uninstalled("jax")
        if reason or device == "cpu":
            return reason
        import jax

        try:
            jax.devices(device)
        except RuntimeError:
            return f"no device {device!r} in this JAX"
        return None

    def session(self, dtype: str) -> AbstractContextManager[Any]:
        """64-bit numbers only where they are asked for: JAX narrows them to 32 otherwise."""
        if dtype != "float64":
            return nullcontext()
        import jax

        settings = jax if hasattr(jax, "enable_x64") else import_module("jax.experimental")
        enabled: AbstractContextManager[Any] = settings.enable_x64(True)
        return enabled

    def put(self, array: Array, device: str) -> Any:
        """An array committed to the device. JAX has no strides."""
        import jax

        return jax.device_put(np.array(array, order="C"), jax.devices(device)[0])

    def digest(self, value: Any) -> bytes:
        """Of the array alone: what lies around it is not to be seen."""
        return digest(self.get(value))

    def litter(self, shapes: Iterable[tuple[int, ...]], dtype: str, device: str) -> None:
        """See `Bridge.litter`."""
        import jax
        import jax.numpy as jnp

        place = jax.devices(device)[0]
        litter(lambda shape: jax.device_put(jnp.full(shape, jnp.nan, dtype), place), shapes)

    def get(self, value: Any) -> Array:
        """A NumPy copy."""
        return np.array(value, order="C")

    def describe(self, value: Any) -> tuple[str, tuple[int, ...]] | None:
        """See `Bridge.describe`."""
        import jax

        return (value.dtype.name, value.shape) if isinstance(value, jax.Array) else None

    def derive(
        self,
        forward: Callable[[Mapping[str, Any]], tuple[Any, ...]],
        arrays: Mapping[str, Any],
        *,
        inputs: Sequence[str],
        cotangents: Sequence[Any],
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Gradients by `jax.vjp`."""
        import jax
        import jax.numpy as jnp

        def of_inputs(*values: Any) -> tuple[Any, ...]:
            return forward({**arrays, **dict(zip(inputs, values, strict=True))})

        outputs, pullback = jax.vjp(of_inputs, *[arrays[name] for name in inputs])
        pairs = zip(outputs, cotangents, strict=True)
        return outputs, pullback(tuple(jnp.zeros_like(o) if c is None else c for o, c in pairs))


BRIDGE = JaxBridge()
