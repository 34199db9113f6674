"""Text tables of a load's report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

NONE = "–"
FILE_WIDTH = 140


def show(report: Mapping[str, Any], console: Console) -> None:
    """Print the tables of a load report; files get a fixed width."""
    if not console.is_terminal:
        console.width = FILE_WIDTH
    for table in tables(report):
        if table.row_count:
            console.print(table)


def tables(report: Mapping[str, Any]) -> Iterator[Table]:
    """Yield all tables of a load report, including empty ones."""
    yield _summary(report)
    yield _alone(report["alone"])
    yield _waits(report["waits"])
    yield _refusals(report)
    yield _met("goodput: completed within a multiple of the time alone", report["goodput"])
    yield _met("deadlines sent to the server", report["deadlines"])
    yield _fairness(report["fairness"])


def _summary(report: Mapping[str, Any]) -> Table:
    rate, sender, reuse = report["throughput"], report["sender"], report["reuse"]
    late = sender["late_s"]
    rows = {
        "server": report["server"],
        "sent": f"{report['sent']} of {report['planned']} requests"
        + (", interrupted" if report["interrupted"] else ""),
        "outcomes": ", ".join(f"{name} {count}" for name, count in report["outcomes"].items()),
        **{reason: str(count) for reason, count in report["reasons"].items()},
        "arrivals": f"{rate['asked_per_s']:.3g}/s for {rate['window_s']:.0f} s",
        "completed meanwhile": f"{rate['done_per_s']:.3g}/s, "
        f"{rate['pictures_per_s']:.3g} pictures/s",
        "device-seconds/s": f"requested {_number(report['offered_device_s_per_s'])}, "
        f"completed {_number(rate['device_s_per_s'])}",
        "sender": f"{report['client']['processor']}, {report['client']['cores']} cores; "
        f"load {report['client']['load']:.1f}",
        "sender was late": f"p50 {seconds(late['p50'])}, p99 {seconds(late['p99'])}, "
        f"at most {seconds(late['max'])}",
    }
    if reuse["reused"]:
        rows["reused"] = (
            f"{reuse['reused']} ({reuse['share']:.1%}), {reuse['hits']} at once, of"
            f" {reuse['repeated']} repeated; saved {seconds(reuse['saved_device_s'])} of the"
            f" device, {reuse['saved_share']:.1%}"
        )
    for name in ("lost_connections", "followed_late"):
        if sender[name]:
            rows[name.replace("_", " ")] = str(sender[name])
    table = Table(title="load", show_header=False, title_justify="left")
    for name, text in rows.items():
        table.add_row(name, text)
    return table


def _alone(alone: Mapping[str, Any]) -> Table:
    columns = ("whole", "device", "added", "accept", "queue", "run", "fetch")
    table = _table("alone on the server (medians)", "shape", *columns)
    for shape, times in alone.items():
        table.add_row(shape, *(seconds(times[f"{name}_s"]) for name in columns))
    return table


def _waits(groups: Mapping[str, Any]) -> Table:
    columns = ("accept", "queue", "run", "outside", "whole")
    title = "phases of successful requests: p50 / p90 / p99"
    table = _table(title, "group", "succeeded", *columns)
    by_name = {"all": groups["all"]}
    for kind in ("by_model", "by_shape", "by_tenant"):
        if len(groups[kind]) > 1:
            by_name |= groups[kind]
    for name, group in by_name.items():
        cells = (_percents(group[f"{column}_s"]) for column in columns)
        table.add_row(name, f"{group['succeeded']}/{group['asked']}", *cells)
    return table


def _refusals(report: Mapping[str, Any]) -> Table:
    table = _table("refused", "status", "reason", "requests", "Retry-After p50", "longest")
    for row in report["refusals"]:
        after = row["retry_after_s"]
        cells = (seconds(after["p50"]), seconds(after["max"]))
        table.add_row(str(row["status"]), row["reason"], str(row["count"]), *cells)
    return table


def _met(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    table = _table(title, "times alone", "requests", "met", "share")
    for row in rows:
        scale = "as sent" if row["scale"] is None else f"{row['scale']:g}x"
        table.add_row(scale, str(row["asked"]), str(row["met"]), f"{row['share']:.1%}")
    return table


def _fairness(fairness: Mapping[str, Any]) -> Table:
    jain = fairness["jain"]
    title = f"tenants, in device-seconds while requests came (Jain's index {_number(jain)})"
    table = _table(
        title,
        "tenant",
        "requested",
        "fair share",
        "received",
        "received/share",
        "times alone p50",
        "p99",
    )
    if len(fairness["tenants"]) > 1:
        for name, row in fairness["tenants"].items():
            cells = (row["asked_s"], row["due_s"], row["got_s"], row["got_of_due"])
            slow = (row["slowdown_p50"], row["slowdown_p99"])
            table.add_row(name, *map(_number, (*cells, *slow)))
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    return table


def _percents(spread: Mapping[str, float | None]) -> str:
    """Format percentiles of durations in the unit of the largest."""
    values = [spread[name] for name in ("p50", "p90", "p99")]
    present = [value for value in values if value is not None]
    if not present:
        return NONE
    factor, unit = _unit(max(present))
    return " / ".join(_digits(factor * value) for value in present) + f" {unit}"


def seconds(value: float | None) -> str:
    """Format a duration in a suitable unit."""
    if value is None:
        return NONE
    factor, unit = _unit(value)
    return f"{_digits(factor * value)} {unit}"


def _unit(value: float) -> tuple[float, str]:
    return (1000.0, "ms") if abs(value) < 0.9995 else (1.0, "s")


def _number(value: float | None) -> str:
    return NONE if value is None else _digits(value)


def _digits(value: float) -> str:
    """Format a number with three significant digits, or as an integer."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
