"""Peak memory of one engine on one case, in a process of its own.

    python benchmarks/memory.py '{"engine": "float64", "keys": 1024, "size": 128}'

prints JSON: what the inputs take, and the most that the process held above what it held when they
were there. Before that, the engine has answered a small case, so that imports, thread pools and
what libraries set aside once are not counted. Conversions of the inputs are.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace
from typing import Any

from cases import Case
from engines import ENGINES
from machine import limit_threads

from attnspec.conformance.peak import most, restarted

__all__ = ["peak"]

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
    before = restarted()
    prepare(problem, case.want, case.rows)()
    return {"inputs": sum(x.nbytes for x in arrays if x is not None), "extra": most() - before}


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    name, threads = asked.pop("engine"), asked.pop("threads", None)
    limit_threads(threads)
    print(json.dumps(_measured(name, Case(**asked))))
