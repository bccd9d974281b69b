"""Every output of the double-double tier against balls of 240 bits, over options and inputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attnspec.conformance.inputs import FAMILIES
from attnspec.oracle import FORMATS, Problem, Reference, balls
from attnspec.oracle.conditioning import conditioning
from attnspec.oracle.double_double import enclose, gradients, products, reading

Check = Callable[[Problem], Reference]
BATCH, HEADS, KV_HEADS, ROWS, KEYS, SIZE, VALUE_SIZE = 2, 2, 1, 7, 8, 5, 3
SCORES = (BATCH, HEADS, ROWS, KEYS)


@pytest.fixture
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles, blocks and chunks of so few rows and keys that small problems have many."""
    for module in (reading, products):
        monkeypatch.setattr(module, "CHUNK", 2)
    for module in (reading, gradients):
        monkeypatch.setattr(module, "BLOCK", 64)
    monkeypatch.setattr(reading, "LONGEST", 4)
    monkeypatch.setattr(reading, "ROWS", 3)
    monkeypatch.setattr(reading, "KEPT", 100)


def known(reference: Reference) -> bool:
    return all(np.all(np.isfinite(e.bound)) for e in reference.outputs.values())


OPTIONS: dict[str, Callable[[np.random.Generator], dict[str, Any]]] = {
    "causal": lambda rng: {"causal": True},
    "window": lambda rng: {"window": (3, 1), "diagonal": "top-left"},
    "diagonal": lambda rng: {"causal": True, "diagonal": 2},
    "mask": lambda rng: {"mask": rng.random((BATCH, 1, ROWS, KEYS)) < 0.5},
    "bias": lambda rng: {"bias": biased(rng, (HEADS, ROWS, KEYS))},
    "bias of keys": lambda rng: {"bias": biased(rng, (BATCH, 1, 1, KEYS))},
    "bias of rows": lambda rng: {"bias": rng.standard_normal((1, HEADS, ROWS, 1))},
    "softcap": lambda rng: {"softcap": 2.5},
    "sinks": lambda rng: {"sinks": rng.standard_normal(HEADS)},
    "alibi": lambda rng: {"alibi": rng.standard_normal(HEADS)},
    "key lengths": lambda rng: {"key_lengths": np.array([KEYS - 3, 0])},
    "query lengths": lambda rng: {"query_lengths": np.array([4, ROWS])},
    "dlse": lambda rng: {"dlse": rng.standard_normal(SCORES[:3])},
}


def biased(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return np.where(rng.random(shape) < 0.15, -np.inf, rng.standard_normal(shape))


def problem(rng: np.random.Generator, *names: str, family: str = "normal", **more: Any) -> Problem:
    """Standard normal operands, shaped by a family and rounded to a format."""
    form = FORMATS[more.pop("dtype", "float64")]
    rows, keys = more.pop("rows", ROWS), more.pop("keys", KEYS)
    shapes = ((HEADS, rows, SIZE), (KV_HEADS, keys, SIZE), (KV_HEADS, keys, VALUE_SIZE))
    drawn = tuple(rng.standard_normal((BATCH, *shape)) for shape in shapes)
    operands = FAMILIES[family].draw(rng, form, drawn)  # type: ignore[arg-type]
    q, k, v = (form.round(x) for x in operands)
    dout = rng.standard_normal((BATCH, HEADS, rows, VALUE_SIZE))
    options: dict[str, Any] = {"scale": 0.7, "dout": dout}
    for name in names:
        options |= OPTIONS[name](rng)
    return Problem(**{"q": q, "k": k, "v": v} | options | more)


PAIRS = [p for p in itertools.combinations(OPTIONS, 2) if p[0] != p[1].split(" of ")[0]]


@pytest.mark.usefixtures("_small_tiles")
@pytest.mark.parametrize("names", PAIRS, ids="+".join)
def test_options_in_pairs_and_many_tiles(check: Check, names: tuple[str, str]) -> None:
    """All is known, and sharp beside the magnitudes that are added up."""
    p = problem(np.random.default_rng(PAIRS.index(names)), *names)
    answer = check(p)
    assert known(answer)
    check_sharp(p, answer, 2.0**-66 if "softcap" in names else 2.0**-68)


def check_sharp(p: Problem, answer: Reference, relative: float) -> None:
    """Bounds are below `relative` of the largest magnitudes that add up to the output.

    The largest, as dP - D may cancel, which an element's own conditioning does not tell.
    """
    for name, enclosure in answer.outputs.items():
        most = max(conditioning(p, name).max(initial=0.0), 1.0 if name == "lse" else 0.0)
        share = float(enclosure.bound.max(initial=0.0) / (most * relative + 2.0**-800))
        assert share <= 1, (name, share)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("family", FAMILIES)
def test_inputs_of_every_family_and_format(check: Check, family: str, name: str) -> None:
    rng = np.random.default_rng([*FAMILIES].index(family))
    causal = family in ("needle", "normal")
    answer = check(problem(rng, "dlse", family=family, dtype=name, causal=causal))
    for output, enclosure in answer.outputs.items():
        assert np.all(np.isfinite(enclosure.bound)) or output in ("dq", "dk"), output


@pytest.mark.usefixtures("_small_tiles")
@pytest.mark.parametrize("rows, keys", [(0, 5), (5, 0), (1, 1), (3, 2), (4, 3)])
@pytest.mark.parametrize("names", [(), ("sinks", "softcap", "alibi")], ids=["plain", "options"])
def test_lengths_at_the_edges_of_tiles(
    check: Check, rows: int, keys: int, names: tuple[str, ...]
) -> None:
    for more in (0, 1):
        length = keys + more * 4 if keys else 0
        p = problem(np.random.default_rng(rows), *names, rows=rows, keys=length)
        assert known(check(p))
        bias = np.zeros((rows, length))
        assert known(check(p.replace(bias=bias, causal=True, diagonal=1)))


@pytest.mark.usefixtures("_small_tiles")
def test_some_rows_where_they_stood(check: Check) -> None:
    p = problem(np.random.default_rng(1), "alibi", "mask", "dlse", causal=True)
    assert known(check(p.at([5, 0, 5, 2])))
    assert known(check(p.at([6])))


@pytest.mark.parametrize("keys", [255, 256, 257, 513])
def test_keys_at_the_edges_of_real_chunks(check: Check, keys: int) -> None:
    rng = np.random.default_rng(keys)
    q, k, v, dout = (rng.standard_normal((1, 1, n, 2)) for n in (2, keys, keys, 2))
    p = Problem(q=q, k=k, v=v, scale=1.0, dout=dout, causal=True, bias=rng.random((1, keys)))
    answer = check(p)
    assert known(answer)
    check_sharp(p, answer, 2.0**-68)


@pytest.mark.parametrize("rows", [255, 257])
def test_rows_at_the_edges_of_real_tiles(check: Check, rows: int) -> None:
    rng = np.random.default_rng(rows)
    q, k, v, dout = (rng.standard_normal((1, 1, n, 2)) for n in (rows, 3, 3, rows))
    assert known(check(Problem(q=q, k=k, v=v, scale=1.0, dout=dout, sinks=np.zeros(1))))


def test_a_head_of_hundreds_of_channels(check: Check) -> None:
    rng = np.random.default_rng(0)
    for sizes in ((300, 2), (3, 300), (1, 1)):
        q, k = (rng.standard_normal((1, 1, 4, sizes[0])) for _ in range(2))
        v, dout = (rng.standard_normal((1, 1, 4, sizes[1])) for _ in range(2))
        p = Problem(q=q, k=k, v=v, scale=sizes[0] ** -0.5, dout=dout)
        answer = check(p)
        assert known(answer)
        # The conditioning of dq counts dP as one number, not the magnitudes of its 300 terms.
        check_sharp(p, answer, 2.0**-64)


@pytest.mark.usefixtures("_small_tiles")
@pytest.mark.parametrize("content", [np.nan, np.inf, -1e308])
def test_padding_has_no_influence(defined: Any, content: float) -> None:
    p = problem(np.random.default_rng(2), "dlse", key_lengths=np.array([6, 0]), causal=True)
    p = p.replace(query_lengths=np.array([5, 5]), bias=np.zeros((1, KEYS)))
    filled = {name: getattr(p, name).copy() for name in ("q", "k", "v")}
    for batch, (queries, keys) in enumerate([(5, 6), (5, 0)]):
        filled["q"][batch, :, queries:] = content
        filled["k"][batch, :, keys:] = filled["v"][batch, :, keys:] = content
    want = defined(p)
    plain, other = enclose(p, want=want), enclose(p.replace(**filled), want=want)
    for name in want:
        for part in ("value", "low", "bound"):
            assert np.array_equal(getattr(plain[name], part), getattr(other[name], part)), name
    for name in ("dk", "dv"):
        assert not plain[name].value[0, :, 6:].any()
        assert not plain[name].value[1].any()


@pytest.mark.usefixtures("_small_tiles")
@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("content", [np.nan, np.inf, -np.inf])
def test_visible_nan_and_infinity_are_not_known_and_spoil_nothing_else(
    used: Any, name: str, content: float
) -> None:
    """Rows of other tiles stay right, though a column of keys or values has no largest number."""
    p = problem(np.random.default_rng(3), causal=True, diagonal="top-left")
    p = p.replace(k=p.k * 2.0**40, v=p.v * 2.0**40, scale=0.7 * 2.0**-40)
    array = getattr(p, name).copy()
    array[:, :, 6, 1] = content
    fast, sure = enclose(p.replace(**{name: array})), balls.enclose(p, bits=240)
    for output in ("out", "lse"):
        share = used(fast[output], sure[output])
        assert np.all(share[:, :, :6] <= 1)
        assert np.all(np.isfinite(fast[output].bound[:, :, :3]))
        if (output, name) != ("lse", "v"):
            last = fast[output].bound[:, :, 6]
            assert np.all(np.isinf(last[..., 1] if name == "v" else last))
