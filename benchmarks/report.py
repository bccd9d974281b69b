"""The figures of a run as tables that fit 100 columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engines import BASELINE, ENGINES
from rich.console import Console
from rich.table import Table

__all__ = ["Section", "report", "sections"]

Record = Mapping[str, Any]
TIERS = ("float64", "double-double", "double-double streamed", "balls", "definition")
NONE = "·"
PASSES = {False: "forward", True: "forward + backward"}


@dataclass
class Section:
    """A table, the line above it and what explains it below."""

    title: str
    notes: str = ""
    table: Table = field(default_factory=lambda: Table(box=None, padding=(0, 1, 0, 0)))

    def columns(self, names: Iterable[object]) -> None:
        """Columns of figures behind one of names."""
        self.table.add_column("", no_wrap=True)
        for name in names:
            self.table.add_column(str(name), justify="right", no_wrap=True)

    def group(self, title: str) -> None:
        """A row that says what those below it are."""
        self.table.add_row(f"[bold]{title}[/]")


def report(found: Mapping[str, Any], console: Console) -> None:
    """Print the tables, the note on what was left out, and how it was measured."""
    for section in sections(found):
        console.print(section.title, style="bold", highlight=False)
        console.print(section.table)
        console.print(section.notes, style="dim", highlight=False)
    for line in [*_speed_up(found), *_left_out(found), *_how(found)]:
        console.print(line, highlight=False)


def sections(found: Mapping[str, Any]) -> list[Section]:
    """By n; accuracy; other inputs; long contexts: those that there are figures for."""
    square, one_row, first = found["square"], found["one_row"], found["first"]
    mine = [r for r in square["times"] if _same_inputs(r, first)]
    every = [_by_n(mine, square["memory"], first), _accuracy(mine, first)]
    every += [_others(square["times"], first), _long(one_row)]
    return [section for section in every if section is not None]


# -- tables --------------------------------------------------------------------------------------


def _by_n(times: list[Record], memory: list[Record], first: Record) -> Section | None:
    if not times:
        return None
    sizes = sorted({r["keys"] for r in times})
    inputs = max((m.get("inputs", 0) for m in memory), default=0)
    section = Section(
        f"Time, as a multiple of {BASELINE}'s: {_inputs(first)}",
        notes="~: in proportion to the scores, from the largest n measured. peak MB: memory "
        f"above the inputs (with dout {_megabytes(inputs)} MB), at the largest n measured",
    )
    section.columns([*sizes, "peak MB"])
    for backward, title in PASSES.items():
        cells = {(r["engine"], r["keys"]): r for r in times if r["backward"] == backward}
        section.group(title)
        for name in _engines(cells):
            figures = [_multiple(cells.get((name, n))) for n in sizes]
            section.table.add_row(_name(name), *figures, _peak(name, backward, memory, sizes[-1]))
    return section


def _accuracy(times: list[Record], first: Record) -> Section | None:
    """Of each engine at the largest n at which its gradients' bound, or error, is known."""
    latest: dict[tuple[str, str], Record] = {}
    for record in sorted(times, key=lambda r: r["keys"]):
        for kind in ("bound", "error") if record["backward"] else ():
            if kind in record.get("accuracy", {}).get("out", {}):
                latest[kind, record["engine"]] = record
    if not latest:
        return None
    n = max(r["keys"] for r in latest.values())
    section = Section(
        f"Bits of accuracy, median/worst: {_inputs(first)}, n = {n}",
        "x bits: the bound or error is 2^-x of A, the magnitudes of the terms that add up to the "
        "element (out: A|v|), or of V, the element itself. An error is the distance from the "
        "sharpest tier measured (=: none). @: at this n",
    )
    outputs = ("out", "dq", "dk", "dv")
    section.columns(f"{output} {scale}" for output in outputs for scale in "AV")
    latest.pop(("bound", "definition"), None)  # which proves nothing
    for kind, title in (("bound", "proven bound"), ("error", "error")):
        section.group(title)
        for name in _engines((name, 0) for of, name in latest if of == kind):
            record = latest[kind, name]
            figures = [record["accuracy"][output].get(kind) for output in outputs]
            cells = [_bits(x, scale) for x in figures for scale in ("terms", "value")]
            label = _name(name) + ("" if record["keys"] == n else f" @{record['keys']}")
            section.table.add_row(label, *cells)
    return section


def _others(times: list[Record], first: Record) -> Section | None:
    """Ratios of the two fast tiers for every kind of input, at the largest n they share."""
    kinds = list(dict.fromkeys((r["causal"], r["dtype"], r["size"]) for r in times))
    shown = [BASELINE, "float64", "double-double", "balls"]
    cells = {
        (r["engine"], r["backward"], r["keys"], (r["causal"], r["dtype"], r["size"])): r
        for r in times
        if "extrapolated_from" not in r and r["engine"] in shown
    }
    timed = {key[0] for key in cells} & set(shown[:3])
    shared = [
        n
        for n in {key[2] for key in cells}
        if all((e, b, n, kind) in cells for e in timed for b in PASSES for kind in kinds)
    ]
    if len(kinds) < 2 or not shared:
        return None
    n = max(shared)
    section = Section(f"Other inputs, n = {n}: time, as a multiple of {BASELINE}'s on the same")
    section.columns(
        f"{'causal' if causal else 'dense'}\n{dtype}\nd = {size}" for causal, dtype, size in kinds
    )
    for backward, title in PASSES.items():
        section.group(title)
        for name in shown:
            row = [cells.get((name, backward, n, kind)) for kind in kinds]
            if any(row):
                section.table.add_row(_name(name), *map(_multiple, row))
    return section


def _long(one_row: Mapping[str, Any]) -> Section | None:
    times = one_row["times"]
    if not times:
        return None
    contexts = sorted({r["keys"] for r in times})
    inputs = max((m.get("inputs", 0) for m in one_row["memory"]), default=0)
    section = Section(
        f"One row of a long context: seconds (float32, d = {times[0]['size']})",
        notes="With float64 copies of the inputs made. worst: bound (tiers) or error of out over "
        f"A|v| at the longest. peak MB: above the inputs ({_megabytes(inputs)} MB)",
    )
    section.columns([*(f"{m:,}" for m in contexts), "worst", "peak MB"])
    for backward, title in {False: "forward", True: "with dq, all dk, dv"}.items():
        cells = {(r["engine"], r["keys"]): r for r in times if r["backward"] == backward}
        section.group(title)
        for name in _engines(cells):
            row = [cells.get((name, m)) for m in contexts]
            peak = _peak(name, backward, one_row["memory"], contexts[-1])
            section.table.add_row(_name(name), *map(_seconds, row), _worst(row[-1]), peak)
    return section


# -- lines ---------------------------------------------------------------------------------------


def _speed_up(found: Mapping[str, Any]) -> Iterable[str]:
    """Tier 0 to tier 2, at n = 512 or the largest below that both have figures for."""
    for backward, title in PASSES.items():
        times = {
            (r["engine"], r["keys"]): r
            for r in found["square"]["times"]
            if _same_inputs(r, found["first"]) and r["backward"] == backward
        }
        both = [n for n in {n for _, n in times} if n <= 512]
        both = [n for n in both if ("definition", n) in times and ("double-double", n) in times]
        if both:
            slow, fast = times["definition", max(both)], times["double-double", max(both)]
            about = "~" if "extrapolated_from" in slow else ""
            ratio = slow["wall_s"] / fast["wall_s"]
            n = max(both)
            yield f"double-double over the definition, n = {n}, {title}: {about}{_digits(ratio)}x"


def _left_out(found: Mapping[str, Any]) -> Iterable[str]:
    for name, reason in found["missing"].items():
        yield f"not measured: {_name(name)}: {reason}"
    for part in ("square", "one_row"):
        for record in found[part]["memory"]:
            if "error" in record:
                yield f"no peak memory of {_name(record['engine'])}: {record['error']}"
        skipped = found[part]["skipped"]
        for name in dict.fromkeys(r["engine"] for r in skipped):
            mine = [r for r in skipped if r["engine"] == name]
            slow = [r for r in mine if "would take" in r["reason"]]
            if slow:
                least = min(r["keys"] for r in slow)
                yield f"too slow: {_name(name)}, {len(slow)} cases, n = {least} and more (see JSON)"
            for record in mine:
                if record not in slow:
                    yield f"failed: {_name(name)}, n = {record['keys']}: {record['reason']}"


def _how(found: Mapping[str, Any]) -> Iterable[str]:
    machine, threads = found["machine"], found["threads"]
    pools = ", ".join(f"{p['internal_api']} {p['num_threads']}" for p in threads["pools"])
    versions = ", ".join(f"{n} {v}" for n, v in machine["versions"].items() if v)
    yield f"{machine['processor']}, {machine['cores']} cores; threads: {pools}"
    yield f"python {machine['python']}, {versions}"
    yield f"{found['command']}   {machine['date']}, {found['seconds']} s"


# -- cells ---------------------------------------------------------------------------------------


def _same_inputs(record: Record, first: Record) -> bool:
    return all(record[name] == first[name] for name in ("size", "dtype", "causal"))


def _inputs(case: Record) -> str:
    kind = "causal" if case["causal"] else "dense"
    return f"{case['dtype']} inputs, d = {case['size']}, {kind}"


def _engines(cells: Iterable[tuple[str, int]]) -> list[str]:
    there = {name for name, _ in cells}
    return [name for name in ENGINES if name in there]


def _name(engine: str) -> str:
    return f"tier {engine}" if engine in TIERS else engine


def _multiple(record: Record | None) -> str:
    """A ratio to the baseline, or the baseline's own time."""
    if record is None:
        return NONE
    if record["engine"] == BASELINE or "ratio" not in record:
        return _seconds(record)
    return _about(record) + _digits(record["ratio"])


def _about(record: Record) -> str:
    return "~" if "extrapolated_from" in record else ""


def _digits(x: float) -> str:
    """Two or three significant digits."""
    if x < 10:
        return f"{x:.2f}" if x < 2 else f"{x:.1f}"
    return f"{x:.0f}" if x < 1000 else f"{float(f'{x:.2g}'):,.0f}"


def _seconds(record: Record | None) -> str:
    if record is None:
        return NONE
    x = record["wall_s"]
    unit, factor = ("s", 1) if x >= 1 else ("ms", 1e3) if x >= 1e-3 else ("µs", 1e6)
    return f"{_about(record)}{x * factor:.3g} {unit}"


def _megabytes(count: float) -> str:
    return f"{count / 1e6:,.0f}" if count >= 1e7 else f"{count / 1e6:.1f}"


def _peak(name: str, backward: bool, memory: Iterable[Record], largest: int) -> str:
    for record in memory:
        if (record["engine"], record["backward"]) == (name, backward) and "extra" in record:
            at = "" if record["keys"] == largest else f" @{record['keys']}"
            return _megabytes(max(0, record["extra"])) + at
    return NONE


def _bits(figures: Record | None, scale: str) -> str:
    """-log2 of the median and of the worst; = where there is no difference."""
    if figures is None:
        return NONE
    powers = [figures[scale][x] for x in ("median", "worst")]
    return "/".join("=" if x is None else f"{-x:.0f}" for x in powers)


def _worst(record: Record | None) -> str:
    out = (record or {}).get("accuracy", {}).get("out", {})
    figures = out.get("bound", out.get("error"))
    if figures is None or figures["terms"]["worst"] is None:
        return NONE
    return f"2^{figures['terms']['worst']:.0f}"
