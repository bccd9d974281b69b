"""Two plots of a run as SVG: error against n, and time against n."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from engines import BASELINE
from timing import slope

__all__ = ["draw"]

Record = Mapping[str, Any]

# Okabe and Ito's colours, which the colour-blind can tell apart. The tiers are drawn thick.
COLOURS = {
    "torch float32": "#E69F00",
    BASELINE: "#000000",
    "numpy float64": "#777777",
    "numpy longdouble": "#CC79A7",
    "float64": "#0072B2",
    "double-double": "#D55E00",
    "balls": "#009E73",
    "definition": "#56B4E9",
}
TIERS = ("float64", "double-double", "balls", "definition")
ERRORS = ("torch float32", BASELINE, "double-double")
BOUNDS = ("float64", "double-double", "balls")
TIMES = tuple(name for name in COLOURS if name != "torch float32")
APART = 0.045
"""Between labels, of the axes' height."""


@dataclass(frozen=True)
class Line:
    """A curve over n, labelled at its right end."""

    label: str
    engine: str
    sizes: Sequence[int]
    values: Sequence[float]
    style: str = "-"


def draw(found: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw what the run has figures for into `folder`; the files that were written.

    Both plots show the first inputs of the run: left forward, right with gradients.
    """
    first = found["first"]
    same = ("size", "dtype", "causal")
    times = [r for r in found["square"]["times"] if all(r[x] == first[x] for x in same)]
    words = (
        f"{first['dtype']} inputs, d = {first['size']}, {'causal' if first['causal'] else 'dense'}"
    )
    errors = [_error_lines(times, False), _error_lines(times, True)]
    seconds = [_time_lines(times, False), _time_lines(times, True)]
    written = []
    if any(errors):
        path = folder / "oracle-error.svg"
        titles = ("out, over A|v|", "worst of dq, dk, dv, over the magnitudes of their terms")
        heading = f"Largest error (solid) and proven bound (dashed): {words}"
        written.append(_figure(path, heading, errors, titles, _powers_of_two(errors)))
    if any(seconds):
        path = folder / "oracle-time.svg"
        titles = ("forward", "forward + backward")
        heading = f"Time, and its growth over the largest four n: {words}"
        written.append(_figure(path, heading, seconds, titles, _times_of_ten(seconds)))
    return written


# -- curves --------------------------------------------------------------------------------------


def _error_lines(times: list[Record], backward: bool) -> list[Line]:
    wanted = [("error", n, "-") for n in ERRORS] + [("bound", n, "--") for n in BOUNDS]
    lines = [_line(times, backward, *one) for one in wanted]
    return [line for line in lines if line.sizes]


def _line(times: list[Record], backward: bool, kind: str, engine: str, style: str) -> Line:
    """The worst element of out, or of the three gradients, at every n."""
    points = []
    for record in sorted(times, key=lambda r: r["keys"]):
        outputs = record.get("accuracy", {})
        names = [x for x in outputs if (x != "out") == backward]
        mine = (record["engine"], record["backward"]) == (engine, backward)
        powers = [outputs[x][kind]["terms"]["worst"] for x in names if kind in outputs[x]]
        powers = [x for x in powers if x is not None]
        if mine and powers:
            points.append((record["keys"], 2.0 ** max(powers)))
    label = f"{_name(engine)} {kind}" if engine in TIERS else engine
    return Line(label, engine, *_columns(points), style)


def _time_lines(times: list[Record], backward: bool) -> list[Line]:
    """Only what was measured."""
    lines = []
    for engine in TIMES:
        points = sorted(
            (r["keys"], r["wall_s"])
            for r in times
            if (r["engine"], r["backward"]) == (engine, backward) and "extrapolated_from" not in r
        )
        if points:
            sizes, seconds = _columns(points)
            grows = f"  $n^{{{slope(sizes, seconds):.1f}}}$" if len(points) > 1 else ""
            lines.append(Line(_name(engine) + grows, engine, sizes, seconds))
    return lines


def _columns(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [n for n, _ in points], [value for _, value in points]


def _name(engine: str) -> str:
    return f"tier {engine}" if engine in TIERS else engine


# -- drawing -------------------------------------------------------------------------------------


def _figure(
    path: Path,
    heading: str,
    panels: Sequence[list[Line]],
    titles: Sequence[str],
    ticks: Mapping[float, str],
) -> Path:
    """Two panels on one scale, log-log, which ends at the ticks."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    plain = {"axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True}
    with mpl.rc_context({"svg.hashsalt": "attnspec", "font.size": 10, **plain}):
        figure = Figure(figsize=(10.5, 5), layout="constrained")
        figure.suptitle(heading, x=0.01, ha="left", fontsize=11)
        axes = figure.subplots(1, 2, sharey=True)
        for ax, lines, title in zip(axes, panels, titles, strict=True):
            ax.set_title(title, loc="left", fontsize=10)
            ax.set_yscale("log")
            ax.set_yticks(list(ticks), list(ticks.values()))
            ax.set_ylim(min(ticks), max(ticks))
            ax.grid(axis="y", color="#dddddd", linewidth=0.6)
            _curves(ax, lines)
            _labels(ax, lines, np.log([min(ticks), max(ticks)]))
            ax.minorticks_off()
        figure.savefig(path, metadata={"Date": None})
    return path


def _curves(ax: Any, lines: Sequence[Line]) -> None:
    sizes = sorted({n for line in lines for n in line.sizes})
    ax.set_xscale("log", base=2)
    ax.set_xticks(sizes, [str(n) for n in sizes], fontsize=8)
    ax.set_xlabel("n")
    for line in lines:
        thick = 2.2 if line.engine in TIERS else 1.3
        mark = {"marker": "o", "markersize": 3.5} if line.style == "-" else {}
        colour = COLOURS[line.engine]
        ax.plot(line.sizes, line.values, line.style, color=colour, lw=thick, clip_on=False, **mark)


def _labels(ax: Any, lines: Sequence[Line], limits: npt.NDArray[np.float64]) -> None:
    """Each curve's name right of the panel, at its last point's height where there is room;
    beside its last point where that is further left."""
    low, high = limits
    last = max((line.sizes[-1] for line in lines), default=0)
    ends = sorted((x for x in lines if x.sizes[-1] == last), key=lambda line: line.values[-1])
    heights = _spread([float(np.log(x.values[-1]) - low) / (high - low) for x in ends])
    for line in lines:
        arrow: dict[str, Any] = {}
        place: tuple[float, float] = (6, 0)
        if line in ends:
            place = (1.04, heights[ends.index(line)])
            arrow = {"arrowstyle": "-", "color": COLOURS[line.engine], "linewidth": 0.5}
        ax.annotate(
            line.label,
            xy=(line.sizes[-1], line.values[-1]),
            xytext=place,
            textcoords="axes fraction" if arrow else "offset points",
            color=COLOURS[line.engine],
            fontsize=8.5,
            va="center",
            arrowprops=arrow or None,
        )


def _powers_of_two(panels: Iterable[list[Line]]) -> dict[float, str]:
    """Every twentieth, around the values."""
    low, high = _range(panels, 2.0**20)
    return {2.0 ** (20 * i): f"$2^{{{20 * i}}}$" for i in range(low, high + 1)}


def _times_of_ten(panels: Iterable[list[Line]]) -> dict[float, str]:
    """1 µs, 10 µs, …"""
    low, high = _range(panels, 10.0)
    return {10.0**i: _short(10.0**i) for i in range(low, high + 1)}


def _range(panels: Iterable[list[Line]], base: float) -> tuple[int, int]:
    """Whole exponents of the base below and above all values."""
    values = [x for lines in panels for line in lines for x in line.values]
    exponents = np.log(values) / np.log(base)
    return int(np.floor(exponents.min())), int(np.ceil(exponents.max()))


def _short(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if round(seconds * factor) >= 1:
            return f"{seconds * factor:,.0f} {unit}"
    return f"{seconds:g} s"


def _spread(heights: Sequence[float]) -> list[float]:
    """The ascending heights, moved as little as need be to lie `APART`."""
    if not heights:
        return []
    apart = np.arange(len(heights)) * APART
    # The nearest sequence that ascends, of the heights less what must lie between them (pool
    # adjacent violators).
    pools: list[list[float]] = []
    for height in np.asarray(heights) - apart:
        pools.append([float(height)])
        while len(pools) > 1 and np.mean(pools[-2]) > np.mean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    return list(np.concatenate([np.full(len(pool), np.mean(pool)) for pool in pools]) + apart)
