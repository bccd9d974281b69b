"""The registered implementations against the formula in float64: smoke, not judgement."""

from typing import Any

import numpy as np
import pytest

from attnspec.adapters import CallFailed, Kernel, call, load, registered
from attnspec.oracle.formats import FORMATS
from attnspec.oracle.problem import Problem

NAMES = [name for name, missing in registered().items() if missing is None]
SLOW = ("jax", "torch-flex")  # they compile at every new shape and option
FEW = ("causal", "open-window", "mask-and-bias", "key-lengths", "other-scale")
LOOSE = {"float64": 1e-12, "float32": 1e-5, "float16": 1e-2, "bfloat16": 8e-2}
RNG = np.random.default_rng(0)
QUERIES, KEYS, SIZE = 37, 53, 8


def formula(p: Problem) -> dict[str, Any]:
    """out and lse, row by row as the definition reads; the masked row is 0 and -inf."""
    out = np.zeros(p.shape_of("out"))
    lse = np.full(p.shape_of("lse"), -np.inf)
    for h in p.heads():
        s = h.scale * h.query @ h.key.T
        s = s if h.softcap is None else h.softcap * np.tanh(s / h.softcap)
        s = s if h.bias is None else s + h.bias
        s = s if h.slope is None else s - h.slope * np.abs(h.ahead)
        for i, seen in enumerate(h.visible):
            weights, sink = np.exp(s[i, seen]), 0.0 if h.sink is None else np.exp(h.sink)
            total = weights.sum() + sink
            if total > 0:
                out[h.batch, h.index, i] = weights @ h.value[seen] / total
                lse[h.batch, h.index, i] = np.log(total)
    return {"out": out, "lse": lse}


def numeric_gradient(p: Problem, name: str) -> float:
    """The derivative of <dout, out> along a fixed direction, by a central difference."""
    x = getattr(p, name)
    step = 1e-5 * np.cos(np.arange(x.size)).reshape(x.shape)
    ends = [(formula(p.replace(**{name: x + s}))["out"] * p.dout).sum() for s in (step, -step)]
    return float(ends[0] - ends[1]) / 2e-5


def ask(dtype: str, diagonal: str, **fields: Any) -> Problem:
    form = FORMATS[dtype]

    def numbers(*shape: int) -> Any:
        return form.round(RNG.standard_normal(shape))

    return Problem(
        q=numbers(2, 4, QUERIES, SIZE),
        k=numbers(2, 2, KEYS, SIZE),
        v=numbers(2, 2, KEYS, SIZE),
        scale=0.3,
        diagonal=diagonal,
        dout=numbers(2, 4, QUERIES, SIZE),
        **fields,
    )


def options(dtype: str) -> dict[str, dict[str, Any]]:
    wide = np.float64 if dtype == "float64" else np.float32
    mask = RNG.random((2, 1, QUERIES, KEYS)) < 0.7
    mask[..., 0] = True
    bias = FORMATS[dtype].round(RNG.standard_normal((4, 1, KEYS)))
    bias[:, :, 7] = -np.inf
    return {
        "plain": {},
        "causal": {"causal": True},
        "window": {"window": (9, 60)},
        "open-window": {"window": (None, 2)},
        "mask": {"mask": mask},
        "first-tile-hidden": {"mask": np.arange(KEYS) >= 40},
        "bias": {"bias": bias},
        "mask-and-bias": {"mask": mask[0, 0], "bias": bias},
        "softcap": {"softcap": 1.5},
        "sinks": {"sinks": np.linspace(-1, 2, 4).astype(wide)},
        "alibi": {"alibi": np.array([0.5, 0.25, 0.1, 0], wide), "causal": True},
        "key-lengths": {"key_lengths": np.array([KEYS, 20])},
        "both-lengths": {
            "key_lengths": np.array([KEYS, 31]),
            "query_lengths": np.array([QUERIES, 12]),
            "causal": True,
        },
        "other-scale": {},
    }


def answered(kernel: Kernel, problem: Problem, *want: str) -> dict[str, Any] | None:
    """The outputs; None where the kernel does not claim the problem."""
    try:
        answer = call(kernel, problem, want=want)
    except CallFailed as failed:
        if failed.status != "not claimed":
            raise
        return None
    assert answer.changed == ()
    return {name: output.astype(np.float64) for name, output in answer.outputs.items()}


@pytest.mark.parametrize("name", NAMES)
def test_it_computes_the_formula_under_every_option_that_it_claims(name: str) -> None:
    kernel = load(name)
    asked = 0
    dtypes = kernel.dtypes[-1:] if name in SLOW else kernel.dtypes
    for dtype in dtypes:
        for option, fields in options(dtype).items():
            if name in SLOW and option not in FEW:
                continue
            problem = ask(dtype, kernel.diagonal, **fields)
            problem = problem.replace(scale=-1.25) if option == "other-scale" else problem
            want = ("out", "lse") if "return_lse" in kernel.options else ("out",)
            found, expected = answered(kernel, problem, *want), formula(problem)
            asked += found is not None
            for output in found or ():
                error = np.where(
                    found[output] == expected[output],
                    0.0,
                    np.abs(found[output] - np.nan_to_num(expected[output], neginf=1e9)),
                )
                assert error.max() < 4 * LOOSE[dtype], (dtype, option, output)
    assert asked >= 4 * len(dtypes)


@pytest.mark.parametrize("name", NAMES)
def test_its_gradients_are_those_of_the_formula(name: str) -> None:
    kernel = load(name)
    dtype = "float64" if "float64" in kernel.dtypes else kernel.dtypes[-1]
    loose = 1e-6 if dtype == "float64" else 10 * LOOSE[dtype]
    more = ("causal", "mask-and-bias", "softcap", "sinks", "both-lengths")
    for option in ("plain", *more)[: 1 if name in SLOW else None]:
        problem = ask(dtype, kernel.diagonal, **options(dtype)[option])
        exact = problem.replace(
            **{
                field: value.astype(np.float64)
                for field in ("q", "k", "v", "dout", "bias", "sinks")
                if (value := getattr(problem, field)) is not None
            }
        )
        inputs = [n for n in ("q", "k", "v", "bias", "sinks") if getattr(problem, n) is not None]
        found = answered(kernel, problem, *(f"d{n}" for n in inputs)) or {}
        for n in inputs if found else ():
            gradient, slots = found[f"d{n}"], getattr(exact, n)
            step = np.cos(np.arange(slots.size)).reshape(slots.shape)
            along = (gradient * step).sum()
            size = np.abs(gradient * step).sum()
            assert abs(along - numeric_gradient(exact, n)) < loose * size, (option, n)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("option", ["mask", "bias"])
def test_a_row_that_sees_nothing_is_what_it_declares(name: str, option: str) -> None:
    kernel = load(name)
    dtype = FORMATS[kernel.dtypes[-1]].dtype
    hides = {"mask": np.ones((QUERIES, KEYS), bool), "bias": np.zeros((QUERIES, KEYS), dtype)}
    hides["mask"][3], hides["bias"][3] = False, -np.inf
    problem = ask(kernel.dtypes[-1], kernel.diagonal, **{option: hides[option]})
    gradients = ("dq", "dk", "dv")
    found = answered(kernel, problem, "out", *gradients) or answered(kernel, problem, "out")
    assert found is not None
    values = np.repeat(problem.v.astype(np.float64), 2, axis=1)
    row = {"zero": np.zeros((2, 4, SIZE)), "mean": values.mean(axis=2)}[kernel.masked_row]
    np.testing.assert_allclose(found["out"][:, :, 3], row, atol=LOOSE[kernel.dtypes[-1]])
    assert all(np.isfinite(found[name]).all() for name in gradients if name in found)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("queries, keys", [(4, 0), (0, 4)])
def test_empty_lengths_give_zeros_or_a_refusal(name: str, queries: int, keys: int) -> None:
    kernel = load(name)
    full = ask(kernel.dtypes[-1], kernel.diagonal)
    empty = Problem(
        q=full.q[:, :, :queries],
        k=full.k[:, :, :keys],
        v=full.v[:, :, :keys],
        scale=0.3,
        dout=np.ones_like(full.q[:, :, :queries]),
    )
    want = ("out", *(name for name in ("dq", "dk", "dv") if name in kernel.differentiable))
    found = answered(kernel, empty, *want) or answered(kernel, empty, "out") or {}
    assert not any(output.any() for output in found.values())


@pytest.mark.parametrize("name", [name for name in NAMES if load(name).hidden_nan])
@pytest.mark.parametrize("poison", [np.nan, np.inf, 3e38])
def test_what_nobody_sees_is_harmless_where_that_is_claimed(name: str, poison: float) -> None:
    kernel = load(name)
    fields: dict[str, Any] = {"bias": np.zeros((1, 1, QUERIES, KEYS), np.float32)}
    fields["mask"] = np.ones((2, 1, QUERIES, KEYS), bool)
    fields["mask"][..., 5], fields["mask"][:, :, 3] = False, False
    clean = ask("float32", kernel.diagonal, softcap=2.0, **fields)
    k, v, q, bias = (x.copy() for x in (clean.k, clean.v, clean.q, fields["bias"]))
    k[:, :, 5], v[:, :, 5], q[:, :, 3] = poison, poison, poison
    bias[..., 5] = -np.abs(poison)
    dirty = clean.replace(q=q, k=k, v=v, bias=bias)
    want = ("out", "lse", "dq", "dk", "dv", "dbias")
    found, expected = answered(kernel, dirty, *want), answered(kernel, clean, *want)
    assert found is not None
    for output in want:
        np.testing.assert_array_equal(found[output], (expected or {})[output], err_msg=output)


@pytest.mark.parametrize("name", ["numpy", "numpy-flash"])
def test_a_nan_that_is_seen_spoils_exactly_who_sees_it(name: str) -> None:
    clean = ask("float32", "bottom-right", causal=True)
    v = clean.v.copy()
    v[0, 0, KEYS - 3, 2] = np.nan
    found = answered(load(name), clean.replace(v=v), "out")
    spoilt = np.zeros(clean.shape_of("out"), bool)
    spoilt[0, :2, QUERIES - 3 :, 2] = True
    assert found is not None
    np.testing.assert_array_equal(np.isnan(found["out"]), spoilt)


def test_flash_never_needs_the_whole_row_of_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnspec.adapters.pipeline import Pipeline

    widths = []
    whole = Pipeline.scores

    def scores(self: Pipeline, keys: slice) -> Any:
        found, slope = whole(self, keys)
        widths.append(found.shape[2:])
        return found, slope

    monkeypatch.setattr(Pipeline, "scores", scores)
    assert answered(load("numpy-flash"), ask("float32", "bottom-right"), "out")
    assert widths == [(QUERIES, 32), (QUERIES, KEYS - 32)]
