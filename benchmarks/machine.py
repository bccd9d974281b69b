"""What the figures were measured on, and with how many threads."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_info, threadpool_limits

__all__ = ["cores", "description", "limit_memory", "limit_threads", "threads"]

PACKAGES = ("attnspec", "numpy", "torch", "mpmath", "gmpy2", "python-flint", "ml_dtypes")
MEMORY_SHARE = 0.8
_limits: list[Any] = []  # undone when collected


def limit_threads(threads: int | None) -> None:
    """Hold this process to so many cores, and every library in it to as many threads."""
    if threads is None:
        return
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    os.environ["OMP_NUM_THREADS"] = str(threads)  # what is not yet loaded: torch
    _limits.append(threadpool_limits(threads))


def limit_memory() -> None:
    """Let an engine that asks for more than the machine has left fail by itself, alone."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (int(MEMORY_SHARE * _available()), most))


def description() -> dict[str, Any]:
    """Versions, processor, cores, memory, threads of each library, date."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": cores(),
        "load_at_start": round(os.getloadavg()[0], 2),
        "memory_bytes": _memory(),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def threads() -> dict[str, Any]:
    """How many threads each library uses that is loaded, and what the environment says."""
    pools = [
        {k: pool.get(k) for k in ("internal_api", "version", "architecture", "num_threads")}
        for pool in threadpool_info()
    ]
    found: dict[str, Any] = {"pools": pools}
    if "torch" in sys.modules:
        found["torch"] = sys.modules["torch"].get_num_threads()
    names = [n for n in os.environ if n.endswith("_NUM_THREADS") or n.startswith("OPENBLAS_")]
    return found | {"environment": {name: os.environ[name] for name in sorted(names)}}


def _processor() -> str:
    """The model and the vector instructions that matter for a matrix product."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor() or platform.machine()
    lines = [line.partition(":") for line in info.read_text().splitlines()]
    fields = {name.strip(): value.strip() for name, _, value in lines}
    vectors = [x for x in ("avx2", "fma", "avx512f") if x in fields.get("flags", "").split()]
    return " ".join([fields.get("model name", platform.machine()), *vectors])


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _available() -> int:
    """Bytes that can be had without swapping; all there are, where nothing says."""
    info = Path("/proc/meminfo")
    lines = info.read_text().splitlines() if info.exists() else []
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")]
    return found[0] if found else _memory()


def cores() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
