"""Plot of a trace: deadlines met and waits, over the load."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

from lab.load.trace import Order, Row

matplotlib.use("Agg")

from matplotlib import pyplot

STYLES = {
    Order.FIRST_COME: ("#999999", "o--"),
    Order.NO_LATE_ONES: ("#b58900", "o:"),
    Order.OURS: ("#1f6feb", "o-"),
}


def draw(rows: Sequence[Row], file: Path) -> None:
    """Write SVG, PNG or PDF, by the file's suffix."""
    figure, (met, waits) = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for order, (colour, style) in STYLES.items():
        order_rows = [row for row in rows if row.order == order]
        loads = [row.load for row in order_rows]
        met.plot(
            loads, [100 * row.in_time() for row in order_rows], style, color=colour, label=order
        )
        for percent, width in ((50, 1.0), (99, 2.2)):
            seconds = [max(row.wait_s(percent), 0.1) for row in order_rows]
            label = f"{order}, p{percent}"
            waits.plot(loads, seconds, style, color=colour, linewidth=width, label=label)
    met.set(xlabel="load (1: all the pools can do)", ylabel="in time, %", ylim=(0, 100))
    waits.set(xlabel="load", ylabel="wait, s", yscale="log")
    for axes in (met, waits):
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.savefig(file)
