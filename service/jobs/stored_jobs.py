"""Access to stored jobs: reading, listing, following, canceling and deleting them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from models.spec.model_spec import ModelSpec
from service.jobs import events, job_spans
from service.jobs.events import Event
from service.jobs.model import serialization
from service.jobs.model.errors import UnknownCursor
from service.jobs.model.job import DEFAULT_TENANT, Job, JobState
from service.jobs.model.job_filter import JobFilter
from service.jobs.model.metrics import JobEnd
from service.jobs.redis import keys
from service.jobs.scripts.client import ANSWER_MS, QueueClient, new_call
from service.jobs.scripts.script import Script

LIST_SCAN_LIMIT = 1000
"""Maximum number of a tenant's jobs scanned for a page filtered by model or metadata. The scan
takes Redis a few milliseconds."""

ALL = JobFilter()

Hash = dict[str, str]
"""Hash of a job, including fields that only the scripts use."""


@dataclass(frozen=True)
class Get(Script[Job | None]):
    """Script call that reads a job."""

    id: str

    @staticmethod
    def parse(answer: str | None) -> Job | None:
        """Return the job, or None if there is no such job."""
        return serialization.from_hash(serialization.parse(answer)) if answer else None


class JobList(list[Job]):
    """Page of jobs, newest first.

    Args:
        next: id of the job after which the next page starts; None: this is the last page.
    """

    def __init__(self, jobs: Iterable[Job], next: str | None) -> None:
        super().__init__(jobs)
        self.next = next


@dataclass(frozen=True)
class List(Script[JobList | None]):
    """Script call that reads a page of a tenant's jobs, newest first."""

    tenant: str
    states: Sequence[JobState]
    after: str | None
    """Id of the job after which the page starts."""
    limit: int
    looked_at: int
    """Maximum number of jobs scanned for the next three filters."""
    model: str | None
    metadata_key: str | None
    metadata_value: str | None
    created_from: int | None
    """Microseconds since the epoch."""
    created_before: int | None

    @staticmethod
    def parse(answer: Sequence[str] | None) -> JobList | None:
        """Return the page of jobs, or None if the cursor is unknown."""
        if answer is None:
            return None
        after, *texts = answer
        jobs = (serialization.from_hash(serialization.parse(text)) for text in texts)
        return JobList(jobs, after or None)


@dataclass(frozen=True)
class SwitchModel(Script[bool]):
    """Script call that moves a queued job to another model's queue."""

    id: str
    model: str
    """Model in whose queue it waits."""
    to: str
    """Model to whose queue it moves."""
    served_by: str
    """Name of that model, or of the variant of it."""
    fingerprint: str

    @staticmethod
    def parse(answer: int) -> bool:
        """Return whether the job waits in the new queue."""
        return bool(answer)


class StopScript(Script[Hash | None]):
    """Base of calls of scripts that stop a job, and return its hash afterwards."""

    @staticmethod
    def parse(answer: str | None) -> Hash | None:
        """Return the job's hash, or None if there is no such job."""
        return None if answer is None else serialization.parse(answer)


@dataclass(frozen=True)
class Cancel(StopScript):
    """Script call that cancels a job. An ended job stays unchanged."""

    call: str
    id: str


@dataclass(frozen=True)
class Delete(StopScript):
    """Script call that cancels a job if it has not ended, and deletes it."""

    call: str
    id: str
    answer_ms: int


class StoredJobs(QueueClient):
    """Part of a `Queue` that reads, stops and deletes jobs."""

    async def get(self, job_id: str) -> Job | None:
        """Return a job, or None if there is no such job.

        Raises: WireError: a newer Atelier wrote it.
        """
        return await self.run(Get(job_id))

    async def list(
        self,
        *,
        tenant: str = DEFAULT_TENANT,
        limit: int,
        after: str | None = None,
        only: JobFilter = ALL,
    ) -> JobList:
        """Return a page of a tenant's jobs, newest first.

        With a filter by model or metadata, `LIST_SCAN_LIMIT` jobs are scanned. A page may then have
        fewer than `limit` jobs, even none, although more follow.

        Args:
            after: `next` of the page before.

        Raises: UnknownCursor: the tenant has no job `after`.
        """
        page = await self.run(
            List(
                tenant=tenant,
                states=[only.state] if only.state else list(JobState),
                after=after,
                limit=limit,
                looked_at=LIST_SCAN_LIMIT,
                model=only.model,
                metadata_key=only.metadata_key,
                metadata_value=only.metadata_value,
                created_from=only.created_from_us,
                created_before=only.created_before_us,
            )
        )
        if page is None:
            raise UnknownCursor(str(after))
        return page

    async def rank(self, job: Job) -> int | None:
        """Return how many of the tenant's jobs precede a job; None unless it is queued."""
        return cast(int | None, await self._redis.zrank(keys.queue(job.model, job.tenant), job.id))

    async def waiting(self, model: str) -> Sequence[str]:
        """Return ids of a model's queued jobs, the longest waiting first."""
        return cast(Sequence[str], await self._redis.zrange(keys.waiting(model), 0, -1))

    async def switch_model(self, job: Job, spec: ModelSpec) -> bool:
        """Move a queued job to another model's queue, to start from its first step.

        Returns False if the job no longer waits for its former model.
        """
        to, print_ = spec.queue, spec.fingerprint
        return await self.run(SwitchModel(job.id, job.model, to, spec.name, print_))

    async def cancel(self, job_id: str) -> Job | None:
        """Cancel a job; return it, or None if there is no such job. Ended jobs stay unchanged."""
        call = new_call()
        return self._stopped(call, await self.run(Cancel(call, job_id)))

    async def delete(self, job_id: str) -> Job | None:
        """Delete a job; cancel it first if it has not ended.

        The caller may delete its files at once; otherwise the next `reap` returns them for
        deletion.
        """
        call = new_call()
        return self._stopped(call, await self.run(Delete(call, job_id, ANSWER_MS)))

    def _stopped(self, call: str, fields: Hash | None) -> Job | None:
        """Convert a stopped job's hash; count the end in metrics if this call caused it."""
        if fields is None:
            return None
        job = serialization.from_hash(fields)
        if fields.get("ended_by") == call:
            self.job_metrics.ended(JobEnd.of(job, job.state, float(fields["finished_at"])))
            job_spans.report_stop(job, float(fields.get("queued_at", job.created_at)))
        return job

    async def ended(self, job_id: str) -> Job | None:
        """Wait for a job's end and return the job; None: it was deleted.

        On `close` the job is returned in its current state.

        Raises: WireError: a newer Atelier wrote it.
        """
        with self._subscriber.waking(keys.WAKE, job_id) as wake:
            while True:
                wake.clear()
                job = await self.get(job_id)
                if job is None or job.state.ended or self._subscriber.closed:
                    return job
                await wake.wait()

    def events(self, job_id: str, after: str = "0") -> AsyncGenerator[Event, None]:
        """Yield events after an id as they happen, until the event of an end state or `close`."""
        return events.follow(self._redis, self._subscriber, job_id, after)

    async def newest_preview(self, job_id: str) -> str | None:
        """Return a job's newest preview as a data URI, or None if it has none now."""
        return await events.newest_preview(self._redis, job_id)

    async def original_job(self, job: Job) -> Job:
        """Return the job that generated a job's files: the oldest known in its chain of copies."""
        while job.copied_from and (earlier := await self.get(job.copied_from)):
            job = earlier
        return job
