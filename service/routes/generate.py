"""POST /v1/generate: admit one request and respond in the form that the client chose."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from fastapi import APIRouter, Request, Response

from service.admission import quotas
from service.admission.admit import admit
from service.admission.drafts import Drafts
from service.admission.parse import Caller
from service.admission.refusals import Attempt, counting_refusals
from service.front_end.front_end import Front, FrontEnd, KeyId, Tenant
from service.http.body import read_json
from service.http.headers import request_id_of
from service.http.inflight_limits import Hold
from service.http.negotiation import Answer, negotiate, preferred_wait_s, prefers_minimal
from service.jobs import job_spans
from service.jobs.queue import AcceptedJob
from service.responses.render import (
    accepted_answer,
    bytes_answer,
    events_answer,
    job_headers,
    job_headers_on_errors,
    minimal_answer,
)
from service.responses.wait import wait_until_ended, while_connected
from service.routes.direct import DirectRoute
from service.routes.documented_responses import GENERATE
from service.schemas.request import GenerateRequest
from service.tracing import spans

router = APIRouter(tags=["generate"], route_class=DirectRoute)

ReadRequest = tuple[GenerateRequest, Drafts | None]
Read = Callable[[Hold, Attempt, tuple[str, ...]], Awaitable[ReadRequest]]
"""Function that reads the request. Its arguments: a counter of the body's bytes, the attempt that
parses it, and the accepted media types other than JSON."""


@router.post("/v1/generate", **GENERATE)
async def generate(request: Request, front: Front, tenant: Tenant, key_id: KeyId) -> Response:
    """Generate images or videos.

    The response is the queued job (202), or its id and URLs with `Prefer: return=minimal`. With
    `Prefer: wait` it is the finished job (200); with `Accept: image/png`, `video/mp4` or another
    file type the file itself; with `Accept: text/event-stream` the job's events as they happen.
    """

    async def read(hold: Hold, attempt: Attempt, media_types: tuple[str, ...]) -> ReadRequest:
        limit = front.settings.limits.max_body_bytes
        return await read_json(request, limit, hold, attempt.read), None

    return await serve(request, front, tenant, key_id, read)


async def serve(
    request: Request, front: FrontEnd, tenant: str, key_id: str | None, read: Read
) -> Response:
    """Admit the request that `read` returns, and respond in the form that the client chose."""
    async with quotas.QuotaHeaders(front, tenant):
        accepted = negotiate(",".join(request.headers.getlist("accept")))
        client = front.client_of(request, tenant)
        with front.waits.holding(client, _waits(request, accepted)) as waiting:
            with front.bodies.holding(client) as hold:
                connected, parent = partial(while_connected, request), spans.current_traceparent()
                caller = Caller(
                    tenant, client, connected, parent, 0, key_id, request_id_of(request)
                )
                put = await _admit(request, front, caller, partial(read, hold), accepted)
            with job_headers_on_errors(put.job):
                answer = await _answer(request, front, put, accepted, waiting)
                usage = None if waiting.amount else put.usage
                answer.headers.update(await quotas.headers_of_tenant(front, tenant, usage))
    return answer


async def _admit(
    request: Request,
    front: FrontEnd,
    caller: Caller,
    read: Callable[[Attempt, tuple[str, ...]], Awaitable[ReadRequest]],
    accepted: Answer,
) -> AcceptedJob:
    """Read and admit the request's body, traced as one span."""
    async with counting_refusals(front, caller.tenant) as attempt:
        with spans.span("admission") as span:
            body, drafts = await read(attempt, accepted.media_types)
            accepted_job = await admit(
                front, caller, body, request.headers, accepted.media_types, drafts
            )
            job = accepted_job.job
            span.set_attributes(job_spans.job_attributes(job))
            if job.traceparent != caller.traceparent:
                spans.link(span, job.traceparent)
    return accepted_job


def _waits(request: Request, accepted: Answer) -> int:
    """Return 1 if the response stays open as long as the job runs, else 0."""
    prefers = preferred_wait_s(request.headers.getlist("prefer")) is not None
    return int(accepted.events or accepted.bytes or prefers)


async def _answer(
    request: Request, front: FrontEnd, put: AcceptedJob, accepted: Answer, waiting: Hold
) -> Response:
    job = put.job
    if accepted.events:
        return events_answer(front, job, request.headers, waiting)
    wait_s = preferred_wait_s(request.headers.getlist("prefer"))
    client = waiting.client
    if accepted.bytes:
        job = await wait_until_ended(front, job, _bounded(front, wait_s), request)
        return await bytes_answer(front, job, accepted.media_types, client)
    if wait_s is None and prefers_minimal(request.headers.getlist("prefer")):
        return minimal_answer(job)
    if wait_s is None:
        return await accepted_answer(front, job, client, 202, job_headers(job), put.rank)
    wait_s = _bounded(front, wait_s)
    job = await wait_until_ended(front, job, wait_s, request)
    headers = job_headers(job) | {"Preference-Applied": f"wait={wait_s:.0f}"}
    return await accepted_answer(front, job, client, 200 if job.state.ended else 202, headers)


def _bounded(front: FrontEnd, wait_s: float | None) -> float:
    max_wait_s = front.settings.limits.max_wait_s
    return max_wait_s if wait_s is None else min(wait_s, max_wait_s)
