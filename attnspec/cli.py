"""The command `attnspec`: the statements of the sources, and the suite judged on its own."""

from __future__ import annotations

import argparse
import difflib
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from attnspec.conformance import selftest_command, shrink_command
from attnspec.spec.claim import all_claims
from attnspec.spec.evidence import examine, render
from attnspec.spec.evidence.examine import Finding
from attnspec.spec.evidence.statement import Statement, all_statements
from attnspec.spec.properties import PROPERTIES

__all__ = ["main"]

EVIDENCE = ("proof", "check", "figures", "witness", "property")

KINDS = {"prove": "proof", "check": "check, figure or witness"}
"""What each command runs."""
WIDTH = 100

Examination = Callable[[Statement], Iterator[Finding]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 0 where all is well, 1 where something does not hold, 2 for usage."""
    options = _parser().parse_args(arguments)
    console = Console(width=WIDTH, highlight=False, soft_wrap=False, emoji=False)
    try:
        return int(options.run(options, console))
    except _UsageError as mistake:
        for line in textwrap.wrap(f"attnspec: {mistake}", WIDTH):
            print(line, file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="attnspec", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    claims = commands.add_parser(
        "claims",
        help="list the statements, or show some in full",
        epilog="; ".join(f"{name}: {meaning}" for name, meaning in render.VERDICTS.items()),
    )
    claims.add_argument("ids", nargs="*", metavar="ID", help="show these, with their transcripts")
    claims.add_argument("--chapter", choices=render.CHAPTER_NAMES)
    claims.add_argument("--verdict", choices=render.VERDICTS)
    claims.add_argument("--evidence", choices=EVIDENCE)
    claims.set_defaults(run=_claims)
    for name, examination in (("prove", examine.prove), ("check", examine.check)):
        command = commands.add_parser(name, help=f"{name} all statements, or some")
        command.add_argument("ids", nargs="*", metavar="ID")
        command.set_defaults(run=_examine, examination=examination, verb=name)
    document = commands.add_parser("document", help="write docs/SPEC.md from the statements")
    document.add_argument("path", nargs="?", type=Path, default=Path("docs/SPEC.md"))
    document.add_argument("--stale", action="store_true", help="only say whether it is out of date")
    document.set_defaults(run=_document)
    judged = commands.add_parser("selftest", help="judge the suite on faults that it must catch")
    selftest_command.add_arguments(judged)
    judged.set_defaults(run=_selftest)
    shrunk = commands.add_parser("shrink", help="make a failing case small, as a script by itself")
    shrink_command.add_arguments(shrunk)
    shrunk.set_defaults(run=_shrink)
    return parser


class _UsageError(Exception):
    """A mistake in what was asked for; the message says what to do."""


def _chosen(ids: Iterable[str]) -> list[Statement]:
    """The statements of these ids, once each, or all."""
    statements = {statement.id: statement for statement in all_statements()}
    names = list(dict.fromkeys(ids))
    for name in names:
        if name not in statements:
            raise _UsageError(_unknown(name, statements))
    return [statements[name] for name in names] or list(statements.values())


def _unknown(name: str, statements: Iterable[str]) -> str:
    """What an id that no statement has may mean."""
    for claim in all_claims():
        if claim.id == name:
            return (
                f"{name!r} is asked of implementations: {claim.statement} It rests on "
                f"{claim.source}; `attnspec claims` lists the statements of the sources"
            )
    if name in PROPERTIES:
        return f"{name!r} is a property of implementations: {PROPERTIES[name]}"
    near = difflib.get_close_matches(name, statements, n=3, cutoff=0.6)
    hint = f"; did you mean {', '.join(near)}?" if near else ""
    return f"no statement {name!r}{hint} (`attnspec claims` lists them)"


def _claims(options: argparse.Namespace, console: Console) -> int:
    statements = _chosen(options.ids)
    wanted = [
        statement
        for statement in statements
        if options.chapter in (None, *render.names_of(statement))
        and options.verdict in (None, statement.verdict)
        and (options.evidence is None or options.evidence in statement.evidence)
    ]
    if options.ids:
        for statement in wanted:
            console.print(render.full(statement), markup=False)
    elif wanted:
        console.print(_table(wanted), markup=False)
    if not options.ids or len(wanted) < len(statements):
        console.print(f"{len(wanted)} of {_counted(statements)}")
    return 0


def _table(statements: Iterable[Statement]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("id", "verdict", "evidence", "what it says"):
        table.add_column(column, no_wrap=column != "what it says", overflow="fold")
    for statement in statements:
        evidence = " ".join(statement.evidence) or "-"
        table.add_row(statement.id, statement.verdict, evidence, render.plain(statement.says))
    return table


def _counted(statements: Sequence[Statement]) -> str:
    return f"{len(statements)} statement{'' if len(statements) == 1 else 's'}"


def _examine(options: argparse.Namespace, console: Console) -> int:
    examination: Examination = options.examination
    statements, found, failed = _chosen(options.ids), 0, []
    shown = track(
        statements, description=options.verb, console=Console(stderr=True), transient=True
    )
    for statement in shown:
        findings = list(examination(statement))
        found += len(findings)
        failed += [(statement, finding) for finding in findings if not finding.holds]
        for finding in findings if options.ids else ():
            console.print(f"{statement.id}: {finding.text}", markup=False)
    for statement, finding in failed:
        console.print(f"FAILED {statement.id}: {finding.text}", markup=False)
    if found == 0:
        console.print(f"nothing to {options.verb}: no {KINDS[options.verb]} is recorded there")
        return 0
    held = found - len(failed)
    console.print(f"{held} of {found} findings hold, in {_counted(statements)}")
    return 1 if failed else 0


def _selftest(options: argparse.Namespace, console: Console) -> int:
    try:
        return selftest_command.selftest(options, console)
    except selftest_command.SelftestError as mistake:
        raise _UsageError(f"selftest: {mistake}") from None


def _shrink(options: argparse.Namespace, console: Console) -> int:
    try:
        return shrink_command.shrink_command(options, console)
    except shrink_command.ShrinkError as mistake:
        raise _UsageError(f"shrink: {mistake}") from None


def _document(options: argparse.Namespace, console: Console) -> int:
    path: Path = options.path
    text = render.document(all_statements())
    try:
        if options.stale:
            fresh = path.read_text(encoding="utf-8") == text
            console.print(f"{path} is {'up to date' if fresh else 'out of date'}")
            return 0 if fresh else 1
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _UsageError(
            f"{path}: {error.strerror}; expected a file in a folder that is there, as docs/SPEC.md "
            "is from the root of the repository"
        ) from None
    console.print(f"wrote {path}")
    return 0
