"""The table of the suites' power, as it is printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

__all__ = ["markdown", "report", "share"]

Row = Mapping[str, Any]
NONE = "·"
SHORT = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
SHOWN = 12
"""How many faults that attnspec misses are named."""

NOTE = """\
own: on the suite's own inputs. ours: on attnspec's, the problems of out, lse and gradients at level
smoke, in the same types and outputs. in scope: on the suite's own inputs, of the faults that change
any number of an output that the suite compares, with options that its inputs have. false alarms:
variants rejected at least once. attnspec's "ours" is its comparisons with the oracle alone.
The peers are their rules, references and inputs re-created from their sources in NumPy: not their
kernels, not their hardware; their grids are thinned, long sequences cut, without dropout, paged
caches and repeated runs. A rule of 16-bit types is asked in these; the kernels then compute in
float32 and store 16 bits. Peers know no declared arithmetic: a variant that declares a coarser one
(products in TF32, say) is an alarm here where a rule of float32 rejects it."""


def report(found: Mapping[str, Any], console: Console) -> None:
    """Print the table, what it means, and what attnspec misses."""
    faults, variants = len(found["faults"]), len(found["variants"])
    console.print(
        f"Faults caught, of {faults}; false alarms, of {variants} conforming variants "
        f"with {found['seeds']} seeds; %",
        style="bold",
        highlight=False,
    )
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for title in ("", "rule: |e| ≤", "types"):
        table.add_column(title, vertical="top")
    for title in ("own\ninputs", "our\ninputs", "in scope\n% of n", "alarms\nown", "alarms\nours"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in found["rows"]:
        table.add_row(*_cells(row, faults, variants))
    console.print(table, highlight=False)
    console.print(NOTE, style="dim", highlight=False)
    for line in [*_misses(found["rows"]), *_how(found)]:
        console.print(line, highlight=False)


def markdown(found: Mapping[str, Any]) -> str:
    """The table for a README."""
    faults, variants = len(found["faults"]), len(found["variants"])
    lines = [
        f"| % of {faults} faults, {variants} variants | rule | types | own inputs | our inputs "
        "| own, in scope | alarms, own | alarms, ours |",
        "|---|---|---|--:|--:|--:|--:|--:|",
    ]
    for row in found["rows"]:
        name, *cells = (cell.replace("|", "\\|").strip() for cell in _cells(row, faults, variants))
        bold = "**" if row["problems"] is None else ""
        lines.append(f"| {bold}{name}{bold} | {' | '.join(cells)} |")
    return "\n".join(lines)


def share(part: int, whole: int) -> float:
    """In per cent; NaN of nothing."""
    return 100 * part / whole if whole else float("nan")


def _cells(row: Row, faults: int, variants: int) -> list[str]:
    types = " ".join(SHORT[name] for name in row["types"]) or "own"
    own, ours, has_own = row["own"], row["ours"], row["problems"] != 0
    caught_in_scope = row["scope"] - len(row["missed_in_scope"])
    in_scope = f"{_percent(caught_in_scope, row['scope'])} of {row['scope']:>3}"
    cells = [row["name"], row["says"], types]
    cells += [_percent(own["caught"], faults) if has_own else NONE]
    cells += [_percent(ours["caught"], faults), in_scope if has_own else NONE]
    cells += [_percent(len(own["alarms"]), variants) if has_own else NONE]
    return [*cells, _percent(len(ours["alarms"]), variants)]


def _percent(part: int, whole: int) -> str:
    """Rounded, but neither to 100 nor to 0 what is not."""
    if not whole:
        return NONE
    rounded = round(share(part, whole))
    if rounded in (0, 100) and part not in (0, whole):
        return f"{share(part, whole):.1f}"
    return str(rounded)


def _misses(rows: Sequence[Row]) -> list[str]:
    found = []
    for row in rows:
        if row["problems"] is None and row["own"]["missed"]:
            missed = row["own"]["missed"]
            more = f" and {len(missed) - SHOWN} more" if len(missed) > SHOWN else ""
            found.append(f"{row['name']} misses: {', '.join(missed[:SHOWN])}{more}")
    return found


def _how(found: Mapping[str, Any]) -> list[str]:
    verdicts = sum(row[inputs]["verdicts"] for row in found["rows"] for inputs in ("own", "ours"))
    about = found["machine"]
    return [
        f"{verdicts:,} verdicts on conforming variants; {found['long']} faults of long contexts "
        f"left out; seed {found['seed']}",
        f"{found['command']}: {found['seconds']} s, {about['cores']} cores of {about['processor']}",
    ]
