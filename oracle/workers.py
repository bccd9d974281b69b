"""Threads for work that is done in NumPy, which lets others run meanwhile."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TypeVar

from threadpoolctl import ThreadpoolController

__all__ = ["in_order"]

Item = TypeVar("Item")
Result = TypeVar("Result")
FEW = 2**18
"""Scores whose attention takes less time than starting threads is worth."""
_limited = threading.Lock()  # the BLAS has one number of threads for the whole process


def in_order(
    function: Callable[[Item], Result], items: Iterable[Item], *, scores: int
) -> Iterator[Result]:
    """`function` of each item, in their order, several at once where there are many scores.

    As many as the BLAS may use threads; it gets one for each of them meanwhile, and no more than
    two results a worker wait. A caller that comes while another one has the workers does without.
    Callers that add results up get the same sum on every run.
    """
    count = 1 if scores < FEW else _workers()
    if count == 1 or not _limited.acquire(blocking=False):
        yield from map(function, items)
        return
    waiting: deque[Future[Result]] = deque()
    try:
        with _blas().limit(limits=1), ThreadPoolExecutor(count) as pool:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) >= 2 * count:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
    finally:
        _limited.release()


@cache
def _blas() -> ThreadpoolController:
    """NumPy's BLAS, and any other that is loaded: found once, which takes milliseconds."""
    return ThreadpoolController().select(user_api="blas")


def _workers() -> int:
    return max((library.num_threads for library in _blas().lib_controllers), default=1)
