"""The tolerance is judged by kernels: honest ones stay within it, defects leave it."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnspec.conformance.judge import excess
from attnspec.oracle.formats import FORMATS
from attnspec.oracle.problem import OUTPUTS, Problem
from attnspec.oracle.reference import reference
from attnspec.oracle.rounding import (
    FLOAT32_INSIDE,
    LAMBDA,
    PLAIN,
    PROBABILITIES_ROUNDED,
    tolerance,
)

F32 = np.float32


def wanted(problem):
    """Every output that is defined for the problem."""
    missing = {"dbias": problem.bias is None, "dsinks": problem.sinks is None}
    grads = problem.dout is not None or problem.dlse is not None
    return [n for n in OUTPUTS if not missing.get(n) and (grads or not n.startswith("d"))]


def draw(rng, *, dtype="float32", heads=(1, 1), rows=24, keys=40, size=16, spread=1.0, **options):
    """A random problem; options are fields of `Problem`, or functions of its scores' shape."""
    form, (queries, kvs) = FORMATS[dtype], heads
    shapes = [(1, queries, rows, size), (1, kvs, keys, size), (1, kvs, keys, size)]
    q, k, v = (form.round(spread * rng.standard_normal(s)) for s in shapes)
    dout = form.round(rng.standard_normal(shapes[0]))
    options = {n: x((1, queries, rows, keys)) if callable(x) else x for n, x in options.items()}
    return Problem(q=q, k=k, v=v, dout=dout, **{"scale": size**-0.5} | options)


def storage(name):
    return lambda x: FORMATS[name].round(x).astype(F32)


def same(x):
    return x


def kernel(
    problem,
    *,
    tile=16,
    scale=1.0,
    operands=same,
    tanh=np.tanh,
    scores=same,
    exp=np.exp,
    p=same,
    total=same,
    rescale=True,
    kept=same,
    shares=same,
):
    """Flash attention in float32, tile by tile, and its backward pass; hooks make it wrong.

    `kept` rounds P before it enters dS, and dS itself; `shares` each head's dk and dv.
    """
    store = storage(problem.dtype_name)
    found = {n: np.zeros(problem.shape_of(n)) for n in wanted(problem)}
    entries = np.zeros((*found["lse"].shape, problem.key_count), F32)
    for h in problem.heads():
        q, k, v, dout = (operands(x.astype(F32)) for x in (h.query, h.key, h.value, h.dout))
        dlse = F32(0) if h.dlse is None else h.dlse.astype(F32)[:, None]
        s, slope = (q @ k.T) * F32(h.scale * scale), F32(1)
        if h.softcap is not None:
            capped = tanh(s / F32(h.softcap))
            s, slope = F32(h.softcap) * capped, 1 - capped * capped
        if h.bias is not None:
            s = s + h.bias.astype(F32)
        if h.slope is not None:
            s = s - F32(h.slope) * np.abs(h.ahead).astype(F32)
        s = np.where(h.visible, scores(s), F32(-np.inf))
        top, sums = np.full((len(s), 1), -np.inf, F32), np.zeros((len(s), 1), F32)
        out = np.zeros((len(s), v.shape[1]), F32)
        if h.sink is not None:
            top[:], sums[:] = h.sink, 1
        for j in range(0, s.shape[1], tile):
            new = np.maximum(top, s[:, j : j + tile].max(1, keepdims=True))
            anchor = np.where(np.isneginf(new), F32(0), new)
            e, alpha = exp(s[:, j : j + tile] - anchor), np.exp(top - anchor)
            alpha = alpha if rescale else np.where(np.isneginf(top), F32(0), F32(1))
            sums = total(sums * alpha + e.sum(1, keepdims=True))
            out, top = out * alpha + p(e) @ v[j : j + tile], new
        some = sums > 0
        out = np.where(some, out / np.where(some, sums, 1), F32(0))
        lse = np.where(some, top + np.log(np.where(some, sums, 1)), F32(-np.inf))
        weights = np.where(h.visible, exp(s - np.where(some, lse, F32(0))), F32(0))
        delta = (dout * store(out)).sum(1, keepdims=True)
        ds = kept(kept(weights) * (dout @ v.T - delta + dlse))
        where, kv = (h.batch, h.index), (h.batch, h.kv_index)
        found["out"][where], found["lse"][where] = out, lse[:, 0]
        found["dq"][where] = (p(ds * slope) @ k) * F32(h.scale)
        found["dk"][kv] += shares((p(ds * slope).T @ q) * F32(h.scale))
        found["dv"][kv] += shares(p(weights).T @ dout)
        if h.bias is not None:
            entries[where] = ds
        if h.sink is not None:
            found["dsinks"][h.index] = (np.exp(F32(h.sink) - lse) * (dlse - delta)).sum()
    if problem.bias is not None:
        axes = tuple(a for a in range(4) if problem.bias.shape[a] == 1)
        found["dbias"] = entries.sum(axes, keepdims=True)
    return found


def fractions(problem, answer, arithmetic):
    """Of the hard bound and of 6 sigma, the largest of each output."""
    names = list(answer)
    allowed = tolerance(problem, arithmetic=arithmetic, want=names)
    exact = reference(problem, want=names)
    used = {}
    for name in names:
        t, e = allowed[name], exact[name]
        outside = excess(t.format.round(answer[name]), e)
        assert np.all(outside[t.hard == 0] == 0)
        hard = np.maximum(t.hard + e.bound, 1e-300)
        used[name] = (
            (outside / hard).max(initial=0),
            (outside / np.maximum(LAMBDA * t.sigma + e.bound, 1e-300)).max(initial=0),
        )
    return used


# -- honest kernels stay within ------------------------------------------------------------------

OPTIONS = {
    "causal": True,
    "softcap": 2.0,
    "bias": lambda shape: np.random.default_rng(7).standard_normal(shape).astype(F32),
    "bias of a row": lambda shape: np.linspace(-1, 1, shape[3], dtype=F32)[None, None, None],
    "alibi": lambda shape: F32(2.0) ** -np.arange(1, shape[1] + 1, dtype=F32),
    "sinks": lambda shape: np.linspace(-3, 3, shape[1]).astype(F32),
    "mask": lambda shape: np.random.default_rng(8).random(shape) < 0.7,
    "window": (9, 2),
    "dlse": lambda shape: np.random.default_rng(9).standard_normal(shape[:3]).astype(F32),
}
BIASES = {"bias", "bias of a row"}


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
    options=st.sets(st.sampled_from(sorted(OPTIONS))).filter(lambda o: len(o & BIASES) < 2),
    heads=st.sampled_from([(1, 1), (4, 2), (3, 1)]),
    keys=st.sampled_from([1, 2, 31, 65, 130]),
    spread=st.sampled_from([0.3, 1.0, 3.0]),
    scale=st.sampled_from([0.25, -0.25, 0.0, 1.0]),
)
def test_an_honest_kernel_stays_within(seed, dtype, options, heads, keys, spread, scale):
    rng, chosen = np.random.default_rng(seed), {n.split()[0]: OPTIONS[n] for n in options}
    problem = draw(rng, dtype=dtype, heads=heads, keys=keys, spread=spread, scale=scale, **chosen)
    answer = kernel(problem, tile=32, p=storage(dtype))
    for name, used in fractions(problem, answer, PROBABILITIES_ROUNDED).items():
        assert max(used) <= 1, (name, used)


INEXACT = 2.0**-8


def inexact(function):
    """Errs by up to INEXACT of its values' size, with both signs."""
    return lambda x: (function(x) * (1 + F32(INEXACT) * np.sign(np.sin(999 * x)))).astype(F32)


def tfloat32(x):
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.rint(np.ldexp(mantissa, 11)), exponent - 11).astype(F32)


DECLARED = {
    "exp": ("float32", {"exp": inexact(np.exp)}, {"exp_error": INEXACT}),
    "tanh": ("float32", {"tanh": inexact(np.tanh)}, {"exp_error": INEXACT}),
    "operands": ("float32", {"operands": tfloat32}, {"operands": "tfloat32"}),
    "scores": ("bfloat16", {"scores": storage("bfloat16")}, {"scores": "storage"}),
    "probabilities": ("bfloat16", {"p": storage("bfloat16")}, {"probabilities": "storage"}),
    "kept": (
        "bfloat16",
        {"p": storage("bfloat16"), "kept": storage("bfloat16")},
        {"probabilities": "storage"},
    ),
    "shares": ("bfloat16", {"shares": storage("bfloat16")}, {}),
    "output": ("bfloat16", {}, {}),
}


@pytest.mark.parametrize("name", DECLARED)
@pytest.mark.parametrize("seed", range(3))
def test_one_coarse_step_that_is_declared_is_allowed(name, seed):
    """Each rounding alone, far above all others: its term of the bound has to carry it."""
    dtype, hooks, declared = DECLARED[name]
    chosen = {n: OPTIONS[n] for n in ("bias", "sinks")}
    chosen |= {"softcap": 30.0} if name == "tanh" else {}
    arithmetic = dataclasses.replace(FLOAT32_INSIDE, **declared)
    for keys in (2, 40):
        rng = np.random.default_rng(seed)
        problem = draw(rng, dtype=dtype, heads=(4, 2), keys=keys, spread=1.5, **chosen)
        for output, used in fractions(problem, kernel(problem, **hooks), arithmetic).items():
            assert used[0] <= 1, output


@pytest.mark.parametrize("spread", [10.0, 1e3, 1e6])
def test_scores_beyond_float32_resolution_stay_within_the_hull(spread):
    problem = draw(np.random.default_rng(0), spread=spread, scale=1.0)
    answer = kernel(problem)
    for name in ("out", "lse"):
        used = fractions(problem, {name: answer[name]}, FLOAT32_INSIDE)
        assert used[name][0] <= 1
    hull = np.ptp(problem.v.astype(np.float64), axis=2, keepdims=True)
    assert np.all(tolerance(problem, arithmetic=FLOAT32_INSIDE)["out"].hard <= 1.01 * hull)


# -- defects leave it ----------------------------------------------------------------------------

DEFECTS = {
    "scale 1 % off": ({"scale": 1.01}, FLOAT32_INSIDE),
    "P in bfloat16": ({"p": storage("bfloat16")}, FLOAT32_INSIDE),
    "P with 4 digits": (
        {"p": lambda x: np.ldexp(np.rint(np.ldexp(np.frexp(x)[0], 4)), np.frexp(x)[1] - 4)},
        FLOAT32_INSIDE,
    ),
    "S in bfloat16": ({"scores": storage("bfloat16")}, FLOAT32_INSIDE),
    "l in bfloat16": ({"total": storage("bfloat16")}, FLOAT32_INSIDE),
    "exp wrong by 2^-11": ({"exp": lambda x: np.exp(x) * (1 + F32(2**-11))}, FLOAT32_INSIDE),
    "no rescale": ({"rescale": False}, FLOAT32_INSIDE),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_beyond_the_hard_bound_in_float32(name):
    hooks, arithmetic = DEFECTS[name]
    problem = draw(np.random.default_rng(1), keys=64, spread=1.5)
    used = fractions(problem, kernel(problem, **hooks), arithmetic)
    assert max(hard for hard, _ in used.values()) > 1
    assert max(model for _, model in used.values()) > 10


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["scale 1 % off", "S in bfloat16", "l in bfloat16", "no rescale"])
def test_a_defect_is_seen_through_half_precision(name, dtype):
    hooks = {"p": storage(dtype)} | DEFECTS[name][0]
    problem = draw(np.random.default_rng(1), dtype=dtype, keys=64, spread=2.0)
    used = fractions(problem, kernel(problem, **hooks), PROBABILITIES_ROUNDED)
    assert max(model for _, model in used.values()) > 1


# -- honest by other means -------------------------------------------------------------------------


def test_float64_kernels_use_part_of_their_bound():
    """The bound's own float64 statistics err as much as the kernel: it must hold all the same."""
    problem = draw(np.random.default_rng(10), dtype="float64", keys=100, spread=2.0)
    head = next(problem.heads())
    s = head.query @ head.key.T * head.scale
    p = np.exp(s - s.max(1, keepdims=True))
    answer = {"out": (p @ head.value / p.sum(1, keepdims=True))[None, None]}
    allowed = tolerance(problem, arithmetic=PLAIN)["out"]
    exact = reference(problem, within={"out": allowed.sigma / 1024})["out"]
    outside = excess(answer["out"], exact)
    assert 0 < (outside / (LAMBDA * allowed.sigma)).max() < 1
    assert (outside / allowed.hard).max() < 1


def test_sequential_sums_under_a_dominant_key():
    """A running sum swallows each weight below u: sigma must know it (float32, one by one)."""
    rng, keys = np.random.default_rng(11), 3000
    q, k = np.ones((1, 1, 8, 8), F32), rng.standard_normal((1, 1, keys, 8)).astype(F32)
    q[..., 1:] = 0.3 * rng.standard_normal((8, 7))
    k[..., 0] = 0
    k[0, 0, 0] = [17, 0, 0, 0, 0, 0, 0, 0]
    v = (np.abs(rng.standard_normal((1, 1, keys, 8))) + 1).astype(F32)
    problem = Problem(q=q, k=k, v=v, scale=1.0)
    head = next(problem.heads())
    s = (head.query @ head.key.T).astype(F32)
    p = np.exp(s - s.max(1, keepdims=True))
    out, sums = np.zeros((8, 8), F32), np.zeros((8, 1), F32)
    for j in range(keys):
        out, sums = out + p[:, j : j + 1] * v[0, 0, j], sums + p[:, j : j + 1]
    used = fractions(problem, {"out": (out / sums)[None, None]}, FLOAT32_INSIDE)["out"]
    assert used[0] < 1
    assert used[1] < 1
