"""Small tiles: the engines' long loops over tiles and blocks, walked on small problems."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Named, so that they are loaded before their constants are changed.
from attnspec.oracle import balls, double_double, float64

__all__ = ["small_tiles"]

SMALL: dict[str, dict[str, int]] = {
    double_double.__name__: {"CHUNK": 8, "BLOCK": 32, "LONGEST": 16, "ROWS": 3, "KEPT": 1},
    float64.__name__: {"TILE": 8, "ROWS": 3, "SHARP_TILE": 8, "BLOCK": 8, "CHUNK": 16},
    "attnspec.oracle.heads": {"KEPT": 1},
    balls.__name__: {"TILE_SLOTS": 8, "BLOCK_NUMBERS": 8},
    "attnspec.oracle.ball_outputs": {"CHUNK": 5},
}
"""By the beginning of a module's name, its constants as they are for small tiles. A proof that
names one holds for any smaller value."""


@contextmanager
def small_tiles() -> Iterator[None]:
    """With the sizes of tiles and blocks small enough for small problems to have several."""
    before = list(_constants())
    try:
        for module, name, _, small in before:
            setattr(module, name, small)
        yield
    finally:
        for module, name, usual, _ in before:
            setattr(module, name, usual)


def _constants() -> Iterator[tuple[Any, str, int, int]]:
    """Each module and name in it, with the usual and the small value; `LookupError` for none."""
    for start, names in SMALL.items():
        modules = [module for name, module in sys.modules.items() if name.startswith(start)]
        for name, small in names.items():
            found = [module for module in modules if hasattr(module, name)]
            if not found:
                raise LookupError(f"no module {start}… has the constant {name}")
            yield from ((module, name, getattr(module, name), small) for module in found)
