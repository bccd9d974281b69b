"""The question, its meaning, and its certified answer. Imports nothing else of attnspec."""

from typing import TYPE_CHECKING

from attnspec.oracle.enclosure import Enclosure, Reference
from attnspec.oracle.formats import FORMATS, format_of
from attnspec.oracle.problem import OUTPUTS, Problem, ProblemError
from attnspec.oracle.reference import Uncertified, reference
from attnspec.oracle.rounding import Arithmetic, tolerance

__all__ = [
    "FORMATS",
    "OUTPUTS",
    "Arithmetic",
    "Enclosure",
    "Problem",
    "ProblemError",
    "Reference",
    "Uncertified",
    "format_of",
    "key_gradients",
    "reference",
    "tolerance",
]

if TYPE_CHECKING:
    from attnspec.oracle.double_double import key_gradients
else:

    def __getattr__(name: str) -> object:
        """`key_gradients` when it is first asked for: its engine imports mpmath."""
        if name != "key_gradients":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from attnspec.oracle.double_double import key_gradients

        return key_gradients
