"""How the memory of a kernel's forward pass grows with n, measured in a process of its own.

    python -m attnspec.conformance.memory JSON

is that process: it loads the kernel by its name and prints a line of JSON for each n. Measured is
the most that is held above what there was before the first call of that n, during the second one:
what the first call leaves (a scratch buffer) counts, what it does once (to compile) does not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from attnspec.adapters import CallFailed, LoadError, call, load
from attnspec.conformance.case import Case, Shape, draw
from attnspec.conformance.peak import CAN_RESTART, most, restarted

__all__ = ["FLOOR", "LIMITS", "exponent", "extra_memory"]

LIMITS: Mapping[str, float] = {"linear": 1.4, "quadratic": 2.4}
"""The largest exponent that passes, by what is declared.

Measured with torch 2.13, JAX 0.10.2 and NumPy 2.4: 0.8 to 1.0 where n × n numbers are never held,
1.5 to 1.9 where they are; less than 2 because the copies of the inputs are counted along.
"""

FLOOR = 2**20
"""Bytes below which nothing is told apart: what allocators round, and libraries set aside."""

STEPS = (8, 4, 2, 1)
"""The n of the case is divided by these; three of them are enough."""
ENOUGH = 3
SECONDS = 120
SMALL = 64
MARK = "attnspec-memory "


def exponent(extra: Mapping[int, int]) -> float:
    """The b of bytes ~ n^b: least squares of the logarithms, over the three largest n."""
    largest = sorted(extra.items())[-ENOUGH:]
    sizes, amounts = np.log([(n, max(taken, FLOOR)) for n, taken in largest]).T
    return float(np.polyfit(sizes, amounts, 1)[0])


def extra_memory(impl: str, case: Case, dtype: str) -> dict[int, int]:
    """By n, up to the case's, the bytes that the kernel named `impl` takes above its inputs' own.

    Raises `CallFailed`: `not claimed` where it cannot be measured, `error` where the kernel fails.
    """
    if not CAN_RESTART:
        raise CallFailed("not claimed", "memory is measured on Linux alone")
    asked = {"impl": impl, "dtype": dtype, "shape": asdict(case.shape), "settings": case.settings}
    command = [sys.executable, "-m", "attnspec.conformance.memory", json.dumps(asked)]
    path = os.pathsep.join(word for word in sys.path if word)
    output, ended = _run(command, os.environ | {"PYTHONPATH": path})
    lines = [line.removeprefix(MARK) for line in output.splitlines() if line.startswith(MARK)]
    records = [json.loads(line) for line in lines]
    for record in records:
        if "status" in record:
            raise CallFailed(record["status"], record["message"])
    found = {int(record["n"]): int(record["extra"]) for record in records}
    if ended:
        raise CallFailed("error", f"the process that measures its memory ended by {ended}")
    if len(found) < ENOUGH:
        raise CallFailed("not claimed", f"memory at {ENOUGH} sizes takes more than {SECONDS} s")
    return found


def _run(command: list[str], environment: Mapping[str, str]) -> tuple[str, int]:
    """What it printed, and its exit status; 0 where its time ran out."""
    try:
        run = subprocess.run(
            command, env=environment, capture_output=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired as late:
        return (late.stdout or b"").decode(errors="replace"), 0
    return run.stdout.decode(errors="replace"), run.returncode


# -- the child -----------------------------------------------------------------------------------


def _measured(
    impl: str, dtype: str, shape: dict[str, int], settings: list[list[str]]
) -> Iterator[dict[str, Any]]:
    try:
        kernel = load(impl)
    except LoadError as error:
        yield {"status": "not claimed", "message": f"memory: not loaded by itself: {error}"}
        return
    largest = Case("normal", Shape(**shape), tuple((a, b) for a, b in settings))
    diagonal: Any = kernel.diagonal
    try:
        for keys in (SMALL, *(largest.shape.keys // step for step in STEPS)):
            case = replace(largest, shape=replace(largest.shape, queries=keys, keys=keys))
            problem = draw(case, dtype=dtype, diagonal=diagonal, seed=0)
            before = restarted()
            call(kernel, problem)
            restarted()
            call(kernel, problem)
            if keys > SMALL:
                yield {"n": keys, "extra": most() - before}
    except CallFailed as failure:
        yield {"status": failure.status, "message": failure.message}


if __name__ == "__main__":
    for record in _measured(**json.loads(sys.argv[1])):
        print(f"\n{MARK}{json.dumps(record)}", flush=True)
