"""Other suites' ways of accepting an attention kernel, re-created from their sources in NumPy.

A peer is a grid of inputs, a reference and a rule. What is re-created is that, and neither the
suite's code nor its kernels nor its hardware. Snapshots of August 2026 unless a row says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import peer_inputs as inputs
from eager import Eager
from peer_rules import Rule, allclose, either, fudged, mean_times, nmse, times

from attnspec.oracle.problem import Problem

__all__ = ["PEERS", "Peer"]

Grid = Callable[[str, int], Iterable[Problem]]

GRADIENTS = ("out", "dq", "dk", "dv")
FLOAT64, FLOAT32 = Eager(steps="float64"), Eager(steps="float32")


@dataclass(frozen=True, kw_only=True)
class Peer:
    """How one suite judges.

    grid: its inputs in a type, from a seed; None for a rule without a suite of its own.
    dtypes: the types that it judges in. compares: the outputs that it looks at.
    gold: its reference. low: its run in low precision, where the rule has one.
    says: the rule in a few words. source: where rule and inputs stand.
    """

    name: str
    source: str
    says: str
    rule: Rule
    dtypes: tuple[str, ...]
    grid: Grid | None
    compares: tuple[str, ...] = GRADIENTS
    gold: Eager = FLOAT32
    low: Eager | None = field(default=None)


HALVES = ("float16", "bfloat16")

PEERS = (
    Peer(
        name="FlashAttention 2",
        source="Dao-AILab/flash-attention tests/test_flash_attn.py",
        says="2 max|e of eager|; grad 3",
        rule=times({"out": 2.0, "other": 3.0}),
        dtypes=HALVES,
        grid=inputs.flash_attention,
        gold=Eager(steps="float32", scaling="query", returned=True),
        low=Eager(steps=None, scaling="key"),
    ),
    Peer(
        name="PyTorch SDPA flash",
        source="pytorch test/test_transformers.py, CUDA, as ported in intel/torch-xpu-ops",
        says="4 max|e of eager|, 1e-5; dq 180, dk 16",
        rule=fudged({"out": 4.0, "dq": 180.0, "dk": 16.0, "dv": 4.0}),
        dtypes=HALVES,
        grid=inputs.pytorch_flash,
        gold=Eager(steps="float32", scaling="both"),
        low=Eager(steps=None, scaling="both"),
    ),
    Peer(
        name="PyTorch SDPA efficient",
        source="pytorch test/test_transformers.py, CUDA, as ported in intel/torch-xpu-ops",
        says="4 max|e of eager|, 1e-5; dq 160, dk 25, dv 8",
        rule=fudged({"out": 4.0, "dq": 160.0, "dk": 25.0, "dv": 8.0, "dbias": 45.0}),
        dtypes=("float32",),
        grid=inputs.pytorch_efficient,
        compares=(*GRADIENTS, "dbias"),
        gold=Eager(steps="float64", scaling="both"),
        low=Eager(steps="float32", scaling="both"),
    ),
    Peer(
        name="PyTorch SDPA CPU",
        source="pytorch test/test_transformers.py, CPU fused against math",
        says="1e-5 + 5e-6|x|; grad 1.25e-5",
        rule=allclose(
            {"out": 1e-5, "other": 1.25e-5}, {"out": 5e-6, "other": 5.25e-6}, equal_nan=True
        ),
        dtypes=("float32",),
        grid=inputs.pytorch_cpu,
        gold=Eager(steps="float32", scaling="both"),
    ),
    Peer(
        name="torch.testing defaults",
        source="torch.testing.assert_close; no suite of its own",
        says="1e-5 + 1.3e-6|x|; f16 1e-3|x|; bf16 1.6e-2|x|",
        rule=allclose(1e-5, {"float32": 1.3e-6, "float16": 1e-3, "bfloat16": 1.6e-2}),
        dtypes=("float32", *HALVES),
        grid=None,
    ),
    Peer(
        name="FlexAttention",
        source="pytorch test/inductor/test_flex_attention.py @00125ef",
        says="mean: 1.1 of eager's, f32 10; lse 2e-2",
        rule=mean_times(
            {"float32": 10.0, "float16": 1.1, "bfloat16": 1.1}, {"lse": allclose(2e-2, 2e-2)}
        ),
        dtypes=("float32", *HALVES),
        grid=inputs.flex,
        compares=("out", "lse", "dq", "dk", "dv"),
        gold=FLOAT64,
        low=Eager(steps=None),
    ),
    Peer(
        name="ONNX node tests",
        source="onnx backend/test/case/node/attention.py, the runner's default tolerance",
        says="1e-7 + 1e-3|x|",
        rule=allclose(1e-7, 1e-3, equal_nan=True),
        dtypes=("float32", "float16"),
        grid=inputs.onnx,
        compares=("out",),
        gold=Eager(steps=None, scaling="both"),
    ),
    Peer(
        name="KernelBench 2025",
        source="KernelBench src/kernelbench/eval.py v0, v0.1; level 1, problem 97",
        says="1e-2 + 1e-2|x|",
        rule=allclose(1e-2, 1e-2),
        dtypes=("float32",),
        grid=inputs.kernelbench,
        compares=("out",),
    ),
    Peer(
        name="KernelBench 2026",
        source="KernelBench src/kernelbench/eval.py @423217d; level 1, problem 97",
        says="1e-4 + 1e-4|x|",
        rule=allclose(1e-4, 1e-4),
        dtypes=("float32",),
        grid=inputs.kernelbench,
        compares=("out",),
    ),
    Peer(
        name="xformers",
        source="facebookresearch/xformers tests/test_mem_eff_attention.py, MSLK fmha/common.py",
        says="f32 3e-4, f16 4e-3, bf16 2e-2; grad 9e-4, 0.2, 0.9",
        rule=allclose(
            {
                "float32": {"out": 3e-4, "lse": 2e-4, "other": 9e-4},
                "float16": {"out": 4e-3, "lse": 2e-4, "other": 0.2},
                "bfloat16": {"out": 2e-2, "lse": 2e-4, "other": 0.9},
            },
            {
                "float32": {"out": 2e-5, "lse": 2e-4, "other": 1e-4},
                "float16": {"out": 4e-4, "lse": 2e-4, "other": 2e-2},
                "bfloat16": {"out": 5e-3, "lse": 2e-4, "other": 0.1},
            },
        ),
        dtypes=("float32", *HALVES),
        grid=inputs.xformers,
        compares=("out", "lse", "dq", "dk", "dv"),
        gold=Eager(steps="float32", scaling="query"),
    ),
    Peer(
        name="llama.cpp",
        source="ggml-org/llama.cpp tests/test-backend-ops.cpp @0054f92, test_flash_attn_ext",
        says="Σe² ≤ 5e-4 Σx²",
        rule=nmse(5e-4),
        dtypes=("float32", "float16"),
        grid=inputs.llama_cpp,
        compares=("out",),
    ),
    Peer(
        name="JAX nn",
        source="jax-ml/jax tests/nn_test.py, dot_product_attention",
        says="0.01 (1 + |x|); grad 0.02, dbias 0.1",
        rule=allclose(*[{"out": 0.01, "lse": 0.01, "dbias": 0.1, "other": 0.02}] * 2),
        dtypes=HALVES,
        grid=inputs.jax_nn,
        compares=("out", "lse", *GRADIENTS[1:], "dbias"),
        gold=Eager(steps=None, scores="float32"),
    ),
    Peer(
        name="FlashInfer",
        source="flashinfer-ai/flashinfer tests/attention",
        says="f16 1e-3, bf16 1e-2 (1 + |x|)",
        rule=allclose(*[{"float16": 1e-3, "bfloat16": 1e-2}] * 2),
        dtypes=HALVES,
        grid=inputs.flashinfer,
        compares=("out", "lse"),
    ),
    Peer(
        name="flashinfer-bench",
        source="flashinfer-ai/flashinfer-bench bench/evaluators",
        says="1e-2 or 1e-2|x|; no inf, no NaN",
        rule=either(1e-2, 1e-2),
        dtypes=("bfloat16",),
        grid=inputs.flashinfer_bench,
        compares=("out", "lse"),
    ),
    Peer(
        name="TransformerEngine",
        source="NVIDIA/TransformerEngine tests/pytorch/attention/test_attention.py",
        says="f16 1e-3, bf16 1.5e-2 (1 + |x|)",
        rule=allclose(*[{"float16": 1e-3, "bfloat16": 1.5e-2}] * 2),
        dtypes=HALVES,
        grid=inputs.transformer_engine,
        gold=Eager(steps=None),
    ),
    Peer(
        name="cuDNN frontend",
        source="NVIDIA/cudnn-frontend test/python/sdpa",
        says="2e-2 + 2e-2|x|; bf16 dk, dv 7e-2; dsinks 4e-2",
        rule=allclose(
            *[
                {
                    "bfloat16": {"dk": 7e-2, "dv": 7e-2, "dsinks": 4e-2, "other": 2e-2},
                    "other": {"dsinks": 4e-2, "other": 2e-2},
                }
            ]
            * 2,
            equal_nan=True,
        ),
        dtypes=HALVES,
        grid=inputs.cudnn_frontend,
        compares=("out", "lse", "dq", "dk", "dv", "dbias", "dsinks"),
    ),
    Peer(
        name="Triton tutorial",
        source="triton-lang/triton python/tutorials/06-fused-attention.py",
        says="1e-2",
        rule=allclose(1e-2, 0.0),
        dtypes=("float16",),
        grid=inputs.triton,
        gold=Eager(steps=None, scores="float32"),
    ),
    Peer(
        name="Keras",
        source="keras-team/keras keras/src/ops/nn_test.py",
        says="1e-6 + 1e-6|x|",
        rule=allclose(1e-6, 1e-6, equal_nan=True),
        dtypes=("float32",),
        grid=inputs.keras,
        compares=("out",),
    ),
    Peer(
        name="MLX",
        source="ml-explore/mlx python/tests/test_fast_sdpa.py",
        says="f32 2e-5, f16 3e-4, bf16 5e-3; grad 1e-2",
        rule=allclose(
            *[
                {
                    "float32": {"out": 2e-5, "other": 1e-2},
                    "float16": {"out": 3e-4, "other": 1e-2},
                    "bfloat16": {"out": 5e-3, "other": 1e-2},
                }
            ]
            * 2
        ),
        dtypes=("float32", *HALVES),
        grid=inputs.mlx,
    ),
    Peer(
        name="tinygrad",
        source="tinygrad test/backend/test_ops.py",
        says="1e-6 + 1e-3|x|; grad 1e-4 + …",
        rule=allclose({"out": 1e-6, "other": 1e-4}, 1e-3),
        dtypes=("float32",),
        grid=inputs.tinygrad,
    ),
)
"""In the order of the documents' chapters."""
