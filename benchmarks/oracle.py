"""The oracle's tiers beside what is used in their place: time, error or bound, memory.

    python benchmarks/oracle.py [--quick] [--json FILE] [--table FILE] [--plots DIR]

All engines get the same inputs in one run and take turns, so that ratios mean something on a
machine that does other work too. Times are the best of several, by the clock, with the threads
as they are found. Ratios are to torch's scaled_dot_product_attention in float64, by its own choice
of kernel: forward, or forward and backward (all of dq, dk, dv). torch and NumPy get float64 copies
of the inputs beforehand, except for long contexts, where making them is part of it.

What would take longer than --limit seconds a call is not measured, and said so; "~" marks what the
number of scores makes of the largest n that was. For each way in which inputs differ from the
first (the largest head, the first dtype, dense) the limit is halved, and for engines a hundred
times slower than torch, 1/32.

Needs `pip install -e '.[bench]'`. About a quarter of an hour on two quiet cores; --quick less than
a minute.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import machine
from arguments import positive, writable
from cases import Case, long_cases, square_cases
from engines import ENGINES
from measurements import Measurements
from plots import draw
from report import report
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from attnspec.oracle.formats import FORMATS

WIDTH = 100
FULL = {
    "sizes": [32, 64, 128, 256, 512, 1024, 2048, 4096],
    "head_sizes": [64, 128],
    "contexts": [2**14, 2**16, 2**18, 2**20],
    "limit": 20.0,
    "sample": 1.5,
}
QUICK = {
    "sizes": [32, 64, 128, 256],
    "head_sizes": [64],
    "contexts": [2**14],
    "limit": 0.5,
    "sample": 0.1,
}


@dataclass(frozen=True)
class Step:
    """A part of the run, with its share of the progress bar, roughly its cost."""

    label: str
    weight: float
    act: Callable[[], None]


def lines(found: Mapping[str, Any]) -> str:
    """JSON with a line for each field, and one for each record of a list."""

    def written(value: Any) -> str:
        if isinstance(value, Mapping):
            fields = (f"{json.dumps(key)}: {written(field)}" for key, field in value.items())
            return "{\n" + ",\n".join(fields) + "\n}"
        if isinstance(value, list):
            return "[\n" + ",\n".join(json.dumps(record) for record in value) + "\n]"
        return json.dumps(value)

    return written(found)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = parsed(words)
    machine.limit_threads(options.threads)
    machine.limit_memory()
    start = time.perf_counter()
    found = {
        "command": shlex.join(["python", "benchmarks/oracle.py", *words]),
        "seed": options.seed,
        "machine": machine.description(),
        **measured(options),
        "threads": machine.threads(),
    }
    found["seconds"] = round(time.perf_counter() - start)
    terminal = Console()
    report(found, Console(width=min(WIDTH, terminal.width) if terminal.is_terminal else WIDTH))
    if options.table:
        with options.table.open("w", encoding="utf-8") as file:
            report(found, Console(file=file, width=WIDTH))
    if options.json:
        options.json.write_text(lines(found) + "\n")
    if options.plots:
        for path in draw(found, options.plots):
            print(path)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Everything that the options ask for, with a progress bar."""
    here = [name for name in options.engines if not ENGINES[name].missing()]
    limits = {"limit": options.limit, "seconds": options.sample, "threads": options.threads}
    square, one_row = (Measurements(here, **limits) for _ in range(2))
    slices = square_cases(options.sizes, options.head_sizes, options.dtypes, options.seed)
    long = long_cases(options.contexts, max(options.head_sizes), options.seed)
    steps = [_timing(square, case, slices[0][0]) for cases in slices for case in cases]
    steps += [_timing(one_row, case, long[0]) for case in long]
    for measurements, cases in ((square, slices[0]), (one_row, long)):
        # Quickly: the larger of the two alone.
        for backward in (True,) if options.quick else (False, True):
            steps += _weighing(measurements, [c for c in cases if c.backward == backward])
    columns = (TextColumn("{task.description:<44}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=sum(step.weight for step in steps))
        for step in steps:
            progress.update(task, description=step.label)
            step.act()
            progress.advance(task, step.weight)
    return {
        "first": asdict(slices[0][0]),
        "square": _records(square),
        "one_row": _records(one_row),
        "missing": {n: ENGINES[n].missing() for n in options.engines if n not in here},
    }


def _timing(measurements: Measurements, case: Case, first: Case) -> Step:
    weight = 1.0 + case.scores * case.size * (4 if case.backward else 1) / 2**27
    act = partial(measurements.time, case, differences=case.differences(first))
    return Step(case.label, weight, act)


def _weighing(measurements: Measurements, cases: Sequence[Case]) -> list[Step]:
    """Peak memory; no step where there is no case."""
    weigh = partial(measurements.weigh, cases)
    return [Step(f"memory, {case.label}", 20.0, weigh) for case in cases[-1:]]


def _records(measurements: Measurements) -> dict[str, Any]:
    return {name: getattr(measurements, name) for name in ("times", "memory", "skipped")}


# -- options -------------------------------------------------------------------------------------


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """The options; what --quick or the full run takes by default is filled in."""
    parser = argparse.ArgumentParser(
        description=__doc__.partition("Needs")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="small and rough, for tests")
    add("--sizes", type=positive, nargs="+", metavar="N", help="keys and query rows")
    add("--head-sizes", type=positive, nargs="+", metavar="D")
    add("--dtypes", nargs="+", choices=list(FORMATS), default=["float32", "bfloat16"])
    add(
        "--engines",
        nargs="+",
        choices=list(ENGINES),
        default=list(ENGINES),
        metavar="NAME",
        help=f"of: {', '.join(ENGINES)}",
    )
    add("--contexts", type=positive, nargs="*", metavar="M", help="keys that one row sees")
    add("--limit", type=float, metavar="S", help="seconds that one call may take")
    add("--sample", type=float, metavar="S", help="seconds to time an engine on a case")
    add("--threads", type=positive, metavar="N", help="cores and threads; default: all")
    add("--seed", type=int, default=0)
    add("--json", type=writable, metavar="FILE", help="every figure")
    add("--table", type=writable, metavar="FILE", help="what is printed")
    add("--plots", type=Path, metavar="DIR", help="error and time against n, as SVG")
    options = parser.parse_args(words)
    for name, value in (QUICK if options.quick else FULL).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.plots:
        options.plots.mkdir(parents=True, exist_ok=True)  # before the run, not after it
    return options


if __name__ == "__main__":
    main()
