"""Model of one job, which moves only by transitions in `service/jobs/model/state_machine.py`."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from service.jobs.claim_reports import MAX_PREVIEWS
from service.jobs.model.job import Job, JobState, Output, Snapshot, Usage
from service.jobs.model.state_machine import QUEUED, RUNNING, TRANSITIONS

MOVES = {move.name: move for move in TRANSITIONS}


@dataclass
class Life:
    job: Job
    """The job as submitted."""
    accepted: float
    """Time of acceptance, by Redis's clock, in microseconds."""
    place: float
    is_promised: bool
    """Whether the job counts against its tenant's hourly quota."""
    key: str | None
    """The client's idempotency key."""
    promised_s: float
    """Predicted device-seconds at submission."""
    observed: Counter[tuple[str, str]]
    """Number of (transition, script) pairs, over all jobs."""
    state: JobState | None = None
    attempts: int = 0
    fence: int = 0
    pool: str | None = None
    is_started: bool = False
    input_bytes: int = 0
    step: int = 0
    kept: int = 0
    snapshots: list[Snapshot] | None = None
    """Recorded snapshots; None: never recorded."""
    deaths: list[tuple[str, int]] = field(default_factory=list)
    """(worker, last reported step) of each crash."""
    outputs: list[Output] = field(default_factory=list)
    usage: Usage = Usage()  # noqa: RUF009 - frozen
    error: str | None = None
    has_lapsed: bool = False
    spent: dict[int, float] = field(default_factory=dict)
    """Device-seconds that each claim reported, by fence."""
    resumes_s: float = 0.0
    """Device-seconds of work in the snapshots from which the next attempt resumes."""
    billed: tuple[str, int, str] | None = None
    """Set at the end: the payer, the fence that is paid for (0: the job was queued), and the end
    state."""
    settled: tuple[int, str, Any] | None = None
    """(fence, call, response) of the last claim that ended itself."""
    reported: tuple[int, int] | None = None
    shown: tuple[int, int] | None = None
    """(fence, step) of the last progress and preview."""
    events: list[tuple[str, dict[str, Any] | None]] = field(default_factory=list)
    """(name, data) of every event, previews included; data None: not compared."""

    def move(self, name: str, script: str) -> None:
        move = MOVES[name]
        assert self.state in move.before and script in move.scripts, (name, script, self.state)
        self.observed[name, script] += 1
        self.deaths += [(self.pool or "", self.step)] * move.deaths
        self.state = move.after
        self.attempts += move.attempts
        self.fence += move.fence
        if move.is_requeue:
            self.step, self.is_started = self.kept, False
        if move.event:
            self.events.append((move.event, self._reported_step()))

    def _reported_step(self) -> dict[str, Any] | None:
        if self.state is RUNNING:
            return {"pool": self.pool, "attempt": self.attempts}
        return None if self.state is JobState.FAILED else {}

    @property
    def is_ended(self) -> bool:
        return self.state is not None and self.state.ended

    @property
    def stored(self) -> int:
        """Bytes that count against the tenant's quota."""
        drafts = self.snapshots or [] if self.state is JobState.PAUSED else []
        files: list[Output | Snapshot] = [*self.outputs, *drafts]
        size = self.input_bytes + sum(item.bytes for item in files)
        return size if self.is_ended else size + sum(draft.bytes for draft in self.job.snapshots)

    def holds(self, fence: int) -> bool:
        return self.state is RUNNING and self.fence == fence

    @property
    def undone(self) -> float:
        """Share of the steps that no snapshot contains."""
        return 1 - min(1.0, self.kept / self.job.steps)

    @property
    def used_s(self) -> float:
        """Device-seconds so far: as reported, or else estimated by steps; of a queued job, by its
        snapshots."""
        if self.spent:
            return sum(self.spent.values())
        return self.job.cost * min(1.0, self.ran / self.job.steps)

    @property
    def ran(self) -> int:
        """Number of steps that workers have run."""
        return max(0, self.step - self.draft_steps)

    @property
    def own(self) -> float:
        """Predicted device-seconds without those of the audition."""
        return self.job.cost * (1 - min(1.0, self.draft_steps / self.job.steps))

    @property
    def paid(self) -> float:
        """Part of the predicted device-seconds that the tenant has paid for while the job waits."""
        return self.own - self.job.cost * self.undone

    @property
    def draft_steps(self) -> int:
        """Steps of the snapshots submitted with the job (its audition's)."""
        return sum(draft.step for draft in self.job.snapshots)

    def spend(self, fence: int, device_s: float) -> float:
        """Record a claim's reported device-seconds; return how many are new."""
        before = self.spent.get(fence, 0.0)
        self.spent[fence] = max(before, device_s)
        return self.spent[fence] - before

    def split(self, fence: int) -> tuple[float, float]:
        """Split the reported device-seconds: useful for the end that this fence's claim reached,
        and lost."""
        total, last = sum(self.spent.values()), self.spent.get(fence, 0.0)
        used = last + min(total - last, self.resumes_s)
        return used, total - used

    def set_usage(self, steps: int | None = None) -> None:
        """Update the usage that the client sees; unchanged if no worker has reported any."""
        if self.spent:
            update = {
                "device_seconds": self.used_s,
                "steps": self.usage.steps if steps is None else steps,
            }
            self.usage = self.usage.model_copy(update=update)

    @property
    def latest(self) -> float | None:
        """Latest start that meets the deadline, given the snapshots."""
        deadline = self.job.deadline_at
        return None if deadline is None else deadline - (self.job.run_s or 0) * self.undone

    @property
    def ends_at(self) -> float | None:
        """Time at which the job expires if no call changes it; None: never."""
        if self.is_ended:
            return None
        return self.latest if self.state is QUEUED else self.job.deadline_at

    def is_late(self, now: float) -> bool:
        return self.ends_at is not None and now >= self.ends_at

    @property
    def files(self) -> set[str]:
        """Store keys and folders that the job may have."""
        kinds = ("inputs", "outputs", "snapshots")
        return {output.key for output in self.outputs} | {f"{k}/{self.job.id}/" for k in kinds}

    # comparison with Redis
    def check(self, job: Job, fields: dict[str, str]) -> None:
        expected = (self.state, self.attempts, self.fence, self.step, self.pool, self.is_started)
        is_started = job.started_at is not None
        fence = int(fields.get("fence", 0))
        assert expected == (job.state, job.attempts, fence, job.step, job.pool, is_started)
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
        """Compare with the event streams. The first event ("queued") is in no stream."""
        numbered = [(f"{n}-0", *event) for n, event in enumerate(self.events, 1)]
        preview_events = [event for event in numbered if event[1] == "preview"]
        others = [event for event in numbered[1:] if event[1] != "preview"]
        same(others[-max_events:], events)
        same([] if self.is_ended else preview_events[-MAX_PREVIEWS:], previews)


def same(expected: list[tuple[Any, ...]], entries: list[tuple[str, Any]]) -> None:
    actual = [(entry, held["name"], json.loads(held["data"])) for entry, held in entries]
    assert [event[:2] for event in expected] == [event[:2] for event in actual]
    for (_, _, data), (_, _, held) in zip(expected, actual, strict=True):
        assert data in (None, held)
