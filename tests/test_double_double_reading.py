"""How problems are read: blocks, tiles and scaled operands, and outputs put together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attnspec.oracle import Problem
from attnspec.oracle.double_double import products, reading
from attnspec.oracle.double_double.forward import Bounded
from attnspec.oracle.double_double.pairs import Pair
from attnspec.oracle.double_double.scratch import Scratch, workspace
from attnspec.oracle.double_double.slices import narrow, unit_of
from attnspec.oracle.double_double.totals import TINY, Total


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (reading, products):
        monkeypatch.setattr(module, "CHUNK", 4)
    monkeypatch.setattr(reading, "BLOCK", 64)
    monkeypatch.setattr(reading, "LONGEST", 16)
    monkeypatch.setattr(reading, "ROWS", 3)


def problem(rows: int, keys: int, **options: Any) -> Problem:
    rng = np.random.default_rng(keys)
    q, k, v = (rng.standard_normal((2, h, n, 3)) for h, n in ((4, rows), (2, keys), (2, keys)))
    return Problem(**{"q": q, "k": k, "v": v, "scale": 1.0} | options)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"causal": True},
    {"window": (5, 2), "diagonal": 9},
    {"key_lengths": np.array([0, 13]), "causal": True},
    {"mask": np.arange(50) % 3 == 0},
]


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "+".join(options) or "plain")
@pytest.mark.parametrize("keys", [1, 3, 4, 5, 16, 17, 50])
def test_blocks_hold_every_visible_key_once(keys: int, options: dict[str, Any]) -> None:
    options = {n: x[:keys] if n == "mask" else x for n, x in options.items()}
    if "key_lengths" in options:
        options["key_lengths"] = np.minimum(options["key_lengths"], keys)
    p = problem(7, keys, **options)
    tiles = 0
    for group in reading.groups(p):
        for tile in group.tiles():
            tiles += 1
            seen = np.zeros((len(group.batch), tile.rows.stop - tile.rows.start, keys), np.int64)
            for block in tile.blocks():
                assert block.start % 4 == 0
                assert block.stop % 4 == 0 or block.stop == keys
                assert (block.stop - block.start) % 4 == 0 or block.stop - block.start < 4
                assert (block.stop - 1) // 16 == block.start // 16
                hidden = tile.hidden(block)
                seen[..., block] += 1 if hidden is None else ~hidden
            for h, (b, head) in enumerate(zip(group.batch, group.index, strict=True)):
                assert np.array_equal(seen[h], p.visible(int(b), int(head), tile.rows))
                assert np.array_equal(tile.sees[h], seen[h].any(-1))
    assert tiles >= 3


@pytest.mark.parametrize("kept", [0, 2**22])
@pytest.mark.parametrize("name", ["float64", "float32", "bfloat16"])
def test_operands_times_their_scale_are_the_keys(
    monkeypatch: pytest.MonkeyPatch, kept: int, name: str
) -> None:
    from attnspec.oracle import FORMATS

    monkeypatch.setattr(reading, "KEPT", kept)
    p = problem(3, 9, key_lengths=np.array([7, 9]))
    spread = 2.0 ** np.array([-100.0, 3.0, 80.0])
    k = FORMATS[name].round(p.k * spread)
    k[0, :, 7:] = np.nan
    p = p.replace(q=FORMATS[name].round(p.q), k=k, v=FORMATS[name].round(p.v))
    (group,) = reading.groups(p)
    for operand, array in ((group.key, k), (group.value, p.v)):
        for part, block in operand.blocks(slice(0, 9), work=Scratch()):
            assert np.all(np.abs(block.whole) <= 1)
            assert np.all(block.whole.max((1, 2)) >= 0.5)
            back = np.ldexp(block.whole, operand.exponent)[..., :3]
            assert np.array_equal(np.abs(block.whole), block.size)
            for h, (b, kv) in enumerate(zip(group.batch, group.kv_index, strict=True)):
                wanted = array[b, kv, part].astype(np.float64)
                wanted[(7 if b == 0 else 9) :] = 0
                assert np.array_equal(back[h], wanted)
    assert np.all(np.ldexp(block.whole, operand.exponent)[..., 3] == 1)


@pytest.mark.usefixtures("_short")
def test_products_with_rows_have_the_error_of_the_largest_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "BLOCK", 8)  # of an operand's numbers, as many as keys here
    p = problem(3, 12, mask=np.ones(12, np.bool_))
    short = np.rint(p.k * 2.0**8) * 2.0**-8  # without a second slice
    p = p.replace(k=short * np.where(np.arange(12) // 4 == 1, 1.0, 2.0**-8)[:, None])
    group = next(iter(reading.groups(p)))
    rows = np.ones((1, 3, 3))
    size, into = rows.sum(-1, keepdims=True), list(np.empty((4, *rows.shape)))
    a = narrow(Pair.of(rows), unit_of(size), terms=3, into=into)

    def error(keys: slice) -> float:
        out = Pair(*np.empty((2, 1, 3, keys.stop - keys.start)))
        lost = products.row_products(a, size, group.key, keys, work=Scratch(), out=out)
        unscaled = np.ldexp(p.k[0, 0, keys], -group.key.exponent[0]).sum(-1)
        assert np.allclose(out.high[0], unscaled, rtol=0, atol=1e-15)
        return float(lost.max())

    assert error(slice(0, 12)) == error(slice(4, 8)) > 2 * error(slice(8, 12))


def test_scratch_gives_arrays_again_and_apart() -> None:
    scratch = Scratch()
    with scratch.arrays((3, 5), 2) as (a, b), scratch.arrays((16,), 1) as (c,):
        assert a.shape == b.shape == (3, 5)
        assert not any(np.shares_memory(*two) for two in ((a, b), (a, c), (b, c)))
        bases = {id(x.base) for x in (a, b, c)}
    with scratch.arrays((4, 4), 3) as again:
        assert {id(x.base) for x in again} == bases
    with scratch.arrays((0, 4), 1) as (empty,):
        assert empty.shape == (0, 4)
    with workspace(10) as one, workspace(1000) as other:
        assert one is not other
        assert one.buffer.size >= 10
        assert other.buffer.size >= 1000


# -- totals ------------------------------------------------------------------------------------


def part(high: float, low: float, error: float) -> Bounded:
    return Bounded(Pair(np.array([high]), np.array([low])), np.array([error]))


def test_totals_add_values_and_bounds() -> None:
    total = Total((3,))
    total.add((slice(0, 1),), part(1.0, 2.0**-60, 2.0**-80), 3)
    total.add((slice(0, 1),), part(-1.0, 2.0**-70, 2.0**-80), 3)
    total.add((slice(1, 2),), part(0.0, 0.0, 0.0), -5)
    found = total.enclosure((3, 1))
    assert found.value[0] + found.low[0] == 8 * (2.0**-60 + 2.0**-70)
    assert 2.0**-76 + 16 * 2.0**-98 <= found.bound[0] <= 1.001 * 2.0**-76
    assert not found.bound[1:].any()
    assert found.value.shape == (3, 1)
    total.clear()
    assert not total.bound.any()


def test_totals_count_what_scaling_loses() -> None:
    """Half a TINY each of the high part, the low part and the bound, every time."""
    total = Total((1,))
    for times in (1, 2):
        total.add((slice(0, 1),), part(0.5, 0.5 * 2.0**-53, 0.25), -1074)
        assert total.bound[0] >= times * 1.5 * TINY
    total = Total((1,))
    with np.errstate(over="ignore"):
        total.add((slice(0, 1),), part(1.0, 0.0, 1e-30), 2000)
    assert np.isinf(total.enclosure((1,)).bound[0])


@pytest.mark.parametrize("field", ["high", "low", "error"])
@pytest.mark.parametrize("content", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_not_known(field: str, content: float) -> None:
    for before in (False, True):
        numbers = {"high": 1.0, "low": 0.0, "error": 2.0**-70}
        total = Total((1,))
        if before:
            total.add((slice(0, 1),), part(*numbers.values()), 0)
        if field != "error" or content > 0 or np.isnan(content):
            with np.errstate(all="ignore"):
                total.add((slice(0, 1),), part(*(numbers | {field: content}).values()), 0)
            found = total.enclosure((1,))
            assert np.isinf(found.bound[0])
            assert found.low[0] == 0


def test_minus_infinity_without_a_bound_is_exact() -> None:
    total = Total((1,))
    total.add((slice(0, 1),), part(-np.inf, 0.0, 0.0), 0)
    found = total.enclosure((1,))
    assert np.isneginf(found.value[0])
    assert found.bound[0] == 0
