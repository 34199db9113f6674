"""The kinds of panels, drawn."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.ticker import Locator

from tests.deploy.watching.span import Series, Span
from tests.deploy.watching.units import shown

BACK, CARD, EDGE, INK, FAINT = "#f4f5f5", "#ffffff", "#e0e3e8", "#24292e", "#8a9099"
CURVES = (
    "#3274d9", "#ff9830", "#56a64b", "#a352cc", "#e02f44", "#00a3a3", "#b8860b", "#6e7681",
)  # fmt: skip
NAMED = {"green": "#3b9a4f", "orange": "#f08c1a", "red": "#d9303e"}
MOST_NAMES = 6
"""Of a panel's curves; further ones are drawn and not named."""


def results(panel: Mapping[str, Any], span: Span) -> Series:
    found = [one for target in panel["targets"] for one in span.ask(target)]
    return [one for one in found if np.isfinite(one[2]).any()]


def nothing(axes: Axes) -> None:
    axes.axis("off")
    axes.text(0.5, 0.5, "no data", ha="center", va="center", color=FAINT, size=9,
              transform=axes.transAxes)  # fmt: skip


def curves(axes: Axes, panel: Mapping[str, Any], span: Span) -> None:
    """A curve a series, or areas on each other."""
    found = results(panel, span)
    if not found:
        return nothing(axes)
    plain = panel["fieldConfig"]["defaults"]
    if plain["custom"]["stacking"]["mode"] == "normal":
        stacked(axes, found, span)
    else:
        for (label, times, values), color in zip(found, cycled(len(found)), strict=True):
            axes.plot(times, values, color=color, linewidth=1.3, label=label)
            axes.fill_between(times, values, color=color, alpha=0.06, linewidth=0)
    limit(axes, plain, found)
    frame(axes, plain["unit"], span)
    legend(axes, found)


def stacked(axes: Axes, found: Series, span: Span) -> None:
    values = [np.nan_to_num(ys) for _, _, ys in found]
    labels = [label for label, _, _ in found]
    axes.stackplot(
        np.arange(span.length_s + 1),
        values,
        labels=labels,
        colors=cycled(len(found)),
        alpha=0.55,
        linewidth=0,
    )


def cycled(number: int) -> list[str]:
    return [CURVES[i % len(CURVES)] for i in range(number)]


def limit(axes: Axes, plain: Mapping[str, Any], found: Series) -> None:
    """From 0 on, and the thresholds that are in sight."""
    steps = plain["thresholds"]["steps"][1:]
    top = plain.get("max") or axes.get_ylim()[1]
    if all(np.nanmax(values) == 0 for _, _, values in found):
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
    """Where an axis is marked: at whole numbers of what is counted."""
    if unit == "s" and top > 120:
        return pyplot.MultipleLocator(60 * np.ceil(top / 240))
    if unit == "percentunit" and 0.9 < top < 1.2:
        return pyplot.MultipleLocator(0.25)
    return pyplot.MaxNLocator(4, integer=unit == "short" and top > 1)


def legend(axes: Axes, found: Series) -> None:
    """Of curves that are ever above nothing, if any is; long names are cut."""
    handles, _ = axes.get_legend_handles_labels()
    pairs = [(handle, one) for handle, one in zip(handles, found, strict=True)]
    seen = [pair for pair in pairs if np.nanmax(pair[1][2]) > 0] or pairs
    names = [label for _, (label, _, _) in seen[:MOST_NAMES]]
    if len(seen) > MOST_NAMES:
        names[-1] += f" and {len(seen) - MOST_NAMES} more"
    columns = next((n for n, room in ROOM.items() if max(map(len, names)) <= room), 1)
    inches = axes.get_window_extent().width / axes.figure.dpi
    axes.legend(
        [handle for handle, _ in seen[:MOST_NAMES]],
        [textwrap.shorten(one, ROOM[1], placeholder=" …") for one in names],
        loc="upper left", bbox_to_anchor=(-0.65 / inches, -0.1), ncols=columns, frameon=False,
        fontsize=6.3, handlelength=1, columnspacing=1.2, labelspacing=0.2,
    )  # fmt: skip


ROOM = {3: 24, 2: 40, 1: 85}
"""Columns of names, and letters that fit into one."""


def number(axes: Axes, panel: Mapping[str, Any], span: Span) -> None:
    """The last value, large, over how it came."""
    found = results(panel, span)
    if not found:
        return nothing(axes)
    axes.axis("off")
    _, times, values = found[0]
    plain = panel["fieldConfig"]["defaults"]
    last = values[np.isfinite(values)][-1]
    color = colour(last, plain["thresholds"]["steps"])
    axes.text(0.5, 0.62, shown(last, plain["unit"]), ha="center", va="center", size=20,
              weight="bold", color=color, transform=axes.transAxes)  # fmt: skip
    axes.fill_between(times, values, color=color, alpha=0.15, linewidth=0)
    axes.plot(times, values, color=color, linewidth=1)
    axes.set_xlim(0, span.length_s)
    axes.set_ylim(0, max(3.2 * np.nanmax(values), 1e-9))


def colour(value: float, steps: Sequence[Mapping[str, Any]]) -> str:
    passed = [step for step in steps if step["value"] is None or value >= step["value"]]
    return NAMED[passed[-1]["color"]]


def bars(axes: Axes, panel: Mapping[str, Any], span: Span) -> None:
    """One for each query, in their order."""
    found = results(panel, span)
    unit = panel["fieldConfig"]["defaults"]["unit"]
    values = [float(series[-1]) for _, _, series in found]
    places = np.arange(len(found))
    axes.barh(places, [max(values, default=1)] * len(found), color=BACK, height=0.62)
    axes.barh(places, values, color=CURVES[0], height=0.62)
    for place_, value in zip(places, values, strict=True):
        at = max(values) * 1.02
        axes.text(at, place_, shown(value, unit), va="center", size=8, color=INK)
    axes.set_yticks(places, [label for label, _, _ in found])
    axes.invert_yaxis()
    axes.tick_params(length=0, labelsize=8)
    axes.set_xticks([])
    for side in axes.spines.values():
        side.set_visible(False)


def heat(axes: Axes, panel: Mapping[str, Any], span: Span) -> None:
    """A histogram's buckets over time."""
    found = sorted(results(panel, span), key=lambda one: float(one[0]))
    if not found:
        return nothing(axes)
    times = np.arange(span.length_s + 1)
    below = np.array([np.nan_to_num(values) for _, _, values in found])
    each = np.clip(np.diff(below, axis=0, prepend=0), 0, None)
    used = np.flatnonzero(each.max(axis=1) > 0)
    low, high = (used[0], used[-1] + 1) if len(used) else (0, len(found))
    shade = np.where(each[low:high] > 0, each[low:high], np.nan)
    axes.pcolormesh(times, np.arange(high - low + 1), shade[:, :-1], cmap="Blues", vmin=0)
    edges = [float(label) for label, _, _ in found[low:high]]
    frame(axes, "s", span)
    axes.yaxis.set_major_locator(pyplot.FixedLocator(np.arange(len(edges)) + 1))
    axes.yaxis.set_major_formatter(
        pyplot.FixedFormatter([shown(e, "s") if np.isfinite(e) else "more" for e in edges])
    )


def words(axes: Axes, panel: Mapping[str, Any], span: Span) -> None:
    """Markdown, read as it stands; of links what is clicked on."""
    axes.axis("off")
    said = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", panel["options"]["content"])
    plain = re.sub(r"\*\*|`", "", said)
    paragraphs = re.split(r"\n\n|\n(?=- )", plain)
    inches = axes.get_window_extent().width / axes.figure.dpi
    wrapped = [
        textwrap.fill(" ".join(one.split()), int(inches * 15.5), subsequent_indent="  ")
        for one in paragraphs
    ]
    axes.text(0, 1, "\n".join(wrapped), va="top", size=7.6, linespacing=1.5,
              transform=axes.transAxes)  # fmt: skip


DRAWN = {
    "timeseries": curves, "stat": number, "bargauge": bars, "heatmap": heat, "text": words,
}  # fmt: skip
"""How each kind of panel is."""
