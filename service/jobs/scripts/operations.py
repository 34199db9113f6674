"""Call of the script that operators run."""

from __future__ import annotations

from dataclasses import dataclass

from service.jobs.model.job import JobState
from service.jobs.scripts.script import Script


@dataclass(frozen=True)
class TakeBack(Script[JobState | None]):
    """Return a running job to the queue."""

    id: str
    call: str
    answer_ms: int

    @staticmethod
    def parse(answer: str | None) -> JobState | None:
        """Return the job's state before the call, or None if there is no such job."""
        return None if answer is None else JobState(answer)
