"""The question, its meaning, and its certified answer. Imports nothing else of attnspec."""

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
    "reference",
    "tolerance",
]
