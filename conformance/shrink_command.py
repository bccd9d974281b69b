"""The command `attnspec shrink`: a failing case made small, as a script that stands by itself."""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

import attnspec

if TYPE_CHECKING:
    from attnspec.adapters import Kernel
    from attnspec.conformance.case import Case
    from attnspec.conformance.reason import Failure
    from attnspec.conformance.shrink import Shrunk
    from attnspec.conformance.trace import Subject, Trace
    from attnspec.oracle.problem import Problem

__all__ = ["ShrinkError", "add_arguments", "shrink_command"]

SLOW = 0.25
"""Seconds: a file that takes longer to load is loaded once, and not for every attempt."""


class ShrinkError(ValueError):
    """A mistake in what was asked for; the message says what to do."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    add = parser.add_argument
    add("--impl", required=True, metavar="NAME", help="the implementation, as pytest takes it")
    add("--case", required=True, metavar="CLAIM/DTYPE/CASE", help="what fails, as reports name it")
    add("--seed", type=int, default=0, metavar="N", help="the seed with which it failed (0)")
    add("--seconds", type=float, default=10.0, metavar="S", help="time to shrink in (10)")
    add("--out", type=Path, default=Path(), metavar="DIR", help="where to write (here)")


def shrink_command(options: argparse.Namespace, console: Console) -> int:
    """Shrink, write, and say what was written: 1 where it fails, 0 where it passes.

    Raises `ShrinkError`.
    """
    from attnspec.adapters import CallFailed
    from attnspec.conformance.question import Question
    from attnspec.conformance.reason import ATTEMPTS, asked_again, subject_of

    claim, dtype, case = _parsed(options.case)
    fresh = _fresh(options.impl)
    _check_type(fresh(), dtype, options.impl)

    def ask() -> Question:
        return Question(options.impl, fresh(), claim, dtype, case, options.seed)

    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    failure = asked_again(ask)
    title = f"{options.impl}: {options.case}"
    if failure is None:
        say(f"{title} passes")
        say("If it failed in a run, it depends on what was asked before it, or fails now and then.")
        return 0
    if isinstance(failure, CallFailed):
        say(f"{title} is not claimed: {failure.message}")
        return 0
    if isinstance(failure, Exception):
        raise ShrinkError(f"{options.case}: {type(failure).__name__} in the suite: {failure}")
    say(title)
    say(f"  {getattr(failure.error, 'message', '') or failure.error}")
    if failure.times < ATTEMPTS:
        say(f"  failed {failure.times} of {ATTEMPTS} times: it does not do the same each time")
    found = subject_of(failure, fresh)
    if found is None:
        rules = {finding.rule for finding in failure.question.findings[-1:]}
        say("  no call shows it by itself, nor do its calls in their order: nothing to shrink")
        if "rms" in rules:
            say("  precision is lost a little all over a head: it takes that many numbers to see")
        return 1
    shrunk = _shrunk(*found, options.seconds)
    path = _written(shrunk, options)
    say(_summary(shrunk, found[1], failure))
    if path is None:
        say("  but a script of these calls does not show it: it may depend on the process it is in")
    else:
        say("  wrote a script and its data; run by itself, it exits with 1:")
        say(f"  python {shlex.quote(str(path))}")
    return 1


# -- what is asked for -------------------------------------------------------------------------


def _parsed(text: str) -> tuple[str, str, Case]:
    """The claim, the type and the case of an id, or `ShrinkError`."""
    from attnspec.conformance.case import Case, draw
    from attnspec.conformance.examination import checks
    from attnspec.oracle.formats import FORMATS

    parts = text.split("/")
    if len(parts) != 5 or "*" in text:
        raise ShrinkError(
            f"--case={text}: expected CLAIM/DTYPE/FAMILY/SHAPE/SETTINGS, as reports name a case"
        )
    claim, dtype = parts[:2]
    for what, word, known in (("claim", claim, checks()), ("type", dtype, FORMATS)):
        if word not in known:
            close = difflib.get_close_matches(word, list(known), n=1)
            meant = f"; did you mean {close[0]}?" if close else ""
            raise ShrinkError(f"--case={text}: no {what} {word!r}{meant}")
    try:
        case = Case.parse("/".join(parts[2:]))
        if not case.is_long:
            draw(case, dtype=dtype, diagonal="bottom-right", seed=0)
    except (KeyError, ValueError, TypeError):
        raise ShrinkError(
            f"--case={text}: {'/'.join(parts[2:])} is no case; expected one such as "
            "normal/b2h2g2q24k40d16v16/causal:on"
        ) from None
    return claim, dtype, case


def _fresh(spec: str) -> Callable[[], Kernel]:
    """A kernel that remembers nothing, again and again, where that is quick."""
    from attnspec.adapters import LoadError
    from attnspec.adapters.load import load, load_fresh

    try:
        once = load(spec)
        started = time.monotonic()
        load_fresh(spec)
        quick = time.monotonic() - started < SLOW
    except LoadError as error:
        raise ShrinkError(f"--impl={error}") from None
    return (lambda: load_fresh(spec)) if quick else lambda: once


def _check_type(kernel: Kernel, dtype: str, spec: str) -> None:
    if dtype not in kernel.dtypes:
        raise ShrinkError(f"{spec} takes {', '.join(kernel.dtypes)}, not {dtype}")


# -- shrinking ---------------------------------------------------------------------------------


def _shrunk(subject: Subject, trace: Trace, seconds: float) -> Shrunk:
    from attnspec.conformance.shrink import shrink

    with Console(stderr=True).status("shrinking") as status:

        def progress(problem: Problem, attempts: int) -> None:
            status.update(f"shrinking: {_sizes(problem)}, attempt {attempts}")

        return shrink(subject, trace, seconds=seconds, progress=progress)


def _written(shrunk: Shrunk, options: argparse.Namespace) -> Path | None:
    """The script, where it shows the fault by itself; else None, and the script is removed.

    Arrays are first plain ones, and then, as in the suite, surrounded by NaN.
    """
    from attnspec.conformance.reproduction import Reproduction, confirmed, write

    claim, dtype = options.case.split("/")[:2]
    impl = re.sub(r"^.*/(?=[^/]+\.py)", "", options.impl).replace(".py", "")
    name = re.sub(r"\W+", "_", f"{impl}_{claim}_{dtype}")
    for all_laid_out in (False, True):
        found = Reproduction(
            spec=options.impl,
            shrunk=shrunk,
            command=_command(options),
            version=attnspec.__version__,
            all_laid_out=all_laid_out,
        )
        try:
            path = write(found, options.out, name)
        except OSError as error:
            raise ShrinkError(f"--out={options.out}: {error.strerror}") from None
        if confirmed(path):
            return path
    path.unlink()
    path.with_suffix(".npz").unlink()
    return None


def _command(options: argparse.Namespace) -> str:
    seed = f" --seed={options.seed}" if options.seed else ""
    impl, case = shlex.quote(options.impl), shlex.quote(options.case)
    return f"attnspec shrink --impl={impl}{seed} --case={case}"


# -- what is said ------------------------------------------------------------------------------


def _summary(shrunk: Shrunk, trace: Trace, failure: Failure) -> str:
    from attnspec.conformance.symptom import KINDS

    symptom, calls = shrunk.symptom, len(shrunk.trace.calls)
    about = symptom.about if symptom.kind not in ("raises", "returns") else "the call"
    says = {"writes": f"the call writes into {symptom.about}"}.get(
        symptom.kind, f"{about} {KINDS[symptom.kind]}"
    )
    before = f"{_counted(len(failure.question.asked))} of {_sizes(trace.problem)}"
    after = f"{_counted(calls)} of {_sizes(shrunk.trace.problem)}"
    end = "" if shrunk.finished else "; more --seconds may make it smaller"
    return (
        f"  {says}\n"
        f"  shrunk from {before} to {after}\n"
        f"  in {shrunk.attempts} attempts and {shrunk.seconds:.1f} s{end}"
    )


def _counted(calls: int) -> str:
    return f"{calls} call{'s' * (calls != 1)}"


def _sizes(problem: Problem) -> str:
    """As in ids of cases."""
    return (
        f"b{problem.batch}h{problem.query_heads}g{problem.kv_heads}q{problem.query_count}"
        f"k{problem.key_count}d{problem.head_size}v{problem.value_size}"
    )
