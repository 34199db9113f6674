"""Progress of a job on standard error: a bar on a terminal, otherwise lines."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from deploy.exit_codes import say

if TYPE_CHECKING:
    from service.client import JobEvent


def show(events: Iterable[JobEvent]) -> None:
    """Show a job's events on standard error until the stream ends."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        return _tell(events)
    columns = (TextColumn("{task.description:<10}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task("waiting", total=None)
        for event in events:
            progress.update(task, description=_doing(event), **_counts(event))


def _tell(events: Iterable[JobEvent]) -> None:
    quarter, doing = -1, ""
    for event in events:
        counts = _counts(event)
        if not counts:
            before, doing = doing, _doing(event)
            if doing != before:
                say(doing)
        elif (now := 4 * counts["completed"] // counts["total"]) > quarter:
            quarter = now
            say(f"step {counts['completed']} of {counts['total']}")


def _doing(event: JobEvent) -> str:
    detail = event.data.get("detail") or {}
    if detail.get("expected_s"):
        return f"{detail['stage']}, about {math.ceil(detail['expected_s'])} s"
    doing = {"queued": "waiting", "progress": "running", "preview": "running"}
    return detail.get("stage") or doing.get(event.name, event.name)


def _counts(event: JobEvent) -> dict[str, Any]:
    """Return the completed and total steps of a progress event; empty before the first step."""
    if not event.data.get("step"):
        return {}
    return {"completed": event.data["step"], "total": event.data["steps"]}
