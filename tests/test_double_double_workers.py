"""Tiles on several cores: the same bits, errors that arrive, and callers that do not collide."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import mpmath
import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

from attnspec.oracle import Problem, ProblemError, Reference, workers
from attnspec.oracle.double_double import (
    enclose,
    engine,
    key_gradients,
    products,
    reading,
    streaming,
)
from attnspec.oracle.double_double.scratch import Scratch

WANT = ("out", "lse", "dq", "dk", "dv", "dbias", "dsinks")


def problem(rows: int, keys: int, *, size: int = 8, **options: Any) -> Problem:
    rng = np.random.default_rng(rows)
    shapes = {"q": (2, rows), "k": (1, keys), "v": (1, keys), "dout": (2, rows)}
    arrays: dict[str, Any] = {n: rng.standard_normal((1, *s, size)) for n, s in shapes.items()}
    arrays |= {"bias": rng.standard_normal((1, keys)), "sinks": rng.standard_normal(2)}
    return Problem(**{"scale": 0.3, "causal": True} | arrays | options)


def same(one: Reference, other: Reference) -> bool:
    return one.outputs.keys() == other.outputs.keys() and all(
        np.array_equal(getattr(one[name], part), getattr(other[name], part))
        for name in one.outputs
        for part in ("value", "low", "bound")
    )


def on_cores(count: int, call: Callable[[], Any]) -> Any:
    """Run on so many cores, however small the problem is."""
    with (
        ThreadpoolController().limit(limits=count, user_api="blas"),
        mock.patch.object(workers, "FEW", 0),
    ):
        return call()


@pytest.fixture
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(workers, "FEW", 0)
    with ThreadpoolController().limit(limits=2, user_api="blas"):
        yield


PROBLEMS: dict[str, Problem] = {
    "many tiles": problem(600, 300),
    "one tile": problem(2, 700, size=64, causal=False),
    "one row": problem(1, 3000, size=33, causal=False),
    "one large tile": problem(256, 256, size=64),
    "soft-cap": problem(300, 40, softcap=3.0, alibi=np.array([0.1, -0.1])),
}


@pytest.mark.parametrize("p", PROBLEMS.values(), ids=PROBLEMS)
def test_the_same_bits_on_any_number_of_cores_and_on_every_call(p: Problem) -> None:
    one = on_cores(1, lambda: enclose(p, want=WANT))
    for _ in range(2):
        assert same(one, on_cores(2, lambda: enclose(p, want=WANT)))
    with ThreadpoolController().limit(limits=2, user_api="blas"):  # for each product, where few
        assert same(one, enclose(p, want=WANT))
    assert same(one, on_cores(1, lambda: enclose(p, want=WANT)))


@pytest.mark.usefixtures("_two_cores")
def test_callers_in_several_threads_get_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles whose blocks of keys differ share the slices of the keys; causal ones do."""
    monkeypatch.setattr(reading, "ROWS", 16)
    p = problem(80, 300, softcap=3.0)
    expected = enclose(p, want=WANT)
    interval, bits = sys.getswitchinterval(), mpmath.mp.prec
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            for found in pool.map(lambda _: enclose(p, want=WANT), range(8)):
                assert same(found, expected)
    finally:
        sys.setswitchinterval(interval)
    assert mpmath.mp.prec == bits
    assert not workers._limited.locked()


class Contested(dict[int, Any]):
    """Slices that another thread's tile replaces as soon as they are kept."""

    def __setitem__(self, start: int, block: Any) -> None:
        super().__setitem__(start, block.columns(1))


def test_slices_that_another_tile_replaces_meanwhile() -> None:
    (group,) = reading.groups(problem(4, 600, causal=False))
    group.key._kept = Contested()
    for _ in range(2):
        _, block = next(group.key.blocks(slice(0, 256), work=Scratch()))
        assert block.whole.shape == (2, 256, 8)


def test_constants_do_not_depend_on_the_precision_of_mpmath() -> None:
    p = problem(3, 4, scale=1 / 3)
    expected = enclose(p)
    for capped in (False, True):
        q = p.replace(softcap=1.7) if capped else p
        expected = enclose(q)
        with mpmath.workprec(20):
            assert same(enclose(q), expected)


@pytest.mark.usefixtures("_two_cores")
@pytest.mark.parametrize("failing", [0, 1, 4])
def test_an_error_in_a_tile_arrives_and_leaves_the_cores_free(
    monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    monkeypatch.setattr(reading, "ROWS", 8)
    monkeypatch.setattr(reading, "BLOCK", 64)
    p = problem(40, 16)
    plain: Callable[..., Any] = engine.forward

    def failed(tile: Any, *args: Any, **options: Any) -> Any:
        if tile.rows.start == 8 * failing:
            raise RuntimeError("a tile's own")
        return plain(tile, *args, **options)

    monkeypatch.setattr(engine, "forward", failed)
    with pytest.raises(RuntimeError, match="a tile's own"):
        enclose(p, want=WANT)
    assert not workers._limited.locked()
    blas = ThreadpoolController().select(user_api="blas").info()
    assert all(library["num_threads"] == 2 for library in blas)
    monkeypatch.setattr(engine, "forward", plain)
    assert same(enclose(p, want=WANT), on_cores(1, lambda: enclose(p, want=WANT)))


@pytest.mark.usefixtures("_two_cores")
def test_tasks_run_side_by_side_and_results_keep_their_order() -> None:
    both = threading.Barrier(2, timeout=20)

    def work(task: int) -> int:
        if task < 2:
            both.wait()
        return 10 * task

    assert list(workers.in_order(work, range(5), scores=1)) == [0, 10, 20, 30, 40]


@pytest.mark.usefixtures("_two_cores")
def test_a_caller_that_stops_early_leaves_the_cores_free() -> None:
    found = workers.in_order(abs, range(9), scores=1)
    next(found)
    assert workers._limited.locked()
    assert list(workers.in_order(abs, range(3), scores=1)) == [0, 1, 2]
    found.close()  # type: ignore[attr-defined]
    assert not workers._limited.locked()


# -- streamed ----------------------------------------------------------------------------------


@pytest.fixture
def _short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (reading, products):
        monkeypatch.setattr(module, "CHUNK", 4)
    for module in (reading, streaming):
        monkeypatch.setattr(module, "LONGEST", 8)


@pytest.mark.usefixtures("_short_blocks")
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("size", [8, 16, 48])
@pytest.mark.parametrize("keys", [5, 8, 37, 40])
def test_streamed_gradients_are_the_same(keys: int, size: int, cores: int) -> None:
    p = problem(5, keys, key_lengths=np.array([keys - 2]), softcap=2.0)
    p = p.at([4, 1, 2])
    whole = enclose(p, want=("dk", "dv"))

    def streamed() -> None:
        seen = 0
        for part, found in key_gradients(p, size=size):
            assert (part.start, part.stop) == (seen, min(seen + size, keys))
            for name in ("dk", "dv"):
                for field in ("value", "low", "bound"):
                    wanted = getattr(whole[name], field)[:, :, part]
                    assert np.array_equal(getattr(found[name], field), wanted), (name, field)
            seen = part.stop
        assert seen == keys

    on_cores(cores, streamed)


@pytest.mark.filterwarnings("error")
def test_streaming_what_overflows_warns_of_nothing() -> None:
    p = problem(3, 20, dout=np.full((1, 2, 3, 8), 1e308))
    ((_, found),) = key_gradients(p)
    with np.errstate(over="ignore"):
        assert np.isinf(found["dv"].value.sum())  # which settling a block adds up


def test_streaming_leaves_the_callers_floating_point_state_alone() -> None:
    before = np.geterr()
    for _ in key_gradients(problem(3, 20)):
        assert np.geterr() == before


@pytest.mark.parametrize(
    "options, message",
    [
        ({"size": 1000}, "size: expected a multiple of 8192, got 1000"),
        ({"size": 0}, "size: expected a multiple"),
        ({"size": "a"}, "size: expected a multiple of 8192, got 'a'"),
        ({"size": 16384.0}, "size: expected a multiple of 8192, got 16384.0"),
        ({"want": ("dq",)}, "want: expected some of dk, dv; got 'dq'"),
        ({"want": ()}, r"want: expected a sequence of dk, dv; got \(\)"),
        ({"want": "dk"}, "want: expected a sequence of dk, dv; got 'dk'"),
        ({"want": 1}, "want: expected a sequence of dk, dv; got 1"),
    ],
)
def test_requests_that_cannot_be_streamed(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        key_gradients(problem(3, 20), **options)
    with pytest.raises(ProblemError, match="dk"):
        key_gradients(problem(3, 20, dout=None))
    with pytest.raises(ProblemError, match="expected a Problem, got NoneType"):
        key_gradients(None)  # type: ignore[arg-type]


SEEN = {np.nan: "gradients are not defined where a NaN", np.inf: "an infinity is visible"}


@pytest.mark.parametrize(
    "field, content", [*((f, x) for f in ("q", "k", "v") for x in SEEN), ("bias", np.nan)]
)
def test_streamed_gradients_where_nan_or_infinity_is_seen_or_hidden(
    field: str, content: float
) -> None:
    p = problem(3, 20, key_lengths=np.array([18]), query_lengths=np.array([2]))
    seen, hidden = getattr(p, field).copy(), getattr(p, field).copy()
    seen[..., 0, 0] = content
    hidden[..., -1, -1] = content  # the last query and the last two keys are padding
    with pytest.raises(ProblemError, match=SEEN[content]):
        key_gradients(p.replace(**{field: seen}))
    ((_, clean),) = key_gradients(p)
    ((_, found),) = key_gradients(p.replace(**{field: hidden}))
    assert same(clean, found)
    assert all(np.all(np.isfinite(found[name].bound)) for name in ("dk", "dv"))


def test_streaming_is_offered_beside_the_reference() -> None:
    import attnspec.oracle

    assert attnspec.oracle.key_gradients is key_gradients
    assert "key_gradients" in attnspec.oracle.__all__
    with pytest.raises(AttributeError, match="no attribute 'value_gradients'"):
        attnspec.oracle.value_gradients  # noqa: B018
