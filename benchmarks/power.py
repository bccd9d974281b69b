"""What attention test suites catch, and what they reject wrongly: their rules beside attnspec's.

    python benchmarks/power.py [--every N] [--json FILE] [--table FILE] [--plots DIR]

Every fault of the catalogue, and every conforming variant, is judged by the acceptance rule of each
suite: on that suite's own inputs, and on attnspec's (the problems of out, lse and the gradients at
level smoke, in the same type). A fault is caught where anything is rejected, or the kernel fails;
a variant is a false alarm likewise. attnspec's own row is its level smoke: all of it ("own"), and
the comparisons of out, lse and gradients alone ("ours"). Faults that only show in long contexts,
beyond 65,536 keys, are left out.

Deterministic in --seed. Needs `pip install -e '.[bench]'`. With all faults a quarter of an hour on
two quiet cores.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import machine
from arguments import positive, writable
from peers import PEERS
from power_exams import Exam, examined, papers
from power_plot import draw
from power_report import markdown, report
from power_rows import ATTNSPEC, Asked, Tally, by_attnspec, rows
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from threadpoolctl import threadpool_limits

from attnspec.adapters.catalogue import Fault, Variant, catalogue

WIDTH = 100
SEEDS = 3
"""Fresh seeds for the variants: a false alarm is rarer than a fault."""

TOGETHER = 8
"""Kernels that attnspec judges at a time; they share what is certified about a problem."""

_EXAMS: list[Exam] = []
_JOBS: list[Callable[[], Asked]] = []
"""Of the seed in turn; worker processes inherit both."""


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = parsed(words)
    start = time.perf_counter()
    with threadpool_limits(1):
        found = {
            "command": shlex.join(["python", "benchmarks/power.py", *words]),
            "seed": options.seed,
            "seeds": options.seeds,
            "machine": machine.description(),
            **measured(options),
        }
    found["seconds"] = round(time.perf_counter() - start)
    terminal = Console()
    report(found, Console(width=min(WIDTH, terminal.width) if terminal.is_terminal else WIDTH))
    if options.table:
        with options.table.open("w", encoding="utf-8") as file:
            report(found, Console(file=file, width=WIDTH))
    if options.json:
        options.json.write_text(lines(found) + "\n")
    if options.markdown:
        options.markdown.write_text(markdown(found) + "\n")
    if options.plots:
        print(draw(found, options.plots))


def lines(found: dict[str, Any]) -> str:
    """JSON with a line for each row."""
    fields = []
    for key, value in found.items():
        text = json.dumps(value)
        if key == "rows":
            text = "[\n" + ",\n".join(json.dumps(row) for row in value) + "\n]"
        fields.append(f"{json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(fields) + "\n}"


# -- the run -------------------------------------------------------------------------------------


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """The rows of the table, and who was asked."""
    faults, variants = options.faults, options.variants
    tally = Tally()
    columns = (TextColumn("{task.description:<34}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as progress:
        # Each seed has its papers; a kernel asked by the peers, or by attnspec, is a step.
        kernels = [*faults, *variants * options.seeds]
        steps = len(options.peers) * options.seeds + (1 + len(ATTNSPEC)) * len(kernels)
        task = progress.add_task("", total=steps)

        def advanced(what: str, by: int = 1) -> None:
            progress.update(task, description=what, advance=by, refresh=True)

        for seed in range(options.seed, options.seed + options.seeds):
            asked = faults if seed == options.seed else ()
            _run(options, asked, variants, seed, tally, advanced)
    return {
        "faults": {f.name: {"group": f.group, "kind": f.kind} for f in faults},
        "variants": [v.name for v in variants],
        "long": options.long,
        "rows": rows(options.peers, tally, faults, variants),
    }


def _run(
    options: argparse.Namespace,
    faults: Sequence[Fault],
    variants: Sequence[Variant],
    seed: int,
    tally: Tally,
    advanced: Callable[..., None],
) -> None:
    """One seed: attnspec's level smoke first, then the peers."""
    _EXAMS.clear()
    for exam in papers(options.peers, seed):
        _EXAMS.append(exam)
        advanced(f"references, seed {seed}")
    tally.describe(_EXAMS)
    _JOBS[:] = [
        partial(by_attnspec, group[first : first + TOGETHER], row, seed)
        for row in ATTNSPEC
        for group in (faults, variants)
        for first in range(0, len(group), TOGETHER)
    ]
    _JOBS.extend(partial(_by_peers, entry, seed) for entry in [*faults, *variants])
    for asked in _results(options.workers):
        tally.add(asked)
        advanced(f"kernels, seed {seed}", len(asked.found))


def _by_peers(entry: Variant, seed: int) -> Asked:
    found = examined(entry, _EXAMS, thorough=not isinstance(entry, Fault))
    return Asked(seed, {entry.name: found})


def _results(workers: int) -> Iterator[Asked]:
    """What the jobs return, in turn; processes are forked, so that they hold the papers."""
    if workers == 1:
        yield from map(_work, range(len(_JOBS)))
        return
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        yield from pool.imap(_work, range(len(_JOBS)))


def _work(job: int) -> Asked:
    with threadpool_limits(1):
        return _JOBS[job]()


# -- options -------------------------------------------------------------------------------------


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """The options; what --quick or the full run takes by default is filled in."""
    parser = argparse.ArgumentParser(
        description=__doc__.partition("Deterministic")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add, names = parser.add_argument, [peer.name for peer in PEERS]
    add("--every", type=positive, default=1, metavar="N", help="ask one fault of N")
    add("--peers", nargs="+", choices=names, metavar="NAME", help=f"of: {', '.join(names)}")
    add("--faults", nargs="+", metavar="NAME", help="of the catalogue; default: all")
    add("--variants", nargs="+", metavar="NAME", help="likewise")
    add("--seeds", type=positive, default=SEEDS, metavar="N", help="for the variants")
    add("--workers", type=positive, default=machine.cores(), metavar="N", help="processes")
    add("--seed", type=int, default=0)
    add("--json", type=writable, metavar="FILE", help="every figure")
    add("--table", type=writable, metavar="FILE", help="what is printed")
    add("--markdown", type=writable, metavar="FILE", help="the table for a README")
    add("--plots", type=Path, metavar="DIR", help="what is caught, and false alarms, as SVG")
    options = parser.parse_args(words)
    options.peers = [p for p in PEERS if p.name in (options.peers or names)]
    every = _entries(parser, "faulty", options.faults)
    short = [fault for fault in every if fault.level != "full"]
    options.long = len(every) - len(short)
    options.faults = short[:: options.every]
    options.variants = _entries(parser, "conforming", options.variants)
    if options.plots:
        options.plots.mkdir(parents=True, exist_ok=True)
    return options


def _entries(parser: argparse.ArgumentParser, word: str, names: Sequence[str] | None) -> list[Any]:
    """The entries that are named, or all of the catalogue."""
    every = catalogue(word)
    for name in names or ():
        if name not in every:
            parser.error(f"{name}: no such entry; expected some of {', '.join(every)}")
    return [every[name] for name in names or every]


if __name__ == "__main__":
    main()
