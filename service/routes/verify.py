"""POST /v1/verify: an output is drawn again, and its pixels are compared."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from functools import partial

from fastapi import APIRouter, Request, Response

from service.admission import quotas
from service.admission.admission import admit
from service.admission.caller import Caller
from service.admission.parse import idempotency_key, parse_as
from service.admission.refusals import counting_refusals
from service.errors.problems import Invalid, UnsupportedMedia
from service.front_end.front_end import Front, FrontEnd, KeyId, Tenant
from service.http.body import read_bytes, read_json
from service.http.inflight_limits import Hold
from service.http.negotiation import JSON, preferred_wait_s
from service.http.request_ids import request_id_of
from service.responses.render import names_of, naming_the_job
from service.responses.wait import unless_left, until_ended
from service.routes.direct import DirectRoute
from service.routes.documented_responses import VERIFY
from service.schemas.request_parts import MEDIA_TYPES
from service.schemas.verify import Verification, VerifyRequest
from service.tracing import spans
from service.verification.request import redraw_of
from service.verification.subject import CannotTell, Subject, of_file, of_job
from service.verification.verdict import Drawn, pending, unknown, verdict_of

router = APIRouter(tags=["verify"], route_class=DirectRoute)


@router.post("/v1/verify", **VERIFY)
async def verify(request: Request, front: Front, tenant: Tenant, key_id: KeyId) -> Response:
    """Draw an image or video again by its recipe, and compare the pixels.

    The body is the file, or JSON that names an output of a job. The answer comes when the job that
    draws it has ended, or after the seconds of `Prefer: wait=N`: then as 202, `pending`. Asked
    again with the same Idempotency-Key, it is of the same job. The job is one like any other,
    priced and counted among the tenant's.
    """
    client, parent = front.client_of(request, tenant), spans.here().traceparent
    caller = Caller(
        tenant, client, partial(unless_left, request), parent, 0, key_id, request_id_of(request)
    )
    async with quotas.QuotaHeaders(front, tenant):
        with front.waits.holding(client, 1), front.bodies.holding(client) as hold:
            try:
                subject = await _subject(request, front, caller, hold)
                drawn = await _draw(front, caller, subject, request.headers)
            except CannotTell as reason:
                return _answer(unknown(str(reason)))
            with naming_the_job(drawn.job):
                return await _tell(request, front, subject, drawn, hold)


async def _subject(request: Request, front: FrontEnd, caller: Caller, hold: Hold) -> Subject:
    """Read what the body is, or names. Raises: CannotTell, Problem."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    most = front.settings.limits.max_body_bytes
    if media in MEDIA_TYPES.values():
        data = await read_bytes(request, most, hold)
        return await caller.connected(of_file(front, data, caller.client))
    if media != JSON:
        kinds = ", ".join(MEDIA_TYPES.values())
        raise UnsupportedMedia(
            f"send the file itself with its Content-Type ({kinds}), or {JSON} that names a job"
        )
    asked = await read_json(request, most, hold, partial(parse_as, VerifyRequest))
    return await caller.connected(of_job(front, caller.tenant, asked, hold))


async def _draw(
    front: FrontEnd, caller: Caller, subject: Subject, headers: Mapping[str, str]
) -> Drawn:
    """Have a subject drawn again, by a new job or the one that its key stands for.

    Raises: CannotTell; Problem: the job was refused.
    """
    key = _key(headers)
    try:
        async with counting_refusals(front, caller.tenant) as attempt:
            recipe = subject.recipe
            body = await asyncio.to_thread(attempt.read, recipe.request)
            redraw = await redraw_of(front, caller.tenant, body, recipe, subject.sha256)
            accepted = await admit(front, caller, redraw.body, key)
    except Invalid as error:
        raise CannotTell(f"its request is not served here ({error.detail})") from None
    return Drawn(accepted.job, redraw.spec)


def _key(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the header of an Idempotency-Key, apart from the same key of other requests."""
    key = idempotency_key(headers)
    if key is None:
        return {}
    return {"idempotency-key": f"verify {hashlib.sha256(key.encode()).hexdigest()}"}


async def _tell(
    request: Request, front: FrontEnd, subject: Subject, drawn: Drawn, hold: Hold
) -> Response:
    """Wait for the job, and answer with the verdict."""
    wait_s = preferred_wait_s(request.headers.getlist("prefer"))
    most = front.settings.limits.max_wait_s
    job = await until_ended(
        front, drawn.job, most if wait_s is None else min(wait_s, most), request
    )
    if not job.state.ended and await request.is_disconnected():
        await _left(request, front, job.id)
    drawn = Drawn(job, drawn.spec)
    if not job.state.ended:
        return _answer(pending(drawn), 202, names_of(job))
    return _answer(await verdict_of(front, subject, drawn, hold), 200, names_of(job))


async def _left(request: Request, front: FrontEnd, job_id: str) -> None:
    """Cancel the job of a client that has left, where nobody will ask for it."""
    has_key = "idempotency-key" in request.headers
    if front.settings.server.cancel_when_left and not has_key:
        await front.queue.cancel(job_id)


def _answer(
    found: Verification, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(found.model_dump_json(), status, headers=headers, media_type=JSON)
