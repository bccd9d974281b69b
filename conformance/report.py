"""What the user reads at the end: the matrix, then each failure with its cause and its command.

Everything fits 100 columns, and words say what colour repeats.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import TextIO

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from attnspec.conformance.cases import chapter_of, sources_of
from attnspec.conformance.verdict import UNJUDGED, Verdict
from attnspec.oracle.problem import OUTPUTS
from attnspec.oracle.reference import TIERS
from attnspec.oracle.rounding import CLASSES

__all__ = ["BAD", "ReportFile", "summary"]

WIDTH = 100
INDENT = 2
COLUMNS = 4
"""Implementations side by side; more of them go into a further table."""

BAD = ("fail", "error", "crash", "timeout", "xpass")
SHORT = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}

Verdicts = Sequence[Verdict]


class ReportFile:
    """`--attn-report`: a line of JSON a verdict, on disk before the next question is asked."""

    def __init__(self, path: str) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = Path(path).open("w", encoding="utf-8")  # noqa: SIM115, open all run

    def add(self, verdict: Verdict) -> None:
        """Write one verdict."""
        self._file.write(json.dumps(verdict.to_json(), allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def summary(
    verdicts: Verdicts,
    *,
    impls: Sequence[str],
    colour: bool,
    verbose: bool = False,
    finished: bool = True,
    unjudged: Mapping[str, tuple[str, ...]] | None = None,
    notes: Mapping[str, tuple[str, ...]] | None = None,
    causes: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """The whole summary as text: matrix, classes, failures and one line an implementation.

    `unjudged`: what an implementation claims and refused each time; `notes`: lines for its user;
    `causes`: what it most likely does instead, and where (see `diagnosis`).
    """
    console = Console(file=StringIO(), width=WIDTH, force_terminal=colour, highlight=False)
    for first in range(0, len(impls), COLUMNS):
        group = impls[first : first + COLUMNS]
        console.print(_matrix(verdicts, group, verbose=verbose))
        if any(verdict.tightest for verdict in verdicts):
            console.print(_classes(verdicts, group))
    console.print(LEGEND)
    if verbose and (tiers := _tiers(verdicts)):
        console.print(tiers)
    for part in _failures(verdicts, verbose=verbose):
        console.print(part, soft_wrap=True)  # a command must stay one line to be pasted
    for impl in impls:
        of_impl = [verdict for verdict in verdicts if verdict.impl == impl]
        if vacuous := _vacuous(of_impl):
            console.print(_could_not_fail(impl, vacuous, verbose=verbose), soft_wrap=True)
        missing = (unjudged or {}).get(impl, ())
        for cause in (causes or {}).get(impl, ()):
            style = "" if cause.startswith(" ") else "bold"
            console.print(Text(cause, style=style), soft_wrap=True)
        line = _conclusion(impl, of_impl, finished=finished, missing=missing)
        console.print(line, soft_wrap=True)
        for note in (notes or {}).get(impl, ()):
            console.print(Text(f"{impl}: {note}", style="bold yellow"), soft_wrap=True)
    text: str = console.file.getvalue()  # type: ignore[attr-defined] # it is the StringIO above
    return text


LEGEND = """\
pass N worst: N cases that could have failed; of the bound, the largest fraction used (limit 1).
FAIL n/N worst: n of N lie outside. ERROR: it raised. `-`: not claimed. With -v, every claim.
"""


# -- the matrix --------------------------------------------------------------------------------


def _matrix(verdicts: Verdicts, impls: Sequence[str], *, verbose: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("claim", no_wrap=True)
    table.add_column("type", no_wrap=True)
    for impl in impls:
        table.add_column(impl, overflow="fold")
    for label, claims in _rows(verdicts, verbose=verbose):
        rows = [verdict for verdict in verdicts if verdict.claim in claims]
        for dtypes in _types(rows):
            row = [v for v in rows if v.dtype in dtypes]
            cells = [_cell([v for v in row if v.impl == impl]) for impl in impls]
            table.add_row(label, " ".join(SHORT[name] for name in dtypes), *cells)
    return table


def _rows(verdicts: Verdicts, *, verbose: bool) -> Iterator[tuple[str, list[str]]]:
    """Outputs and failed claims by themselves; of each chapter the other claims together."""
    claims = dict.fromkeys(v.claim for v in verdicts if v.status not in UNJUDGED)
    failed = {verdict.claim for verdict in verdicts if verdict.status in BAD}
    chapters: dict[str, list[str]] = {}
    for claim in sorted(claims, key=lambda claim: _rank(claim)):
        if verbose or claim in OUTPUTS or claim in failed:
            yield claim, [claim]
        else:
            chapters.setdefault(chapter_of(claim), []).append(claim)
    for chapter, members in chapters.items():
        yield f"{chapter}: {len(members)} claim{'s' * (len(members) > 1)}", members


def _rank(claim: str) -> tuple[int, str]:
    """Outputs in their own order, then the chapters."""
    return (OUTPUTS.index(claim), "") if claim in OUTPUTS else (len(OUTPUTS), chapter_of(claim))


def _types(verdicts: Verdicts) -> list[tuple[str, ...]]:
    """The types of a row: together where nothing failed, else a row each."""
    dtypes = tuple(name for name in SHORT if any(v.dtype == name for v in verdicts))
    failed = any(verdict.status in BAD for verdict in verdicts)
    return [(name,) for name in dtypes] if failed else [dtypes]


def _cell(verdicts: Verdicts) -> Text:
    asked = [verdict for verdict in verdicts if verdict.status not in UNJUDGED]
    if not asked:
        return Text("vacuous" if _vacuous(verdicts) else "-", style="dim")
    bad = [verdict for verdict in asked if verdict.status in BAD]
    worst = _number(max(verdict.fraction for verdict in asked))
    if not bad:
        return Text(f"pass {len(asked)} {worst}", style="green")
    word = "FAIL" if any(v.status == "fail" for v in bad) else bad[0].status.upper()
    number = f" {worst}" if max(verdict.fraction for verdict in bad) > 1 else ""
    return Text(f"{word} {len(bad)}/{len(asked)}{number}", style="bold red")


def _number(fraction: float) -> str:
    if math.isinf(fraction):
        return "inf"
    return f"{fraction:.2f}" if fraction < 10 else f"{fraction:.0e}"


def _classes(verdicts: Verdicts, impls: Sequence[str]) -> Table:
    """The tightest class that holds on every generic forward case, by type."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("out: tightest arithmetic", no_wrap=True)
    for impl in impls:
        table.add_column(impl, overflow="fold")
    for dtype, short in SHORT.items():
        met = [
            _class([v for v in verdicts if v.dtype == dtype and v.impl == impl], dtype)
            for impl in impls
        ]
        if any(met):
            table.add_row(short, *met)
    return table


def _class(verdicts: Verdicts, dtype: str) -> str:
    names = [*(name for name, _ in CLASSES), "none"]
    met = [verdict.tightest for verdict in verdicts if verdict.claim == "out" and verdict.tightest]
    name = max(met, key=names.index, default="")
    return name.replace("float32", dtype) if dtype == "float64" else name


def _tiers(verdicts: Verdicts) -> str:
    """How many comparisons each tier of the oracle certified."""
    counts = Counter(verdict.tier for verdict in verdicts if verdict.tier)
    listed = ", ".join(f"{tier} {counts[tier]}" for tier in TIERS if tier in counts)
    return f"compared with the oracle's tier: {listed}\n" if listed else ""


# -- the failures ------------------------------------------------------------------------------


def _failures(verdicts: Verdicts, *, verbose: bool) -> Iterator[RenderableType]:
    """For each implementation and claim its simplest failure; every one if verbose."""
    groups: dict[tuple[str, str, str], list[Verdict]] = {}
    for verdict in sorted(verdicts, key=lambda verdict: _rank(verdict.claim)):
        if verdict.status in BAD:
            groups.setdefault((verdict.impl, verdict.claim, verdict.status), []).append(verdict)
    for (impl, claim, status), found in groups.items():
        found.sort(key=_simplicity)
        types = " ".join(SHORT[name] for name in SHORT if any(v.dtype == name for v in found))
        count = "1 case" if len(found) == 1 else f"{len(found)} cases"
        shown = "" if verbose or len(found) == 1 else "; the simplest:"
        yield Text(f"{status.upper()} {impl}: {claim}, {count} in {types}{shown}", "bold red")
        for verdict in found if verbose else found[:1]:
            yield _explanation(verdict)


def _simplicity(verdict: Verdict) -> tuple[int, bool, int]:
    """Few settings, the plainest family, few numbers: what to look at first."""
    family, shape, settings = verdict.case.split("/")
    numbers = math.prod(int(n) + 1 for n in re.findall(r"\d+", shape))
    return settings.count(":"), family != "normal", numbers


RULES = {
    "hard": "no kernel of the declared arithmetic returns this",
    "model": "beyond 6 standard deviations of the declared arithmetic (a model, no proof)",
    "rms": "precision is lost all over a head, a little everywhere",
}


def _explanation(verdict: Verdict) -> Text:
    where = f" at {list(verdict.where)}" if verdict.where else ""
    lines = [f"{verdict.case}{where}", verdict.message]
    if verdict.status == "fail" and verdict.rule in RULES and verdict.fraction > 1:
        much = "outside any bound" if math.isinf(verdict.fraction) else "times the bound"
        number = "" if math.isinf(verdict.fraction) else f"{_number(verdict.fraction)} "
        lines.append(f"{number}{much}: {RULES[verdict.rule]}")
    if verdict.status == "fail" and (violated := _violated(verdict.claim)):
        lines.append(violated)
    lines += [verdict.reproduce, *_shrinking(verdict)]
    return Text("".join(f"{' ' * INDENT}{line}\n" for line in lines))


def _shrinking(verdict: Verdict) -> Iterator[str]:
    """The command that makes the case small; there is none where no call is to blame."""
    if verdict.status not in ("fail", "error") or verdict.claim == "memory-grows-as-declared":
        return
    seed = re.search(r" --attn-seed=(\d+)", verdict.reproduce)
    chosen = f" --seed={seed[1]}" if seed else ""
    impl = shlex.quote(verdict.impl)
    case = shlex.quote(f"{verdict.claim}/{verdict.dtype}/{verdict.case}")
    yield f"attnspec shrink --impl={impl}{chosen} --case={case}"


def _vacuous(verdicts: Verdicts) -> list[Verdict]:
    return [verdict for verdict in verdicts if verdict.status == "vacuous"]


def _could_not_fail(impl: str, vacuous: Verdicts, *, verbose: bool) -> Text:
    """How many questions no answer near the right one could fail; every one if verbose."""
    counts = Counter(verdict.claim for verdict in vacuous)
    names = [f"{claim} {count}" for claim, count in counts.most_common()]
    listed = ", ".join(names[:4]) + (f" and {len(names) - 4} more claims" if len(names) > 4 else "")
    text = f"{impl}: vacuous: {_count(vacuous, 'verdict')} that could not have failed: {listed}"
    tail = " " * INDENT
    more = [f"{tail}{v.claim}/{v.dtype}/{v.case}\n{2 * tail}{v.message}" for v in vacuous]
    return Text("\n".join([text, *more]) if verbose else text, style="dim")


def _violated(claim: str) -> str:
    """The statements that the claim goes back to, as many as fit, and how to read the first."""
    sources = sources_of(claim)
    readable = [name for name in sources if "." in name]
    if not readable:
        return ""
    tail = f": `attnspec claims {readable[0]}`"
    for count in range(len(sources), 0, -1):
        more = "" if count == len(sources) else f" and {len(sources) - count} more"
        line = f"violates {', '.join(sources[:count])}{more}{tail}"
        if len(line) <= WIDTH - INDENT:
            break
    return line


def _conclusion(impl: str, verdicts: Verdicts, *, finished: bool, missing: tuple[str, ...]) -> Text:
    """The last word on one implementation, in one line."""
    asked = [verdict for verdict in verdicts if verdict.status not in UNJUDGED]
    bad = [verdict for verdict in asked if verdict.status in BAD]
    claims = len({verdict.claim for verdict in asked})
    unclaimed = len({v.claim for v in verdicts} - {v.claim for v in (*asked, *_vacuous(verdicts))})
    tail = f"; not claimed: {unclaimed}" if unclaimed else ""
    if not asked:
        return Text(f"{impl}: nothing was asked{tail}", style="bold yellow")
    if bad:
        names = sorted(dict.fromkeys(verdict.claim for verdict in bad), key=_rank)
        listed = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        stopped = "" if finished else " (stopped early)"
        text = f"does not conform{stopped}, {len(bad)} of {_count(asked, 'verdict')}, on {listed}"
        return Text(f"{impl}: {text}{tail}", style="bold red")
    if not finished:
        text = f"the run was stopped; so far {_count(asked, 'verdict')}, all passes"
        return Text(f"{impl}: {text}{tail}", style="bold yellow")
    if missing:
        text = f"claims {', '.join(missing)}, but refused each case with it: no verdict on that"
        return Text(f"{impl}: {text}{tail}", style="bold yellow")
    text = f"conforms, {_count(asked, 'verdict')} on {claims} claim{'s' * (claims > 1)}"
    return Text(f"{impl}: {text}{tail}", style="bold green")


def _count(verdicts: Verdicts, word: str) -> str:
    return f"{len(verdicts)} {word}{'s' * (len(verdicts) > 1)}"
