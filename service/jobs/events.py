"""Events of a job, as a capped stream that a client can leave and come back to."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from service.jobs.model.job import JobState
from service.jobs.redis import keys
from service.jobs.redis.pubsub import Subscriber

MAX_ID_DIGITS = 18
FIRST = 1
"""Id of a job's first event, `queued`, which no stream holds: that of a waiting job would be larger
than the job."""


@dataclass(frozen=True)
class Event:
    """`id` orders the events of one job and resumes after it (Last-Event-ID).

    | name                        | data                                              |
    |-----------------------------|---------------------------------------------------|
    | queued, succeeded, canceled, expired | {}                                       |
    | running                     | {"pool": "flux-0", "attempt": 1}                  |
    | progress                    | {"step": 3, "steps": 28, "detail": {"stage": …}}  |
    | preview                     | {"step": 3, "steps": 28, "preview": "data:…"}     |
    | failed                      | {"error": {"code": …, "message": …}}              |
    """

    id: str
    name: str
    data: dict[str, Any]


@dataclass(frozen=True)
class Page:
    """Events of a job after some id, and the job's state at that time."""

    events: tuple[Event, ...]
    last: int
    """Id of the newest event there ever was; 0 for none."""
    state: JobState | None
    """State of the job; None: there is no such job."""


def parse_id(text: str) -> int:
    """The id of an event as a number; 0, before the first, for what never was one."""
    is_id = text.isascii() and text.isdigit() and len(text) <= MAX_ID_DIGITS
    return int(text) if is_id else 0


async def read(redis: Redis, job_id: str, after: int) -> Page:
    """Read a page in one round trip."""
    async with redis.pipeline(transaction=True) as pipe:
        pipe.hmget(keys.job(job_id), "state", "events")
        pipe.xrange(keys.events(job_id), min=f"({after}")
        pipe.xrange(keys.previews(job_id), min=f"({after}")
        (state, last), events, previews = await pipe.execute()
    found = sorted((_event(*entry) for entry in [*events, *previews]), key=lambda e: int(e.id))
    if state and after < FIRST:
        found.insert(0, Event(str(FIRST), JobState.QUEUED, {}))
    return Page(tuple(found), int(last or 0), JobState(state) if state else None)


async def newest_preview(redis: Redis, job_id: str) -> str | None:
    """Return a job's newest preview, as a data URI; None: there is none yet, or no more."""
    found: Any = await redis.xrevrange(keys.previews(job_id), count=1)
    return str(_event(*found[0]).data["preview"]) if found else None


def _event(entry_id: str, fields: dict[str, str]) -> Event:
    return Event(entry_id.partition("-")[0], fields["name"], json.loads(fields["data"]))


async def follow(
    redis: Redis, subscriber: Subscriber, job_id: str, after: str
) -> AsyncGenerator[Event, None]:
    """Events after that id as they happen; ends after an end state's event.

    An id that this job never had counts as the very beginning. A job that is deleted on the way
    ends as `canceled`; one that never was has no events.
    """
    cursor, was_there = parse_id(after), False
    with subscriber.waking(keys.WAKE, job_id) as wake:
        while not subscriber.closed:
            wake.clear()
            page = await read(redis, job_id, cursor)
            if page.state and cursor > page.last:
                cursor = 0
                continue
            for event in page.events:
                cursor = int(event.id)
                yield event
            if page.state is None and was_there:
                yield Event(str(cursor + 1), JobState.CANCELED, {})
            if page.state is None or page.state.ended:
                return
            was_there = True
            await wake.wait()
