"""The lines of a script that make the inputs of one call, ask the kernel and name its outputs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from attnspec.adapters import Kernel
from attnspec.conformance import standalone
from attnspec.conformance.reductions import is_plain

__all__ = ["CallLines"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class CallLines:
    """One problem as the kernel is given it, and the lines that ask for it."""

    kernel: Kernel
    arrays: Mapping[str, Array]
    plain: Mapping[str, Any]
    want: tuple[str, ...]
    prefix: str  # of its arrays in the data file
    literals: bool
    all_laid_out: bool

    def lines(self) -> Iterator[str]:
        """Assign the inputs, call, and name the outputs."""
        for name, array in self.arrays.items():
            yield from self._input(name, array)
        options = [f"{n}={n}" for n in self.arrays if n not in ("q", "k", "v", "dout", "dlse")]
        options += [f"{n}={value!r}" for n, value in self.plain.items()]
        call = f"attention({', '.join(['q', 'k', 'v', *options])})"
        pair = bool(self.plain.get("return_lse"))
        gradients = [n for n in self.want if n not in ("out", "lse")]
        if not gradients:
            yield f"{'out, lse' if pair else 'out'} = {call}"
            return
        yield from self._gradients(call, options, gradients, pair=pair)

    def _gradients(
        self, call: str, options: list[str], gradients: list[str], *, pair: bool
    ) -> Iterator[str]:
        cotangents = ["dout"] + (["dlse"] if pair else [])
        inputs = [name[1:] for name in gradients]
        result = "out, lse" if pair else "out"
        if self.kernel.framework == "torch":
            yield from (f"{name}.requires_grad_()" for name in inputs)
            yield f"{result} = {call}"
            known = [c for c in cotangents if c in self.arrays]
            outputs = ["out", "lse"][: len(known)]
            yield f"{', '.join(gradients)}, = torch.autograd.grad("
            yield f"    [{', '.join(outputs)}], [{', '.join(inputs)}], [{', '.join(known)}],"
            yield "    materialize_grads=True,"
            yield ")"
        elif self.kernel.framework == "jax":
            variables = ", ".join(inputs)
            yield f"({result}), pullback = jax.vjp(lambda {variables}: {call}, {variables})"
            given = [c if c in self.arrays else "jnp.zeros_like(lse)" for c in cotangents]
            yield f"{', '.join(gradients)}, = pullback({_tuple(given)})"
        else:
            yield f"{result} = {call}"
            options = [option for option in options if not option.startswith("return_lse")]
            options += ["dlse=dlse"] if "dlse" in self.arrays else []
            given = ["q", "k", "v", "dout", *options]
            yield f"gradients = attention.backward({', '.join(given)})"
            yield "if isinstance(gradients, tuple):"
            yield '    gradients = dict(zip(("dq", "dk", "dv"), gradients))'
            yield from (f'{name} = gradients["{name}"]' for name in gradients)

    def _input(self, name: str, array: Array) -> Iterator[str]:
        value = standalone.literal(array) if self.literals else f'data["{self.prefix}{name}"]'
        text = f"{name} = {self._made(value, array.dtype.name)}"
        yield from textwrap.wrap(text, 92, subsequent_indent="    ", break_long_words=False)
        odd = not is_plain(array)
        if self.kernel.framework != "jax" and (odd or self.all_laid_out):
            strides = [step // array.itemsize for step in array.strides]
            if self.kernel.framework == "torch" and min(strides, default=0) < 0:
                return
            shift = array.__array_interface__["data"][0] % 16 // array.itemsize
            yield f"{name} = laid_out({name}, {strides}, {shift})"

    def _made(self, value: str, dtype: str) -> str:
        device = self.kernel.device
        if self.kernel.framework == "torch":
            return f'torch.tensor({value}, dtype=torch.{dtype}, device="{device}")'
        if self.kernel.framework == "jax":
            made = f"jnp.array({value}, {dtype!r})"
            return (
                made if device == "cpu" else f"jax.device_put({made}, jax.devices({device!r})[0])"
            )
        kind = "ml_dtypes.bfloat16" if dtype == "bfloat16" else f"np.{dtype}"
        kind = "bool" if dtype == "bool" else kind
        if self.literals:
            return f"np.array({value}, {kind})"
        return f"{value}.astype({kind})" if dtype == "bfloat16" else value


def _tuple(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"({', '.join(names)})"
