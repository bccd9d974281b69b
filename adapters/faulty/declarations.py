"""Kernels that compute attention as well as any, but not what they declare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from attnspec.adapters.catalogue import fault
from attnspec.adapters.pipeline import Array, Pipeline

__all__: list[str] = []


@fault(kind="causal-alignment")
class DeclaresTopLeft(Pipeline):
    """The diagonal is declared top-left but lies bottom-right."""

    declares: ClassVar[Mapping[str, Any]] = {"diagonal": "top-left"}


@fault(kind="contract", spoils=("out",))
class DeclaresTheMeanForEmptyRows(Pipeline):
    """A row that sees no key is declared to return the mean of the values but returns zero."""

    declares: ClassVar[Mapping[str, Any]] = {"masked_row": "mean"}


@fault(kind="contract", spoils=("out",))
class DeclaresNanForEmptyRows(Pipeline):
    """A row that sees no key is declared to return NaN but returns zero."""

    declares: ClassVar[Mapping[str, Any]] = {"masked_row": "nan"}


@fault(kind="contract", shows=("lse",), dtypes=("float16",))
class DeclaresLseInStorage(Pipeline):
    """lse is declared to have the type of the inputs but has that of the sums."""

    declares: ClassVar[Mapping[str, Any]] = {"lse": "storage"}


@fault(
    kind="memory",
    shows=("memory-grows-as-declared",),
    spoils=(),
    beyond_smoke="memory is not measured there",
)
class DeclaresLinearMemory(Pipeline):
    """Memory is declared to grow with the number of keys, but all scores are held at once."""

    tile = 2**62
    declares: ClassVar[Mapping[str, Any]] = {"memory": "linear", "tile": 32}


@fault(
    kind="memory",
    shows=("memory-grows-as-declared",),
    spoils=(),
    beyond_smoke="memory is not measured there",
)
class DeclaresLinearMemoryAndExpandsTheMask(Pipeline):
    """Memory is declared to grow with the number of keys, but who sees whom is held at once."""

    declares: ClassVar[Mapping[str, Any]] = {"memory": "linear"}

    def ready(self) -> None:
        self.seen = super().visible(slice(0, self.keys)).copy()

    def visible(self, keys: slice) -> Array:
        return self.seen[..., keys]
