"""One job as it should be: moved by `service/jobs/model/state_machine.py`, and no other way."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from service.jobs.consumer import MAX_PREVIEWS
from service.jobs.model.job import Job, JobState, Output, Snapshot, Usage
from service.jobs.model.state_machine import QUEUED, RUNNING, TRANSITIONS

MOVES = {move.name: move for move in TRANSITIONS}


@dataclass
class Life:
    job: Job
    """As it was sent."""
    accepted: float
    """When, by Redis's clock, in microseconds."""
    place: float
    is_promised: bool
    """It counts against its tenant's hour."""
    key: str | None
    """The client's, for idempotency."""
    promised_s: float
    """Device-seconds that it was predicted to take, when it was put."""
    seen: Counter[tuple[str, str]]
    """What happened to any job: transition, script."""
    state: JobState | None = None
    attempts: int = 0
    fence: int = 0
    pool: str | None = None
    is_started: bool = False
    input_bytes: int = 0
    step: int = 0
    kept: int = 0
    snapshots: list[Snapshot] | None = None
    """None: no pool has said anything of it."""
    deaths: list[tuple[str, int]] = field(default_factory=list)
    """Pool, the last step that it told of."""
    outputs: list[Output] = field(default_factory=list)
    usage: Usage = Usage()  # noqa: RUF009 - frozen
    error: str | None = None
    has_lapsed: bool = False
    spent: dict[int, float] = field(default_factory=dict)
    """Device-seconds of its claims, by fence, as they were told."""
    resumes_s: float = 0.0
    """Device-seconds that its snapshots carry on, since it last went back."""
    billed: tuple[str, int, str] | None = None
    """Once it has ended: who pays, for which fence's work (0: it was queued), and the end."""
    settled: tuple[int, str, Any] | None = None
    """How the last claim that ended itself did: fence, act, and what it was told."""
    told: tuple[int, int] | None = None
    shown: tuple[int, int] | None = None
    """The last progress and preview: fence, step."""
    events: list[tuple[str, dict[str, Any] | None]] = field(default_factory=list)
    """Name and data (None: of any), previews among them."""

    def move(self, name: str, script: str) -> None:
        move = MOVES[name]
        assert self.state in move.before and script in move.scripts, (name, script, self.state)
        self.seen[name, script] += 1
        self.deaths += [(self.pool or "", self.step)] * move.deaths
        self.state = move.after
        self.attempts += move.attempts
        self.fence += move.fence
        if move.is_back:
            self.step, self.is_started = self.kept, False
        if move.event:
            self.events.append((move.event, self._told()))

    def _told(self) -> dict[str, Any] | None:
        if self.state is RUNNING:
            return {"pool": self.pool, "attempt": self.attempts}
        return None if self.state is JobState.FAILED else {}

    @property
    def is_ended(self) -> bool:
        return self.state is not None and self.state.ended

    @property
    def stored(self) -> int:
        """Bytes that count against its tenant's quota."""
        drafts = self.snapshots or [] if self.state is JobState.PAUSED else []
        own = self.input_bytes + sum(one.bytes for one in (*self.outputs, *drafts))
        return own if self.is_ended else own + sum(draft.bytes for draft in self.job.snapshots)

    def holds(self, fence: int) -> bool:
        return self.state is RUNNING and self.fence == fence

    @property
    def undone(self) -> float:
        """Share of its steps that is not kept."""
        return 1 - min(1.0, self.kept / self.job.steps)

    @property
    def used_s(self) -> float:
        """Device-seconds that it has taken, as it told, or else by its steps; of a queued one, by
        what is kept."""
        if self.spent:
            return sum(self.spent.values())
        return self.job.cost * min(1.0, self.ran / self.job.steps)

    @property
    def ran(self) -> int:
        """Steps that pools have done of it."""
        return max(0, self.step - self.draft_steps)

    @property
    def own(self) -> float:
        """Device-seconds that it is predicted to take, without its audition's."""
        return self.job.cost * (1 - min(1.0, self.draft_steps / self.job.steps))

    @property
    def paid(self) -> float:
        """Those of them that its tenant has paid for while it waits."""
        return self.own - self.job.cost * self.undone

    @property
    def draft_steps(self) -> int:
        """Steps that it was put with: its audition's."""
        return sum(draft.step for draft in self.job.snapshots)

    def spend(self, fence: int, device_s: float) -> float:
        """How much of it is new."""
        before = self.spent.get(fence, 0.0)
        self.spent[fence] = max(before, device_s)
        return self.spent[fence] - before

    def split(self, fence: int) -> tuple[float, float]:
        """Device-seconds that were told: of use for the end that this fence's claim came to, and
        lost."""
        told, last = sum(self.spent.values()), self.spent.get(fence, 0.0)
        used = last + min(told - last, self.resumes_s)
        return used, told - used

    def set_usage(self, steps: int | None = None) -> None:
        """As its client sees it; nothing where no pool has told any."""
        if self.spent:
            update = {
                "device_seconds": self.used_s,
                "steps": self.usage.steps if steps is None else steps,
            }
            self.usage = self.usage.model_copy(update=update)

    @property
    def latest(self) -> float | None:
        """The latest start that meets its deadline, with what is kept."""
        deadline = self.job.deadline_at
        return None if deadline is None else deadline - (self.job.run_s or 0) * self.undone

    @property
    def ends_at(self) -> float | None:
        """When it expires if nothing happens to it."""
        if self.is_ended:
            return None
        return self.latest if self.state is QUEUED else self.job.deadline_at

    def is_late(self, now: float) -> bool:
        return self.ends_at is not None and now >= self.ends_at

    @property
    def files(self) -> set[str]:
        """What may lie in the store."""
        kinds = ("inputs", "outputs", "snapshots")
        return {output.key for output in self.outputs} | {f"{k}/{self.job.id}/" for k in kinds}

    # against what Redis holds
    def check(self, job: Job, fields: dict[str, str]) -> None:
        mine = (self.state, self.attempts, self.fence, self.step, self.pool, self.is_started)
        is_started = job.started_at is not None
        fence = int(fields.get("fence", 0))
        assert mine == (job.state, job.attempts, fence, job.step, job.pool, is_started)
        assert self.deaths == [(death.pool, death.step) for death in job.deaths]
        assert self.kept == int(fields.get("kept", 0))
        has_any = not self.is_ended or self.state is JobState.PAUSED
        assert (self.snapshots or [] if has_any else []) == job.snapshots
        assert (self.outputs, self.usage) == (job.outputs, job.usage)
        assert self.error == (job.error and job.error.code)
        assert self.is_ended == (job.finished_at is not None)
        assert (self.accepted, self.place) == (float(fields["accepted"]), float(fields["place"]))
        assert self.is_promised == ("promised" in fields)
        assert self.stored == int(fields.get("stored", 0))
        assert len(self.events) == int(fields["events"])

    def check_events(
        self, events: list[tuple[str, Any]], previews: list[tuple[str, Any]], max_events: int
    ) -> None:
        """Against the streams; the first event, that it is queued, is in none."""
        numbered = [(f"{n}-0", *event) for n, event in enumerate(self.events, 1)]
        shown = [event for event in numbered if event[1] == "preview"]
        others = [event for event in numbered[1:] if event[1] != "preview"]
        same(others[-max_events:], events)
        same([] if self.is_ended else shown[-MAX_PREVIEWS:], previews)


def same(expected: list[tuple[Any, ...]], entries: list[tuple[str, Any]]) -> None:
    found = [(entry, held["name"], json.loads(held["data"])) for entry, held in entries]
    assert [event[:2] for event in expected] == [event[:2] for event in found]
    for (_, _, data), (_, _, held) in zip(expected, found, strict=True):
        assert data in (None, held)
