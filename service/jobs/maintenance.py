"""Periodic maintenance of the queue, which any process may run.

It reclaims jobs with lapsed leases and removes jobs past their retention.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from redis.asyncio import Redis

from service.jobs import job_spans
from service.jobs.model.job import JobError
from service.jobs.model.lease import RENEWALS
from service.jobs.scripts.client import ANSWER_MS, QueueClient, new_call
from service.jobs.scripts.script import TEXT, Script
from service.settings.queue import QueueSettings

REAP_BATCH = 200
"""Maximum number of jobs of one kind per script call, so that Redis is never blocked for long."""
REAP_FILES = 2000
REAPS = 2
"""Number of intervals within which a reap is certain. After a longer gap, leases may have lapsed
because no worker could renew them."""


class ReapResult(NamedTuple):
    """Result of one reap: store keys to delete, and what happened to jobs."""

    more: bool
    """True if more jobs are due."""
    files: list[str]
    """Store keys to delete."""
    notes: list[dict[str, Any]]
    """Notes about ended and lapsed jobs, for `JobMetrics.count_note` and `job_spans`."""


@dataclass(frozen=True)
class Reap(Script[ReapResult]):
    """Script call that reclaims jobs with lapsed leases, and removes jobs past their retention."""

    call: str
    answer_ms: int
    batch: int
    """Maximum number of jobs of each kind, and of notes."""
    files: int
    """Maximum number of store keys."""
    deleted: Sequence[str]
    """Store keys that the caller has deleted."""
    lease_s: float
    silence_s: float
    """Maximum gap between reaps within which workers could reach Redis."""
    max_deaths: int
    deposit_s: float
    retention_s: float
    model_retention_s: float
    poisonous: str = field(metadata=TEXT)
    """Error of a job that crashed too many workers, as JSON."""

    @staticmethod
    def parse(answer: Sequence[Any]) -> ReapResult:
        """Parse the result of the reap."""
        more, files, notes = answer
        return ReapResult(bool(more), files, [json.loads(note) for note in notes])


class Maintenance(QueueClient):
    """Part of a `Queue` that reapers use."""

    def __init__(self, redis: Redis, settings: QueueSettings) -> None:
        super().__init__(redis, settings)
        self._reap = new_call()
        """Id of the current reap call, kept until it is answered. An unanswered reap may have been
        executed, and only a repeat with the same id gets its notes."""

    async def reap(self, deleted: Collection[str] = ()) -> list[str]:
        """Reclaim jobs with lapsed leases; expire late jobs; remove jobs and models past retention.

        Also counts in metrics and traces what scripts did to jobs in addition to their main task.

        Args:
            deleted: store keys from an earlier call that the caller has deleted since.

        Returns: store keys to delete; a key that ends in / stands for all keys below it. Every call
        returns them again until a caller reports them as deleted.
        """
        max_deaths = min(self._settings.max_deaths, self._settings.max_attempts)
        poisonous = JobError(code="poisonous", message=_poisonous(max_deaths))
        more, done, files = True, list(deleted), list[str]()
        while more:
            more, files, notes = await self.run(
                Reap(
                    call=self._reap,
                    answer_ms=ANSWER_MS,
                    batch=REAP_BATCH,
                    files=REAP_FILES,
                    deleted=done,
                    lease_s=self._settings.lease_s,
                    silence_s=self._silence_s,
                    max_deaths=max_deaths,
                    deposit_s=self._settings.deposit_s,
                    retention_s=self._settings.retention_s,
                    model_retention_s=self._settings.model_retention_s,
                    poisonous=poisonous.model_dump_json(),
                )
            )
            self._reap, done = new_call(), []
            for note in notes:
                self.job_metrics.count_note(note)
                job_spans.record_note(note)
        return files

    @property
    def _silence_s(self) -> float:
        """Seconds without a reap after which workers are assumed to have been unreachable."""
        settings = self._settings
        return max(REAPS * settings.reap_every_s, settings.lease_s / RENEWALS)


def _poisonous(deaths: int) -> str:
    return (
        f"{deaths} workers crashed or stalled while running this job, which made no progress in"
        " between; try a smaller request, or ask the operator to check the workers' logs"
    )
