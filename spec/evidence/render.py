"""Statements as text: in full for a terminal, and all of them as one document."""

from __future__ import annotations

import importlib
import textwrap
from collections.abc import Iterable, Iterator

from attnspec.spec.evidence import examine
from attnspec.spec.evidence.statement import CHAPTERS, Statement

__all__ = [
    "CHAPTER_NAMES",
    "VERDICTS",
    "chapter_of",
    "document",
    "full",
    "names_of",
    "plain",
]

PREFIXES = {"ch11": "chapter11", "sys": "systems", "ext": "theorems"}
WIDTH = 100

VERDICTS = {
    "true": "as written",
    "conditional": "true under the hypotheses that are named",
    "imprecise": "not as written; what holds is said",
    "false": "what holds is said",
    "undecided": "no computation here can tell",
    "narrative": "it has no truth value",
}
"""The verdicts, and what each means."""
CHAPTER_NAMES = (*CHAPTERS, *PREFIXES)
"""What chapters are called: by their folders, and as ids begin."""


def chapter_of(statement: Statement) -> str:
    """The folder of `spec/` that the statement stands in."""
    prefix = statement.id.partition(".")[0]
    return PREFIXES.get(prefix, prefix)


def names_of(statement: Statement) -> tuple[str, str]:
    """The folder of its chapter, and how its id begins."""
    return chapter_of(statement), statement.id.partition(".")[0]


def plain(text: str) -> str:
    """On one line."""
    return " ".join(text.split())


def full(statement: Statement) -> str:
    """Everything about it, with the transcripts of its proof, check and witnesses."""
    verdict = statement.verdict
    lines = [
        f"{statement.id}  ({statement.where})",
        f"  {verdict}: {VERDICTS[verdict]}",
        "",
    ]
    lines += _wrapped("says", statement.says)
    lines += _wrapped("formula", statement.formula)
    lines += _wrapped("exact", statement.exact)
    for hypothesis in statement.hypotheses:
        lines += _wrapped("hypothesis", hypothesis)
    lines += _wrapped("why not", statement.reason)
    for finding in [*examine.prove(statement), *examine.check(statement)]:
        lines += _wrapped("holds" if finding.holds else "FAILS", finding.text)
    if statement.properties:
        lines += _wrapped("asked of implementations", ", ".join(statement.properties))
    return "\n".join(lines) + "\n"


def _wrapped(label: str, text: str) -> list[str]:
    if not text:
        return []
    indent = " " * 14
    first = f"  {label}: ".ljust(14)
    return textwrap.wrap(plain(text), WIDTH, initial_indent=first, subsequent_indent=indent)


def document(statements: Iterable[Statement]) -> str:
    """All statements as Markdown, chapter by chapter, with formulas as GitHub renders them."""
    by_chapter: dict[str, list[Statement]] = {chapter: [] for chapter in CHAPTERS}
    for statement in statements:
        by_chapter[chapter_of(statement)].append(statement)
    parts = [
        "# What is true of attention",
        "Every statement of the three sources, of the systems that they name, and theorems beside "
        "them: what it says, whether it is true, and how one knows. Written by `attnspec document` "
        "from the records in `spec/`; `attnspec claims ID` shows a record with its proof.",
        "The verdicts:",
        "\n".join(f"- **{name}**: {meaning}" for name, meaning in VERDICTS.items()),
    ]
    for chapter, those in by_chapter.items():
        title = importlib.import_module(f"attnspec.spec.{chapter}").__doc__ or chapter
        parts.append(f"## {plain(title).rstrip('.')}")
        parts += [part for statement in those for part in _markdown(statement)]
    return "\n\n".join(parts) + "\n"


def _markdown(statement: Statement) -> Iterator[str]:
    yield f"### `{statement.id}`: {statement.verdict}"
    yield f"*{statement.where}.* {plain(statement.says)}"
    if statement.formula:
        yield f"```math\n{statement.formula}\n```"  # between dollars, Markdown eats backslashes
    if statement.exact:
        yield f"**Exactly:** {plain(statement.exact)}"
    if statement.hypotheses:
        yield "**Needs:** " + "; ".join(plain(text) for text in statement.hypotheses) + "."
    if statement.figures:
        yield "\n".join(f"- {figure}" for figure in statement.figures)
    if statement.reason:
        yield f"**Not decided:** {plain(statement.reason)}"
    evidence = [name for name in statement.evidence if name != "property"]
    shown = [f"shown by {', '.join(evidence)}"] if evidence else []
    if statement.properties:
        asked = ", ".join(f"`{name}`" for name in statement.properties)
        shown.append(f"asked of implementations as {asked}")
    if shown:
        yield "; ".join(shown)[0].upper() + "; ".join(shown)[1:] + "."
