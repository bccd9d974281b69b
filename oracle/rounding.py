"""The tolerance: how far a declared arithmetic may take a kernel from the exact result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from attnspec.oracle.backward_rounding import backward
from attnspec.oracle.formats import FORMATS, Float64Array, Format, format_of
from attnspec.oracle.forward_rounding import forward
from attnspec.oracle.problem import OUTPUTS, Problem, ProblemError
from attnspec.oracle.roundoffs import LAMBDA, Roundoffs, flush, operand_roundoff
from attnspec.oracle.statistics import Again, Statistics, each_statistics, statistics

__all__ = [
    "APPROXIMATE_EXP",
    "CLASSES",
    "EAGER",
    "FLOAT32_INSIDE",
    "LAMBDA",
    "PLAIN",
    "PROBABILITIES_ROUNDED",
    "STORAGE_GRADIENTS",
    "Arithmetic",
    "Tolerance",
    "statistics",
    "tolerance",
]


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """What a kernel declares about its arithmetic; the format of q, k and v is `storage`.

    accumulate: format of products, sums, softmax statistics and stored lse; the wider of it and
        the storage format is meant, so "storage" accumulates in the input's own type.
    operands: a coarser format to which the matrix products round their operands ("tfloat32").
    scores: "storage" where the scores are rounded to the storage format, `score_roundings` times
        (twice where they are stored before and after scaling), and once more after each step of
        soft-cap, bias and ALiBi.
    probabilities: "storage" where P is rounded to the storage format before P @ V, after the
        division by the row sum if `normalised`, before it (as flash attention does) otherwise.
    exp_error: relative error of exp; None means 4 unit roundoffs of the accumulator.
    gradients: "storage" where dq, dk and dv are accumulated tile by tile in the storage format.
    lse: the format of the returned lse, "accumulate" or "storage".
    tile: the fewest keys between two rescales of the online softmax.
    merged: parts of the keys are computed apart and weighed by exp(lse of the part - lse of the
        row), divided by the sum of these weights or not (FlashAttention's split-KV).
    """

    accumulate: str = "storage"
    operands: str | None = None
    scores: Literal["storage"] | None = None
    score_roundings: int = 1
    probabilities: Literal["storage"] | None = None
    normalised: bool = False
    exp_error: float | None = None
    gradients: Literal["storage"] | None = None
    lse: Literal["accumulate", "storage"] = "accumulate"
    tile: int = 32
    merged: bool = False

    def resolve(self, storage: str) -> Roundoffs:
        """The concrete roundoffs for one storage format, by its name.

        A rounding to storage costs nothing where storage is not coarser than the accumulator.
        `ValueError` where a format's name is not known.
        """
        kept = FORMATS[storage]
        named = storage if self.accumulate == "storage" else self.accumulate
        if named not in FORMATS:
            expected = ", ".join(("storage", *FORMATS))
            raise ValueError(f"accumulate: expected one of {expected}, got {self.accumulate!r}")
        acc = max(FORMATS[named], kept, key=lambda f: f.digits)
        coarser, eta = (kept.unit_roundoff, flush(kept)) if kept.digits < acc.digits else (0.0, 0.0)
        unit = acc.unit_roundoff
        return Roundoffs(
            storage=kept,
            accumulate=acc,
            lse=kept if self.lse == "storage" else acc,
            unit=unit,
            eta=flush(acc),
            probability=coarser if self.probabilities else 0.0,
            probability_eta=eta if self.probabilities else 0.0,
            normalised=self.normalised,
            score=coarser if self.scores else 0.0,
            score_eta=eta if self.scores else 0.0,
            score_roundings=self.score_roundings,
            operand=operand_roundoff(self.operands, acc),
            exp=4 * unit if self.exp_error is None else max(self.exp_error, 4 * unit),
            gradient=coarser if self.gradients else 0.0,
            gradient_eta=eta if self.gradients else 0.0,
            tile=self.tile,
            merged=self.merged,
        )


PLAIN = Arithmetic()
"""Everything in the storage format itself: textbook NumPy in float32 and float64."""
FLOAT32_INSIDE = Arithmetic(accumulate="float32")
"""float32 (float64 for float64) from the first product to the output's one rounding."""
PROBABILITIES_ROUNDED = replace(FLOAT32_INSIDE, probabilities="storage")
"""Flash attention on tensor cores: P, and dS, enter their products in the storage format."""
STORAGE_GRADIENTS = replace(PROBABILITIES_ROUNDED, gradients="storage")
"""As `PROBABILITIES_ROUNDED`, and dq, dk and dv are accumulated in the storage format."""
APPROXIMATE_EXP = replace(STORAGE_GRADIENTS, exp_error=2.0**-13)
"""As `STORAGE_GRADIENTS`, with an exp good to 2^-13 (torch's CPU flash kernel in bfloat16)."""
EAGER = replace(
    PROBABILITIES_ROUNDED, scores="storage", score_roundings=2, normalised=True, lse="storage"
)
"""One framework operation a step, each storing its result: S twice, P after normalisation."""

CLASSES: tuple[tuple[str, Arithmetic], ...] = (
    ("float32 inside", FLOAT32_INSIDE),
    ("probabilities rounded", PROBABILITIES_ROUNDED),
    ("storage gradients", STORAGE_GRADIENTS),
    ("approximate exp", APPROXIMATE_EXP),
    ("eager", EAGER),
    ("storage accumulation", PLAIN),
)
"""Name and arithmetic, tightest first, for the report's "tightest class met"."""


@dataclass(frozen=True, eq=False)
class Tolerance:
    """How far a result may lie from the exact one before it is rounded to the output's `format`.

    hard: no implementation of the declared arithmetic exceeds it, on any input; inf where the
        arithmetic may overflow or where nothing is known.
    sigma: the predicted standard deviation, for generic inputs: judge by `LAMBDA` of them.
    format: what the result is rounded to, once, at the end. A result conforms within the
        envelope [RN(exact - B), RN(exact + B)], B = hard or LAMBDA · sigma.

    `hard` and `sigma` have the output's shape, float64, and are never NaN.
    """

    hard: Float64Array
    sigma: Float64Array
    format: Format


def tolerance(
    problem: Problem,
    *,
    arithmetic: Arithmetic,
    want: Sequence[str] = ("out",),
    sigma: bool = True,
    statistics: Iterable[Statistics] | None = None,
) -> dict[str, Tolerance]:
    """The tolerance of each wanted output (a name of `OUTPUTS`) under the declared arithmetic.

    Without `sigma`, the sigma of out and lse is left at inf, not known, which saves its time.
    `statistics`, from `statistics(problem)`, saves their computation where several arithmetics
    are asked about one problem; without it they live one stack of heads at a time. Slots that hold
    NaN or infinity count as 0: their rows are judged by what they are, not by how far they lie.
    Raises `ProblemError` for an unknown output or gradients without a cotangent.
    """
    _check(problem, want)
    roundoffs = arithmetic.resolve(problem.dtype_name)
    stacks: Iterable[Callable[[], Statistics]] = each_statistics(problem)
    if statistics is not None and not isinstance(statistics, Again):
        stacks = (partial(_same, found) for found in statistics)
    with np.errstate(all="ignore"):  # overflow and inf - inf end as inf, below
        if any(name.startswith("d") for name in want):
            found = backward(problem, stacks, roundoffs, want=want)
        else:
            found = forward(problem, stacks, roundoffs, want=want, sigma=sigma)
        return {
            name: Tolerance(
                _known(found[name][0]), _visible(*found[name]), _format(problem, name, roundoffs)
            )
            for name in want
        }


def _same(found: Statistics) -> Statistics:
    return found


def _visible(hard: Float64Array, sigma: Float64Array) -> Float64Array:
    """A variance below 2^-1000 vanishes in float64: no smaller sigma than 2^-500 is known."""
    np.maximum(sigma, 2.0**-500, out=sigma, where=hard > 0)
    return _known(sigma)


def _known(bound: Float64Array) -> Float64Array:
    """NaN says that the analysis overflowed: nothing is known."""
    np.copyto(bound, np.inf, where=np.isnan(bound))
    return bound


def _format(problem: Problem, output: str, roundoffs: Roundoffs) -> Format:
    if output == "lse":
        return roundoffs.lse
    if output == "dbias" and problem.bias is not None:
        return format_of(problem.bias.dtype)
    if output == "dsinks" and problem.sinks is not None:
        return format_of(problem.sinks.dtype)
    return roundoffs.storage


def _check(problem: Problem, want: Sequence[str]) -> None:
    for name in want:
        missing = (name == "dbias" and problem.bias is None) or (
            name == "dsinks" and problem.sinks is None
        )
        if name not in OUTPUTS or missing:
            raise ProblemError(f"output {name!r} is not defined for this problem")
        if name.startswith("d") and problem.dout is None and problem.dlse is None:
            raise ProblemError(f"{name}: a gradient needs a cotangent, dout or dlse")
