"""Events of a job, stored as a capped stream so that clients can reconnect and resume."""

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
"""Id of a job's first event, `queued`. It is not stored, because the stream of a waiting job would
be larger than the job."""


@dataclass(frozen=True)
class Event:
    """Event of a job. `id` orders a job's events; a client resumes after it (Last-Event-ID).

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
    """Events of a job after a given id, and the job's state at that time."""

    events: tuple[Event, ...]
    last: int
    """Id of the job's newest event; 0 if it has none."""
    state: JobState | None
    """State of the job; None: there is no such job."""


def parse_id(text: str) -> int:
    """Convert an event id to a number. Invalid ids become 0, which is before the first event."""
    is_id = text.isascii() and text.isdigit() and len(text) <= MAX_ID_DIGITS
    return int(text) if is_id else 0


async def read(redis: Redis, job_id: str, after: int) -> Page:
    """Read a job's events after an id, and its state, in one round trip."""
    async with redis.pipeline(transaction=True) as pipe:
        pipe.hmget(keys.job(job_id), "state", "events")
        pipe.xrange(keys.events(job_id), min=f"({after}")
        pipe.xrange(keys.previews(job_id), min=f"({after}")
        (state, last), events, previews = await pipe.execute()
    page = sorted((_event(*entry) for entry in [*events, *previews]), key=lambda e: int(e.id))
    if state and after < FIRST:
        page.insert(0, Event(str(FIRST), JobState.QUEUED, {}))
    return Page(tuple(page), int(last or 0), JobState(state) if state else None)


async def newest_preview(redis: Redis, job_id: str) -> str | None:
    """Return a job's newest preview as a data URI, or None if it has none now."""
    entries: Any = await redis.xrevrange(keys.previews(job_id), count=1)
    return str(_event(*entries[0]).data["preview"]) if entries else None


def _event(entry_id: str, fields: dict[str, str]) -> Event:
    return Event(entry_id.partition("-")[0], fields["name"], json.loads(fields["data"]))


async def follow(
    redis: Redis, subscriber: Subscriber, job_id: str, after: str
) -> AsyncGenerator[Event, None]:
    """Yield a job's events after an id as they happen, until the event of an end state.

    An id that this job never had counts as the beginning. If the job is deleted meanwhile, the last
    event is `canceled`. An unknown job has no events.
    """
    cursor, existed = parse_id(after), False
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
            if page.state is None and existed:
                yield Event(str(cursor + 1), JobState.CANCELED, {})
            if page.state is None or page.state.ended:
                return
            existed = True
            await wake.wait()
