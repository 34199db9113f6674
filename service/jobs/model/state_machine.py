"""State machine of a job: its states and all transitions between them, as data.

The Lua scripts make exactly these transitions; the header of each script lists its own. Tests check
random histories against this table, and docs/reference/job-states.md displays it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class JobState(StrEnum):
    """State of a job: `queued → running → an end state`. A lapsed lease leads back to `queued`."""

    QUEUED = "queued"
    """Accepted and waiting for a worker."""
    RUNNING = "running"
    """Claimed by a worker, which holds the lease."""
    SUCCEEDED = "succeeded"
    """Ended with all outputs in the store."""
    PAUSED = "paused"
    """Ended audition: all images have reached `stop_at_step`. Their drafts are kept, and further
    jobs can continue them."""
    FAILED = "failed"
    """Ended with an error; `error` has the reason."""
    CANCELED = "canceled"
    """Stopped by the client."""
    EXPIRED = "expired"
    """Ended because the deadline passed before the job was done."""

    @property
    def ended(self) -> bool:
        """True for an end state of a job."""
        return self in ENDED

    @property
    def is_done(self) -> bool:
        """True for a job's end state with the requested result."""
        return self in (SUCCEEDED, PAUSED)


class By(StrEnum):
    """Actor that triggers a transition of a job's state."""

    CLIENT = "client"
    POOL = "pool"
    """Worker that serves the model."""
    HOLDER = "holder"
    """Worker with the latest claim, identified by its fence, while the job is running."""
    OPERATOR = "operator"
    """Operator of the service."""
    FRONT_END = "front end"
    CLOCK = "clock"
    """Redis's clock: the first script call after that time makes the transition."""


@dataclass(frozen=True)
class Transition:
    """Transition of a job from one state to another, with the scripts that perform it."""

    name: str
    before: tuple[JobState | None, ...]
    """States in which it may start; None: the job does not exist."""
    after: JobState | None
    by: By
    when: str
    scripts: tuple[str, ...]
    """Scripts of `scripts/` that may make it."""
    attempts: int = 0
    """Change of the job's count of attempts; the next two fields are changes of counts, too."""
    fence: int = 0
    deaths: int = 0

    @property
    def event(self) -> str | None:
        """Name of the event that the transition writes: the new state; None: job removed."""
        return self.after

    @property
    def is_requeue(self) -> bool:
        """True if the transition requeues the job, which then resumes from its snapshots."""
        return self.after is QUEUED and self.before == (RUNNING,)


QUEUED, RUNNING, SUCCEEDED, PAUSED, FAILED, CANCELED, EXPIRED = JobState

TRANSITIONS = (
    Transition(
        "accept", (None,), QUEUED, By.CLIENT, "the queue and the quotas have capacity", ("put",)
    ),
    Transition(
        "claim",
        (QUEUED,),
        RUNNING,
        By.POOL,
        "it is next in the order of the queue",
        ("claim_jobs",),
        attempts=1,
        fence=1,
    ),
    Transition(
        "switch",
        (QUEUED,),
        QUEUED,
        By.FRONT_END,
        "the version that its alias selected has no workers left, or stepped back",
        ("switch_model",),
    ),
    Transition(
        "reuse",
        (QUEUED,),
        SUCCEEDED,
        By.FRONT_END,
        "an identical job's files exist, and are copied at acceptance",
        ("put",),
    ),
    Transition("finish", (RUNNING,), SUCCEEDED, By.HOLDER, "all outputs are stored", ("finish",)),
    Transition(
        "pause",
        (RUNNING,),
        PAUSED,
        By.HOLDER,
        "all images have reached `stop_at_step`, and their drafts are stored",
        ("finish",),
    ),
    Transition("fail", (RUNNING,), FAILED, By.HOLDER, "another attempt cannot succeed", ("fail",)),
    Transition(
        "retry",
        (RUNNING,),
        QUEUED,
        By.HOLDER,
        "fewer than `max_attempts` attempts were made",
        ("fail",),
    ),
    Transition(
        "release", (RUNNING,), QUEUED, By.HOLDER, "the worker drains", ("release",), attempts=-1
    ),
    Transition(
        "make room",
        (RUNNING,),
        QUEUED,
        By.HOLDER,
        "a more urgent job takes its slot",
        ("release",),
        attempts=-1,
    ),
    Transition(
        "take back",
        (RUNNING,),
        QUEUED,
        By.OPERATOR,
        "it is to run on another worker",
        ("take_back",),
        attempts=-1,
    ),
    Transition("lose", (RUNNING,), QUEUED, By.CLOCK, "the lease lapsed", ("reap",), deaths=1),
    Transition(
        "excuse",
        (RUNNING,),
        QUEUED,
        By.CLOCK,
        "the lease lapsed while workers could not reach Redis",
        ("reap",),
        attempts=-1,
    ),
    Transition(
        "set aside",
        (RUNNING,),
        FAILED,
        By.CLOCK,
        "the lease lapsed for the `max_deaths`th time without progress",
        ("reap",),
        deaths=1,
    ),
    Transition(
        "cancel",
        (QUEUED, RUNNING),
        CANCELED,
        By.CLIENT,
        "the client cancels or deletes it",
        ("cancel", "delete"),
    ),
    Transition(
        "expire",
        (QUEUED, RUNNING),
        EXPIRED,
        By.CLOCK,
        "its deadline passed; for a queued job, the latest start that would meet it",
        ("claim_jobs", "progress", "reap", "record_snapshots", "renew"),
    ),
    Transition(
        "forget",
        (SUCCEEDED, PAUSED, FAILED, CANCELED, EXPIRED),
        None,
        By.CLOCK,
        "the retention time is over, or the client deletes it",
        ("delete", "reap"),
    ),
)
TRANSIENT_STATES = frozenset(state for move in TRANSITIONS if move.after for state in move.before)
ENDED = frozenset(JobState) - TRANSIENT_STATES
"""States without an outgoing transition."""
