"""What may be asked of a kernel: of the problem it does not claim, nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from attnspec.adapters.declaration import NEUTRAL
from attnspec.adapters.kernel import Kernel
from attnspec.oracle.problem import OUTPUTS, Problem, ProblemError

__all__ = [
    "CallFailed",
    "check_claims",
    "check_question",
    "gradients_of",
    "options_of",
    "unclaimed",
]

Status = Literal["not claimed", "error", "fail"]


class CallFailed(Exception):  # noqa: N818, a verdict, not a mistake of the caller
    """The call gave no answer to judge. `status` says why, the message says it in one line.

    not claimed: the kernel does not take this problem, or said so by `NotImplementedError`.
    error: it raised; `traceback` holds the text.
    fail: it returned something other than what the protocol asks for.
    """

    def __init__(self, status: Status, message: str, traceback: str = "") -> None:
        super().__init__(status, message, traceback)
        self.status = status
        self.message = message
        self.traceback = traceback

    def __str__(self) -> str:
        return f"{self.status}: {self.message}"


def gradients_of(wanted: Iterable[str]) -> tuple[str, ...]:
    """Those of the outputs that are gradients."""
    return tuple(output for output in wanted if output not in ("out", "lse"))


def check_question(problem: Problem, wanted: tuple[str, ...]) -> None:
    """Raise `ProblemError` where the outputs make no sense for the problem, or it is not whole."""
    if problem.positions is not None:
        raise ProblemError("positions: a kernel is asked whole problems, not some rows of one")
    for output in wanted:
        if output not in OUTPUTS:
            raise ProblemError(f"want: expected some of {', '.join(OUTPUTS)}; got {output!r}")
    for output in gradients_of(wanted):
        if getattr(problem, output[1:]) is None:
            raise ProblemError(f"want: {output} needs a problem with {output[1:]}")
    if gradients_of(wanted) and problem.dout is None and problem.dlse is None:
        raise ProblemError("want: gradients need dout or dlse")


def options_of(problem: Problem, wanted: tuple[str, ...]) -> dict[str, Any]:
    """The options that the problem uses, in NumPy."""
    used = {
        name: value
        for name in NEUTRAL
        if name != "return_lse" and (value := getattr(problem, name)) is not NEUTRAL[name]
    }
    used["scale"] = float(problem.scale)
    if used.get("window") == (None, None):
        del used["window"]
    if "lse" in wanted or (gradients_of(wanted) and problem.dlse is not None):
        used["return_lse"] = True
    return used


def check_claims(kernel: Kernel, problem: Problem, wanted: tuple[str, ...]) -> None:
    """Refuse, in the kernel's name and by `CallFailed`, what it does not claim."""
    if problem.dtype_name not in kernel.dtypes:
        raise unclaimed(f"{problem.dtype_name}; it takes {', '.join(kernel.dtypes)}")
    used = options_of(problem, wanted)
    for name in used:
        if name not in kernel.options and name != "scale":
            raise unclaimed(name)
    size = problem.head_size
    if "scale" not in kernel.options and problem.scale not in (size**-0.5, 1 / size**0.5):
        raise unclaimed(f"scale {problem.scale!r}; it takes no scale, so only 1/sqrt({size})")
    if any(name in used for name in ("causal", "window", "alibi")) and not _aligned(
        problem, kernel.diagonal
    ):
        raise unclaimed(f"diagonal {problem.diagonal}; it declares {kernel.diagonal}")
    for output in gradients_of(wanted):
        if output not in kernel.differentiable:
            raise unclaimed(f"the gradient {output}")


def _aligned(problem: Problem, diagonal: str) -> bool:
    other = problem.replace(diagonal=diagonal)
    return all(problem.offset(b) == other.offset(b) for b in range(problem.batch))


def unclaimed(what: str) -> CallFailed:
    """The failure of status `not claimed`."""
    return CallFailed("not claimed", what)
