"""POST /v1/generate: one request, answered in the way that the client chose."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from service.admission import quotas
from service.admission.admission import admit
from service.admission.caller import Caller
from service.admission.drafts import Drafts
from service.admission.refusals import counting_refusals
from service.front_end.front_end import Front, FrontEnd, KeyId, Tenant
from service.http.body import read_json
from service.http.inflight_limits import Hold
from service.http.negotiation import Answer, negotiate, preferred_wait_s
from service.http.request_ids import request_id_of
from service.jobs import job_spans
from service.jobs.queue import Accepted
from service.responses.render import (
    accepted_answer,
    bytes_answer,
    events_answer,
    names_of,
    naming_the_job,
)
from service.responses.wait import unless_left, until_ended
from service.routes.direct import DirectRoute
from service.routes.documented_responses import GENERATE
from service.schemas.request import GenerateRequest
from service.tracing import spans

router = APIRouter(tags=["generate"], route_class=DirectRoute)

Parse = Callable[[dict[str, Any]], GenerateRequest]
Wanted = tuple[GenerateRequest, Drafts | None]
Read = Callable[[Hold, Parse, tuple[str, ...]], Awaitable[Wanted]]
"""Function that reads what a client wants. Its arguments: what counts the bytes, what reads the
body, and the media types that the client accepts in place of JSON."""


@router.post("/v1/generate", **GENERATE)
async def generate(request: Request, front: Front, tenant: Tenant, key_id: KeyId) -> Response:
    """Ask for images or videos.

    The answer is the job (202); with `Prefer: wait` the finished job (200); with `Accept:
    image/png`, `video/mp4` or another type of file the file itself; with `Accept:
    text/event-stream` the job's events as they happen.
    """

    async def read(hold: Hold, parsed: Parse, media_types: tuple[str, ...]) -> Wanted:
        limit = front.settings.limits.max_body_bytes
        return await read_json(request, limit, hold, parsed), None

    return await serve(request, front, tenant, key_id, read)


async def serve(
    request: Request, front: FrontEnd, tenant: str, key_id: str | None, read: Read
) -> Response:
    """Admit what a client wants, and answer in the way that it chose."""
    async with quotas.QuotaHeaders(front, tenant):
        accepted = negotiate(",".join(request.headers.getlist("accept")))
        client = front.client_of(request, tenant)
        with front.waits.holding(client, _waits(request, accepted)) as waiting:
            with front.bodies.holding(client) as hold:
                connected, parent = partial(unless_left, request), spans.here().traceparent
                caller = Caller(
                    tenant, client, connected, parent, 0, key_id, request_id_of(request)
                )
                put = await _admit(request, front, caller, partial(read, hold), accepted)
            with naming_the_job(put.job):
                answer = await _answer(request, front, put, accepted, waiting)
                usage = None if waiting.amount else put.usage
                answer.headers.update(await quotas.of_tenant(front, tenant, usage))
    return answer


async def _admit(
    request: Request,
    front: FrontEnd,
    caller: Caller,
    read: Callable[[Parse, tuple[str, ...]], Awaitable[Wanted]],
    accepted: Answer,
) -> Accepted:
    """Read the body and admit it, as one span."""
    async with counting_refusals(front, caller.tenant) as attempt:
        with spans.span("admission") as span:
            body, drafts = await read(attempt.read, accepted.media_types)
            put = await admit(front, caller, body, request.headers, accepted.media_types, drafts)
            job = put.job
            span.set(job_spans.about(job))
            if job.traceparent != caller.traceparent:
                span.link(spans.parse(job.traceparent))
    return put


def _waits(request: Request, accepted: Answer) -> int:
    """1 where the answer lasts as long as the job."""
    prefers = preferred_wait_s(request.headers.getlist("prefer")) is not None
    return int(accepted.events or accepted.bytes or prefers)


async def _answer(
    request: Request, front: FrontEnd, put: Accepted, accepted: Answer, waiting: Hold
) -> Response:
    job = put.job
    if accepted.events:
        return events_answer(front, job, request.headers, waiting)
    wait_s = preferred_wait_s(request.headers.getlist("prefer"))
    client = waiting.client
    if accepted.bytes:
        job = await until_ended(front, job, _bounded(front, wait_s), request)
        return await bytes_answer(front, job, accepted.media_types, client)
    if wait_s is None:
        return await accepted_answer(front, job, client, 202, names_of(job), put.rank)
    wait_s = _bounded(front, wait_s)
    job = await until_ended(front, job, wait_s, request)
    headers = names_of(job) | {"Preference-Applied": f"wait={wait_s:.0f}"}
    return await accepted_answer(front, job, client, 200 if job.state.ended else 202, headers)


def _bounded(front: FrontEnd, wait_s: float | None) -> float:
    most = front.settings.limits.max_wait_s
    return most if wait_s is None else min(wait_s, most)
