"""What the frameworks' own counters say that attention costs is what the closed forms say."""

from __future__ import annotations

import json
import sys
from itertools import product
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="pip install -e '.[torch]'")
pytest.importorskip("jax", reason="pip install -e '.[jax]'")

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))  # they are scripts, which import one another by name

import costs as benchmark  # noqa: E402
from costs import (  # noqa: E402
    Count,
    Layer,
    fused_torch,
    jax_counts,
    jax_products,
    torch_counts,
)

from attnspec.adapters import CallFailed  # noqa: E402
from attnspec.spec.evidence import costs  # noqa: E402

LAYERS = [
    Layer(n=n, d=d, heads=heads, causal=causal)
    for (n, d), heads, causal in product([(64, 32), (128, 16)], (1, 8), (False, True))
]  # below 64 tokens, and with one channel a head, XLA makes something else of the products


def label(layer: Layer) -> str:
    return f"n{layer.n}d{layer.d}h{layer.heads}{'causal' * layer.causal}"


DENSE = [layer for layer in LAYERS if not layer.causal]

layers = pytest.mark.parametrize("layer", LAYERS, ids=label)


@layers
@pytest.mark.parametrize("name", ["torch-eager", "torch-sdpa-math"])
def test_products_cost_4n2d_for_any_number_of_heads_and_twice_that_backward(name, layer):
    whole = 4 * layer.n**2 * layer.d  # causal too: what is hidden is computed all the same
    assert torch_counts(name, layer) == Count(forward=whole, backward=2 * whole)


@layers
def test_the_fused_kernel_computes_the_scores_again_backward(layer):
    whole = 4 * layer.n**2 * layer.d
    assert fused_torch(layer) == Count(forward=whole, backward=5 * whole // 2)


@pytest.mark.parametrize("layer", DENSE, ids=label)
def test_xla_counts_the_same_products(layer):
    whole = 4 * layer.n**2 * layer.d
    assert jax_products(layer) == Count(forward=whole, backward=2 * whole)


@pytest.mark.parametrize("layer", DENSE, ids=label)
def test_the_softmax_costs_h_times_as_much_for_h_heads(layer):
    n, d, heads = layer.n, layer.d, layer.heads
    counted = jax_counts(layer)
    # Scale, maximum, difference, sum and quotient: 5 a score, less 1 a row (sums of n have n - 1
    # additions); the exponentials stand apart.
    assert counted.forward == 4 * n**2 * d + heads * (5 * n**2 - n)
    assert counted.exps == heads * n**2
    one = jax_counts(Layer(n=n, d=d, heads=1))
    excess, c = counted.forward / one.forward - 1, 5 - 1 / n
    assert excess == pytest.approx(c * (heads - 1) / (c + 4 * d))


def test_the_spec_has_the_same_closed_forms():
    for layer in LAYERS:
        assert layer.products == costs.attention(layer.n, layer.d) == 4 * layer.n**2 * layer.d
    assert costs.softmax(16, 8, 5) == 5 * 8 * 16**2


def test_the_tables_fit_100_columns_and_every_figure_is_on_file(tmp_path, monkeypatch, capsys):
    def weighed(impl: str, case: object, dtype: str) -> dict[int, int]:
        if impl == "jax":
            raise CallFailed("error", "the process that measures its memory ended by -9")
        power = 1 if "flash" in impl else 2
        return {n: 2**20 * n**power // 64 for n in (512, 1024, 2048, 4096)}

    monkeypatch.setattr(benchmark, "extra_memory", weighed)
    path = tmp_path / "costs.json"
    benchmark.main(["--json", str(path)])
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 100
    assert "jax: the process that measures its memory ended by -9" in printed
    found = json.loads(path.read_text())["figures"]
    exponents = {x["name"]: round(x["exponent"], 6) for x in found if "exponent" in x}
    assert exponents["numpy"] == 2
    assert exponents["numpy-flash"] == 1
    assert {x["name"] for x in found if "forward" in x} == benchmark.COUNTERS.keys()
