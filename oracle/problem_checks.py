"""What the arrays of a `Problem` must look like, and the error that says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

__all__ = [
    "ProblemError",
    "check_array",
    "check_broadcast",
    "check_exact",
    "check_lengths",
    "check_positions",
    "plain_bool",
    "plain_diagonal",
    "plain_window",
    "row_numbers",
]

Array = npt.NDArray[Any]


class ProblemError(ValueError):
    """A field of a `Problem` has the wrong shape, dtype or value."""


def check_array(name: str, array: object) -> None:
    """A NumPy array."""
    if not isinstance(array, np.ndarray):
        kind = type(array).__name__
        how = "; use .numpy(), for bfloat16 .float().numpy() and ml_dtypes"
        raise ProblemError(
            f"{name}: expected a NumPy array, got {kind}{how if kind == 'Tensor' else ''}"
        )


def check_broadcast(name: str, array: Array | None, full: tuple[int, ...]) -> None:
    """The shape broadcasts to `full`."""
    if array is None:
        return
    pairs = zip(reversed(array.shape), reversed(full), strict=False)
    if array.ndim > len(full) or any(n not in (1, most) for n, most in pairs):
        raise ProblemError(f"{name}: expected a shape that broadcasts to {full}, got {array.shape}")


def check_exact(name: str, array: Array | None, shape: tuple[int, ...]) -> None:
    """The shape is `shape` and every value finite."""
    if array is None:
        return
    if array.shape != shape:
        raise ProblemError(f"{name}: expected shape {shape}, got {array.shape}")
    if not np.all(np.isfinite(np.asarray(array, np.float64))):
        raise ProblemError(f"{name}: expected finite values")


def check_lengths(name: str, lengths: Array | None, batch: int, most: int | None) -> None:
    """Integers (B,) from 0 to `most` (None: no limit)."""
    if lengths is None:
        return
    if lengths.shape != (batch,) or not np.issubdtype(lengths.dtype, np.integer):
        raise ProblemError(
            f"{name}: expected integers of shape ({batch},), "
            f"got {lengths.dtype} of shape {lengths.shape}"
        )
    too_long = most is not None and lengths.size and lengths.max() > most
    if too_long or (lengths.size and lengths.min() < 0):
        raise ProblemError(f"{name}: expected values from 0 to {most}, got {lengths.tolist()}")


def check_positions(positions: Array | None, rows: int, query_lengths: Array | None) -> None:
    """Non-negative integers (Nq,), beside query_lengths."""
    if positions is None:
        return
    if positions.shape != (rows,) or not np.issubdtype(positions.dtype, np.integer):
        raise ProblemError(
            f"positions: expected integers of shape ({rows},), "
            f"got {positions.dtype} of shape {positions.shape}"
        )
    if positions.size and positions.min() < 0:
        raise ProblemError(f"positions: expected values from 0 on, got {positions.min()}")
    if query_lengths is None:
        raise ProblemError("positions: expected query_lengths too: how many queries there are")


def plain_bool(name: str, value: object) -> bool:
    """Python's bool for one of Python or NumPy."""
    if not isinstance(value, bool | np.bool_):
        raise ProblemError(f"{name}: expected a bool, got {value!r}")
    return bool(value)


def plain_diagonal(value: object) -> Any:
    """'bottom-right', 'top-left' or Python's int for an integer of Python or NumPy."""
    if isinstance(value, str) and value in ("bottom-right", "top-left"):
        return value
    if not _is_integer(value):
        raise ProblemError(
            f"diagonal: expected 'bottom-right', 'top-left' or an int, got {value!r}"
        )
    return int(value)


def plain_window(window: object) -> tuple[int | None, int | None] | None:
    """(left, right), each None or Python's int for an integer >= 0 of Python or NumPy."""
    if window is None:
        return None
    if (
        not isinstance(window, tuple)
        or len(window) != 2
        or any(side is not None and (not _is_integer(side) or side < 0) for side in window)
    ):
        raise ProblemError(
            f"window: expected (left, right), each an int >= 0 or None, got {window!r}"
        )
    left, right = (None if side is None else int(side) for side in window)
    return left, right


def _is_integer(value: object) -> TypeGuard[int | np.integer[Any]]:
    """Whether it counts; a bool does not."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def row_numbers(rows: Sequence[int] | slice, count: int) -> npt.NDArray[np.int64]:
    """The rows chosen of `count`, as numbers from 0 on."""
    if isinstance(rows, slice):
        return np.arange(count, dtype=np.int64)[rows]
    chosen = np.asarray(rows)
    if chosen.ndim != 1 or not (chosen.size == 0 or np.issubdtype(chosen.dtype, np.integer)):
        raise ProblemError(f"rows: expected a sequence of integers or a slice, got {rows!r}")
    chosen = chosen.astype(np.int64)
    if np.any((chosen < -count) | (chosen >= count)):
        raise ProblemError(f"rows: expected rows of the {count} that there are, got {rows!r}")
    return np.where(chosen < 0, chosen + count, chosen)
