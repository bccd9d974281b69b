"""What a request to the oracle must look like: outputs, limits and bits. Each raises otherwise."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from attnspec.oracle.formats import Float64Array
from attnspec.oracle.problem import OUTPUTS, Problem, ProblemError

__all__ = ["check_bits", "check_problem", "check_want", "check_within"]


def check_problem(problem: object) -> None:
    """A `Problem`."""
    if not isinstance(problem, Problem):
        raise ProblemError(f"problem: expected a Problem, got {type(problem).__name__}")


def check_want(
    problem: Problem, want: Any, among: tuple[str, ...] = OUTPUTS
) -> dict[str, tuple[int, ...]]:
    """Names of outputs that the problem defines, in a collection: their shapes, in its order."""
    collection = isinstance(want, Collection) and not isinstance(want, str | bytes)
    if not (collection and want and all(isinstance(name, str) for name in want)):
        raise ProblemError(f"want: expected a sequence of {', '.join(among)}; got {want!r}")
    for name in want:
        if among != OUTPUTS and name not in among:
            raise ProblemError(f"want: expected some of {', '.join(among)}; got {name!r}")
    return {name: problem.shape_of(name) for name in want}


def check_within(within: object, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Float64Array]:
    """Numbers >= 0 for outputs of these shapes, to which they broadcast: as float64."""
    if within is None:
        return {}
    if not isinstance(within, Mapping):
        raise ProblemError(
            f"within: expected a mapping from outputs to numbers, such as {{'out': 1e-9}}, "
            f"got {within!r}"
        )
    limits = {}
    for name, limit in within.items():
        if name not in shapes:
            raise ProblemError(f"within[{name!r}]: {name} is not in want, which is {tuple(shapes)}")
        limits[name] = array = _numbers(f"within[{name!r}]", limit)
        if not _broadcasts(array.shape, shapes[name]):
            raise ProblemError(
                f"within[{name!r}]: expected an array that broadcasts to {shapes[name]}, "
                f"got {array.shape}"
            )
        below = ~(array >= 0)
        if np.any(below):
            raise ProblemError(
                f"within[{name!r}]: expected numbers >= 0, got {float(array[below][0])}"
            )
    return limits


def _numbers(name: str, numbers: Any) -> Float64Array:
    """Real numbers of any type, as float64; text, booleans and complex numbers are none."""
    try:
        array = np.asarray(numbers)
        if numbers is None or array.dtype.kind in "bcSUMm":
            raise TypeError
        return array.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        text = " ".join(repr(numbers).split())
        text = text if len(text) <= 40 else f"{text[:37]}..."
        raise ProblemError(f"{name}: expected numbers >= 0, got {text}") from None


def _broadcasts(shape: tuple[int, ...], full: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, full) == full
    except ValueError:
        return False


def check_bits(bits: object) -> int | None:
    """An integer from 2 on, or None."""
    if bits is None:
        return None
    if not isinstance(bits, int | np.integer) or bits < 2:  # so no bool either
        raise ProblemError(f"bits: expected an integer of at least 2 or None, got {bits!r}")
    return int(bits)
