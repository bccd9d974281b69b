"""What attention costs, counted and measured: floating-point operations, and memory against n.

    python benchmarks/costs.py [--json FILE]

Operations come from each framework's own counter: torch's FlopCounterMode, which counts the matrix
products (of the fused kernel by its shapes, without data), and XLA's cost analysis of the compiled
program, which counts all. Beside them stands the closed form, 4n²d forward for all heads together.
Memory is what the forward pass of one head takes beyond its inputs, in a process of its own, with
the exponent b of bytes ~ n^b: about 2 where n × n numbers are held, about 1 where they are not.

Needs `pip install -e '.[torch,jax]'`. About a minute.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import machine
from rich.console import Console
from rich.progress import track
from rich.table import Table

from attnspec.adapters import CallFailed, load
from attnspec.conformance.case import Case, Shape
from attnspec.conformance.memory import exponent, extra_memory
from attnspec.spec.evidence import costs

__all__ = [
    "COUNTERS",
    "Count",
    "Layer",
    "fused_torch",
    "jax_counts",
    "jax_products",
    "torch_counts",
]

WIDTH = 100
TOKENS, SIZE, HEADS = 256, 64, (1, 8)
WEIGHED = ("numpy", "numpy-flash", "torch-eager", "torch-sdpa-math", "torch-sdpa-flash", "jax")
GROWN = Case("normal", Shape(1, 1, 1, 4096, 4096, 64, 64))


@dataclass(frozen=True, kw_only=True)
class Layer:
    """n tokens, width d, h heads of d/h each: q, k and v are (1, h, n, d/h)."""

    n: int
    d: int
    heads: int
    causal: bool = False

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of q, k and v."""
        return (1, self.heads, self.n, self.d // self.heads)

    @property
    def products(self) -> int:
        """The closed form of what the two matrix products of the forward pass cost."""
        return int(costs.attention(self.n, self.d))


@dataclass(frozen=True, kw_only=True)
class Count:
    """Operations of one layer, as its counter has them; exps where it counts those apart."""

    forward: int
    backward: int
    exps: int = 0


# -- counters ------------------------------------------------------------------------------------


def torch_counts(name: str, layer: Layer) -> Count:
    """The matrix products of a registered torch kernel, and of its gradients."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    kernel = load(name)
    q, k, v = (torch.ones(layer.shape, requires_grad=True) for _ in range(3))
    with FlopCounterMode(display=False) as counter:
        out = kernel(q, k, v, scale=1.0, causal=layer.causal)
        forward = counter.get_total_flops()
        out.sum().backward()
    return Count(forward=forward, backward=counter.get_total_flops() - forward)


def fused_torch(layer: Layer) -> Count:
    """torch's flash kernel for CUDA, whose cost torch knows from the shapes alone.

    The backward pass computes Q Kᵀ again: five products for the forward pass's two.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    aten = torch.ops.aten
    forward = aten._scaled_dot_product_flash_attention
    backward = aten._scaled_dot_product_flash_attention_backward
    q, k, v, dout = (torch.empty(layer.shape, device="meta").half() for _ in range(4))
    with FlopCounterMode(display=False) as counter:
        out, lse, *lengths, seed, offset, _ = forward(q, k, v, 0.0, layer.causal, False)
        spent = counter.get_total_flops()
        backward(dout, q, k, v, out, lse, *lengths, 0.0, layer.causal, seed, offset)
    return Count(forward=spent, backward=counter.get_total_flops() - spent)


def jax_counts(layer: Layer) -> Count:
    """All that XLA counts in the compiled registered kernel, and in it with its gradients."""
    kernel = load("jax")

    def attention(q: Any, k: Any, v: Any) -> Any:
        return kernel(q, k, v, scale=0.5, causal=layer.causal)

    return compiled_counts(attention, layer)


def jax_products(layer: Layer) -> Count:
    """The two matrix products alone, (Q Kᵀ) V, and their gradients."""
    return compiled_counts(lambda q, k, v: (q @ k.swapaxes(-1, -2)) @ v, layer)


def compiled_counts(attention: Callable[..., Any], layer: Layer) -> Count:
    """XLA's cost analysis of a function of (q, k, v), compiled, and with its gradients."""
    import jax

    def both(q: Any, k: Any, v: Any, dout: Any) -> Any:
        out, pull = jax.vjp(attention, q, k, v)
        return out, pull(dout)

    operand = jax.ShapeDtypeStruct(layer.shape, "float32")
    forward = _analysis(jax.jit(attention).lower(operand, operand, operand))
    whole = _analysis(jax.jit(both).lower(operand, operand, operand, operand))
    return Count(
        forward=int(forward["flops"]),
        backward=int(whole["flops"] - forward["flops"]),
        exps=int(forward.get("transcendentals", 0)),
    )


def _analysis(lowered: Any) -> dict[str, float]:
    found = lowered.compile().cost_analysis()
    return dict(found[0] if isinstance(found, list) else found)  # a list before JAX 0.5


COUNTERS: dict[str, Callable[[Layer], Count]] = {
    "torch-eager": lambda layer: torch_counts("torch-eager", layer),
    "torch-sdpa-math": lambda layer: torch_counts("torch-sdpa-math", layer),
    "torch flash (CUDA)": fused_torch,
    "jax, (Q Kᵀ) V": jax_products,
    "jax": jax_counts,
}


# -- the command line ----------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """Count, measure, and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("Needs")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="every figure")
    options = parser.parse_args(arguments)
    console = Console(stderr=True)
    steps = [*_counted(), *_weighed()]
    found = [act() for act in track(steps, description="costs", console=console, transient=True)]
    shown = Console(width=WIDTH)
    shown.print(_operations([record for record in found if "forward" in record]))
    shown.print(_memory([record for record in found if "extra" in record]))
    for record in found:
        if "error" in record:
            shown.print(f"{record['name']}: {record['error']}")
    if options.json:
        figures = {"machine": machine.description(), "figures": found}
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


def _counted() -> Iterator[Callable[[], dict[str, Any]]]:
    for name, count in COUNTERS.items():
        for heads in HEADS:
            for causal in (False, True)[: 1 if "V" in name else 2]:
                layer = Layer(n=TOKENS, d=SIZE, heads=heads, causal=causal)
                yield (
                    lambda name=name, count=count, layer=layer: (
                        {"name": name} | asdict(layer) | asdict(count(layer))
                    )
                )


def _weighed() -> Iterator[Callable[[], dict[str, Any]]]:
    for name in WEIGHED:
        yield lambda name=name: {"name": name} | _weight(name)


def _weight(name: str) -> dict[str, Any]:
    try:
        extra = extra_memory(name, GROWN, "float32")
    except CallFailed as failure:
        return {"error": failure.message}
    return {"extra": extra, "exponent": exponent(extra)}


def _operations(records: Sequence[dict[str, Any]]) -> Table:
    title = f"operations, n = {TOKENS}, d = {SIZE}, all heads together"
    table = Table(title=title, box=None, pad_edge=False, title_justify="left")
    table.add_column("counted in")
    for column in ("heads", "causal", "forward", "/ 4n²d", "exps / n²", "backward / forward"):
        table.add_column(column, justify="right")
    for record in records:
        products = Layer(n=record["n"], d=record["d"], heads=record["heads"]).products
        table.add_row(
            record["name"],
            str(record["heads"]),
            "yes" if record["causal"] else "no",
            f"{record['forward']:,}",
            f"{record['forward'] / products:.4f}",
            f"{record['exps'] / TOKENS**2:.0f}" if record["exps"] else "-",
            f"{record['backward'] / record['forward']:.3f}",
        )
    return table


def _memory(records: Sequence[dict[str, Any]]) -> Table:
    shape = f"one head of {GROWN.shape.size} channels, float32"
    title = f"\nMiB beyond the inputs, forward, {shape}"
    table = Table(title=title, box=None, pad_edge=False, title_justify="left")
    table.add_column("measured in")
    sizes = sorted({n for record in records for n in record.get("extra", {})})
    for n in sizes:
        table.add_column(f"n = {n}", justify="right")
    table.add_column("exponent", justify="right")
    for record in records:
        taken = [f"{record['extra'][n] / 2**20:.1f}" for n in sizes if n in record["extra"]]
        table.add_row(record["name"], *taken, f"{record['exponent']:.2f}")
    return table


if __name__ == "__main__":
    main()
