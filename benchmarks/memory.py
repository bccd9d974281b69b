"""Peak memory of one engine on one case, in a process of its own.

    python benchmarks/memory.py '{"engine": "float64", "keys": 1024, "size": 128}'

prints JSON: what the inputs take, and the most that the process held above what it held when they
were there. Before that, the engine has answered a small case, so that imports, thread pools and
what libraries set aside once are not counted. Conversions of the inputs are.
"""

from __future__ import annotations

import ctypes
import json
import resource
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from cases import Case
from engines import ENGINES
from machine import limit_threads

__all__ = ["peak"]

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
SMALL = 64


def peak(engine: str, case: Case, threads: int | None) -> dict[str, Any]:
    """`inputs` and `extra`, in bytes, measured in a child; `error` where it failed."""
    asked = json.dumps({"engine": engine, "threads": threads, **asdict(case)})
    run = subprocess.run([sys.executable, __file__, asked], capture_output=True, text=True)
    if run.returncode:
        return {"error": (run.stderr.strip().splitlines() or [f"ended by {run.returncode}"])[-1]}
    return dict(json.loads(run.stdout))


def _measured(engine: str, case: Case) -> dict[str, Any]:
    prepare = ENGINES[engine].prepare
    prepare(replace(case, keys=SMALL).problem(), case.want, case.rows)()
    problem = case.problem()
    arrays = (problem.q, problem.k, problem.v, problem.dout)
    before = _restarted()
    prepare(problem, case.want, case.rows)()
    return {"inputs": sum(x.nbytes for x in arrays if x is not None), "extra": _most() - before}


def _restarted() -> int:
    """What is resident now; the peak counts from here on, where Linux lets it.

    glibc is told to give back what was freed, or the engine would be lent it uncounted.
    """
    if CLEAR.exists():
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim:
            trim(0)
        CLEAR.write_text("5")  # proc(5): resets the peak resident set size
    return _most()


def _most() -> int:
    """The peak resident set, in bytes.

    On Linux that of this program alone: getrusage would count its parent's, which it was forked
    from. Elsewhere the peak cannot be restarted, so drawing the inputs counts too.
    """
    if STATUS.exists():
        line = next(x for x in STATUS.read_text().splitlines() if x.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    name, threads = asked.pop("engine"), asked.pop("threads", None)
    limit_threads(threads)
    print(json.dumps(_measured(name, Case(**asked))))
