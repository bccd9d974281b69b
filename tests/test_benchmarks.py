"""The benchmark of the oracle: that its figures are what they are said to be."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="pip install -e '.[bench]'")

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))  # they are scripts, which import one another by name

import measurements as records  # noqa: E402
from accuracy import accuracy, some_rows, some_rows_of  # noqa: E402
from cases import Case, long_cases, square_cases  # noqa: E402
from engines import ENGINES, attention  # noqa: E402
from memory import peak  # noqa: E402
from plots import draw  # noqa: E402
from report import report  # noqa: E402
from rich.console import Console  # noqa: E402
from timing import slope, take_turns  # noqa: E402

from attnspec.oracle.definition import attention as definition  # noqa: E402
from attnspec.oracle.enclosure import Enclosure  # noqa: E402

SQUARE, LONG = Case(keys=12, size=4, backward=True), long_cases([80], 4, seed=0)[1]
SIZES = [32, 64, 128, 256, 512, 1024, 2048, 4096]


def run(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, BENCHMARKS / "oracle.py", *words]
    return subprocess.run([str(x) for x in command], capture_output=True, text=True)


# -- time ----------------------------------------------------------------------------------------


def test_the_slope_is_the_exponent_of_the_largest_sizes():
    assert slope(SIZES, [3e-9 * n**1.7 for n in SIZES]) == pytest.approx(1.7)
    small = [1.0] * 4  # what a call costs at least
    assert slope(SIZES, [*small, *(n**2.5 for n in SIZES[4:])]) == pytest.approx(2.5)
    shuffled = SIZES[::-1]
    assert slope(shuffled, [n**2.0 for n in shuffled]) == pytest.approx(2)
    assert math.isnan(slope([32], [1.0]))


def test_calls_take_turns_and_one_that_raises_does_not_stop_the_others():
    order: list[str] = []

    def fails() -> None:
        raise ValueError("no such thing\nsecond line")

    calls = {"a": lambda: order.append("a"), "b": lambda: order.append("b") or 7, "c": fails}
    timings, answers, raised = take_turns(calls, seconds=0.05, keep=lambda name, x: (name, x))
    assert answers == {"a": ("a", None), "b": ("b", 7)}
    assert raised == {"c": "ValueError: no such thing"}
    assert timings["a"].samples == timings["b"].samples == 25
    last = "".join(order[order.index("b") :])
    assert last.count("ab") >= 20, "each turn of one is followed by the other's"
    assert 0 < timings["a"].wall < 1e-3


def test_the_best_sample_counts():
    times = iter([0.03, 0.03, 0.03, 0.001, 0.03, 0.03, 0.03, 0.03, 0.03])
    import time

    timings, _, _ = take_turns(
        {"a": lambda: time.sleep(next(times))}, seconds=0.1, keep=lambda name, x: x
    )
    assert timings["a"].wall < 0.02
    assert timings["a"].samples >= 3


# -- cases and engines ---------------------------------------------------------------------------


def test_cases_of_one_length_have_the_same_numbers_rounded_to_their_type():
    wide = Case(keys=40, size=8, backward=True).problem()
    narrow = Case(keys=40, size=8, dtype="bfloat16", causal=True).problem()
    for name in ("q", "k", "v"):
        x, y = (getattr(p, name).astype(np.float64) for p in (wide, narrow))
        assert 0 < np.abs(x - y).max() < 2**-8 * np.abs(x).max()
    assert narrow.dout is None
    assert (wide.q.dtype, wide.dout.dtype, wide.scale) == ("float32", "float32", 8**-0.5)


def test_every_combination_is_measured_and_the_nearest_to_the_first_come_first():
    slices = square_cases([64, 32], [64, 128], ["float32", "bfloat16"], seed=3)
    assert len({case for cases in slices for case in cases}) == 2 * 2 * 2 * 2 * 2
    first = slices[0][0]
    assert (first.keys, first.size, first.dtype, first.causal) == (32, 128, "float32", False)
    apart = [cases[0].differences(first) for cases in slices]
    assert apart == [0, 1, 1, 1, 2, 2, 2, 3]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "name", [n for n, engine in ENGINES.items() if n != "definition" and engine.takes(SQUARE)]
)
def test_every_engine_computes_the_same(name: str, causal: bool):
    if reason := ENGINES[name].missing():
        pytest.skip(reason)
    case = replace(SQUARE, causal=causal)
    problem, engine = case.problem(), ENGINES[name]
    exact = definition(problem, want=case.want)
    found = engine.read(engine.prepare(problem, case.want, case.rows)())
    limit = 1e-5 if name == "torch float32" else 1e-13
    for output in case.want:
        error = np.abs(found[output].value - exact[output].astype(np.float64)).max()
        assert error < limit, output


@pytest.mark.parametrize("name", [n for n, engine in ENGINES.items() if engine.takes(LONG)])
def test_one_row_of_a_long_context_is_that_row_of_the_problem(name: str):
    if reason := ENGINES[name].missing():
        pytest.skip(reason)
    case, engine = LONG, ENGINES[name]
    problem = case.problem()
    cotangent = problem.dout.copy()
    cotangent[:, :, :-1] = 0
    exact = definition(problem.replace(dout=cotangent), want=case.want)
    found = engine.read(engine.prepare(problem, case.want, case.rows)())
    for output in case.want:
        rows = slice(-1, None) if output in ("out", "dq") else slice(None)
        expected = exact[output].astype(np.float64)[:, :, rows]
        assert np.abs(found[output].value - expected).max() < 1e-13, output


def test_streamed_gradients_are_compared_at_the_rows_that_others_are():
    long = replace(LONG, keys=20_000)  # three blocks, and one row in five
    problem = long.problem()
    streamed, whole = (
        some_rows_of(ENGINES[n].read(ENGINES[n].prepare(problem, long.want, long.rows)()))
        for n in ("double-double streamed", "double-double")
    )
    for output in long.want:
        assert np.array_equal(streamed[output].value, whole[output].value), output
        assert np.isfinite(streamed[output].bound).all()


def test_longdouble_is_computed_in_longdouble():
    q, k, v = (np.random.default_rng(i).standard_normal((5, 4)).astype("g") for i in range(3))
    (out,) = attention(q, k, v, scale=np.longdouble(0.5), causal=True)
    assert out.dtype == np.longdouble


# -- accuracy and memory -------------------------------------------------------------------------


def test_errors_are_distances_of_sums_and_powers_of_two():
    ones = np.ones((1, 1, 3, 1))
    sharp = Enclosure(ones * 2, ones * 2.0**-60, ones * 2.0**-100)
    rough = Enclosure(ones * 2, ones * 0, ones * 2.0**-40)
    plain = Enclosure(ones * 2 + [[[[0], [0], [2.0**-20]]]], ones * 0, ones * np.inf)
    answers = {"sharp": {"out": sharp}, "rough": {"out": rough}, "plain": {"out": plain}}
    found = accuracy(answers, {"out": ones * 8}, "sharp")
    assert "error" not in found["sharp"]["out"]
    assert found["sharp"]["out"]["bound"]["terms"] == {"median": -103, "worst": -103}
    assert found["rough"]["out"]["error"]["terms"]["worst"] == -63
    assert found["rough"]["out"]["bound"]["value"]["worst"] == -41
    assert "bound" not in found["plain"]["out"]
    assert found["plain"]["out"]["error"]["terms"] == {"median": -63, "worst": -23}


def test_an_element_without_terms_is_left_out_and_counted():
    value = np.array([[[[1.0], [0.0]]]])
    terms = np.array([[[[1.0], [1e-16]]]])
    one = Enclosure(value, value * 0, value * 0 + 2.0**-40)
    found = accuracy({"a": {"dq": one}}, {"dq": terms}, "a")["a"]["dq"]["bound"]
    assert found["left_out"] == 1
    assert found["terms"]["worst"] == found["value"]["worst"] == -40


def test_long_outputs_are_sampled_evenly():
    rows = np.arange(40_000.0)[:, None]
    assert (some_rows(rows)[:, 0] == np.arange(0, 40_000, 10)).all()
    assert some_rows(rows[:100]) is not None
    assert some_rows(rows[:100]).shape == (100, 1)


def test_peak_memory_is_what_the_engine_held():
    case = Case(keys=1024, size=8)
    found = peak("numpy float64", case, None)
    assert found["inputs"] == 3 * 1024 * 8 * 4
    scores = 1024**2 * 8
    assert 2 * scores < found["extra"] < 8 * scores
    small = peak("numpy float64", Case(keys=256, size=8), None)
    assert small["extra"] < scores


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is restarted on Linux alone")
def test_peak_memory_counts_from_when_the_inputs_are_there():
    case = Case(keys=2**14, size=128, one_row=True)  # drawn in float64, of the copies' size
    copies = 2 * 2**14 * 128 * 8
    assert copies < peak("numpy float64", case, None)["extra"] < 1.2 * copies


def test_peak_memory_of_an_engine_that_fails_says_so():
    assert "KeyError" in peak("no such engine", Case(keys=32, size=8), None)["error"]


# -- the run -------------------------------------------------------------------------------------


def test_what_takes_too_long_is_noted_and_extrapolated_in_proportion_to_the_scores():
    found = records.Measurements(["numpy float64"], limit=20.0, seconds=0.01)
    found.time(Case(keys=32, size=8))
    found.limit = 0.0
    found.time(Case(keys=128, size=8))
    found.time(Case(keys=128, size=8, causal=True))
    measured, extrapolated = found.times
    assert extrapolated["wall_s"] == pytest.approx(16 * measured["wall_s"])
    assert extrapolated["extrapolated_from"] == 32
    assert [(r["keys"], r["causal"]) for r in found.skipped] == [(128, False), (128, True)]
    assert all("more than 0 s" in r["reason"] for r in found.skipped)


def test_memory_that_accuracy_lacks_is_noted_and_stops_nothing(monkeypatch: pytest.MonkeyPatch):
    def fails(*_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(records, "_errors", fails)
    found = records.Measurements(["numpy float64"], limit=20.0, seconds=0.01)
    found.time(Case(keys=32, size=8))
    assert found.times[0]["accuracy"] == {}
    assert [(r["engine"], r["reason"]) for r in found.skipped] == [
        ("accuracy", "MemoryError: no room")
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems need not heed the limit")
def test_what_asks_for_more_memory_than_there_is_fails_alone():
    code = (
        "import numpy as np, machine; machine._available = lambda: 2**32; machine.limit_memory();"
        "np.empty(2**28)\n"
        "try: np.empty(2**29)\n"
        "except MemoryError: print('refused')"
    )
    command = [sys.executable, "-c", code]
    one = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # each thread reserves memory
    done = subprocess.run(command, capture_output=True, text=True, cwd=BENCHMARKS, env=one)
    assert done.stdout == "refused\n", done.stderr


def test_a_tiny_run_end_to_end(tmp_path: Path):
    engines = ["numpy float64", "float64", "balls", "torch float64"]
    done = run(
        *("--quick", "--sizes", 16, 32, "--head-sizes", 8, "--contexts", 128),
        *("--limit", 0.05, "--sample", 0.01, "--engines", *engines),
        *("--json", tmp_path / "x.json", "--table", tmp_path / "x.txt", "--plots", tmp_path),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith((tmp_path / "x.txt").read_text())
    assert max(map(len, done.stdout.splitlines())) <= 100
    found = json.loads((tmp_path / "x.json").read_text())
    there = [name for name in engines if name not in found["missing"]]
    assert set(found["missing"]) <= {"torch float64"}
    every = found["square"]["times"] + found["square"]["skipped"]
    cases = [c for s in square_cases([16, 32], [8], ["float32", "bfloat16"], 0) for c in s]
    for name in there:
        for case in cases:  # nothing is left out silently
            assert any(asdict(case).items() <= r.items() and r["engine"] == name for r in every)
    assert {r["engine"] for r in found["square"]["memory"]} >= {"numpy float64", "float64"}
    assert all(r["ratio"] == 1 for r in found["square"]["times"] if r["engine"] == "torch float64")
    assert {"command", "seed", "machine", "threads", "seconds"} <= found.keys()
    for name in ("oracle-error.svg", "oracle-time.svg"):
        assert "<svg" in (tmp_path / name).read_text()


def test_a_word_that_is_no_engine_is_a_usage_error():
    done = run("--engines", "numpy")
    assert done.returncode == 2
    assert "invalid choice: 'numpy'" in done.stderr
    assert "Traceback" not in done.stderr


# -- tables and plots ----------------------------------------------------------------------------


def crowded() -> dict[str, object]:
    """A full run's figures, all as wide as they come."""
    power = {"median": -113.4, "worst": -108.6}
    kinds = {"terms": power, "value": power}
    figures = {"bound": kinds, "error": kinds, "against": "balls"}
    slices = square_cases(SIZES, [64, 128], ["float32", "bfloat16"], 0)
    parts = {}
    for part, cases in (
        ("square", list(chain.from_iterable(slices))),
        ("one_row", long_cases([2**14, 2**20], 128, 0)),
    ):
        times, memory = [], []
        for case in cases:
            for name in (n for n, engine in ENGINES.items() if engine.takes(case)):
                accurate = dict.fromkeys(case.want, figures)
                record = {"engine": name, **asdict(case), "wall_s": 0.000123456, "ratio": 123456.0}
                slow = case.keys > 1024 and name in ("definition", "mpmath 106 bits")
                record |= {"extrapolated_from": 64} if slow else {"accuracy": accurate}
                times.append(record)
                memory.append({"engine": name, **asdict(case), "inputs": 10**9, "extra": 10**10})
        skipped = [{"engine": "balls", **asdict(cases[-1]), "reason": "would take about 77 s"}]
        parts[part] = {"times": times, "memory": memory, "skipped": skipped}
    pools = [{"internal_api": "openblas", "num_threads": 128}] * 3
    machine = {"processor": "p" * 50, "cores": 128, "versions": {"numpy": "2"}, "python": "3.14.1"}
    machine["date"] = "2026-11-29T22:57:25+00:00"
    rest = {"missing": {}, "threads": {"pools": pools}, "command": "python " * 30, "seconds": 700}
    return {"first": asdict(slices[0][0]), "machine": machine, **parts, **rest}


def test_the_tables_fit_a_hundred_columns_uncut(capsys: pytest.CaptureFixture[str]):
    report(crowded(), Console(width=100))
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 100
    assert "…" not in text
    assert "tier double-double" in text
    assert "~120,000" in text
    assert "double-double over the definition, n = 512, forward + backward: 1.00x" in text
    assert "too slow: tier balls" in text
    wide = [
        len(line.rstrip()) for line in text.splitlines() if line.startswith("tier double-double")
    ]
    assert max(wide) > 80  # that the limit means something


def test_the_plots_are_the_same_for_the_same_figures(tmp_path: Path):
    (tmp_path / "again").mkdir()
    first, second = (draw(crowded(), folder) for folder in (tmp_path, tmp_path / "again"))
    assert [path.name for path in first] == ["oracle-error.svg", "oracle-time.svg"]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
