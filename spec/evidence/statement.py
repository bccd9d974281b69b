"""The shape of a statement of the sources: what it says, whether it is true, and how one knows."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from attnspec.spec.evidence.figure import Figure

__all__ = [
    "CHAPTERS",
    "Check",
    "Proof",
    "Refuted",
    "Statement",
    "Step",
    "Verdict",
    "all_statements",
    "require",
]

Verdict = Literal["true", "conditional", "imprecise", "false", "undecided", "narrative"]
"""true as written, without hypotheses; conditional: under those named; imprecise: `exact` says
what holds; false; undecided: no computation here can tell; narrative: it has no truth value."""

CHAPTERS = ("chapter11", "lesson3", "heart", "systems", "theorems")
"""The folders of `spec/` that hold statements, in reading order."""


class Refuted(AssertionError):  # noqa: N818, it names the finding
    """A check found that what it was given does not hold."""


def require(holds: object, what: str) -> None:
    """Raise `Refuted` unless it holds; `what` says what would be wrong."""
    if not holds:
        raise Refuted(what)


@dataclass(frozen=True)
class Step:
    """One identity of a proof: its text, and the prover's decision."""

    text: str
    holds: Callable[[], bool]


@dataclass(frozen=True, kw_only=True)
class Proof:
    """A symbolic proof: every step holds, and the prover rejects every mutation of the claim.

    sizes: for which sizes, "all" or which ones, and then why not all.
    mutations: at least two wrong forms of the claim, by what is wrong with each.
    """

    steps: tuple[Step, ...]
    mutations: Mapping[str, Step]
    sizes: str = "all"


@dataclass(frozen=True, kw_only=True)
class Check:
    """A computation that decides the statement: exact rationals, or mpmath with stated digits.

    run: takes the subject, raises `Refuted` where the statement fails for it, and returns one line
        that says what was computed.
    subject: what the statement speaks of: a function, a closed form, a number.
    mutations: at least two wrong subjects that `run` must refute, by what is wrong with each.
    """

    run: Callable[[Any], str]
    subject: Any
    mutations: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One statement of the sources, or a theorem beside them.

    id: as in the list of ids (`spec/ids.txt`). where: its place in the source.
    says: what the source says, in our words. formula: the exact form, in LaTeX.
    exact: what holds instead, where it is imprecise or false.
    hypotheses: what must hold for it, and beside each, where there is one, a witness: a function
        that shows the claim failing without it, and says so in a line (or raises `Refuted`).
    proof: builds the symbolic proof. check, figures: computations. reason: why there are none.
    properties: what asks it of implementations: claims, outputs that are compared with the
        oracle's (`out`, `dq`, ...), and contracts, as the report names them.
    """

    id: str
    where: str
    says: str
    verdict: Verdict
    formula: str = ""
    exact: str = ""
    hypotheses: Mapping[str, Callable[[], str] | None] = field(default_factory=dict)
    proof: Callable[[], Proof] | None = None
    check: Check | None = None
    figures: tuple[Figure, ...] = ()
    reason: str = ""
    properties: tuple[str, ...] = ()

    @property
    def evidence(self) -> tuple[str, ...]:
        """How one knows: of proof, check, figures, witness, property."""
        witnesses = any(witness is not None for witness in self.hypotheses.values())
        kinds = {
            "proof": self.proof is not None,
            "check": self.check is not None,
            "figures": bool(self.figures),
            "witness": witnesses,
            "property": bool(self.properties),
        }
        return tuple(name for name, has in kinds.items() if has)


def all_statements() -> Iterator[Statement]:
    """Every statement, chapter by chapter: the `STATEMENTS` of each module, in their order."""
    for chapter in CHAPTERS:
        package = importlib.import_module(f"attnspec.spec.{chapter}")
        for name in getattr(package, "SECTIONS", _modules(package)):
            module = importlib.import_module(f"attnspec.spec.{chapter}.{name}")
            yield from module.STATEMENTS


def _modules(package: Any) -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__))
