"""States of a job, and what moves it from one to another."""

from __future__ import annotations

from service.jobs.model.state_machine import TRANSITIONS, Transition

PAGE = """# States of a job

Written by `make reference` from `service/jobs/model/state_machine.py`. Each line is made by one of `service/jobs/scripts`, at once or not at all. A job is in one state at any time, and ends once.

```mermaid
stateDiagram-v2
{arrows}
```

| transition | from | to, and its event | by | when | script | attempts | fence | deaths |
|---|---|---|---|---|---|---|---|---|
{rows}

A job that goes back to `queued` has its old place there (one that made room, behind that by the time that it ran: it has not waited meanwhile), and as many steps done as its snapshots keep; a pool that claimed it before has a stale fence, and changes nothing any more. *holder*: the pool that claimed it last, while it is running. *clock*: Redis's, seen by whichever call meets the job after that time.
"""  # noqa: E501 - a paragraph is a line there


def as_markdown() -> str:
    """Return the page."""
    arrows = [arrow for move in TRANSITIONS for arrow in _arrows(move)]
    return PAGE.format(arrows="\n".join(arrows), rows="\n".join(map(_row, TRANSITIONS)))


def _arrows(move: Transition) -> list[str]:
    return [f"    {s or '[*]'} --> {move.after or '[*]'}: {move.name}" for s in move.before]


def _row(move: Transition) -> str:
    counts = (f"{n:+d}" if n else "" for n in (move.attempts, move.fence, move.deaths))
    before = ", ".join(state or "nothing" for state in move.before)
    scripts = ", ".join(move.scripts)
    cells = (move.name, before, move.after or "nothing", move.by, move.when, scripts, *counts)
    return f"| {' | '.join(cells)} |"
