"""The most memory that this process has held, and how to count it anew."""

from __future__ import annotations

import ctypes
import resource
import sys
from pathlib import Path

__all__ = ["CAN_RESTART", "most", "restarted"]

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")

CAN_RESTART = CLEAR.exists()
"""Whether the peak can be counted anew: on Linux."""


def restarted() -> int:
    """What is resident now, in bytes; the peak counts from here on, where Linux lets it.

    glibc is told to give back what was freed, or what comes next would be lent it uncounted.
    """
    if CAN_RESTART:
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim:
            trim(0)
        CLEAR.write_text("5")  # proc(5): resets the peak resident set size
    return most()


def most() -> int:
    """The peak resident set, in bytes.

    On Linux that of this program alone: getrusage would count its parent's, which it was forked
    from. Elsewhere the peak cannot be restarted, so what came before counts too.
    """
    if STATUS.exists():
        line = next(x for x in STATUS.read_text().splitlines() if x.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
