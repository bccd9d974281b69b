"""The attack on the oracle: its engines asked the same questions, until one contradicts another.

    python benchmarks/soak.py [--minutes 3] [--seed S] [--problem N] [--workers 2] [--json FILE]

Draws problems (`soak_problems.py`), asks every engine, and requires of each pair that their
enclosures have a number in common, element by element (`soak_checks.py`); small problems are asked
of the definition too, at 240 bits and more. Rows asked about alone must agree with the same rows
of the whole problem; every other batch walks the engines' loops in small tiles (`soak_tiles.py`).
A miss means that a bound is wrong: it is printed with the line that draws the problem again, and
the exit status is 1.

error/bound is the largest distance of an engine's centre from the most accurate one, less the
latter's bound, over the engine's own bound: above 1 would be a miss. That of the balls is 1 where
rounding to two float64 is all of the error, for then the bound is just that. With --json, `worst`
says in which problem it was largest: [error/bound, seed, problem].
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import nullcontext
from itertools import count
from multiprocessing import get_context
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from soak_checks import ENGINES, Tally, examine
from soak_problems import Drawn, drawn
from soak_tiles import small_tiles

from attnspec.oracle.problem import OUTPUTS

BATCH = 40
"""Problems that hypothesis draws from one seed, as one piece of work. Every other batch is asked
with small tiles (`soak_tiles.py`)."""
SHOWN = 4
"""Problems with a miss that are printed, and misses of each."""


def problems(root: int, batch: int, use: Callable[[int, Drawn], None]) -> None:
    """Draw one batch and use each problem with its number."""
    numbers = iter(range(batch * BATCH, (batch + 1) * BATCH))

    @seed(root * 1_000_003 + batch)
    @settings(
        max_examples=BATCH,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(drawn())
    def one(case: Drawn) -> None:
        if (number := next(numbers, None)) is not None:
            long = case.recipe["size"] in ("long", "very long")
            with nullcontext() if long or batch % 2 == 0 else small_tiles():
                use(number, case)

    one()


def soak(root: int, batch: int, until: float) -> Tally:
    """Examine one batch of problems, but begin none after the time `until`."""
    tally = Tally()

    def use(number: int, case: Drawn) -> None:
        if time.time() < until:
            try:
                tally.add(examine(case, root, number))
            except Exception as error:
                what = f"{type(error).__name__}: {error}"
                tally.misses.append({"seed": root, "problem": number, "raised": what})

    problems(root, batch, use)
    return tally


def _adopt(batch: int) -> None:
    """In a worker: the size of a batch."""
    global BATCH
    BATCH = batch


def tallies(root: int, *, minutes: float, workers: int) -> Iterator[Tally]:
    """The tallies of one batch after the other, for so many minutes."""
    until = time.time() + 60 * minutes
    batches = count()
    if workers < 2:
        while time.time() < until:
            yield soak(root, next(batches), until)
        return
    # Forking a process that has threads, as JAX gives the tests, may hang.
    spawn = get_context("spawn")
    with ProcessPoolExecutor(workers, spawn, initializer=_adopt, initargs=(BATCH,)) as pool:
        running: set[Future[Tally]] = set()
        while running or time.time() < until:
            while len(running) < 2 * workers and time.time() < until:
                running.add(pool.submit(soak, root, next(batches), until))
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)


# -- the report --------------------------------------------------------------------------------


def watched(root: int, console: Console, *, minutes: float, workers: int) -> tuple[Tally, float]:
    """Soak with a progress bar; the tally of all, and the seconds it took."""
    start, tally = time.time(), Tally()
    columns = BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=60 * minutes)
        for one in tallies(root, minutes=minutes, workers=workers):
            tally.add(one)
            elements, misses = sum(tally.compared.values()), len(tally.misses)
            progress.update(
                task,
                completed=time.time() - start,
                description=f"{tally.problems:,} problems, {elements:,} elements, {misses} misses",
            )
    return tally, time.time() - start


def table(tally: Tally, title: str) -> Table:
    """The elements compared, the share without a bound and the largest error, by engine."""
    found = Table(title=title, title_justify="left", title_style="")
    for name in ("", *OUTPUTS, "no bound", "error/bound"):
        found.add_column(name, justify="right" if name else "left")
    for engine in (*ENGINES, "all rows", "definition"):
        if not tally.elements[engine]:
            continue
        counts = [short(tally.compared[f"{engine}/{output}"]) for output in OUTPUTS]
        unknown = f"{100 * tally.unknown[engine] / tally.elements[engine]:.2g} %"
        worst = f"{tally.worst[engine][0]:.3g}" if engine in tally.worst else "-"
        found.add_row(engine, *counts, unknown, worst)
    return found


def short(number: int) -> str:
    """1234567 as 1.23M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return str(number)


def told(misses: list[dict[str, Any]]) -> Iterator[str]:
    """The misses in words, problem by problem, with the line that draws each again."""
    for problem in list(dict.fromkeys(miss["problem"] for miss in misses))[:SHOWN]:
        here = [miss for miss in misses if miss["problem"] == problem]
        for miss in here[:SHOWN]:
            if "raised" in miss:
                yield f"raised {miss['raised']}"
            else:
                first, second = miss["engines"]
                yield f"{first} and {second} contradict each other: {miss['output']}{miss['index']}"
        if len(here) > SHOWN:
            yield f"… and {len(here) - SHOWN} more"
        yield f"    python benchmarks/soak.py --seed {here[0]['seed']} --problem {problem}"


def shown(root: int, number: int, console: Console) -> Tally:
    """One problem alone, with what it is made of."""
    tally = Tally()

    def use(found: int, case: Drawn) -> None:
        if found == number:
            for name, value in vars(case.problem).items():
                shape = getattr(value, "shape", None)
                text = value if shape is None else f"{value.dtype} {shape}"
                console.print(f"{name}: {text}", highlight=False)
            console.print(case.recipe, highlight=False)
            tally.add(examine(case, root, number))

    problems(root, number // BATCH, use)
    return tally


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=None, help="default: a fresh one, printed")
    parser.add_argument("--problem", type=int, default=None, help="this one alone, shown")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--json", metavar="FILE", help="write the counts to this file")
    given = parser.parse_args()
    root = secrets.randbelow(2**31) if given.seed is None else given.seed
    console = Console(width=100)
    if given.problem is not None:
        tally, seconds = shown(root, given.problem, console), 0.0
        title = f"seed {root}, problem {given.problem}"
    else:
        tally, seconds = watched(root, console, minutes=given.minutes, workers=given.workers)
        rate = tally.problems / seconds
        title = f"seed {root}: {tally.problems:,} problems, {rate:.1f} a second; elements compared"
    console.print(table(tally, title))
    for line in told(tally.misses):
        console.print(line, highlight=False, soft_wrap=True)
    elements = sum(tally.compared.values())
    console.print(f"{len(tally.misses)} misses in {elements:,} elements")
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump({"seed": root, "seconds": seconds, **vars(tally)}, file, indent=1)
    return 1 if tally.misses else 0


if __name__ == "__main__":
    sys.exit(main())
