"""A job as an HTTP answer: as JSON, as its output's bytes, as a stream of its events."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from fastapi import Response
from fastapi.responses import RedirectResponse, StreamingResponse
from redis.exceptions import RedisError
from starlette.datastructures import Headers

from service.errors.handlers import REDIS_AWAY, RETRY_AFTER_S, log
from service.errors.problems import (
    Busy,
    Conflict,
    Gone,
    JobFailed,
    JobLate,
    NotAcceptable,
    NotFound,
    OutputDamaged,
    Problem,
    Unavailable,
    Unservable,
)
from service.front_end.front_end import FrontEnd
from service.http import ranges
from service.http.inflight_limits import HeldResponse, Hold, slices
from service.http.negotiation import EVENTS
from service.jobs.model.job import CLIENTS_FAULT, Job, JobState, Output, Warned
from service.jobs.model.state_machine import ENDED
from service.jobs.queue import Event
from service.jobs.storage.errors import StoreError
from service.jobs.storage.object_store import Method
from service.responses.wait import events_of
from service.schemas.response import JobView, QueueView, job_url, view_job

KEEP_ALIVE = b": keep-alive\n\n"


async def show(
    front: FrontEnd, job: Job, hold: Hold | None = None, rank: int | None = None
) -> JobView:
    """The job with its place in the queue, and with its files where it asked for them inline.

    Args:
        hold: counts those files; None: they are left out.
        rank: jobs of its tenant that go before it; None: Redis is asked.

    Raises: Busy, Unavailable: there is no room for them.
    """
    position, eta_s = await front.costs.place(job, rank)
    place = QueueView(position=position, eta_s=eta_s)
    size = _inline_bytes(job) if hold else 0
    if not (hold and size):
        return view_job(job, place, retention_s=front.settings.queue.retention_s)
    hold.add(size)
    files = await _inline(front, job)
    return view_job(job, place, files, retention_s=front.settings.queue.retention_s)


async def show_what_fits(front: FrontEnd, job: Job, hold: Hold, rank: int | None = None) -> JobView:
    """The job as `show`; where there is no room for its files it is without them, and says so."""
    try:
        return await show(front, job, hold, rank)
    except Busy as busy:
        view = await show(front, job)
        said = f"the files were left out ({busy.detail}); each has its address, `url`"
        warned = Warned(field="output.inline", message=said)
        return view.model_copy(update={"warnings": [*view.warnings, warned]})


def _inline_bytes(job: Job) -> int:
    """Size of the files that the job shows inline, in base64."""
    asked = job.request.get("output", {}).get("inline", False)
    return sum(4 * math.ceil(output.bytes / 3) for output in job.outputs) if asked else 0


async def _inline(front: FrontEnd, job: Job) -> dict[int, bytes]:
    """The outputs that the store still holds as they were, by index."""
    found = {}
    for output in job.outputs:
        with suppress(Gone, OutputDamaged):
            found[output.index] = await front.outputs.read(output)
    return found


async def json_answer(front: FrontEnd, job: Job, client: str) -> Response:
    """The job itself. Raises: Busy, Unavailable: there is no room for its files."""
    hold = front.bodies.hold(client)
    return _held(await show(front, job, hold), hold)


async def accepted_answer(
    front: FrontEnd,
    job: Job,
    client: str,
    status: int,
    headers: Mapping[str, str],
    rank: int | None = None,
) -> Response:
    """The job that was just accepted: no refusal, by which the client would not learn its id.

    Args:
        rank: as in `show`.
    """
    hold = front.bodies.hold(client)
    return _held(await show_what_fits(front, job, hold, rank), hold, status, headers)


def _held(
    view: JobView, hold: Hold, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    content = view.model_dump_json().encode()
    return HeldResponse(content, hold, status, headers=headers, media_type="application/json")


def names_of(job: Job) -> dict[str, str]:
    """Headers that tell a client which job an answer is about."""
    cache = {"X-Atelier-Cache": "hit"} if job.copied_from else {}
    return {"Location": job_url(job.id), "X-Job-Id": job.id, **cache}


@contextmanager
def naming_the_job(job: Job) -> Iterator[None]:
    """Name the accepted job in any error raised inside.

    Raises: Unavailable: instead of what Redis and the store raise.
    """
    try:
        yield
    except (*REDIS_AWAY, StoreError) as error:
        raise Unavailable(
            f"the job was accepted and goes on, but cannot be looked at; ask for {job_url(job.id)}",
            retry_after_s=RETRY_AFTER_S,
            headers=names_of(job),
            members={"job_id": job.id},
        ) from error


async def bytes_answer(
    front: FrontEnd, job: Job, media_types: Sequence[str], client: str
) -> Response:
    """The first output itself, of a job that a client waited for.

    Raises: Problem: it ended without one, has not ended, or gave what the client does not take.
    """
    if not job.state.is_done:
        raise without_output(job)
    output = job.outputs[0]
    if output.content_type not in media_types:
        raise NotAcceptable(f"the job's output is {output.content_type}", headers=names_of(job))
    hold = front.bodies.hold(client)
    try:
        hold.add(output.bytes)
        data = await front.outputs.read(output)
    except Problem as problem:
        problem.headers |= names_of(job)
        problem.members["job_id"] = job.id
        raise
    headers = names_of(job) | _about(output)
    return HeldResponse(data, hold, headers=headers, media_type=output.content_type)


def without_output(job: Job) -> Problem:
    """Return the problem that explains why there are no bytes to answer with."""
    rest: dict[str, Any] = {"headers": names_of(job), "members": {"job_id": job.id}}
    if job.error:
        kind = Unservable if job.error.code in CLIENTS_FAULT else JobFailed
        return kind(job.error.message, code=job.error.code, **rest)
    match job.state:
        case JobState.CANCELED:
            return Conflict("the job was canceled", code="job_canceled", **rest)
        case JobState.EXPIRED:
            said = "the job's deadline passed before it was done"
            return JobLate(said, code="job_expired", **rest)
    return JobLate(f"the job is not done yet and goes on; ask for {job_url(job.id)}", **rest)


async def output_answer(
    front: FrontEnd, job: Job, index: int, headers: Headers, client: str
) -> Response:
    """Answer with one output of a job: whole, in part, not modified, or from the object store.

    Raises: Problem.
    """
    output = output_of(job, index)
    about = _about_file(front, output)
    if answer := await _without_reading(front, output, headers, about, "GET"):
        return answer
    hold = front.bodies.hold(client)
    hold.add(output.bytes)
    return await _file(front, output, headers, about, hold)


async def output_head(front: FrontEnd, job: Job, index: int, headers: Headers) -> Response:
    """Answer with the headers of one output, whose bytes stay unread.

    A range is ignored, since there are none but of GET. Source: RFC 9110, section 14.2.

    Raises: Problem.
    """
    output = output_of(job, index)
    about = _about_file(front, output)
    if answer := await _without_reading(front, output, headers, about, "HEAD"):
        return answer
    await front.outputs.check_size(output)
    about["Content-Length"] = str(output.bytes)
    return Response(headers=about, media_type=output.content_type)


def output_of(job: Job, index: int) -> Output:
    """Return an output by its index. Raises: NotFound."""
    count = len(job.outputs)
    if index >= count:
        raise NotFound(f"the job is {job.state} and has {count} outputs; there is no {index}")
    return job.outputs[index]


async def _without_reading(
    front: FrontEnd, output: Output, headers: Headers, about: dict[str, str], method: Method
) -> Response | None:
    """Return the answer that needs no bytes: not modified, or from the object store."""
    if ranges.is_known(headers.get("if-none-match"), about["ETag"]):
        return Response(status_code=304, headers=about)
    if address := await front.store.redirect_url(output.key, method):
        await front.outputs.check_size(output)
        return RedirectResponse(address, 307, headers={"Cache-Control": "no-store"})
    return None


async def _file(
    front: FrontEnd, output: Output, headers: Headers, about: dict[str, str], hold: Hold
) -> Response:
    wanted = None
    if headers.get("if-range", about["ETag"]) == about["ETag"]:
        wanted = ranges.parse(headers.get("range"), output.bytes)
    if wanted is None:
        data = await front.outputs.read(output)
        return HeldResponse(data, hold, headers=about, media_type=output.content_type)
    start, end = wanted
    data = await front.outputs.read_part(output, start, end)
    about["Content-Range"] = f"bytes {start}-{end - 1}/{output.bytes}"
    return HeldResponse(data, hold, 206, headers=about, media_type=output.content_type)


def _about_file(front: FrontEnd, output: Output) -> dict[str, str]:
    about = _about(output) | {
        "Accept-Ranges": "bytes",
        "Cache-Control": f"private, max-age={round(front.settings.queue.retention_s)}, immutable",
        "X-Content-Type-Options": "nosniff",
    }
    if front.callers:  # a browser's copy is of its key alone
        about["Vary"] = "Authorization"
    return about


def _about(output: Output) -> dict[str, str]:
    return {"ETag": f'"{output.sha256}"'}


def events_answer(front: FrontEnd, job: Job, asked: Headers, waiting: Hold) -> Response:
    """The job's events as they happen, after the one that the client saw last.

    Args:
        waiting: counts the stream, which takes it over.
    """
    after = asked.get("last-event-id", "0")
    stream = _stream(front, job.id, after, waiting.pass_on())
    return StreamingResponse(stream, headers=_about_events(job), media_type=EVENTS)


def events_head(job: Job) -> Response:
    """Return the headers of the job's events, without any wait for them."""
    answer = Response(headers=_about_events(job), media_type=EVENTS)
    del answer.headers["Content-Length"]  # nobody knows how long a stream will be
    return answer


def _about_events(job: Job) -> dict[str, str]:
    return names_of(job) | {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


async def _stream(front: FrontEnd, job_id: str, after: str, waiting: Hold) -> AsyncIterator[bytes]:
    files = front.bodies.hold(waiting.client)
    try:
        async for event in events_of(front, job_id, after):
            message = await _written(front, job_id, event, files) if event else KEEP_ALIVE
            for part in slices(message):
                yield part
    except (RedisError, StoreError) as error:  # the client comes back with Last-Event-ID
        log.warning("an event stream of %s broke off: %s", job_id, error)
    finally:
        files.close()
        waiting.close()


async def _written(front: FrontEnd, job_id: str, event: Event, files: Hold) -> bytes:
    data = json.dumps({"id": job_id, **event.data})
    if event.name in ENDED and (job := await front.queue.get(job_id)):
        data = (await show_what_fits(front, job, files)).model_dump_json()
    return f"id: {event.id}\nevent: {event.name}\ndata: {data}\n\n".encode()
