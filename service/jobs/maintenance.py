"""Periodic maintenance of the queue, by any process.

What lapsed is taken back, what is over is forgotten.
"""

from __future__ import annotations

from collections.abc import Collection

from redis.asyncio import Redis

from service.jobs import job_spans
from service.jobs.model.job import JobError
from service.jobs.model.lease import RENEWALS
from service.jobs.scripts import maintenance
from service.jobs.scripts.client import ANSWER_MS, Calls, new_call
from service.settings.queue import QueueSettings

REAP_BATCH = 200
"""Jobs of one kind that one script takes back, so that it never holds Redis up for long."""
REAP_FILES = 2000
REAPS = 2
"""Number of intervals in which a reap certainly comes. After a longer silence without one, leases
may have lapsed that nobody could renew."""


class Maintenance(Calls):
    """Part of a `Queue` that a reaper uses."""

    def __init__(self, redis: Redis, settings: QueueSettings) -> None:
        super().__init__(redis, settings)
        self._reap = new_call()
        """Kept until it has its answer: a reap may have been carried out without one, and its
        notes are told to no other call."""

    async def reap(self, deleted: Collection[str] = ()) -> list[str]:
        """Take back jobs whose lease lapsed, and forget what is over.

        Expires those past their deadline, forgets those past their retention, and models that no
        pool serves any more past theirs.

        Counts what scripts have done to jobs beside their callers' errands, its own among them.

        Args:
            deleted: store keys of an earlier call that the caller has deleted since.

        Returns: store keys to delete (one that ends in / stands for all below it). Any process is
            given them again, until one reports them deleted.
        """
        max_deaths = min(self._settings.max_deaths, self._settings.max_attempts)
        poisonous = JobError(code="poisonous", message=_poisonous(max_deaths))
        more, done, files = True, list(deleted), list[str]()
        while more:
            more, files, notes = await self._run(
                maintenance.Reap(
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
                self.tally.hear(note)
                job_spans.record_note(note)
        return files

    @property
    def _silence_s(self) -> float:
        settings = self._settings
        return max(REAPS * settings.reap_every_s, settings.lease_s / RENEWALS)


def _poisonous(deaths: int) -> str:
    return (
        f"{deaths} times a pool died or stalled with this job, which got no further in between; "
        "try it smaller, or ask the operator to look at the pools' logs"
    )
