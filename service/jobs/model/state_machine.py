"""States of a job, and every way from one to another, as data.

The scripts move jobs, each as its own header says and no other way than these; the tests draw
random histories and hold them against this table. docs/reference/job-states.md shows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class JobState(StrEnum):
    """`queued → running → one of the five end states`; a lost lease leads back to `queued`."""

    QUEUED = "queued"
    """Accepted and waiting for a pool."""
    RUNNING = "running"
    """Claimed: one pool holds the lease."""
    SUCCEEDED = "succeeded"
    """State in which all outputs are in the store."""
    PAUSED = "paused"
    """State of an audition whose images have all reached `stop_at_step`: their drafts are kept, and
    further jobs continue them."""
    FAILED = "failed"
    """State of a job that cannot be served; `error` says why."""
    CANCELED = "canceled"
    """The client stopped it."""
    EXPIRED = "expired"
    """State of a job whose deadline passed before it was done."""

    @property
    def ended(self) -> bool:
        """True for an end state."""
        return self in ENDED

    @property
    def is_done(self) -> bool:
        """True for an end state with all that was asked for."""
        return self in (SUCCEEDED, PAUSED)


class By(StrEnum):
    """Actor that moves a job."""

    CLIENT = "client"
    POOL = "pool"
    """Pool that serves the model."""
    HOLDER = "holder"
    """The pool that claimed it last, while it is running: by its fence."""
    OPERATOR = "operator"
    """Whoever runs the service."""
    FRONT_END = "front end"
    CLOCK = "clock"
    """Redis's: whichever call meets the job after that time."""


@dataclass(frozen=True)
class Transition:
    """Transition of the state machine."""

    name: str
    before: tuple[JobState | None, ...]
    """States it may start from; None: there is no such job."""
    after: JobState | None
    by: By
    when: str
    scripts: tuple[str, ...]
    """Scripts of `scripts/` that may make it."""
    attempts: int = 0
    """Increment of the job's count of attempts, as in the next two."""
    fence: int = 0
    deaths: int = 0

    @property
    def event(self) -> str | None:
        """The event that it writes: the new state's name; None of a job that is forgotten."""
        return self.after

    @property
    def is_back(self) -> bool:
        """True if the job is queued again, with the steps of its snapshots done."""
        return self.after is QUEUED and self.before == (RUNNING,)


QUEUED, RUNNING, SUCCEEDED, PAUSED, FAILED, CANCELED, EXPIRED = JobState

TRANSITIONS = (
    Transition("accept", (None,), QUEUED, By.CLIENT, "queue and quotas have room", ("put",)),
    Transition(
        "claim", (QUEUED,), RUNNING, By.POOL, "it is its turn", ("claim_jobs",), attempts=1, fence=1
    ),
    Transition(
        "switch",
        (QUEUED,),
        QUEUED,
        By.FRONT_END,
        "the version that its alias has drawn has no pools left, or stepped back",
        ("switch_model",),
    ),
    Transition(
        "reuse",
        (QUEUED,),
        SUCCEEDED,
        By.FRONT_END,
        "the same was drawn before, and its files are copied, as it is accepted",
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
    Transition("fail", (RUNNING,), FAILED, By.HOLDER, "another try is of no use", ("fail",)),
    Transition("retry", (RUNNING,), QUEUED, By.HOLDER, "`max_attempts` are not used up", ("fail",)),
    Transition(
        "release", (RUNNING,), QUEUED, By.HOLDER, "the pool drains", ("release",), attempts=-1
    ),
    Transition(
        "make room",
        (RUNNING,),
        QUEUED,
        By.HOLDER,
        "a job that should go before it takes its slot",
        ("release",),
        attempts=-1,
    ),
    Transition(
        "take back",
        (RUNNING,),
        QUEUED,
        By.OPERATOR,
        "it shall run elsewhere",
        ("take_back",),
        attempts=-1,
    ),
    Transition("lose", (RUNNING,), QUEUED, By.CLOCK, "the lease lapsed", ("reap",), deaths=1),
    Transition(
        "excuse",
        (RUNNING,),
        QUEUED,
        By.CLOCK,
        "the lease lapsed while nobody could be heard: Redis was away or stood still",
        ("reap",),
        attempts=-1,
    ),
    Transition(
        "set aside",
        (RUNNING,),
        FAILED,
        By.CLOCK,
        "the lease lapsed for the `max_deaths`th time, and the job had got no further",
        ("reap",),
        deaths=1,
    ),
    Transition(
        "cancel",
        (QUEUED, RUNNING),
        CANCELED,
        By.CLIENT,
        "it is stopped or deleted",
        ("cancel", "delete"),
    ),
    Transition(
        "expire",
        (QUEUED, RUNNING),
        EXPIRED,
        By.CLOCK,
        "its deadline passed; of a queued job, the latest start that would meet it",
        ("claim_jobs", "progress", "reap", "record_snapshots", "renew"),
    ),
    Transition(
        "forget",
        (SUCCEEDED, PAUSED, FAILED, CANCELED, EXPIRED),
        None,
        By.CLOCK,
        "the retention is over, or the client deletes it",
        ("delete", "reap"),
    ),
)
LEFT = frozenset(state for move in TRANSITIONS if move.after for state in move.before)
ENDED = frozenset(JobState) - LEFT
"""States that lead to no other."""
