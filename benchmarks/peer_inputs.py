"""What the suites ask: their shapes, options and numbers, thinned to seconds on a CPU.

Each function draws the problems of one suite in one type. The shapes are those of the suite's grid
or, where that holds hundreds of cases or long sequences, some of each kind: one of every option,
odd and even lengths, the length that makes its inputs flat. Batches and head counts are small.
Keys are aligned bottom-right, so top-left cases are asked only where Nq = Nk. No dropout, no pages.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from peer_draws import (
    Draws,
    bias,
    blocks,
    counting,
    empty_rows,
    first_keys_hidden,
    lengths,
    mask,
    normal,
    powers,
    sinks,
    slopes,
    sparse_integers,
    thousandths,
    uniform,
)

from attnspec.oracle.problem import Problem

__all__ = [
    "cudnn_frontend",
    "flash_attention",
    "flashinfer",
    "flashinfer_bench",
    "flex",
    "jax_nn",
    "keras",
    "kernelbench",
    "llama_cpp",
    "mlx",
    "onnx",
    "pytorch_cpu",
    "pytorch_efficient",
    "pytorch_flash",
    "tinygrad",
    "transformer_engine",
    "triton",
    "xformers",
]

Problems = Iterator[Problem]


def flash_attention(dtype: str, seed: int) -> Problems:
    """randn; d 32 … 128; unequal and odd lengths; MQA, GQA, causal, local, ALiBi, softcap, ragged.

    With softcap, q is multiplied by the cap.
    """
    p = Draws(dtype, seed, normal())
    yield p("b2h2g2q113k203d32v32")
    yield p("b1h2g2q128k217d59v59", causal=True)
    yield p("b1h6g2q97k97d32v32", causal=True)
    yield p("b1h6g1q64k128d40v40")
    yield p("b1h2g2q1k239d128v128")
    yield p("b1h2g2q3k399d80v80", causal=True)
    yield p("b1h2g2q127k256d96v96", window=(31, 17))
    yield p("b2h2g2q203k113d32v32", window=(60, 0))
    yield p("b1h2g2q256k108d64v64", causal=True)
    yield p("b2h3g1q113k128d64v64", alibi=slopes(0.3), causal=True)
    yield p("b1h2g2q108k256d64v64", alibi=slopes(0.3))
    yield p("b1h3g3q128k203d64v64", softcap=50.0, q_factor=50.0)
    yield p("b1h6g2q97k211d59v59", softcap=50.0, q_factor=50.0, causal=True)
    yield p("b3h2g1q113k203d64v64", key_lengths=lengths(3), query_lengths=lengths(2))
    yield p("b3h2g2q97k97d40v40", causal=True, key_lengths=lengths(3), query_lengths=lengths(2))
    yield p("b2h4g1q1k300d64v64", key_lengths=lengths(3, 0.1), causal=True)


def pytorch_flash(dtype: str, seed: int) -> Problems:
    """torch.rand; q 4, 143 (here 33), k 4, 127, 579, 2048; d 8, 203, 256; scale 1/d; GQA; causal.

    Causal cases are square.
    """
    p = Draws(dtype, seed, uniform(0, 1))
    yield p("b1h4g4q4k4d8v8")
    yield p("b8h2g2q4k127d8v8", scale=1 / 8)
    yield p("b1h1g1q33k579d203v203")
    yield p("b1h1g1q33k127d256v256", scale=1 / 256)
    yield p("b2h2g2q4k579d8v8")
    yield p("b1h1g1q33k2048d8v8")
    yield p("b1h1g1q4k2048d64v64", scale=1 / 64)
    yield p("b1h2g2q143k143d8v8", causal=True)
    yield p("b8h2g2q4k4d8v8", causal=True)
    yield p("b1h2g2q127k127d64v64", causal=True)
    yield p("b2h4g2q33k127d8v8")
    yield p("b1h10g2q33k33d16v16", causal=True)


def pytorch_efficient(dtype: str, seed: int) -> Problems:
    """torch.rand; lengths 8, 103, 312, 2048 …; d 8, 16, 96, 128; float masks; square causal."""
    p = Draws(dtype, seed, uniform(0, 1))
    yield p("b1h3g3q8k8d8v8")
    yield p("b8h2g2q8k103d16v16", scale=1 / 16)
    yield p("b1h1g1q103k312d96v96")
    yield p("b1h2g2q103k103d128v128", causal=True)
    yield p("b1h1g1q33k2048d16v16", scale=1 / 16)
    yield p("b1h2g2q103k103d8v8", causal=True)
    for axes in ("bhqk", "qk"):
        yield p("b2h3g3q8k312d16v16", bias=bias(axes, uniform(0, 1)))
        yield p("b1h1g1q103k208d96v96", bias=bias(axes, uniform(0, 1)))
    yield p("b2h2g2q64k64d16v16", mask=empty_rows)


def pytorch_cpu(dtype: str, seed: int) -> Problems:
    """randn; q 11, 514, k 17, 514; d 8; masks of every broadcast pattern, boolean and float."""
    p = Draws(dtype, seed, normal())
    for q, k in ((11, 17), (11, 514), (514, 17)):
        yield p(f"b2h1g1q{q}k{k}d8v8")
    yield p("b2h1g1q11k11d8v8", causal=True)
    yield p("b1h1g1q514k514d8v8", causal=True)
    for axes in ("bhqk", "qk", "bqk", "hqk", "bk", "k"):
        yield p("b12h3g3q11k17d8v8", mask=mask(axes))
        yield p("b2h3g3q60k70d16v16", bias=bias(axes, normal()))
    yield p("b2h4g2q11k17d8v8")
    yield p("b2h2g2q11k17d8v8", mask=empty_rows)


def flex(dtype: str, seed: int) -> Problems:
    """randn; 2048 ± 3 (here 128 ± 3), d 64 (here 32); score and mask functions, GQA, documents."""
    p = Draws(dtype, seed, normal())
    for shape in ("b2h2g2q128k128d32v32", "b1h2g2q125k131d32v32", "b1h2g2q1k128d32v32"):
        yield p(shape)
    yield p("b2h2g2q128k128d32v32", causal=True)
    yield p("b2h4g1q128k128d32v32", causal=True)
    yield p("b2h4g2q64k128d32v32")
    yield p("b1h2g2q131k131d32v32", window=(32, 0))
    yield p("b1h2g2q128k128d32v32", alibi=powers)
    yield p("b1h2g2q128k128d32v32", softcap=20.0)
    yield p("b1h2g2q128k128d32v32", bias=bias("qk", normal()))
    yield p("b1h2g2q128k128d32v32", mask=blocks(5))
    yield p("b2h2g2q64k64d32v32", mask=empty_rows)
    yield p("b2h2g2q64k64d32v32", mask=mask("bk"))


def onnx(dtype: str, seed: int) -> Problems:
    """random [0, 1); (2, 3, 4 … 6, 8); masks of 2 to 4 axes, GQA, past keys, windows, padding."""
    p, plain = Draws(dtype, seed, uniform(0, 1)), "b2h3g3q4k6d8v8"
    yield p(plain)
    yield p("b2h3g3q4k6d8v10")
    yield p("b2h9g3q4k6d8v8")
    yield p(plain, scale=0.01)
    yield p(plain, softcap=2.0)
    yield p("b2h3g3q4k4d8v8", causal=True)
    yield p("b2h3g3q4k18d8v8", causal=True)
    yield p("b2h9g3q4k18d8v8", causal=True, bias=bias("qk", uniform(0, 1)))
    for axes in ("qk", "hqk", "bhqk"):
        yield p(plain, bias=bias(axes, uniform(0, 1)))
        yield p(plain, mask=mask(axes))
    yield p(plain, softcap=2.0, bias=bias("qk", uniform(0, 1), hidden=0.3))
    yield p(plain, mask=empty_rows)
    yield p(plain, key_lengths=lengths(3))
    yield p("b2h3g3q4k10d8v8", window=(3, 0))


def kernelbench(dtype: str, seed: int) -> Problems:
    """torch.rand; problem 97 of level 1: (32, 32, 512, 1024), here 2 × 2 heads, 65 rows, d 64."""
    p = Draws(dtype, seed, uniform(0, 1))
    yield p("b2h2g2q65k512d64v64")


def xformers(dtype: str, seed: int) -> Problems:
    """3 · randn; lengths 1, 2, 31, 34, 72, 132, 256; Dv ≠ D; causal, local, blocks, padding, bias.

    Cases with more queries than keys are rewritten by the suite to as many.
    """
    p = Draws(dtype, seed, normal(3.0), normal())
    yield p("b2h3g3q32k64d32v32")
    yield p("b1h5g5q2k3d3v3")
    yield p("b1h3g3q31k132d34v34")
    yield p("b2h3g3q72k256d64v128")
    yield p("b1h3g3q1k136d128v128")
    yield p("b2h3g3q90k90d31v31", causal=True)
    yield p("b2h3g3q34k68d64v64", causal=True)
    yield p("b1h3g3q68k132d32v32", window=(20, 0))
    yield p("b1h3g3q72k72d32v32", window=(9, 9))
    yield p("b1h3g3q90k136d64v64", mask=blocks(4))
    yield p("b3h4g4q15k132d32v32", key_lengths=lengths(3, 0.1))
    yield p("b3h4g2q4k132d64v64", key_lengths=lengths(3, 0.1), causal=True)
    yield p("b2h3g3q34k68d32v32", bias=bias("bhqk", normal()))
    yield p("b2h3g3q31k90d32v32", bias=first_keys_hidden)


def llama_cpp(dtype: str, seed: int) -> Problems:
    """uniform [-1, 1); heads 40 … 256; kv 113, 512; nb 1, 3, 32; mask, sinks, ALiBi, softcap."""
    p, hiding = Draws(dtype, seed, uniform(-1, 1)), bias("bqk", uniform(-1, 1), hidden=0.3)
    for size in (40, 64, 128, 256):
        yield p(f"b1h4g4q3k113d{size}v{size}", bias=hiding)
    yield p("b1h4g4q32k512d64v64")
    yield p("b1h16g4q1k113d128v128", bias=hiding)
    yield p("b3h4g1q3k113d64v64", bias=hiding)
    yield p("b1h4g4q35k113d64v64", bias=hiding, sinks=sinks(uniform(-10, 10)))
    yield p("b1h4g4q3k512d64v64", bias=hiding, sinks=sinks(uniform(-10, 10)))
    yield p("b1h4g4q32k113d128v128", bias=hiding, softcap=10.0)
    yield p("b1h4g4q3k113d64v64", bias=hiding, alibi=powers)
    yield p("b1h4g1q35k512d192v128", bias=hiding)


def jax_nn(dtype: str, seed: int) -> Problems:
    """randn; B 2, T = S = 128, N 4, H 32; GQA 1, 2, 4; bias, causal, padding, window (3, 2)."""
    p = Draws(dtype, seed, normal())
    for groups in (4, 2, 1):
        yield p(f"b2h4g{groups}q128k128d32v32")
    plain = "b2h4g4q128k128d32v32"
    yield p(plain, causal=True)
    yield p(plain, bias=bias("hqk", normal()))
    yield p(plain, mask=mask("bhqk"))
    yield p(plain, key_lengths=lengths(3), query_lengths=lengths(2))
    yield p(plain, window=(3, 2))
    yield p(plain, window=(3, 0), causal=True)
    yield p("b2h4g2q128k128d32v32", causal=True, bias=bias("hqk", normal()))


def flashinfer(dtype: str, seed: int) -> Problems:
    """randn; q 1, 17, 37, kv 54, 97, 577; GQA; bottom-right causal, window, masks, ragged."""
    p = Draws(dtype, seed, normal())
    yield p("b1h4g4q1k54d128v128")
    yield p("b3h8g2q1k97d64v64", key_lengths=lengths(3))
    yield p("b1h8g1q37k577d128v128", causal=True)
    yield p("b1h4g4q17k54d256v256", causal=True)
    yield p("b1h4g4q37k97d64v64")
    yield p("b1h4g2q54k177d128v128", causal=True, window=(33, None))
    yield p("b1h4g2q17k97d64v64", mask=mask("qk"))
    yield p("b3h4g2q37k97d64v64", causal=True, key_lengths=lengths(3), query_lengths=lengths(2))
    yield p("b2h4g2q17k97d64v64", causal=True, sinks=sinks(normal()))


def flashinfer_bench(dtype: str, seed: int) -> Problems:
    """randn in the shapes of served models: GQA decode and prefill, ragged."""
    p = Draws(dtype, seed, normal())
    yield p("b3h8g2q1k97d128v128", key_lengths=lengths(3))
    yield p("b1h8g1q1k577d128v128")
    yield p("b1h8g2q37k97d128v128", causal=True)
    yield p("b3h4g1q34k177d128v128", causal=True, key_lengths=lengths(3))


def transformer_engine(dtype: str, seed: int) -> Problems:
    """0.1 · randn; s 128, 256 (here half), 2048; every mask, window, ALiBi, bias, GQA, sinks."""
    p = Draws(dtype, seed, normal(0.1), thousandths)
    ragged = {"key_lengths": lengths(3), "query_lengths": lengths(2)}
    yield p("b2h2g2q64k64d64v64")
    yield p("b2h4g1q64k64d64v64", causal=True)
    yield p("b1h2g2q32k2048d32v32")
    yield p("b1h2g1q32k2048d32v32", causal=True)
    yield p("b2h2g2q64k128d64v64", causal=True)
    yield p("b2h2g2q64k64d64v64", **ragged)
    yield p("b2h4g2q64k64d64v64", causal=True, **ragged)
    yield p("b2h2g2q64k128d64v64", mask=mask("bqk"))
    yield p("b2h2g2q128k128d64v64", window=(16, 0))
    yield p("b2h2g2q64k128d64v64", window=(16, 8))
    yield p("b2h2g2q64k64d64v64", alibi=powers, causal=True)
    yield p("b2h2g2q64k64d64v64", bias=bias("hqk", normal()))
    yield p("b2h2g2q64k64d64v64", sinks=sinks(normal()), causal=True)
    yield p("b2h2g2q64k64d128v64", causal=True)
    yield p("b3h2g2q1k128d64v64")


def cudnn_frontend(dtype: str, seed: int) -> Problems:
    """Sparse small integers; random sizes, GQA, windows, ALiBi, bias, padding, sinks."""
    p = Draws(dtype, seed, sparse_integers)
    yield p("b2h4g2q64k64d64v64")
    yield p("b2h4g4q37k115d72v40", causal=True)
    yield p("b1h2g2q64k512d128v128")
    yield p("b1h4g1q96k96d32v32", causal=True)
    yield p("b2h2g2q51k173d64v64", window=(20, 4))
    yield p("b2h2g2q64k128d64v64", alibi=powers, causal=True)
    yield p("b2h2g2q51k77d64v64", bias=bias("bhqk", normal()))
    yield p("b3h2g1q45k130d64v64", key_lengths=lengths(3), query_lengths=lengths(2))
    yield p("b2h4g2q33k65d64v64", sinks=sinks(normal()))
    yield p("b2h4g2q1k300d64v64", key_lengths=lengths(3))


def triton(dtype: str, seed: int) -> Problems:
    """N(0, 0.5²), scale 0.5; N 128, 256 (here 128), d 64, 128; causal or not."""
    p = Draws(dtype, seed, normal(0.5), normal())
    for causal in (True, False):
        yield p("b2h2g2q128k128d64v64", scale=0.5, causal=causal)
        yield p("b1h1g1q128k128d128v128", scale=0.5, causal=causal)


def keras(dtype: str, seed: int) -> Problems:
    """arange over (2, 3, 4, 8), so that softmax is one-hot; scale, bias, mask, causal."""
    p, shape = Draws(dtype, seed, counting), "b2h4g4q3k3d8v8"
    yield p(shape)
    yield p(shape, scale=1.0)
    yield p(shape, causal=True)
    yield p(shape, mask=lambda rng, full: np.tri(full[2], full[3], dtype=bool)[None, None])
    yield p(shape, bias=lambda rng, full: counting(rng, (full[0], full[1], 3, 3)))


def mlx(dtype: str, seed: int) -> Problems:
    """randn / 2; q 1, 31, 63, kv 64, 129, 400; d 64 … 256; masks, sinks, GQA, causal."""
    p = Draws(dtype, seed, normal(0.5))
    yield p("b1h4g4q1k400d64v64")
    yield p("b1h8g2q1k129d128v128")
    yield p("b1h8g2q31k63d64v64")
    yield p("b2h4g4q63k129d96v96", causal=True)
    yield p("b1h8g1q64k64d128v128", causal=True)
    yield p("b1h4g4q31k63d256v256", mask=mask("qk"))
    yield p("b2h4g2q31k129d64v64", mask=mask("bhqk"))
    yield p("b2h4g2q31k129d64v64", bias=bias("bhqk", normal(), hidden=0.3))
    yield p("b2h4g2q63k129d64v64", sinks=sinks(normal()))
    yield p("b1h4g2q1k129d64v64", sinks=sinks(normal()), mask=mask("k"))
    yield p("b1h2g2q16k16d64v64", mask=empty_rows)


def tinygrad(dtype: str, seed: int) -> Problems:
    """uniform(-2, 2); (32, 8, 16, 64), here (2, 2, …); mask, causal, GQA."""
    p = Draws(dtype, seed, uniform(-2, 2), uniform(0, 1))
    yield p("b2h2g2q16k16d64v64")
    yield p("b2h2g2q16k16d64v64", bias=bias("bhqk", uniform(-2, 2)))
    yield p("b2h2g2q16k16d64v64", mask=mask("bhqk"))
    yield p("b2h2g2q16k16d64v64", causal=True)
    yield p("b2h4g2q16k16d64v64")
