"""What every call must keep, whatever it computes: its inputs, its sizes, its memory."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from attnspec.adapters import CallFailed
from attnspec.conformance.case import Case, Shape, parse_settings
from attnspec.conformance.cases import OPTION, SQUARE, Turn
from attnspec.conformance.judge import Finding
from attnspec.conformance.memory import LIMITS, exponent, extra_memory
from attnspec.conformance.question import Question
from attnspec.conformance.trials import EVERY, asked_under, right, wanted
from attnspec.spec.settings import PAIRS

BESIDE = (*EVERY, "softcap:tight", "mask:empty-rows", *PAIRS)

GROWN = Shape(1, 1, 1, 4096, 4096, 64, 64)  # n × n numbers are 64 MB, the operands a megabyte each

ALIKE = Shape(2, 2, 2, 16, 16, 16, 16)  # as many keys as channels: nothing tells the axes apart
NONE, ONE = Shape(1, 2, 2, 3, 0, 4, 4), Shape(1, 1, 1, 1, 1, 1, 1)
DEGENERATE = (
    *(ONE, NONE, Shape(2, 2, 2, 0, 5, 4, 4), Shape(1, 1, 1, 0, 0, 1, 1)),
    *(Shape(2, 1, 1, 5, 1, 8, 8), Shape(1, 2, 2, 1, 5, 1, 8), Shape(1, 2, 2, 6, 5, 8, 1)),
)
VARIANTS = (
    *("", "causal", "window:self", "mask:full", "mask:empty-rows", "bias:full", "softcap:tight"),
    *("sinks:normal", "alibi:standard", "key_lengths:zero", "query_lengths:ragged", "gqa:grouped"),
)


def _growing(claim: str, *, level: str, options: Collection[str], turn: Turn) -> list[Case]:
    """In one type, float32 where it may be; causal too at level full."""
    dtype, dtypes = turn
    if level == "smoke" or dtype != ("float32" if "float32" in dtypes else dtypes[0]):
        return []
    cases = [Case("normal", GROWN), Case("normal", GROWN, parse_settings("causal:on"))]
    return cases if level == "full" and "causal" in options else cases[:1]


def _degenerate(claim: str, *, level: str, options: Collection[str], turn: Turn) -> list[Case]:
    """Each size under each option; at level standard the types share them."""
    if level == "smoke":
        return [Case("normal", ONE), Case("normal", NONE)]
    found = asked_under(*VARIANTS, shapes=DEGENERATE)(
        claim, level=level, options=options, turn=turn
    )
    dtype, dtypes = turn
    return found if level == "full" else found[dtypes.index(dtype) :: len(dtypes)]


@pytest.mark.attnspec(
    "inputs-unchanged", cases=asked_under(*EVERY, shapes=(OPTION, ALIKE), smoke=2 * len(EVERY))
)
def test_inputs_unchanged(question: Question) -> None:
    """A call leaves every input as it was, and the memory around it, bit for bit."""
    _leaves_alone(question, ("out",))


@pytest.mark.attnspec(
    "inputs-unchanged-by-gradients", cases=asked_under("", "bias:full", "mask:full", "gqa:grouped")
)
def test_inputs_unchanged_by_gradients(question: Question) -> None:
    """A backward pass leaves inputs and cotangents as they were."""
    _leaves_alone(question, wanted(question))


def _leaves_alone(question: Question, want: tuple[str, ...]) -> None:
    changed = question.call(question.problem, want=want).changed
    places = [name if name.startswith("outside") else f"into {name}" for name in changed]
    what = f"the call wrote {', '.join(places)}"
    question.note(Finding(float("inf") if changed else 0.0, "exact", (), what))


@pytest.mark.attnspec("out-beside-lse", "out-beside-gradients", cases=asked_under(*BESIDE))
def test_out_beside(question: Question) -> None:
    """The output as it comes with lse, or with gradients: often by another route than alone."""
    problem = question.problem
    beside = ("lse",) if question.claim == "out-beside-lse" else wanted(question)
    out = question.ask(problem, want=("out", *beside))["out"]
    right(question, problem, {"out": out}, what=f"beside {', '.join(beside)}")


@pytest.mark.attnspec("equal-operands", cases=asked_under("", "causal", shapes=(SQUARE,)))
def test_equal_operands(question: Question) -> None:
    """q, k and v may hold the same numbers, as in a layer without projections."""
    problem = question.problem
    problem = problem.replace(k=problem.q, v=problem.q)
    right(question, problem, question.ask(problem), what="q, k and v of the same numbers")


@pytest.mark.attnspec("degenerate-sizes", cases=_degenerate)
def test_degenerate_sizes(question: Question) -> None:
    """With nothing, or one of a thing: the output, lse and gradients that are claimed."""
    problem, lse = question.problem, ("lse",) * ("return_lse" in question.kernel.options)
    for want in (("out", *lse), question.gradients()):
        if want:
            right(question, problem, question.ask(problem, want=want), what="a degenerate size")


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
