"""HTTP responses about one job: JSON, an output's bytes, or a stream of events."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from fastapi import Response
from fastapi.responses import RedirectResponse, StreamingResponse
from redis.exceptions import RedisError
from starlette.datastructures import Headers

from service.errors.handlers import REDIS_UNREACHABLE, RETRY_AFTER_S, log
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
from service.jobs.model.job import CLIENT_ERRORS, FieldWarning, Job, JobState, Output
from service.jobs.model.state_machine import ENDED
from service.jobs.queue import Event
from service.jobs.storage.errors import StoreError
from service.jobs.storage.object_store import Method
from service.responses.json_content import in_thread_if_large
from service.responses.wait import events_of
from service.responses.warning_header import warning_header
from service.schemas.response import Basis, JobView, QueueView, job_url, view_accepted, view_job

KEEP_ALIVE = b": keep-alive\n\n"


async def job_view(
    front: FrontEnd, job: Job, hold: Hold | None = None, rank: int | None = None
) -> JobView:
    """Build a job's JSON view: queue position, predicted wait, and files if requested inline.

    Args:
        hold: counts the bytes of inline files; None omits them.
        rank: number of jobs of the tenant ahead of this job; None: it is read from Redis.

    Raises: Busy, Unavailable: the files exceed the limits on bytes in flight.
    """
    position, eta_s = await front.costs.position_and_end(job, rank)
    basis = None if eta_s is None else await _basis(front, job)
    queue_view = QueueView(position=position, eta_s=eta_s, eta_basis=basis)
    size = _inline_bytes(job) if hold else 0
    if not (hold and size):
        return view_job(job, queue_view, retention_s=front.settings.queue.retention_s)
    hold.add(size)
    files = await _inline(front, job)
    view = partial(view_job, job, queue_view, files, retention_s=front.settings.queue.retention_s)
    return await in_thread_if_large(view, size)


async def _basis(front: FrontEnd, job: Job) -> Basis:
    return "estimated" if await front.costs.is_estimated(job) else "measured"


async def job_view_within_limits(
    front: FrontEnd, job: Job, hold: Hold, rank: int | None = None
) -> JobView:
    """Build the view as `job_view` does; files beyond the limits are omitted, with a warning."""
    try:
        return await job_view(front, job, hold, rank)
    except Busy as busy:
        view = await job_view(front, job)
        message = f"the files were omitted ({busy.detail}); fetch each from its `url`"
        warning = FieldWarning(field="output.inline", message=message)
        return view.model_copy(update={"warnings": [*view.warnings, warning]})


def _inline_bytes(job: Job) -> int:
    """Return the base64 size of the files that the job shows inline."""
    is_inline = job.request.get("output", {}).get("inline", False)
    return sum(4 * math.ceil(output.bytes / 3) for output in job.outputs) if is_inline else 0


async def _inline(front: FrontEnd, job: Job) -> dict[int, bytes]:
    """Read a job's outputs that the store still contains undamaged, by index."""
    files = {}
    for output in job.outputs:
        with suppress(Gone, OutputDamaged):
            files[output.index] = await front.outputs.read(output)
    return files


async def json_answer(front: FrontEnd, job: Job, client: str) -> Response:
    """Build the response with a job's JSON view. Raises: Busy, Unavailable: as `job_view`."""
    hold = front.bodies.hold(client)
    return await _held_response(await job_view(front, job, hold), hold)


async def accepted_answer(
    front: FrontEnd,
    job: Job,
    client: str,
    status: int,
    headers: Mapping[str, str],
    rank: int | None = None,
) -> Response:
    """Build the response about a newly accepted job, without errors that would hide its id.

    Args:
        rank: as in `job_view`.
    """
    hold = front.bodies.hold(client)
    return await _held_response(
        await job_view_within_limits(front, job, hold, rank), hold, status, headers
    )


def minimal_answer(job: Job) -> Response:
    """Build the short response about a newly accepted job, without predictions."""
    content = view_accepted(job.id).model_dump_json()
    headers = job_headers(job) | {"Preference-Applied": "return=minimal"}
    return Response(content, 202, headers, "application/json")


async def _held_response(
    view: JobView, hold: Hold, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    content = await in_thread_if_large(view.model_dump_json, hold.amount)
    return HeldResponse(
        content.encode(), hold, status, headers=headers, media_type="application/json"
    )


def job_headers(job: Job) -> dict[str, str]:
    """Build the headers that identify the job of a response, with its warnings."""
    cache = {"X-Atelier-Cache": "hit"} if job.copied_from else {}
    names = {"Location": job_url(job.id), "X-Job-Id": job.id}
    return {**names, **cache, **warning_header(job.warnings)}


@contextmanager
def job_headers_on_errors(job: Job) -> Iterator[None]:
    """Add the accepted job's id to any error raised inside.

    Raises: Unavailable: in place of errors of Redis and the store.
    """
    try:
        yield
    except (*REDIS_UNREACHABLE, StoreError) as error:
        raise Unavailable(
            "the job was accepted and continues, but its state cannot be read now; request"
            f" {job_url(job.id)}",
            retry_after_s=RETRY_AFTER_S,
            headers=job_headers(job),
            members={"job_id": job.id},
        ) from error


async def bytes_answer(
    front: FrontEnd, job: Job, media_types: Sequence[str], client: str
) -> Response:
    """Build the response with the bytes of the first output, for a client that waited.

    Raises: Problem: the job has no output, has not ended, or its media type is not acceptable.
    """
    if not job.state.is_done:
        raise problem_without_output(job)
    output = job.outputs[0]
    if output.content_type not in media_types:
        raise NotAcceptable(f"the job's output is {output.content_type}", headers=job_headers(job))
    hold = front.bodies.hold(client)
    try:
        hold.add(output.bytes)
        data = await front.outputs.read(output)
    except Problem as problem:
        problem.headers |= job_headers(job)
        problem.members["job_id"] = job.id
        raise
    headers = job_headers(job) | _etag_header(output)
    return HeldResponse(data, hold, headers=headers, media_type=output.content_type)


def problem_without_output(job: Job) -> Problem:
    """Return the problem that explains why a job has no output bytes."""
    options: dict[str, Any] = {"headers": job_headers(job), "members": {"job_id": job.id}}
    if job.error:
        kind = Unservable if job.error.code in CLIENT_ERRORS else JobFailed
        return kind(job.error.message, code=job.error.code, **options)
    match job.state:
        case JobState.CANCELED:
            return Conflict("the job was canceled", code="job_canceled", **options)
        case JobState.EXPIRED:
            message = "the job's deadline passed before it finished"
            return JobLate(message, code="job_expired", **options)
    return JobLate(
        f"the job has not finished yet and continues; request {job_url(job.id)}", **options
    )


async def output_answer(
    front: FrontEnd, job: Job, index: int, headers: Headers, client: str
) -> Response:
    """Build the response for one output: full, a byte range, 304, or a redirect to the store.

    Raises: Problem.
    """
    output = output_of(job, index)
    response_headers = _file_headers(front, output)
    if answer := await _without_reading(front, output, headers, response_headers, "GET"):
        return answer
    hold = front.bodies.hold(client)
    hold.add(output.bytes)
    return await _file(front, output, headers, response_headers, hold)


async def output_head(front: FrontEnd, job: Job, index: int, headers: Headers) -> Response:
    """Build the response to HEAD for one output, without reading its bytes.

    A range is ignored, since only GET defines ranges. Source: RFC 9110, section 14.2.

    Raises: Problem.
    """
    output = output_of(job, index)
    response_headers = _file_headers(front, output)
    if answer := await _without_reading(front, output, headers, response_headers, "HEAD"):
        return answer
    await front.outputs.check_size(output)
    response_headers["Content-Length"] = str(output.bytes)
    return Response(headers=response_headers, media_type=output.content_type)


def output_of(job: Job, index: int) -> Output:
    """Return a job's output by its index. Raises: NotFound."""
    count = len(job.outputs)
    if index >= count:
        raise NotFound(
            f"the job is {job.state} and has {count} outputs; number {index} does not exist"
        )
    return job.outputs[index]


async def _without_reading(
    front: FrontEnd,
    output: Output,
    headers: Headers,
    response_headers: dict[str, str],
    method: Method,
) -> Response | None:
    """Return a 304, or a redirect to the object store; None if an output's bytes are needed."""
    if ranges.etag_matches(headers.get("if-none-match"), response_headers["ETag"]):
        return Response(status_code=304, headers=response_headers)
    if address := await front.store.redirect_url(output.key, method):
        await front.outputs.check_size(output)
        return RedirectResponse(address, 307, headers={"Cache-Control": "no-store"})
    return None


async def _file(
    front: FrontEnd, output: Output, headers: Headers, response_headers: dict[str, str], hold: Hold
) -> Response:
    byte_range = None
    if headers.get("if-range", response_headers["ETag"]) == response_headers["ETag"]:
        byte_range = ranges.parse(headers.get("range"), output.bytes)
    if byte_range is None:
        data = await front.outputs.read(output)
        return HeldResponse(data, hold, headers=response_headers, media_type=output.content_type)
    start, end = byte_range
    data = await front.outputs.read_part(output, start, end)
    response_headers["Content-Range"] = f"bytes {start}-{end - 1}/{output.bytes}"
    return HeldResponse(data, hold, 206, headers=response_headers, media_type=output.content_type)


def _file_headers(front: FrontEnd, output: Output) -> dict[str, str]:
    response_headers = _etag_header(output) | {
        "Accept-Ranges": "bytes",
        "Cache-Control": f"private, max-age={round(front.settings.queue.retention_s)}, immutable",
        "X-Content-Type-Options": "nosniff",
    }
    if front.callers:  # a cached copy is valid for one key only
        response_headers["Vary"] = "Authorization"
    return response_headers


def _etag_header(output: Output) -> dict[str, str]:
    return {"ETag": f'"{output.sha256}"'}


def events_answer(front: FrontEnd, job: Job, headers: Headers, waiting: Hold) -> StreamingResponse:
    """Stream the job's events as they happen, after the client's `Last-Event-ID`.

    Args:
        waiting: counts the open stream, which takes ownership of it.
    """
    after = headers.get("last-event-id", "0")
    stream = _stream(front, job.id, after, waiting.transfer())
    return StreamingResponse(stream, headers=_stream_headers(job), media_type=EVENTS)


def events_head(job: Job) -> Response:
    """Build the response to HEAD for a job's event stream, without waiting for events."""
    answer = Response(headers=_stream_headers(job), media_type=EVENTS)
    del answer.headers["Content-Length"]  # a stream has no known length
    return answer


def _stream_headers(job: Job) -> dict[str, str]:
    return job_headers(job) | {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


async def _stream(front: FrontEnd, job_id: str, after: str, waiting: Hold) -> AsyncIterator[bytes]:
    files = front.bodies.hold(waiting.client)
    try:
        async for event in events_of(front, job_id, after):
            message = await _event_text(front, job_id, event, files) if event else KEEP_ALIVE
            for part in slices(message):
                yield part
    except (RedisError, StoreError) as error:  # the client reconnects with Last-Event-ID
        log.warning("an event stream of %s was interrupted: %s", job_id, error)
    finally:
        files.close()
        waiting.close()


async def _event_text(front: FrontEnd, job_id: str, event: Event, files: Hold) -> bytes:
    data = json.dumps({"id": job_id, **event.data})
    if event.name in ENDED and (job := await front.queue.get(job_id)):
        view = await job_view_within_limits(front, job, files)
        data = await in_thread_if_large(view.model_dump_json, files.amount)
    return f"id: {event.id}\nevent: {event.name}\ndata: {data}\n\n".encode()
