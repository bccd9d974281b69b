"""Orders and ways of summation."""

from __future__ import annotations

from collections.abc import Iterable

from attnspec.adapters.catalogue import variant
from attnspec.adapters.pipeline import Pipeline

__all__: list[str] = []


@variant()
class RightToLeft(Pipeline):
    """The tiles of keys are taken from the last to the first."""

    def tiles(self) -> Iterable[slice]:
        return reversed(list(super().tiles()))
