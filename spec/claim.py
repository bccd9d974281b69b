"""The shape of a claim, and what its executable property may do to an implementation."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from attnspec.oracle.formats import Float64Array
from attnspec.oracle.problem import Problem

__all__ = ["Claim", "Property", "Trial", "all_claims"]

Array = npt.NDArray[Any]

SOURCE = r"\b(?:ch11|lesson3|heart|sys|ext)(?:\.\w+)+|\bKP\d+"
"""A statement's id, or a property's code."""


class Trial(Protocol):
    """An implementation under test, as a property sees it.

    `ask` runs it. `allowance` is the distance from the exact result that its declared arithmetic
    may reach on any input, output rounding included. `close` and `same` record a comparison; a
    violated one ends the trial.
    """

    @property
    def rng(self) -> np.random.Generator:
        """What a property draws from: the same for every implementation."""

    def ask(self, problem: Problem, *, want: Sequence[str] = ("out",)) -> Mapping[str, Array]:
        """The implementation's outputs, in their own dtype."""

    def allowance(self, problem: Problem, *, output: str = "out") -> Float64Array:
        """The bound on |output - exact|, element by element, in the output's shape."""

    def close(self, actual: Array, expected: Array, within: Float64Array, *, what: str) -> None:
        """Require |actual - expected| <= within everywhere; `what` says what that would mean."""

    def same(self, actual: Array, expected: Array, *, what: str) -> None:
        """Require equal numbers everywhere (NaN equals NaN, 0 equals -0)."""


Property = Callable[[Trial, Problem], None]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One statement that binds every attention implementation.

    id: short and descriptive, as it stands in the report's rows and in test ids.
    statement: one sentence, in the field's terms.
    source: the documents' claim ids and equations, or the paper.
    hypotheses: what must hold for it.
    check: the property; it runs the implementation on the problem and on problems derived from it.
    settings: the option settings under which it is asked, e.g. "", "causal:on+bias:full".
    options: what the kernel must claim beyond the setting: option names, `return_lse`, or
        `gradients` where the property asks for dq, dk, dv, dbias or dsinks.
    self_attention: asked only of problems with as many queries as keys.
    """

    id: str
    statement: str
    source: str
    check: Property
    hypotheses: str = ""
    settings: tuple[str, ...] = ("",)
    options: tuple[str, ...] = ()
    self_attention: bool = False

    @property
    def sources(self) -> tuple[str, ...]:
        """The ids in `source`, as `attnspec claims` knows them, and the codes of properties."""
        return tuple(re.findall(SOURCE, self.source))


def all_claims() -> Iterator[Claim]:
    """Every claim of every chapter: the `CLAIMS` of each module of this folder, in order."""
    import attnspec.spec as chapters

    for module in sorted(pkgutil.iter_modules(chapters.__path__), key=lambda m: m.name):
        loaded = importlib.import_module(f"attnspec.spec.{module.name}")
        yield from getattr(loaded, "CLAIMS", ())
