"""The benchmark of suites' power: that the peers' rules are what they are said to be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))  # they are scripts, which import one another by name

import power_exams as exams  # noqa: E402
from eager import Eager  # noqa: E402
from peer_rules import Compared, allclose, either, fudged, mean_times, nmse, times  # noqa: E402
from peers import PEERS  # noqa: E402

from attnspec.adapters.catalogue import catalogue  # noqa: E402
from attnspec.conformance.case import Case, draw  # noqa: E402
from attnspec.oracle.reference import reference  # noqa: E402

NAN, INF = np.nan, np.inf
OUTPUTS = ("out", "lse", "dq", "dk", "dv", "dbias", "dsinks")


def compared(
    actual: Any, gold: Any, low: Any = None, *, output: str = "out", dtype: str = "bfloat16"
) -> Compared:
    a, g = np.array(actual, float), np.array(gold, float)
    return Compared(output, dtype, a, g, g if low is None else np.array(low, float))


# -- rules ---------------------------------------------------------------------------------------


def test_flash_attention_allows_a_multiple_of_the_largest_error_of_the_eager_run():
    rule = times({"out": 2.0, "other": 3.0})
    assert rule(compared([1.0, 5.19], [1.0, 5.0], [0.9, 5.0]))  # elsewhere; 0.19 <= 2 · 0.1
    assert not rule(compared([1.0, 5.21], [1.0, 5.0], [0.9, 5.0]))
    assert rule(compared([1.0, 5.29], [1.0, 5.0], [0.9, 5.0], output="dq"))
    assert times(2.0, 1e-5)(compared([1.000009], [1.0]))
    assert not times(2.0)(compared([1.1], [1.0]))
    assert not rule(compared([NAN, 5.0], [1.0, 5.0], [0.9, 5.0]))
    assert not rule(compared([INF, 5.0], [1.0, 5.0], [0.9, 5.0]))
    assert rule(compared([], []))


def test_pytorch_has_a_floor_and_lets_nan_pass_where_its_references_differ_by_nan():
    rule = fudged({"out": 4.0, "dq": 180.0})
    assert rule(compared([1.000009], [1.0]))
    assert not rule(compared([1.00002], [1.0]))
    assert rule(compared([1.39], [1.0], [1.1]))
    assert not rule(compared([1.41], [1.0], [1.1]))
    assert rule(compared([18.0], [1.0], [1.1], output="dq"))
    assert not rule(compared([NAN], [1.0], [1.1]))
    assert rule(compared([NAN], [1.0], [NAN]))
    assert rule(compared([0.0], [NAN], [1.0]))


def test_flex_attention_averages_so_that_one_wrong_number_among_many_passes():
    rule = mean_times({"bfloat16": 1.1, "float32": 10.0}, {"lse": allclose(2e-2, 2e-2)})
    gold, low = np.zeros(1000), np.full(1000, 0.01)
    wrong = np.where(np.arange(1000) == 7, 10.0, 0.0)
    assert rule(compared(wrong, gold, low))
    assert not rule(compared(2 * wrong, gold, low))
    assert rule(compared(9 * wrong, gold, low, dtype="float32"))
    assert not rule(compared(np.where(wrong > 0, NAN, 0), gold, low))
    assert rule(compared([-INF, 1.01], [-INF, 1.0], output="lse"))
    assert not rule(compared([0.0], [-INF], output="lse"))


def test_tolerances_by_type_and_output_count_nan_as_the_suite_does():
    rule = allclose({"bfloat16": {"out": 0.1, "other": 0.5}, "float32": 1e-3}, 0.0)
    assert rule(compared([1.09], [1.0]))
    assert not rule(compared([1.11], [1.0]))
    assert rule(compared([1.4], [1.0], output="dk"))
    assert not rule(compared([1.09], [1.0], dtype="float32"))
    assert rule(compared([INF], [INF]))
    assert not rule(compared([INF], [-INF]))
    assert not rule(compared([NAN], [NAN]))
    assert not rule(compared([NAN], [1.0]))
    assert allclose(0.1, 0.0, equal_nan=True)(compared([NAN], [NAN]))
    assert not allclose(0.1, 0.0, equal_nan=True)(compared([NAN], [1.0]))
    assert allclose(0.0, 0.1)(compared([109.0], [100.0]))


def test_flashinfer_bench_takes_either_tolerance_and_no_infinity_even_a_right_one():
    rule = either(1e-2, 1e-2)
    assert rule(compared([0.009, 100.9], [0.0, 100.0]))
    assert not rule(compared([0.02], [0.0]))
    assert not rule(compared([-INF], [-INF]))
    assert not rule(compared([NAN], [0.0]))
    assert rule(compared([0.0], [NAN]))


def test_llama_cpp_compares_squares_over_the_whole_tensor():
    rule, gold = nmse(5e-4), np.ones(1000)
    assert rule(compared(1.0223 * gold, gold))
    assert not rule(compared(1.0224 * gold, gold))
    one_off = np.where(np.arange(1000) == 3, 1.7, 1.0)
    assert rule(compared(one_off, gold))
    assert not rule(compared(2 * one_off - 1, gold))
    assert not rule(compared([NAN, 1.0], [1.0, 1.0]))
    assert not rule(compared([INF], [1.0]))
    assert rule(compared([INF, 1.0], [INF, 1.0]))
    assert not rule(compared([-INF], [INF]))


# -- references and inputs -----------------------------------------------------------------------


@pytest.mark.parametrize("scaling", ["scores", "query", "key", "both"])
@pytest.mark.parametrize(
    "settings",
    [
        "scale:negative+gqa:grouped",
        "softcap:tight+bias:heads+causal:on",
        "sinks:normal+alibi:standard+window:both",
        "mask:empty-rows+key_lengths:ragged+return_lse:differentiated",
        "bias:neg-inf+query_lengths:ragged+gqa:single",
    ],
)
def test_the_eager_run_in_float64_is_the_oracle_s_attention(scaling: Any, settings: str):
    case = Case.parse(f"normal/b2h2g2q9k13d8v5/{settings}")
    problem = draw(case, dtype="float32", diagonal="bottom-right", seed=0)
    absent = {"dbias": problem.bias is None, "dsinks": problem.sinks is None}
    want = tuple(name for name in OUTPUTS if not absent.get(name, False))
    sure = reference(problem, want=want)
    for name, found in Eager(steps="float64", scaling=scaling)(problem, want).items():
        np.testing.assert_allclose(found, sure[name].value, rtol=1e-12, atol=1e-12, err_msg=name)


def test_the_eager_run_in_a_narrow_type_stores_every_step_in_it():
    problem = draw(Case.parse("normal/b2h2g2q9k40d8v8/plain"), dtype="bfloat16", diagonal=0, seed=0)
    narrow, wide = (Eager(steps=s)(problem, ("out", "dk")) for s in (None, "float32"))
    for name in ("out", "dk"):
        stored = narrow[name].astype(np.float32).astype(problem.q.dtype).astype(np.float64)
        assert np.array_equal(stored, narrow[name])
        assert not np.array_equal(stored, wide[name])
    returned = Eager(steps="float32", returned=True)(problem, ("out",))["out"]
    assert np.abs(returned - wide["out"]).max() < np.abs(narrow["out"] - wide["out"]).max()


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_every_grid_is_of_the_type_that_its_peer_judges_and_the_same_for_a_seed(peer: Any):
    for dtype in peer.dtypes if peer.grid else ():
        drawn = list(peer.grid(dtype, 3))
        assert drawn
        assert {p.dtype_name for p in drawn} == {dtype}
        again = list(peer.grid(dtype, 3))
        assert all(a.q.tobytes() == b.q.tobytes() for a, b in zip(drawn, again, strict=True))


# -- the examination -----------------------------------------------------------------------------


def judgements(peer: str, fault: str, *, thorough: bool = False) -> Any:
    entry = catalogue("faulty")[fault]
    papers = list(exams.papers([p for p in PEERS if p.name == peer], 0))
    return exams.examined(entry, papers, thorough=thorough)[peer]


def test_flat_inputs_let_the_mean_of_the_values_pass_and_ours_do_not():
    found = judgements("KernelBench 2025", "mean-of-the-values")
    assert not found["own"].rejected
    assert found["own"].differs
    assert found["ours"].rejected


def test_a_kernel_that_raises_is_caught_and_what_is_not_compared_is_not_in_scope():
    assert judgements("Keras", "raises")["own"].rejected
    found = judgements("Keras", "dq-and-dk-zero", thorough=True)
    assert not found["own"].rejected
    assert not any(found[inputs].differs for inputs in exams.INPUTS)
    assert found["own"].judged == 5


def test_a_kernel_that_declares_another_masked_row_is_not_asked_for_one():
    entry = catalogue("conforming")["hidden-scores-are-the-least"]
    papers = list(exams.papers([p for p in PEERS if p.name == "KernelBench 2025"], 0))
    found = exams.examined(entry, papers, thorough=True)["KernelBench 2025"]
    assert found["ours"].judged
    assert not found["ours"].rejected


def test_options_that_a_suite_does_not_have_are_out_of_its_scope():
    found = judgements("KernelBench 2025", "causal-top-left")
    assert found["ours"].rejected
    assert not found["ours"].differs
    assert not found["own"].differs


def test_a_run_prints_writes_and_draws_its_table(tmp_path: Path):
    pytest.importorskip("matplotlib", reason="pip install -e '.[bench]'")
    words = ["--peers", "Keras", "KernelBench 2025", "--variants", "right-to-left", "--seeds", "1"]
    words += ["--faults", "zeros", "dq-and-dk-zero", "mean-of-the-values", "--workers", "2"]
    files = ["--json", tmp_path / "p.json", "--markdown", tmp_path / "p.md", "--plots", tmp_path]
    command = [sys.executable, BENCHMARKS / "power.py", *words, *files]
    done = subprocess.run([str(x) for x in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines()[:-1])) <= 100
    found = {row["name"]: row for row in json.loads((tmp_path / "p.json").read_text())["rows"]}
    assert found["KernelBench 2025"]["own"]["missed"] == ["dq-and-dk-zero", "mean-of-the-values"]
    assert found["KernelBench 2025"]["missed_in_scope"] == ["mean-of-the-values"]
    assert found["Keras"]["scope"] == 2
    for name in ("attnspec smoke", "attnspec smoke, bf16"):
        assert found[name]["own"]["missed"] == [] == found[name]["own"]["alarms"]
        assert found[name]["own"]["verdicts"] > found[name]["ours"]["verdicts"] > 100
    table = (tmp_path / "p.md").read_text().splitlines()
    assert len(table) == 2 + len(found)
    assert {line.replace("\\|", "").count("|") for line in table} == {9}
    assert (tmp_path / "power.svg").read_text().count("<svg") == 1


def test_an_unknown_fault_is_an_error_in_a_line():
    command = [sys.executable, str(BENCHMARKS / "power.py"), "--faults", "no-such"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "no-such: no such entry" in done.stderr
    assert "Traceback" not in done.stderr
