"""Images of the dashboards without Grafana: their queries run on a Prometheus and are drawn in
their layout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

matplotlib.use("Agg")

from matplotlib import pyplot

from lab.watching.kinds import BACK, CARD, DRAWN, EDGE, FAINT, INK
from lab.watching.span import Span

COLUMN_IN, LINE_IN = 0.66, 0.3
"""Inches of a column and a line of Grafana's grid."""
DPI = 110
GAP_IN = 0.05
HEAD_IN = 0.62
MARGINS = {
    "timeseries": (0.75, 0.55, 0.2),
    "heatmap": (0.75, 0.3, 0.2),
    "bargauge": (0.85, 0.1, 0.75),
    "stat": (0.1, 0.05, 0.1),
    "text": (0.12, 0.05, 0.1),
}
"""Margins of a panel's card in inches: left, below, right."""


def draw(dashboard: Mapping[str, Any], span: Span, file: Path) -> None:
    """Draw a dashboard as PNG."""
    lines = max(panel_["gridPos"]["y"] + panel_["gridPos"]["h"] for panel_ in dashboard["panels"])
    width, height = 24 * COLUMN_IN, lines * LINE_IN + HEAD_IN
    with pyplot.rc_context({"font.size": 8, "text.color": INK, "font.family": "DejaVu Sans"}):
        figure = pyplot.figure(figsize=(width, height), facecolor=BACK)
        head(figure, dashboard, span)
        for panel in dashboard["panels"]:
            place(figure, panel, span)
        figure.savefig(file, dpi=DPI, facecolor=BACK)
        pyplot.close(figure)


def head(figure: Figure, dashboard: Mapping[str, Any], span: Span) -> None:
    width, height = figure.get_size_inches()
    top = 1 - 0.3 / height
    figure.text(0.1 / width, top, dashboard["title"], size=14, weight="bold", va="center")
    subtitle = f"{dashboard['description']} {span.length_s // 60} minutes on two cores of a CPU"
    figure.text(1 - 0.1 / width, top, subtitle, color=FAINT, va="center", ha="right", size=9)


def place(figure: Figure, panel: Mapping[str, Any], span: Span) -> None:
    """Draw a panel's card and content."""
    width, height = figure.get_size_inches()
    grid = panel["gridPos"]
    left, w = grid["x"] * COLUMN_IN + GAP_IN, grid["w"] * COLUMN_IN - 2 * GAP_IN
    h = grid["h"] * LINE_IN - 2 * GAP_IN
    bottom = height - HEAD_IN - (grid["y"] + grid["h"]) * LINE_IN + GAP_IN
    if panel["type"] == "row":
        position = (left + 0.05) / width, (bottom + h / 2) / height
        figure.text(*position, panel["title"], size=10, weight="bold", va="center")
        return
    card = FancyBboxPatch(
        (left, bottom), w, h, boxstyle="round,pad=0,rounding_size=0.05", facecolor=CARD,
        edgecolor=EDGE, linewidth=0.8, transform=figure.dpi_scale_trans, zorder=-1,
    )  # fmt: skip
    figure.add_artist(card)
    position = (left + 0.1) / width, (bottom + h - 0.14) / height
    figure.text(*position, panel["title"], size=8.5, weight="bold", va="center")
    margins = MARGINS[panel["type"]]
    box = (
        left + margins[0],
        bottom + margins[1],
        w - margins[0] - margins[2],
        h - margins[1] - 0.3,
    )
    axes = figure.add_axes(
        (box[0] / width, box[1] / height, box[2] / width, box[3] / height), facecolor=CARD
    )
    DRAWN[panel["type"]](axes, panel, span)
