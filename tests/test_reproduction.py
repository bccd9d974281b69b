"""The script that `attnspec shrink` writes fails with the fault, passes without, and is alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from attnspec.cli import main
from attnspec.conformance.report import summary
from attnspec.conformance.verdict import Verdict

KERNEL = """\
import numpy as np

cache = {}
calls = []


def attention(q, k, v, *, scale, causal=False, return_lse=False):
    x = [np.asarray(y, np.float32) for y in (q, k, v)]
    INPUT
    s = x[0] @ x[1].swapaxes(-1, -2) * np.float32(scale)
    offset = s.shape[-1] - s.shape[-2]
    if causal:
        s = np.where(np.tri(*s.shape[-2:], offset, dtype=bool), s, -np.inf)
    top = np.maximum(s.max(-1, keepdims=True, initial=-1e30), -1e30)
    p = np.exp(s - top)
    total = p.sum(-1, keepdims=True)
    out = (p @ x[2] / np.where(total == 0, 1, total)).astype(q.dtype)
    with np.errstate(divide="ignore"):
        lse = (top + np.log(total))[..., 0]
    calls.append(1)
    OUTPUT
    return (out, lse) if return_lse else out


def backward(q, k, v, dout, *, scale, causal=False):
    s = q @ k.swapaxes(-1, -2) * scale
    if causal:
        s = np.where(np.tri(*s.shape[-2:], s.shape[-1] - s.shape[-2], dtype=bool), s, -np.inf)
    top = np.maximum(s.max(-1, keepdims=True), -1e30)
    p = np.exp(s - top)
    p = p / np.maximum(p.sum(-1, keepdims=True), 1e-30)
    dp = dout @ v.swapaxes(-1, -2)
    ds = p * (dp - (dp * p).sum(-1, keepdims=True)) * scale
    dq, dk, dv = ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ dout
    GRADIENT
    return dq.astype(q.dtype), dk.astype(q.dtype), dv.astype(q.dtype)


attention.backward = backward
"""

PLAIN = "float32/normal/b1h1g1q24k40d16v16/plain"
CAUSAL = "float32/normal/b1h1g1q24k40d16v16/causal:on"
SAME_SIZE = "float32/normal/b2h2g2q24k40d16v16/plain"

FAULTS = {
    "a number": ("out", CAUSAL, {"offset = s.shape[-1] - s.shape[-2]": "offset = 0"}),
    "nan": ("out", PLAIN, {"OUTPUT": "out[:, :, 20:] = np.nan"}),
    "lse": ("lse", PLAIN, {"OUTPUT": "lse = lse / np.float32(np.log(2))"}),
    "dk only": ("dk", PLAIN, {"GRADIENT": "dk = dk / scale"}),
    "an exception": ("out", PLAIN, {"INPUT": "assert k.shape[2] < 9, 'too many'"}),
    "an exit": ("out", PLAIN, {"INPUT": "raise SystemExit(0)"}),
    "a written input": ("inputs-unchanged", PLAIN, {"OUTPUT": "q[..., 0] = 1"}),
    "another type": ("out", PLAIN, {"OUTPUT": "out = out.astype(np.float64)"}),
    "another shape": ("out", PLAIN, {"OUTPUT": "out = out.swapaxes(1, 2)[0]"}),
    "no array": ("out", PLAIN, {"OUTPUT": "out = None"}),
    "a layout": ("layout-q", SAME_SIZE, {"INPUT": "x[0] = q.ravel(order='K').reshape(q.shape)"}),
    "noise": ("same-bits-again", PLAIN, {"OUTPUT": "out += np.float32(len(calls) * 1e-7)"}),
    "right for ten calls": (
        "eleven-calls",
        PLAIN,
        {"OUTPUT": "out = -out if len(calls) > 10 else out"},
    ),
    "a stale cache": (
        "output-is-affine-in-values",
        PLAIN,
        {"OUTPUT": "out = cache.setdefault(q.shape, out)"},
    ),
}


def written(folder: Path, **faults: str) -> Path:
    """The kernel's file, with some lines replaced."""
    text = KERNEL
    for good, bad in faults.items():
        assert good in text
        text = text.replace(good, bad)
    path = folder / "mine.py"
    path.write_text(re.sub("\n +(INPUT|OUTPUT|GRADIENT)(?=\n)", "", text))
    return path


def alone(script: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run where the suite cannot be imported."""
    hidden = folder / "hidden" / "attnspec.py"
    hidden.parent.mkdir(exist_ok=True)
    hidden.write_text("raise ImportError('the script is to stand alone')")
    environment = {**os.environ, "PYTHONPATH": str(hidden.parent), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment
    )


def the_script(folder: Path) -> Path:
    """The one that was written."""
    (script,) = folder.glob("*.py")
    return script


def shrunk(capsys: pytest.CaptureFixture[str], out: Path, *arguments: str) -> tuple[int, str, str]:
    code = main(["shrink", f"--out={out}", "--seconds=60", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.mark.parametrize(("claim", "case", "faults"), FAULTS.values(), ids=FAULTS)
def test_a_script_fails_with_the_fault_and_passes_without(
    claim, case, faults, tmp_path, capsys, monkeypatch
):
    monkeypatch.syspath_prepend(str(tmp_path))
    path = written(tmp_path, **faults)
    code, text, _ = shrunk(
        capsys, tmp_path / "o", f"--impl={path}:attention", f"--case={claim}/{case}"
    )
    assert code == 1, text
    script = the_script(tmp_path / "o")
    assert f"it exits with 1:\n  python {script}" in text
    written(tmp_path)
    repaired = alone(script, tmp_path)
    assert repaired.returncode == 0, repaired.stdout + repaired.stderr
    assert "the fault is gone" in repaired.stdout


def test_the_script_is_small_and_says_what_it_is_about(tmp_path, capsys):
    _, case, faults = FAULTS["a number"]
    spec = f"{written(tmp_path, **faults)}:attention"
    _, text, _ = shrunk(capsys, tmp_path / "o", f"--impl={spec}", f"--case=out/{case}")
    script = the_script(tmp_path / "o").read_text()
    assert "k = np.array([[[[0], [0]]]], np.float32)" in script
    assert "out = attention(q, k, v, scale=1.0, causal=True)" in script
    assert f"attnspec shrink --impl={spec} --case=out/{case}" in script
    assert "out is beyond its bound" in " ".join(script.split())
    assert "1 call of b1h1g1q1k2d1v1" in text
    with np.load(next((tmp_path / "o").glob("*.npz"))) as data:
        assert data["k"].shape == (1, 1, 2, 1)
        assert data["expected"].shape == data["allowed"].shape == (1, 1, 1, 1)


def test_a_large_problem_stands_in_the_data_file(tmp_path, capsys):
    spec = f"{written(tmp_path, OUTPUT='if k.shape[2] > 299: out = -out')}:attention"
    case = "--case=out/float32/normal/b1h1g1q1k513d2v2/plain"
    code, _, _ = shrunk(capsys, tmp_path / "o", f"--impl={spec}", case)
    assert code == 1
    script = the_script(tmp_path / "o")
    assert 'k = data["k"]' in script.read_text()
    assert alone(script, tmp_path).returncode == 1
    with np.load(script.with_suffix(".npz")) as data:
        assert data["k"].shape[2] == 300


def test_the_real_fault_of_torch_is_shown_without_the_suite(tmp_path, capsys, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr("attnspec.conformance.reproduction.confirmed", lambda path: True)
    case = "--case=scale-of-any-sign/bfloat16/normal/b2h2g2q24k40d16v16/causal:on"
    code, text, _ = shrunk(capsys, tmp_path, "--impl=torch-sdpa", case)
    if code == 0:
        pytest.skip("this torch is right")
    assert "1 call of b1h1g1q1k2d1v1" in text
    script = the_script(tmp_path)
    assert "attnspec" not in re.sub(r'""".*?"""', "", script.read_text(), flags=re.DOTALL)
    run = alone(script, tmp_path)
    assert (run.returncode, "got nan" in run.stdout) == (1, True)
    with np.load(script.with_suffix(".npz")) as data:
        assert (data["k"].dtype, data["k_bits"].dtype) == (np.float32, np.uint16)
        bits = data["k_bits"].astype(np.uint32) << 16
        assert np.array_equal(bits.view(np.float32), data["k"])


TORCH = """\
import torch

from attnspec.adapters import kernel


@kernel(framework="torch", dtypes=("float32", "bfloat16"), accumulate="float32")
def attention(q, k, v, *, scale, causal=False, return_lse=False):
    s = q.float() @ k.float().mT * scale
    if causal:
        s = s.masked_fill(~torch.ones(s.shape[-2:]).tril(s.shape[-1] - s.shape[-2]).bool(), -1e30)
    lse = s.logsumexp(-1)
    out = ((s - lse.detach()[..., None]).exp() @ v.float()).to(q.dtype)
    return (out, lse) if return_lse else out
"""


def test_gradients_of_torch_kernels(tmp_path, capsys):
    """A softmax whose sum is no part of the graph."""
    pytest.importorskip("torch")
    (tmp_path / "ours.py").write_text(TORCH)
    spec = f"{tmp_path / 'ours.py'}:attention"
    case = "--case=dk/bfloat16/normal/b1h1g1q24k40d16v16/plain"
    code, text, _ = shrunk(capsys, tmp_path / "o", f"--impl={spec}", case)
    assert code == 1
    assert "dk is beyond its bound" in text
    script = the_script(tmp_path / "o").read_text()
    assert "torch.autograd.grad(" in script
    assert "dtype=torch.bfloat16" in script


# -- the command -------------------------------------------------------------------------------


def test_a_case_that_passes_is_no_failure(tmp_path, capsys):
    code, text, _ = shrunk(capsys, tmp_path, "--impl=numpy", f"--case=out/{PLAIN}")
    assert (code, list(tmp_path.iterdir())) == (0, [])
    assert "passes" in text


def test_what_is_not_claimed_is_no_failure(tmp_path, capsys):
    spec = f"{written(tmp_path)}:attention"
    case = "--case=out/float32/normal/b1h1g1q4k4d4v4/softcap:tight"
    code, text, _ = shrunk(capsys, tmp_path / "o", f"--impl={spec}", case)
    assert code == 0
    assert "not claimed: softcap" in text


def test_a_kernel_that_fails_now_and_then_is_named_as_such(tmp_path, capsys):
    path = written(tmp_path, OUTPUT="out = out + chance.integers(2, dtype=np.int32).astype('f')")
    (tmp_path / "coin.py").write_text("import numpy\n\nchance = numpy.random.default_rng(3)\n")
    path.write_text("from coin import chance\n" + path.read_text())
    code, text, _ = shrunk(
        capsys, tmp_path / "o", f"--impl={path}:attention", f"--case=out/{PLAIN}"
    )
    assert code == 1
    assert re.search(r"failed [12] of 3 times", text)
    assert alone(the_script(tmp_path / "o"), tmp_path).returncode == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--impl=nmpy", f"--case=out/{PLAIN}"), "did you mean numpy?"),
        (("--impl=numpy", f"--case=uot/{PLAIN}"), "no claim 'uot'; did you mean out?"),
        (("--impl=numpy", "--case=out/float23/normal/b1h1g1q1k1d1v1/plain"), "no type 'float23'"),
        (("--impl=numpy", "--case=out/float32/normal"), "expected CLAIM/DTYPE/FAMILY/SHAPE"),
        (("--impl=numpy", "--case=out/float32/norml/b1h1g1q1k1d1v1/plain"), "is no case"),
        (("--impl=numpy", "--case=out/float32/normal/b1h1g1/plain"), "is no case"),
        (("--impl=numpy", "--case=out/float32/normal/b1h1g1q1k1d1v1/cusal"), "is no case"),
        (("--impl=jax", "--case=out/float64/normal/b1h1g1q1k1d1v1/plain"), "not float64"),
    ],
)
def test_mistakes_are_said_in_a_few_words(arguments, said, tmp_path, capsys):
    if "--impl=jax" in arguments:
        pytest.importorskip("jax")
    code, text, errors = shrunk(capsys, tmp_path, *arguments)
    assert (code, text) == (2, "")
    assert said in " ".join(errors.split())
    assert max(map(len, errors.splitlines())) <= 100


def test_a_report_names_the_command_that_shrinks():
    case = "normal/b1h1g1q2k2d2v2/plain"
    given = {"impl": "my kernel.py", "claim": "out", "dtype": "float32", "case": case}
    given |= {"generic": True, "fraction": 2.0, "rule": "hard"}
    given["reproduce"] = "pytest … --attn-seed=7 --attn-case=…"
    for status, shown in (("fail", True), ("error", True), ("crash", False)):
        text = summary([Verdict(status=status, **given)], impls=["my kernel.py"], colour=False)
        line = f"  attnspec shrink --impl='my kernel.py' --seed=7 --case=out/float32/{case}"
        assert (line in text.splitlines()) == shown
