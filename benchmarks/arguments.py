"""Types of the benchmarks' arguments."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["positive", "writable"]


def positive(word: str) -> int:
    """A whole number of at least 1; `argparse.ArgumentTypeError` otherwise."""
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {word}")
    return int(word)


def writable(word: str) -> Path:
    """A file in a folder that is there; `argparse.ArgumentTypeError` otherwise."""
    path = Path(word)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}")
    return path
