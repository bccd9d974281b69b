"""Answers about problems, computed once: by the problem itself, or by what stands in it."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from attnspec.oracle.problem import Problem

__all__ = ["Store", "content", "kept", "shared"]

Array = npt.NDArray[Any]
P = ParamSpec("P")
T = TypeVar("T")

SMALL = 2**22
"""Bytes of a problem beyond which its answers are kept only for as long as it is."""

BYTES = 2**27
"""Of the answers that outlive their problems: 128 MB."""


def kept(
    answer: Callable[Concatenate[Problem, P], T],
) -> Callable[Concatenate[Problem, P], T]:
    """Answers about a problem are kept for as long as the problem is: a long one's are large.

    An answer must not hold its problem, or both would stay.
    """
    found: WeakKeyDictionary[Problem, dict[Any, T]] = WeakKeyDictionary()

    @wraps(answer)
    def once(problem: Problem, /, *args: P.args, **kwargs: P.kwargs) -> T:
        of_problem = found.setdefault(problem, {})
        key = (args, tuple(kwargs.items()))
        if key not in of_problem:
            of_problem[key] = answer(problem, *args, **kwargs)
        return of_problem[key]

    return once


def shared(
    answer: Callable[Concatenate[Problem, P], T],
) -> Callable[Concatenate[Problem, P], T]:
    """As `kept`, and problems of the same content share it: for what the numbers alone decide.

    A property derives the same problems for every implementation. What an implementation returns
    is not shared so: it may depend on how the operands lie in memory.
    """
    by_problem = kept(answer)

    @wraps(answer)
    def once(problem: Problem, /, *args: P.args, **kwargs: P.kwargs) -> T:
        name = content(problem)
        if not name:
            return by_problem(problem, *args, **kwargs)
        key = (answer, name, args, tuple(kwargs.items()))
        found: T = ANSWERS.get(key, lambda: answer(problem, *args, **kwargs))
        return found

    return once


class Store:
    """Answers by key, within so many bytes: what was not asked for longest goes first."""

    def __init__(self, limit: int) -> None:
        self.limit, self.held = limit, 0
        self._found: OrderedDict[Any, tuple[Any, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: Any, make: Callable[[], Any]) -> Any:
        """The answer of a key; made where it is not held."""
        if key in self._found:
            self._found.move_to_end(key)
            return self._found[key][0]
        answer = make()
        size = 0
        for array in _arrays(answer):
            array.flags.writeable = False  # it is everyone's
            size += array.nbytes
        self._found[key] = (answer, size)
        self.held += size
        while self.held > self.limit:
            self.held -= self._found.popitem(last=False)[1][1]
        return answer


ANSWERS = Store(BYTES)


@kept
def content(problem: Problem) -> bytes:
    """A name for what stands in a problem, however it lies in memory; empty for a large one."""
    values = [(field.name, getattr(problem, field.name)) for field in fields(problem)]
    if sum(x.nbytes for _, x in values if isinstance(x, np.ndarray)) > SMALL:
        return b""
    found = hashlib.blake2b(digest_size=20)
    for name, value in values:
        if isinstance(value, np.ndarray):
            found.update(f"{name} {value.dtype.name} {value.shape};".encode())
            found.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
        elif value is not None:
            found.update(f"{name} {value!r};".encode())
    return found.digest()


def _arrays(answer: Any) -> Iterable[Array]:
    """The arrays of an answer."""
    if isinstance(answer, np.ndarray):
        yield answer
    elif isinstance(answer, Mapping):
        for part in answer.values():
            yield from _arrays(part)
    elif isinstance(answer, tuple | list):
        for part in answer:
            yield from _arrays(part)
    elif is_dataclass(answer):
        for field in fields(answer):
            yield from _arrays(getattr(answer, field.name))
