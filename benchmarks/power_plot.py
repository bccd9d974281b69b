"""A plot of the suites' power as SVG: faults caught, and false alarms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from power_report import share

__all__ = ["draw"]

Row = Mapping[str, Any]

# Okabe and Ito's colours, which the colour-blind can tell apart.
OWN, OURS, REACH = "#0072B2", "#D55E00", "#bbbbbb"
FILE = "power.svg"


def draw(found: Mapping[str, Any], folder: Path) -> Path:
    """Draw the run into `folder`; the file. One line a suite, the best on its own inputs first."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    faults, variants = len(found["faults"]), len(found["variants"])
    rows = sorted(found["rows"], key=_rank)
    plain = {"axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False}
    with mpl.rc_context({"svg.hashsalt": "attnspec", "font.size": 11, **plain}):
        figure = Figure(figsize=(8.4, 1.5 + 0.3 * len(rows)), layout="constrained")
        caught, alarms = figure.subplots(1, 2, sharey=True, width_ratios=(5, 3))
        _panel(caught, rows, [[_caught(r, i, faults) for r in rows] for i in ("own", "ours")])
        _panel(alarms, rows, [[_alarms(r, i, variants) for r in rows] for i in ("own", "ours")])
        caught.set_title(f"faults caught, % of {faults}", loc="left", fontsize=11)
        alarms.set_title(f"false alarms, % of {variants} variants", loc="left", fontsize=11)
        caught.set_yticks(range(len(rows)), [row["name"] for row in rows])
        for label, row in zip(caught.get_yticklabels(), rows, strict=True):
            label.set_fontweight("bold" if row["problems"] is None else "normal")
        caught.invert_yaxis()
        handles, labels = caught.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower left", ncols=2, frameon=False)
        figure.savefig(folder / FILE, metadata={"Date": None})
    return folder / FILE


def _rank(row: Row) -> tuple[bool, int]:
    """attnspec first, then by what is caught on own inputs, or on ours without any."""
    inputs = "ours" if row["problems"] == 0 else "own"
    return row["problems"] is not None, -row[inputs]["caught"]


def _caught(row: Row, inputs: str, faults: int) -> float:
    return _shown(row, inputs, share(row[inputs]["caught"], faults))


def _alarms(row: Row, inputs: str, variants: int) -> float:
    return _shown(row, inputs, share(len(row[inputs]["alarms"]), variants))


def _shown(row: Row, inputs: str, value: float) -> float:
    """NaN, which is not drawn, for the own inputs of a rule that has none."""
    return float("nan") if inputs == "own" and row["problems"] == 0 else value


def _panel(ax: Any, rows: Sequence[Row], values: Sequence[Sequence[float]]) -> None:
    """Two marks a line, joined."""
    heights = range(len(rows))
    own, ours = values
    ax.hlines(heights, own, ours, color=REACH, linewidth=1.5, zorder=1)
    front = {"clip_on": False, "zorder": 2}
    words = ("with the suite's own inputs", "with attnspec's inputs")
    ax.plot(own, heights, "o", color=OWN, markersize=8, label=words[0], **front)
    ring = {"markerfacecolor": "white", "markeredgewidth": 2}
    ax.plot(ours, heights, "o", color=OURS, markersize=5, label=words[1], **ring, **front)
    ax.set_xlim(0, 100)
    ax.set_xticks(range(0, 101, 25))
    ax.grid(axis="both", color="#e4e4e4", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.tick_params(axis="y", length=0)
