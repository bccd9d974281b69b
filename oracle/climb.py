"""Why an answer comes from where it comes from: the engines asked, and how far each reached."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

__all__ = ["Reach", "Step", "explained"]


@dataclass(frozen=True)
class Reach:
    """How far an engine's bounds on one output reached.

    `short` of the output's `size` elements have a bound above the wanted one, and `unknown` of
    those no finite bound. `worst` is the largest ratio of bound to wanted among the others that
    are short: inf where 0 was wanted or the ratio overflows, and 0 where there are none.
    """

    output: str
    short: int
    unknown: int
    size: int
    worst: float

    def __str__(self) -> str:
        if not self.short:
            return f"{self.output} enough"
        text = f"{self.output} {self.short} of {self.size} elements short"
        if self.unknown:
            text += f", {self.unknown} without a finite bound"
        if self.unknown < self.short:
            worst = f"{self.worst:.3g}" if math.isfinite(self.worst) else "over 1e308"
            text += f", worst {worst}x the wanted bound"
        return text


@dataclass(frozen=True)
class Step:
    """One engine that was asked: for which outputs, how far it reached, and for how long it ran.

    `bits` is the accuracy asked of it, None for an engine that has only one. What it reached
    counts what the engines before it knew better.
    """

    tier: str
    bits: int | None
    outputs: tuple[Reach, ...]
    seconds: float

    @property
    def enough(self) -> bool:
        """Whether no element of any output fell short."""
        return not any(reach.short for reach in self.outputs)

    def __str__(self) -> str:
        bits = "" if self.bits is None else f" at {self.bits} bits"
        short = [str(reach) for reach in self.outputs if reach.short]
        found = "; ".join(short) if short else "enough"
        return f"{self.tier}{bits} ({self.seconds:.2g} s): {found}"


def explained(climb: Sequence[Step]) -> str:
    """The climb in words: lines of under 100 columns, an engine or an output that is short each."""
    lines = []
    for number, step in enumerate(climb):
        first, *others = str(step).split("; ")
        lines += wrap(f"{'-> ' if number else ''}{first}", 99, subsequent_indent=" " * 8)
        for other in others:
            lines += wrap(other, 99, initial_indent=" " * 6, subsequent_indent=" " * 8)
    return "\n".join(lines)
