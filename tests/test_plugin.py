"""The command line as a user meets it: exit codes, messages, the report file, one case again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

NAIVE = """
import numpy as np

def attention(q, k, v, *, scale, causal=False):
    k, v = (np.repeat(x, q.shape[1] // k.shape[1], axis=1) for x in (k, v))
    s = q @ k.swapaxes(-1, -2) * q.dtype.type(scale)
    rows, keys = s.shape[-2:]
    if causal:
        s = np.where(np.tri(rows, keys, keys - rows, dtype=bool), s, -np.inf)
    top = s.max(-1, keepdims=True, initial=-1e30)
    p = np.exp(s - top)
    total = p.sum(-1, keepdims=True)
    return p @ v / np.where(total == 0, 1, total)
"""

CASES = "--attn-case=out/float32/*/b2h2g2q33k65d40v40/plain"

CAUSAL = "--attn-case=out/float32/normal/b2h2g2q24k40d16v16/causal:on"


@pytest.fixture
def kernel_file(tmp_path: Path) -> Path:
    file = tmp_path / "my.py"
    file.write_text(NAIVE)
    return file


def judge(*arguments: str, folder: Path, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """`pytest --pyargs attnspec.conformance` in another folder, as an installed user runs it."""
    command = [sys.executable, "-m", "pytest", "--pyargs", "attnspec.conformance", "-q"]
    return subprocess.run(
        [*command, "-p", "no:cacheprovider", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip


def test_a_conforming_function_exits_0_and_every_verdict_is_on_file(kernel_file, tmp_path):
    report = tmp_path / "out" / "report.jsonl"
    run = judge(
        "--impl=my.py:attention", "--attn-level=smoke", f"--attn-report={report}", folder=tmp_path
    )
    assert run.returncode == 0, run.stdout
    assert "my.py:attention: conforms" in run.stdout
    records = [json.loads(line) for line in report.read_text().splitlines()]
    assert len(records) > 50
    assert {record["status"] for record in records} == {"pass", "not claimed"}
    assert max(len(line) for line in run.stdout.splitlines() if "pytest" not in line) <= 100


def test_every_line_of_the_report_fits_the_schema(kernel_file, tmp_path):
    import attnspec.conformance as suite

    schema = json.loads((Path(suite.__file__).parent / "verdict.schema.json").read_text())
    report = tmp_path / "report.jsonl"
    judge(
        "--impl=my.py",
        "--attn-case=out/*/b2h2g2q33k65d40v40/plain",
        f"--attn-report={report}",
        folder=tmp_path,
    )
    for line in report.read_text().splitlines():
        record = json.loads(line)
        assert set(record) == set(schema["required"]) == set(schema["properties"])
        for name in ("dtype", "status", "rule"):
            assert record[name] in schema["properties"][name]["enum"]


def test_a_faulty_function_exits_1_and_its_command_reproduces_the_case(kernel_file, tmp_path):
    kernel_file.write_text(NAIVE.replace("keys - rows", "0"))
    run = judge("--impl=my.py", "--attn-level=smoke", folder=tmp_path)
    assert run.returncode == 1
    assert "does not conform" in run.stdout
    command = next(line for line in run.stdout.splitlines() if "--attn-case=out/" in line)
    again = judge(*command.split()[3:], folder=tmp_path)
    assert again.returncode == 1
    assert "1 failed" in again.stdout


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--impl=no-such"], "no-such"),
        (["--impl=missing.py"], "missing.py"),
        (["--impl=my.py:absent"], "absent"),
        (["--impl=torch-cuda-flash"], "torch-cuda-flash"),
        ([], "--impl="),
        (["--impl=my.py", "--attn-level=huge"], "huge"),
        (["--impl=my.py", "--attn-case=out/nothing"], "out/nothing"),
        (["--impl=my.py", "--attn-case=out/float16/*"], "selects nothing that my.py is asked"),
        (["--impl=my.py", "--attn-seed=-1"], "at least 0"),
    ],
)
def test_a_run_that_cannot_be_is_a_usage_error_of_one_line(arguments, words, kernel_file, tmp_path):
    run = judge(*arguments, folder=tmp_path)
    output = run.stdout + run.stderr
    assert run.returncode == 4, output
    assert words in output
    assert "Traceback" not in output


def test_a_kernel_that_claims_nothing_has_not_passed(kernel_file, tmp_path):
    kernel_file.write_text("def attention(q, k, v, *, scale): raise NotImplementedError('later')")
    run = judge("--impl=my.py", CASES, folder=tmp_path)
    assert run.returncode == 5
    assert "my.py: nothing was asked; not claimed: 1" in run.stdout


def test_an_option_that_is_refused_each_time_is_not_passed(kernel_file, tmp_path):
    refuses = "    if causal: raise NotImplementedError('causal')\n    k, v = ("
    kernel_file.write_text(NAIVE.replace("    k, v = (", refuses))
    run = judge("--impl=my.py", "--attn-case=out/float32/n*/b1h2g2q1[56]*", folder=tmp_path)
    assert run.returncode == 5
    assert "my.py: claims causal, but refused each case with it" in run.stdout


def test_a_kernel_of_one_head_size_is_asked_about_its_options(kernel_file, tmp_path):
    limited = "    if q.shape[-1] not in (64, 128): raise NotImplementedError\n    k, v = ("
    faulty = NAIVE.replace("    k, v = (", limited).replace("keys - rows", "0")
    kernel_file.write_text(faulty)
    run = judge("--impl=my.py", "--attn-level=smoke", folder=tmp_path)
    assert run.returncode == 1
    assert "q24k40d64v64/causal:on" in run.stdout


def test_a_parameter_that_is_no_option_is_pointed_out(kernel_file, tmp_path):
    kernel_file.write_text(NAIVE.replace("causal", "is_causal"))
    run = judge("--impl=my.py", CASES, folder=tmp_path)
    assert run.returncode == 0
    assert "my.py: is_causal is not an option" in run.stdout
    assert "did you mean causal?" in run.stdout


def test_an_interruption_is_no_verdict(kernel_file, tmp_path):
    stops = "    if q.shape[2] == 33: raise KeyboardInterrupt\n    k, v = ("
    kernel_file.write_text(NAIVE.replace("    k, v = (", stops))
    run = judge("--impl=my.py", CASES, "--attn-report=r.jsonl", folder=tmp_path)
    assert run.returncode == 2
    assert "conforms" not in run.stdout
    assert (tmp_path / "r.jsonl").read_text() == ""


def test_failures_of_other_tests_keep_their_words(kernel_file, tmp_path):
    (tmp_path / "test_mine.py").write_text("def test_mine(): assert 1 == 2, 'mine'\n")
    kernel_file.write_text(NAIVE.replace("keys - rows", "0"))
    run = judge("test_mine.py", "--impl=my.py", CAUSAL, folder=tmp_path)
    assert run.returncode == 1
    assert "AssertionError: mine" in run.stdout
    assert "2 failed" in run.stdout
    assert run.stdout.count("b2h2g2q24k40d16v16/causal:on at") == 1  # the suite's own, once


def test_a_marker_of_the_same_old_name_is_left_alone(tmp_path):
    (tmp_path / "test_other.py").write_text(
        "import pytest\n@pytest.mark.attention\ndef test_nothing(): pass\n"
    )
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "test_other.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout


def test_two_implementations_stand_side_by_side(kernel_file, tmp_path):
    run = judge("--impl=numpy", "--impl=my.py", CASES, folder=tmp_path)
    assert run.returncode == 0, run.stdout
    header = next(line for line in run.stdout.splitlines() if line.startswith("claim"))
    assert header.split() == ["claim", "type", "numpy", "my.py"]


def test_the_same_seed_gives_the_same_verdicts(kernel_file, tmp_path):
    def fractions(seed: int) -> list[object]:
        report = tmp_path / "report.jsonl"
        judge(
            "--impl=my.py", CASES, f"--attn-seed={seed}",
            f"--attn-report={report}", folder=tmp_path,
        )  # fmt: skip
        return [json.loads(line)["fraction"] for line in report.read_text().splitlines()]

    first = fractions(1)
    assert fractions(1) == first
    assert fractions(2) != first


def test_parallel_workers_give_one_report(kernel_file, tmp_path):
    run = judge(
        "--impl=my.py", "--attn-case=out/*/b2h2g2q33k65d40v40/plain", "-n", "2", folder=tmp_path
    )
    assert run.returncode == 0, run.stdout
    assert "my.py: conforms" in run.stdout


def test_other_projects_pytest_runs_are_left_alone(tmp_path):
    (tmp_path / "test_other.py").write_text("def test_nothing(): pass\n")
    code = (
        "import pytest, sys; pytest.main(['-q', 'test_other.py']); "
        "print(sorted(m for m in ('numpy', 'torch', 'mpmath') if m in sys.modules))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "1 passed" in run.stdout
    assert run.stdout.splitlines()[-1] == "[]"
