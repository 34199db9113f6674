"""Admission pipeline: the five steps that turn a request into a queued job or reject it."""

from __future__ import annotations

import time
from collections.abc import Mapping

from models.spec.request_images import without_images
from service.admission.drafts import Drafts
from service.admission.parse import Caller, parse
from service.admission.price import price
from service.admission.resolve import ResolvedRequest, resolve_request
from service.admission.submit import submit
from service.errors.problems import Unavailable, Unservable
from service.front_end.front_end import FrontEnd
from service.jobs.queue import AcceptedJob
from service.safety.safety_check import SafetyCheck, ShownImage
from service.safety.verdict import NoVerdict, SafetyBusy, SafetyRefused
from service.schemas.request import GenerateRequest
from service.tracing import spans
from service.tracing.log_context import hide_prompts

RETRY_AFTER_S = 5.0


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


async def check_safety(front: FrontEnd, caller: Caller, resolved: ResolvedRequest) -> None:
    """Third step: wait for the safety hook's verdict on a request, if a hook is configured.

    Raises:
        Unservable: the hook rejects the request; the message contains its reason.
        Unavailable: the hook returns no verdict, or too many checks are waiting.
        ClientDisconnect: the client disconnected.
    """
    if front.safety is None:
        return
    question = _question(caller, resolved)
    try:
        await caller.while_connected(front.safety.check(question, caller.client))
    except SafetyRefused as refused:
        message = f"this server's safety check refuses the request: {refused}"
        raise Unservable(message, code="refused_by_safety") from None
    except SafetyBusy as busy:
        message = f"{busy}; try again"
        raise Unavailable(message, code="too_many_checks", retry_after_s=RETRY_AFTER_S) from None
    except NoVerdict:
        message = "the request could not be checked for safety; try again"
        raise Unavailable(message, code="safety_unavailable", retry_after_s=RETRY_AFTER_S) from None


def _question(caller: Caller, resolved: ResolvedRequest) -> SafetyCheck:
    return SafetyCheck(
        when="before",
        tenant=caller.tenant,
        model=resolved.spec.name,
        request=without_images(resolved.fields.fields),
        images=tuple(
            ShownImage(name, image.file.media_type, image.data)
            for name, image in resolved.images.items()
        ),
    )
