"""What a diagnosis says: the suspects with their evidence, and the lines of the report."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

from attnspec.conformance.localisation import Separation

__all__ = ["Diagnosis", "Suspect"]

WIDTH = 100
FAIR = 0.5
"""Share of the failures that a fault must explain to be called the likely cause."""
REFUTED = 0.25
"""Share of the passes that it may fail."""


@dataclass(frozen=True)
class Suspect:
    """A fault, and how much it explains.

    explained: of `asked` failures that were asked again; refuted: of `passes`, those that it fails.
    fraction: of the bound, between it and the implementation; ways: how the failures match.
    score ranks explanations; nearness ranks what is like the implementation where none explains it.
    """

    name: str
    says: str
    kind: str
    group: str
    explained: int
    asked: int
    refuted: int
    passes: int
    fraction: float
    ways: Mapping[str, int]
    score: float
    nearness: float

    @property
    def likely(self) -> bool:
        """Whether it explains a fair share, and fails where the implementation passes seldom.

        What matches number by number may do so under a condition of its own.
        """
        enough = self.explained >= FAIR * self.asked and self.explained > 0
        return enough and (self.refuted <= REFUTED * self.passes or self.sometimes)

    @property
    def sometimes(self) -> bool:
        """Whether the implementation does what the fault does, but not always."""
        numbers = self.ways.get("numbers", 0) >= 0.75 * self.asked and self.asked > 1
        return numbers and self.refuted > REFUTED * self.passes

    @property
    def evidence(self) -> str:
        """How much of what was asked it explains, and how closely."""
        if set(self.ways) == {"numbers"}:
            close = "number by number" if self.fraction == 0 else f"to {self.fraction:.1g}"
            tail = close if self.fraction == 0 else f"{close} of the bound"
        elif self.ways.get("errors", 0) > 0:
            tail = "its errors go with these"
        else:
            tail = "it fails alike"
        against = f", but fails {self.refuted} of {self.passes} passes" if self.refuted else ""
        if self.sometimes:
            against = f"; but not always: it fails {self.refuted} of {self.passes} passes"
        return f"explains {self.explained} of {self.asked} failures asked again, {tail}{against}"


@dataclass(frozen=True)
class Diagnosis:
    """likely: the faults that explain the failures, two where nothing tells them apart.

    nearest: those that come nearest where none explains them. kind and group: of the first.
    """

    likely: tuple[Suspect, ...] = ()
    nearest: tuple[Suspect, ...] = ()
    asked: int = 0
    as_if: str = ""
    outputs: str = ""
    separation: Separation | None = None
    places: tuple[str, ...] = ()
    trouble: str = ""

    @property
    def best(self) -> Suspect | None:
        """The first of the likely ones, or the nearest."""
        return next(iter((*self.likely, *self.nearest)), None)

    def lines(self) -> list[str]:
        """For the report, each of at most 98 columns."""
        if self.trouble:
            return _wrapped("no diagnosis: ", self.trouble)
        found: list[str] = []
        for number, one in enumerate(self.likely):
            text = f"{one.says} (faulty:{one.name}; {one.evidence})"
            found += _wrapped("most likely: " if number == 0 else "or: ", text)
        excused = f"{self.as_if} (then every failure asked again would pass)"
        if self.as_if and self.likely:
            found += _wrapped("as if ", excused)
        elif self.as_if:
            found += _wrapped("most likely: ", f"coarser than declared, as if {excused}")
        elif not self.likely and self.asked:
            found += _wrapped("most likely: ", self._unexplained())
        where = [word for word in (self.outputs, str(self.separation or "")) if word]
        if self.places:
            where.append(f"wrong numbers: {', '.join(self.places)}")
        return found + (_wrapped("where: ", "; ".join(where)) if where else [])

    def _unexplained(self) -> str:
        text = "unexplained: no known fault does this"
        if self.nearest and self.nearest[0].score > 0:
            one = self.nearest[0]
            says = one.says.rstrip(".")
            text += f"; the nearest ({one.kind}): {says} (faulty:{one.name})"
        return text


def _wrapped(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH - 2,
        initial_indent=label,
        subsequent_indent=" " * 4,
        break_long_words=False,
        break_on_hyphens=False,
    )
