"""What every call must keep, whatever it computes: inputs, layouts, repetition, hidden slots."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pytest

from attnspec.adapters import CallFailed
from attnspec.conformance.case import Case, Shape, parse_settings
from attnspec.conformance.cases import OPTION, SMALL, Turn
from attnspec.conformance.judge import Finding
from attnspec.conformance.memory import LIMITS, exponent, extra_memory
from attnspec.conformance.question import Question
from attnspec.oracle.problem import Problem

HIDING = ("causal", "mask:full", "bias:neg-inf", "window:both", "key_lengths:ragged")

GROWN = Shape(1, 1, 1, 4096, 4096, 64, 64)  # n × n numbers are 64 MB, the operands a megabyte each


def _plain(claim: str, *, level: str, options: Collection[str], turn: Turn) -> list[Case]:
    return [Case("normal", SMALL), Case("large", SMALL)][: 1 if level == "smoke" else 2]


def _every_option(claim: str, *, level: str, options: Collection[str], turn: Turn) -> list[Case]:
    texts = ("", *HIDING, "bias:full", "sinks:normal", "alibi:standard", "gqa:grouped")
    chosen = [parse_settings(text) for text in texts]
    return [Case("normal", OPTION, s) for s in chosen if {name for name, _ in s} <= set(options)]


def _hiding(claim: str, *, level: str, options: Collection[str], turn: Turn) -> list[Case]:
    chosen = [parse_settings(text) for text in HIDING]
    return [Case("normal", OPTION, s) for s in chosen if {name for name, _ in s} <= set(options)]


def _growing(claim: str, *, level: str, options: Collection[str], turn: Turn) -> list[Case]:
    """In one type, float32 where it may be; causal too at level full."""
    dtype, dtypes = turn
    if level == "smoke" or dtype != ("float32" if "float32" in dtypes else dtypes[0]):
        return []
    cases = [Case("normal", GROWN), Case("normal", GROWN, parse_settings("causal:on"))]
    return cases if level == "full" and "causal" in options else cases[:1]


@pytest.mark.attnspec("inputs-unchanged", cases=_every_option)
def test_inputs_unchanged(question: Question) -> None:
    """A call leaves every input as it was, bit for bit."""
    changed = question.call(question.problem).changed
    what = f"the call wrote into {', '.join(changed)}"
    question.note(Finding(float("inf") if changed else 0.0, "exact", (), what))


@pytest.mark.attnspec("same-bits-again", cases=_every_option)
def test_same_bits_again(question: Question) -> None:
    """The same call gives the same bits, where the kernel declares so."""
    if not question.kernel.deterministic:
        raise CallFailed("not claimed", "declared deterministic=False")
    first = question.ask(question.problem)["out"]
    question.ask(question.problem.replace(q=question.problem.q[..., ::-1].copy()))
    question.same(question.ask(question.problem)["out"], first, what="the second run")


@pytest.mark.attnspec("layout-q", "layout-k", "layout-v", cases=_plain)
def test_layout(question: Question) -> None:
    """The memory layout of one operand does not change the result beyond rounding."""
    problem, name = question.problem, question.claim.removeprefix("layout-")
    array = getattr(problem, name)
    within = 2 * question.allowance(problem)
    expected = question.ask(problem)["out"]
    wide = np.zeros((*array.shape[:3], 2 * array.shape[3]), dtype=array.dtype)
    wide[..., ::2] = array
    layouts = {
        "(B, N, H, D) in memory": np.ascontiguousarray(array.swapaxes(1, 2)).swapaxes(1, 2),
        "(B, H, D, N) in memory": np.ascontiguousarray(array.swapaxes(2, 3)).swapaxes(2, 3),
        "every second number of a wider array": wide[..., ::2],
    }
    for layout, strided in layouts.items():
        out = question.ask(problem.replace(**{name: strided}))["out"]
        question.close(out, expected, within, what=f"{name} laid out as {layout}")


@pytest.mark.attnspec("hidden-nan", cases=_hiding)
def test_hidden_nan(question: Question) -> None:
    """NaN and Inf in slots that a row does not see are harmless to it, where that is claimed."""
    if not question.kernel.hidden_nan:
        raise CallFailed("not claimed", "declared hidden_nan=False")
    problem = question.problem
    expected, within = question.ask(problem)["out"], 2 * question.allowance(problem)
    seen = _visible(problem)
    for key in (0, problem.key_count // 2, problem.key_count - 1):
        rows = ~seen[..., key]  # of the rows, those that do not see this key
        if not rows.any():
            continue
        for poison in (np.nan, np.inf, -np.inf):
            k, v = problem.k.copy(), problem.v.copy()
            k[:, :, key], v[:, :, key] = poison, poison
            out = question.ask(problem.replace(k=k, v=v))["out"]
            what = f"{poison} in key and value {key}, in a row that does not see them"
            question.close(out[rows], expected[rows], within[rows], what=what)


@pytest.mark.attnspec("memory-grows-as-declared", cases=_growing)
def test_memory(question: Question) -> None:
    """The forward pass takes as much more memory with n as declared, beyond its inputs."""
    declared = question.kernel.memory
    if declared is None:
        raise CallFailed("not claimed", "declares no memory=")
    if question.kernel.device != "cpu":
        raise CallFailed("not claimed", "memory is measured on the processor alone")
    extra = extra_memory(question.impl, question.case, question.dtype)
    grown, limit = exponent(extra), LIMITS[declared]
    taken = ", ".join(f"{amount / 2**20:.1f}" for amount in extra.values())
    sizes = ", ".join(str(keys) for keys in extra)
    what = f"declared {declared}, but n = {sizes} takes {taken} MiB: n^{grown:.2f}"
    question.note(Finding(max(0.0, grown / limit), "exact", (), what))


def _visible(problem: Problem) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Which keys each row sees: (B, Hq, Nq, Nk)."""
    shape = (problem.batch, problem.query_heads, problem.query_count, problem.key_count)
    return np.array([head.visible for head in problem.heads()]).reshape(shape)
