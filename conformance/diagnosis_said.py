"""What a diagnosis says: the suspects with their evidence, and the lines of the report."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

from attnspec.adapters.fault_classes import class_of
from attnspec.conformance.localisation import Separation

__all__ = ["Diagnosis", "Suspect"]

WIDTH = 100
FAIR = 0.5
"""Share of the failures that a fault must explain to be called the likely cause."""
CLEAR = 0.75
"""The same, of a fault that explains no number."""
ALIKE = 0.5
"""Overlap from which on two fail in the same places."""
REFUTED = 0.25
"""Share of the passes that it may fail."""


@dataclass(frozen=True)
class Suspect:
    """A fault, and how much it explains.

    explained: of `asked` failures that were asked again; refuted: of `passes`, those that it fails.
    fraction: of the bound, between it and the implementation; overlap: in [0, 1], of what is wrong.
    finite: whether it explains numbers, number by number, and not NaN alone. ways: how it matches.
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
    overlap: float
    finite: bool
    ways: Mapping[str, int]
    score: float
    nearness: float

    @property
    def likely(self) -> bool:
        """Whether it explains a fair share, and fails where the implementation passes seldom.

        What matches number by number may do so under a condition of its own. But many faults
        return NaN: one that fails where the implementation passes is not what it does.
        """
        enough = self.explained >= FAIR * self.asked and self.explained > 0
        if not self.finite:
            return self.explained >= CLEAR * self.asked and enough and not self.refuted
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

    nearest: those that come nearest where none explains them, of the class first. class_name: the
    class of the cause, or of what the failures speak for; reasons: what does.
    """

    likely: tuple[Suspect, ...] = ()
    nearest: tuple[Suspect, ...] = ()
    asked: int = 0
    as_if: str = ""
    class_name: str = ""
    reasons: tuple[str, ...] = ()
    outputs: str = ""
    separation: Separation | None = None
    places: tuple[str, ...] = ()
    trouble: str = ""

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
        elif not self.likely and self.class_name:
            if self.asked:
                found.append("unexplained: no known fault does this")
            found += _wrapped("likely class: ", self._class())
        where = [word for word in (self.outputs, str(self.separation or "")) if word]
        if self.places:
            where.append(f"wrong numbers: {', '.join(self.places)}")
        return found + (_wrapped("where: ", "; ".join(where)) if where else [])

    def _class(self) -> str:
        """The class with what speaks for it, and a fault of it that fails in the same places."""
        why = list(self.reasons[:2])
        own = [one for one in self.nearest if class_of(one.kind) == self.class_name]
        alike = [one.name for one in own if one.overlap >= ALIKE and not one.refuted]
        if alike:
            why.append(f"as faulty:{alike[0]}, which fails in the same places")
        elif own and not why:
            why.append(f"of it, faulty:{own[0].name} comes nearest")
        return f"{self.class_name} ({'; '.join(why)})" if why else self.class_name


def _wrapped(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH - 2,
        initial_indent=label,
        subsequent_indent=" " * 4,
        break_long_words=False,
        break_on_hyphens=False,
    )
