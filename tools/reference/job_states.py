"""Reference page of job states: diagram and table of the state machine's transitions."""

from __future__ import annotations

from service.jobs.model.state_machine import TRANSITIONS, Transition

PAGE = """# States of a job

Written by `make reference` from `service/jobs/model/state_machine.py`. A script of `service/jobs/scripts` makes each transition atomically. A job is in exactly one state, and ends once.

```mermaid
stateDiagram-v2
{arrows}
```

| transition | from | to, and its event | by | when | script | attempts | fence | deaths |
|---|---|---|---|---|---|---|---|---|
{rows}

A job that returns to `queued` has its former position. A preempted job is later by the time that it ran, since it did not wait meanwhile. It keeps the steps that its snapshots preserve. A worker with an earlier claim has a stale fence, and its calls have no effect. *holder*: the worker that claimed the job last, while it runs. *clock*: the time of Redis, checked by the next call that reads the job.
"""  # noqa: E501 - a paragraph is a line there


def as_markdown() -> str:
    """Return the reference page of job states."""
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
