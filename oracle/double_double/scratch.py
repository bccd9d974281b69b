"""Arrays that are used again: a fresh array for each step would cost more than the step itself.

A block of scores fits the cache, and an operation on it takes microseconds; getting its result's
memory from the system and giving it back takes ten times as long.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from attnspec.oracle.formats import Float64Array

__all__ = ["Scratch", "Workspace", "workspace"]


class Scratch:
    """A pool of float64 arrays for one thread."""

    def __init__(self) -> None:
        self._free: dict[int, list[Float64Array]] = {}

    @contextmanager
    def arrays(self, shape: tuple[int, ...], count: int) -> Iterator[list[Float64Array]]:
        """So many arrays of this shape, with anything in them, until the block ends."""
        size = math.prod(shape)
        room = 1 << (size - 1).bit_length() if size else 1
        free = self._free.setdefault(room, [])
        taken = [free.pop() if free else np.empty(room) for _ in range(count)]
        try:
            yield [flat[:size].reshape(shape) for flat in taken]
        finally:
            free.extend(taken)


@dataclass
class Workspace:
    """What a thread works in: room for the exponentials of a tile, and a pool."""

    buffer: Float64Array = field(default_factory=lambda: np.empty(0))
    scratch: Scratch = field(default_factory=Scratch)


_idle: list[Workspace] = []
_KEPT = 2**23
"""Numbers of a buffer that waits for the next problem: 64 MB."""


@contextmanager
def workspace(size: int) -> Iterator[Workspace]:
    """A workspace whose buffer has room for `size` numbers, until the block ends."""
    try:
        work = _idle.pop()
    except IndexError:
        work = Workspace()
    if work.buffer.size < size:
        work.buffer = np.empty(size)
    try:
        yield work
    finally:
        if work.buffer.size <= _KEPT:
            _idle.append(work)
