"""POST /v1/generate: one request, answered in the way that the client chose."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request, Response

from service.admission import quotas
from service.admission.admission import admit
from service.admission.caller import Caller
from service.admission.parse import parse_body
from service.admission.refusals import counting_refusals
from service.front_end.front_end import Front, FrontEnd, Tenant
from service.http.body import read_json
from service.http.inflight_limits import Hold
from service.http.negotiation import Answer, negotiate, preferred_wait_s
from service.jobs import job_spans
from service.jobs.model.job import Job
from service.responses.render import (
    accepted_answer,
    bytes_answer,
    events_answer,
    names_of,
    naming_the_job,
)
from service.responses.wait import unless_left, until_ended
from service.routes.documented_responses import GENERATE
from service.tracing import spans

router = APIRouter(tags=["generate"])


@router.post("/v1/generate", **GENERATE)
async def generate(request: Request, front: Front, tenant: Tenant) -> Response:
    """Ask for images or videos.

    The answer is the job (202); with `Prefer: wait` the finished job (200); with `Accept:
    image/png`, `video/mp4` or another type of file the file itself; with `Accept:
    text/event-stream` the job's events as they happen.
    """
    async with quotas.quota_headers(front, tenant):
        accepted = negotiate(",".join(request.headers.getlist("accept")))
        client = front.client_of(request, tenant)
        with front.waits.holding(client, _waits(request, accepted)) as waiting:
            with front.bodies.holding(client) as hold:
                job = await _admit(request, front, tenant, hold, accepted.media_types)
            with naming_the_job(job):
                answer = await _answer(request, front, job, accepted, waiting)
                answer.headers.update(await quotas.of_tenant(front, tenant))
    return answer


async def _admit(
    request: Request, front: FrontEnd, tenant: str, hold: Hold, media_types: tuple[str, ...]
) -> Job:
    """Read the body and admit it, as one span."""
    parent = spans.here().traceparent
    caller = Caller(tenant, hold.client, partial(unless_left, request), parent)
    with counting_refusals(front, tenant) as attempt, spans.span("admission") as span:
        limit = front.settings.limits.max_body_bytes
        attempt.body = await read_json(request, limit, hold, parse_body)
        job = await admit(front, caller, attempt.body, request.headers, media_types)
        span.set(job_spans.about(job))
        if job.traceparent != parent:
            span.link(spans.parse(job.traceparent))
    return job


def _waits(request: Request, accepted: Answer) -> int:
    """1 where the answer lasts as long as the job."""
    prefers = preferred_wait_s(request.headers.getlist("prefer")) is not None
    return int(accepted.events or accepted.bytes or prefers)


async def _answer(
    request: Request, front: FrontEnd, job: Job, accepted: Answer, waiting: Hold
) -> Response:
    if accepted.events:
        return events_answer(front, job, request.headers, waiting)
    wait_s = preferred_wait_s(request.headers.getlist("prefer"))
    client = waiting.client
    if accepted.bytes:
        job = await until_ended(front, job, _bounded(front, wait_s), request)
        return await bytes_answer(front, job, accepted.media_types, client)
    if wait_s is None:
        return await accepted_answer(front, job, client, 202, names_of(job))
    wait_s = _bounded(front, wait_s)
    job = await until_ended(front, job, wait_s, request)
    headers = names_of(job) | {"Preference-Applied": f"wait={wait_s:.0f}"}
    return await accepted_answer(front, job, client, 200 if job.state.ended else 202, headers)


def _bounded(front: FrontEnd, wait_s: float | None) -> float:
    most = front.settings.limits.max_wait_s
    return most if wait_s is None else min(wait_s, most)
