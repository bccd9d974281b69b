"""Tiles of rows on all the cores that the BLAS may use, in an order that does not change."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TypeVar

from threadpoolctl import ThreadpoolController

__all__ = ["in_order"]

Task = TypeVar("Task")
Result = TypeVar("Result")

_limited = threading.Lock()  # the BLAS' number of threads is one for the whole process


def in_order(
    tasks: Iterable[Task],
    work: Callable[[Task], Iterable[Result]],
    keep: Callable[[Result], Result],
) -> Iterator[tuple[Task, Iterable[Result]]]:
    """Each task with its results, in the order of the tasks.

    A result is there until the next one is asked for; `keep` makes one that stays.

    Elementwise work, most of it here, keeps one core busy; so each core takes a task of its own,
    with matrix products on that core alone. As many as the BLAS has threads (`OMP_NUM_THREADS` and
    the like limit both); a caller that comes while another one has the cores works on one.
    """
    blas = _controller()
    count = max((library["num_threads"] for library in blas.info()), default=1)
    pending = deque(tasks)
    if count == 1 or len(pending) == 1 or not _limited.acquire(blocking=False):
        for task in pending:
            yield task, work(task)
        return

    def finished(task: Task) -> list[Result]:
        return [keep(result) for result in work(task)]

    running: deque[tuple[Task, Future[list[Result]]]] = deque()
    try:
        with blas.limit(limits=1), ThreadPoolExecutor(count) as pool:
            while pending or running:
                while pending and len(running) <= count:
                    task = pending.popleft()
                    running.append((task, pool.submit(finished, task)))
                task, future = running.popleft()
                yield task, future.result()
    finally:
        _limited.release()


@cache
def _controller() -> ThreadpoolController:
    """The BLAS libraries in use."""
    return ThreadpoolController().select(user_api="blas")
