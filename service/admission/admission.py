"""Admission pipeline: the five steps that turn a request into a queued job or reject it."""

from __future__ import annotations

import time
from collections.abc import Mapping

from service.admission.caller import Caller
from service.admission.drafts import Drafts
from service.admission.parse import parse
from service.admission.price import price
from service.admission.resolve import resolve_request
from service.admission.safety import check_safety
from service.admission.submit import submit
from service.front_end.front_end import FrontEnd
from service.jobs.queue import AcceptedJob
from service.schemas.request import GenerateRequest
from service.tracing import spans
from service.tracing.log_context import hide_prompts


async def admit(
    front: FrontEnd,
    caller: Caller,
    body: GenerateRequest,
    headers: Mapping[str, str],
    media_types: tuple[str, ...] = (),
    drafts: Drafts | None = None,
) -> AcceptedJob:
    """Queue a request as a job, or return the existing job of its idempotency key.

    Args:
        headers: the request's headers, by lower-case name.
        media_types: media types of the Accept header, best first, if the client wants bytes.
        drafts: drafts that the images continue from; None: the images start from noise.

    Raises:
        Problem: the request was rejected, and nothing was stored.
        ClientDisconnect: the client disconnected before the job was queued.
    """
    start = time.perf_counter()
    hide_prompts({name: getattr(body, name) for name in body.model_fields_set})
    parsed = parse(body, headers, media_types, drafts.name if drafts else "")
    resolved = await resolve_request(front, caller, parsed)
    await check_safety(front, caller, resolved)
    priced = await price(front, caller, resolved, drafts)
    accepted = await submit(front, priced)
    exemplar = spans.exemplar_of(caller.traceparent)
    model = accepted.job.model
    front.telemetry.admissions.labels(model).observe(time.perf_counter() - start, exemplar)
    return accepted
