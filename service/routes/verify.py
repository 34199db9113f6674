"""POST /v1/verify: generate an output again and compare the pixels."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from fastapi import APIRouter, Request, Response

from service.admission import quotas
from service.admission.admit import admit
from service.admission.parse import Caller, idempotency_key, parse_as
from service.admission.refusals import counting_refusals
from service.errors.problems import Invalid, UnsupportedMedia
from service.front_end.front_end import Front, FrontEnd, KeyId, Tenant
from service.http.body import read_bytes, read_json
from service.http.headers import request_id_of
from service.http.inflight_limits import Hold
from service.http.negotiation import JSON, preferred_wait_s
from service.responses.render import job_headers, job_headers_on_errors
from service.responses.wait import wait_until_ended, while_connected
from service.routes.direct import DirectRoute
from service.routes.documented_responses import VERIFY
from service.schemas.request_parts import MEDIA_TYPES
from service.schemas.verify import PENDING, Verification, VerifyRequest
from service.tracing import spans
from service.verification.request import replay_request
from service.verification.subject import Subject, Unverifiable, of_file, of_job
from service.verification.verdict import ReplayJob, pending, unknown, verdict_of

router = APIRouter(tags=["verify"], route_class=DirectRoute)


@router.post("/v1/verify", **VERIFY)
async def verify(request: Request, front: Front, tenant: Tenant, key_id: KeyId) -> Response:
    """Generate an image or video again from its recipe, and compare the pixels.

    The body is the file, or JSON that names an output of a job. The response arrives when the new
    job has ended, or after the seconds of `Prefer: wait=N`: then it is 202, `pending`. A repeat
    with the same Idempotency-Key refers to the same job. The job is priced and counts for the
    tenant's quotas like any other. Of an output that names a job, another worker than the job's
    generates it again if one is free soon; `message` states which.
    """
    client, parent = front.client_of(request, tenant), spans.current_traceparent()
    caller = Caller(
        tenant, client, partial(while_connected, request), parent, 0, key_id, request_id_of(request)
    )
    async with quotas.QuotaHeaders(front, tenant):
        with front.waits.holding(client, 1), front.bodies.holding(client) as hold:
            try:
                subject = await _subject(request, front, caller, hold)
                redrawing = await _submit_replay(front, caller, subject, request.headers)
            except Unverifiable as reason:
                return _answer(front, unknown(str(reason)))
            with job_headers_on_errors(redrawing.job):
                return await _respond(request, front, subject, redrawing, hold)


async def _subject(request: Request, front: FrontEnd, caller: Caller, hold: Hold) -> Subject:
    """Read the file to verify, or the output that the JSON names. Raises: Unverifiable, Problem."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    max_bytes = front.settings.limits.max_body_bytes
    if media_type in MEDIA_TYPES.values():
        data = await read_bytes(request, max_bytes, hold)
        return await caller.while_connected(of_file(front, data, caller.client))
    if media_type != JSON:
        kinds = ", ".join(MEDIA_TYPES.values())
        raise UnsupportedMedia(
            f"send the file itself with its Content-Type ({kinds}), or {JSON} that names a job"
        )
    verify_request = await read_json(request, max_bytes, hold, partial(parse_as, VerifyRequest))
    return await caller.while_connected(of_job(front, caller.tenant, verify_request, hold))


async def _submit_replay(
    front: FrontEnd, caller: Caller, subject: Subject, headers: Mapping[str, str]
) -> ReplayJob:
    """Submit the job that repeats the generation, or return that of the idempotency key.

    Raises: Unverifiable; Problem: the job was rejected.
    """
    key = _key(headers)
    try:
        async with counting_refusals(front, caller.tenant) as attempt:
            recipe = subject.recipe
            body = await asyncio.to_thread(attempt.read, recipe.request)
            redraw = await replay_request(front, caller.tenant, body, recipe, subject.sha256)
            elsewhere = replace(caller, avoid=subject.pool)
            accepted = await admit(front, elsewhere, redraw.body, key)
    except Invalid as error:
        raise Unverifiable(f"its request is not accepted here ({error.detail})") from None
    return ReplayJob(accepted.job, redraw.spec)


def _key(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the idempotency key, hashed so that it differs from keys of other routes."""
    key = idempotency_key(headers)
    if key is None:
        return {}
    return {"idempotency-key": f"verify {hashlib.sha256(key.encode()).hexdigest()}"}


async def _respond(
    request: Request, front: FrontEnd, subject: Subject, replay: ReplayJob, hold: Hold
) -> Response:
    """Wait for the verification's job and respond with the verdict, or `pending`."""
    wait_s = preferred_wait_s(request.headers.getlist("prefer"))
    max_wait_s = front.settings.limits.max_wait_s
    job = await wait_until_ended(
        front, replay.job, max_wait_s if wait_s is None else min(wait_s, max_wait_s), request
    )
    if not job.state.ended and await request.is_disconnected():
        await _cancel_disconnected(request, front, job.id)
    replay = ReplayJob(job, replay.spec)
    if not job.state.ended:
        return _answer(front, pending(replay), job_headers(job))
    return _answer(front, await verdict_of(front, subject, replay, hold), job_headers(job))


async def _cancel_disconnected(request: Request, front: FrontEnd, job_id: str) -> None:
    """Cancel the job of a disconnected client, unless an idempotency key lets the client return."""
    has_key = "idempotency-key" in request.headers
    if front.settings.server.cancel_when_left and not has_key:
        await front.queue.cancel(job_id)


def _answer(
    front: FrontEnd, verification: Verification, headers: Mapping[str, str] | None = None
) -> Response:
    """Render the response of a verification, and count it if it has ended."""
    if verification.verdict == PENDING:
        status = 202
    else:
        status = 200
        front.telemetry.verifications.labels(verification.verdict).inc()
    return Response(verification.model_dump_json(), status, headers=headers, media_type=JSON)
