"""Listing of a tenant's videos, filtered from its jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal

from service.errors.problems import FieldError, NotFound, Unservable
from service.front_end.front_end import FrontEnd
from service.jobs.model.errors import UnknownCursor
from service.jobs.model.job import Job
from service.routes.compat.openai.video_answers import is_video

Order = Literal["asc", "desc"]
PAGE = 100
"""Number of jobs read at a time."""
MAX_JOBS = 10_000
"""Maximum number of jobs that one request scans."""


async def videos(
    front: FrontEnd, tenant: str, limit: int, after: str | None, order: Order
) -> tuple[list[Job], bool]:
    """Return a page of videos by creation time, and whether more follow.

    Raises: NotFound: no job `after`. Unservable: the tenant has too many jobs to scan.
    """
    newest = _newest(front, tenant, after if order == "desc" else None)
    if order == "desc":
        jobs = [job async for job in _first(newest, limit + 1)]
    else:
        jobs = _jobs_after([job async for job in newest][::-1], after)
    return jobs[:limit], len(jobs) > limit


async def _newest(front: FrontEnd, tenant: str, after: str | None) -> AsyncIterator[Job]:
    scanned = 0
    while True:
        try:
            page = await front.queue.list(tenant=tenant, limit=PAGE, after=after)
        except UnknownCursor:
            raise _no_such(after) from None
        for job in page:
            if is_video(job):
                yield job
        scanned += len(page)
        after = page.next
        if after is None:
            return
        if scanned >= MAX_JOBS:
            raise Unservable(
                f"the list scans {MAX_JOBS} jobs at most; delete some, or list /v1/jobs by model"
            )


async def _first(jobs: AsyncIterator[Job], count: int) -> AsyncIterator[Job]:
    async for job in jobs:
        yield job
        count -= 1
        if not count:
            return


def _jobs_after(jobs: list[Job], after: str | None) -> list[Job]:
    """Return the jobs after the one with this id. Raises: NotFound."""
    if after is None:
        return jobs
    ids = [job.id for job in jobs]
    if after not in ids:
        raise _no_such(after)
    return jobs[ids.index(after) + 1 :]


def _no_such(after: str | None) -> NotFound:
    message = f"there is no video {str(after)[:80]!r}"
    return NotFound(message, errors=[FieldError("after", "there is no such video")])
