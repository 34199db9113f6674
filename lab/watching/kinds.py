"""Drawing functions by kind of panel, and the units of their axes."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.ticker import Locator

from lab.watching.span import Series, Span

TIMES = ((1, "s"), (1e-3, "ms"), (1e-6, "µs"))
LONG = ((86400, "d"), (3600, "h"), (60, "min"))
SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
AFTER = {"ops": "/s", "reqps": "/s", "Bps": "B/s", "bytes": "B", "flops": "FLOP/s"}
"""Suffix of the number, by unit."""


def shown(value: float, unit: str) -> str:
    """Format a number briefly with its unit."""
    if unit == "percentunit":
        return f"{digits(100 * value)} %"
    if unit == "s":
        return seconds(value)
    after = AFTER.get(unit, "")
    for scale, letter in SCALES:
        if abs(value) >= scale:
            return f"{digits(value / scale)} {letter}{after}"
    return f"{digits(value)} {after}".strip()


def seconds(value: float) -> str:
    for scale, name in LONG:
        if abs(value) >= 2 * scale:
            return f"{digits(value / scale)} {name}"
    for scale, name in TIMES:
        if abs(value) >= scale:
            return f"{digits(value / scale)} {name}"
    return "0 s" if value == 0 else f"{digits(value * 1e6)} µs"


def digits(value: float) -> str:
    """Format with at most three significant digits."""
    if value == round(value):
        return f"{value:.0f}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


BACK, CARD, EDGE, INK, FAINT = "#f4f5f5", "#ffffff", "#e0e3e8", "#24292e", "#8a9099"
CURVES = (
    "#3274d9", "#ff9830", "#56a64b", "#a352cc", "#e02f44", "#00a3a3", "#b8860b", "#6e7681",
)  # fmt: skip
NAMED = {"green": "#3b9a4f", "orange": "#f08c1a", "red": "#d9303e"}
MAX_NAMES = 6
"""Maximum number of named curves in a panel."""


def results(panel: Mapping[str, Any], span: Span) -> Series:
    series = [item for target in panel["targets"] for item in span.query(target)]
    return [item for item in series if np.isfinite(item[2]).any()]


def nothing(axes: Axes) -> None:
    axes.axis("off")
    axes.text(0.5, 0.5, "no data", ha="center", va="center", color=FAINT, size=9,
              transform=axes.transAxes)  # fmt: skip


def curves(axes: Axes, panel: Mapping[str, Any], span: Span) -> None:
    """Draw a curve per series, or stacked areas."""
    series = results(panel, span)
    if not series:
        return nothing(axes)
    defaults = panel["fieldConfig"]["defaults"]
    if defaults["custom"]["stacking"]["mode"] == "normal":
        stacked(axes, series, span)
    else:
        for (label, times, values), color in zip(series, cycled(len(series)), strict=True):
            axes.plot(times, values, color=color, linewidth=1.3, label=label)
            axes.fill_between(times, values, color=color, alpha=0.06, linewidth=0)
    limit(axes, defaults, series)
    frame(axes, defaults["unit"], span)
    legend(axes, series)


def stacked(axes: Axes, series: Series, span: Span) -> None:
    values = [np.nan_to_num(ys) for _, _, ys in series]
    labels = [label for label, _, _ in series]
    axes.stackplot(
        np.arange(span.length_s + 1),
        values,
        labels=labels,
        colors=cycled(len(series)),
        alpha=0.55,
        linewidth=0,
    )


def cycled(number: int) -> list[str]:
    return [CURVES[i % len(CURVES)] for i in range(number)]


def limit(axes: Axes, plain: Mapping[str, Any], series: Series) -> None:
    """Set limits from 0, and draw the visible thresholds."""
    steps = plain["thresholds"]["steps"][1:]
    top = plain.get("max") or axes.get_ylim()[1]
    if all(np.nanmax(values) == 0 for _, _, values in series):
        top = plain.get("max") or max([1.4 * step["value"] for step in steps], default=1)
    axes.set_ylim(0, 1.06 * top)
    for step in steps:
        if step["value"] <= axes.get_ylim()[1]:
            axes.axhline(step["value"], color=NAMED[step["color"]], linewidth=0.8, linestyle="--")


def frame(axes: Axes, unit: str, span: Span) -> None:
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(EDGE)
    axes.grid(axis="y", color=EDGE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=7, colors=FAINT)
    axes.set_xlim(0, span.length_s)
    axes.xaxis.set_major_locator(pyplot.MultipleLocator(60))
    axes.xaxis.set_major_formatter(lambda x, _: f"{x / 60:.0f} min")
    axes.yaxis.set_major_locator(marks(axes.get_ylim()[1], unit))
    axes.yaxis.set_major_formatter(lambda y, _: shown(y, unit))


def marks(top: float, unit: str) -> Locator:
    """Choose the ticks of an axis, at whole numbers of its unit."""
    if unit == "s" and top > 120:
        return pyplot.MultipleLocator(60 * np.ceil(top / 240))
    if unit == "percentunit" and 0.9 < top < 1.2:
        return pyplot.MultipleLocator(0.25)
    return pyplot.MaxNLocator(4, integer=unit == "short" and top > 1)


def legend(axes: Axes, series: Series) -> None:
    """Name the curves that exceed 0, or all if none does; long names are cut."""
    handles, _ = axes.get_legend_handles_labels()
    pairs = [(handle, item) for handle, item in zip(handles, series, strict=True)]
    visible = [pair for pair in pairs if np.nanmax(pair[1][2]) > 0] or pairs
    names = [label for _, (label, _, _) in visible[:MAX_NAMES]]
    if len(visible) > MAX_NAMES:
        names[-1] += f" and {len(visible) - MAX_NAMES} more"
    columns = next((n for n, width in ROOM.items() if max(map(len, names)) <= width), 1)
    inches = axes.get_window_extent().width / axes.figure.dpi
    axes.legend(
        [handle for handle, _ in visible[:MAX_NAMES]],
        [textwrap.shorten(item, ROOM[1], placeholder=" …") for item in names],
        loc="upper left", bbox_to_anchor=(-0.65 / inches, -0.1), ncols=columns, frameon=False,
        fontsize=6.3, handlelength=1, columnspacing=1.2, labelspacing=0.2,
    )  # fmt: skip


ROOM = {3: 24, 2: 40, 1: 85}
"""Maximum letters of a name, by number of columns."""


def number(axes: Axes, panel: Mapping[str, Any], span: Span) -> None:
    """Draw the last value in large type over its curve."""
    series = results(panel, span)
    if not series:
        return nothing(axes)
    axes.axis("off")
    _, times, values = series[0]
    defaults = panel["fieldConfig"]["defaults"]
    last = values[np.isfinite(values)][-1]
    color = colour(last, defaults["thresholds"]["steps"])
    axes.text(0.5, 0.62, shown(last, defaults["unit"]), ha="center", va="center", size=20,
              weight="bold", color=color, transform=axes.transAxes)  # fmt: skip
    axes.fill_between(times, values, color=color, alpha=0.15, linewidth=0)
    axes.plot(times, values, color=color, linewidth=1)
    axes.set_xlim(0, span.length_s)
    axes.set_ylim(0, max(3.2 * np.nanmax(values), 1e-9))


def colour(value: float, steps: Sequence[Mapping[str, Any]]) -> str:
    passed = [step for step in steps if step["value"] is None or value >= step["value"]]
    return NAMED[passed[-1]["color"]]


def bars(axes: Axes, panel: Mapping[str, Any], span: Span) -> None:
    """Draw a bar per query, in order."""
    measured = results(panel, span)
    unit = panel["fieldConfig"]["defaults"]["unit"]
    values = [float(series[-1]) for _, _, series in measured]
    positions = np.arange(len(measured))
    axes.barh(positions, [max(values, default=1)] * len(measured), color=BACK, height=0.62)
    axes.barh(positions, values, color=CURVES[0], height=0.62)
    for position, value in zip(positions, values, strict=True):
        text_x = max(values) * 1.02
        axes.text(text_x, position, shown(value, unit), va="center", size=8, color=INK)
    axes.set_yticks(positions, [label for label, _, _ in measured])
    axes.invert_yaxis()
    axes.tick_params(length=0, labelsize=8)
    axes.set_xticks([])
    for side in axes.spines.values():
        side.set_visible(False)


def heat(axes: Axes, panel: Mapping[str, Any], span: Span) -> None:
    """Draw a histogram's buckets over time."""
    buckets = sorted(results(panel, span), key=lambda bucket: float(bucket[0]))
    if not buckets:
        return nothing(axes)
    times = np.arange(span.length_s + 1)
    below = np.array([np.nan_to_num(values) for _, _, values in buckets])
    counts = np.clip(np.diff(below, axis=0, prepend=0), 0, None)
    used = np.flatnonzero(counts.max(axis=1) > 0)
    low, high = (used[0], used[-1] + 1) if len(used) else (0, len(buckets))
    shade = np.where(counts[low:high] > 0, counts[low:high], np.nan)
    axes.pcolormesh(times, np.arange(high - low + 1), shade[:, :-1], cmap="Blues", vmin=0)
    edges = [float(label) for label, _, _ in buckets[low:high]]
    frame(axes, "s", span)
    axes.yaxis.set_major_locator(pyplot.FixedLocator(np.arange(len(edges)) + 1))
    axes.yaxis.set_major_formatter(
        pyplot.FixedFormatter([shown(edge, "s") if np.isfinite(edge) else "more" for edge in edges])
    )


def words(axes: Axes, panel: Mapping[str, Any], span: Span) -> None:
    """Draw Markdown as plain text; links show their text."""
    axes.axis("off")
    text = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", panel["options"]["content"])
    unmarked = re.sub(r"\*\*|`", "", text)
    paragraphs = re.split(r"\n\n|\n(?=- )", unmarked)
    inches = axes.get_window_extent().width / axes.figure.dpi
    wrapped = [
        textwrap.fill(" ".join(paragraph.split()), int(inches * 15.5), subsequent_indent="  ")
        for paragraph in paragraphs
    ]
    axes.text(0, 1, "\n".join(wrapped), va="top", size=7.6, linespacing=1.5,
              transform=axes.transAxes)  # fmt: skip


DRAWN = {
    "timeseries": curves, "stat": number, "bargauge": bars, "heatmap": heat, "text": words,
}  # fmt: skip
"""Drawing function of each kind of panel."""
