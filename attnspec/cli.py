"""The command `attnspec`: the statements of the sources, their proofs and checks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from attnspec.spec.evidence import examine, render
from attnspec.spec.evidence.examine import Finding
from attnspec.spec.evidence.statement import CHAPTERS, Statement, all_statements

__all__ = ["main"]

VERDICTS = ("true", "conditional", "imprecise", "false", "undecided", "narrative")
EVIDENCE = ("proof", "check", "figures", "witness", "property")

Examination = Callable[[Statement], Iterator[Finding]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 0 where all is well, 1 where something does not hold, 2 for usage."""
    options = _parser().parse_args(arguments)
    console = Console(width=100, highlight=False, soft_wrap=False)
    try:
        return int(options.run(options, console))
    except _UnknownId as unknown:
        print(f"attnspec: {unknown}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="attnspec", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    claims = commands.add_parser("claims", help="list the statements, or show some in full")
    claims.add_argument("ids", nargs="*", metavar="ID", help="show these, with their transcripts")
    claims.add_argument("--chapter", choices=CHAPTERS)
    claims.add_argument("--verdict", choices=VERDICTS)
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
    return parser


class _UnknownId(Exception):  # noqa: N818, it names the finding
    """An id that no statement has."""


def _chosen(ids: Iterable[str]) -> list[Statement]:
    """The statements of these ids, or all; `_UnknownId` names the nearest ones."""
    import difflib

    statements = {statement.id: statement for statement in all_statements()}
    unknown = [name for name in ids if name not in statements]
    if unknown:
        near = difflib.get_close_matches(unknown[0], statements, n=3, cutoff=0.4)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise _UnknownId(f"no statement {unknown[0]!r}{hint} (`attnspec claims` lists them)")
    return [statements[name] for name in ids] or list(statements.values())


def _claims(options: argparse.Namespace, console: Console) -> int:
    statements = _chosen(options.ids)
    if options.ids:
        for statement in statements:
            console.print(render.full(statement), markup=False)
        return 0
    wanted = [
        statement
        for statement in statements
        if options.chapter in (None, render.chapter_of(statement))
        and options.verdict in (None, statement.verdict)
        and (options.evidence is None or options.evidence in statement.evidence)
    ]
    table = Table(box=None, pad_edge=False)
    for column in ("id", "verdict", "evidence", "what it says"):
        table.add_column(column, no_wrap=column != "what it says", overflow="fold")
    for statement in wanted:
        evidence = " ".join(statement.evidence) or "-"
        table.add_row(statement.id, statement.verdict, evidence, render.plain(statement.says))
    console.print(table, markup=False)
    console.print(f"{len(wanted)} of {len(statements)} statements")
    return 0


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
    console.print(
        f"{found - len(failed)} of {found} findings hold, in {len(statements)} statements"
    )
    return 1 if failed else 0


def _document(options: argparse.Namespace, console: Console) -> int:
    text = render.document(all_statements())
    if options.stale:
        fresh = options.path.is_file() and options.path.read_text(encoding="utf-8") == text
        console.print(f"{options.path} is {'up to date' if fresh else 'out of date'}")
        return 0 if fresh else 1
    options.path.parent.mkdir(parents=True, exist_ok=True)
    options.path.write_text(text, encoding="utf-8")
    console.print(f"wrote {options.path}")
    return 0
