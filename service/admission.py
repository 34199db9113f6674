"""Take a request or refuse it: from a checked body to a job in the queue."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
from fastapi import Request
from pydantic import ValidationError

from models.spec import PICTURE_FIELDS, ModelSpec
from service import outgoing, pictures, quotas
from service.body import read_json
from service.deps import FrontEnd
from service.errors import Busy, Conflict, FieldError, Invalid, Malformed, Problem
from service.handlers import REDIS_AWAY, field_errors
from service.jobs import journey, spans
from service.jobs.about import hide_prompts, note
from service.jobs.errors import DeadlineTooSoon, StoreError
from service.jobs.job import PRIORITIES, Job, new_job_id
from service.jobs.outputs import input_key
from service.jobs.queue import IdempotencyConflict, QueueFull, QuotaExceeded
from service.resolve import Resolved, resolve, with_size_of
from service.schemas import GenerateRequest
from service.settings import TenantSettings

log = logging.getLogger("atelier")

SERVICE_MEMBERS = {"priority", "deadline_s", "webhook"}
"""Of the request that are not the model's business, and are shown with it."""

NEVER_S = 3600.0
"""What a client is told to wait whose deadline no pool that is there could meet on its own: until
there may be a faster one."""

MAX_KEY_CHARS = 255
"""Of an Idempotency-Key."""


async def admit(
    request: Request, front: FrontEnd, tenant: str, media_types: tuple[str, ...] = ()
) -> Job:
    """The job that this HTTP request asks for: a new one, or the one its key stands for.

    Args:
        media_types: what the Accept header wants, best first, where it wants bytes.

    Raises: Problem: it was refused, and nothing was kept.
    """
    limits = front.settings.tenant(tenant)
    parent = spans.here().traceparent
    with (
        _counting_refusals(front, limits.metrics_class) as counted,
        spans.span("admission") as span,
    ):
        idempotency_key = _idempotency_key(request)
        said = await read_json(request, front.settings.limits.max_body_bytes)
        began = time.perf_counter()
        body = _parse(said)
        hide_prompts(said)
        counted["model"] = body.model
        spec = (await front.models.get(body.model)).spec
        counted["model"] = spec.name
        resolved = resolve(body, spec, front.settings.limits, media_types)
        await _check_webhook(front, body)
        files = await _pictures(front, resolved.fields)
        if resolved.task in spec.sized_by_image:
            resolved = _sized(front, body, files["image"], spec, media_types)
        owned = _job(body, spec, resolved, files).model_copy(
            update={
                "tenant": tenant,
                "tenant_class": limits.metrics_class,
                "weight": limits.weight,
                "traceparent": parent,
            }
        )
        job = await _priced(front, owned)
        digest = _digest(body) if idempotency_key else ""
        stored = await _put(front, job, files, idempotency_key, digest)
        front.telemetry.admissions.labels(spec.name).observe(time.perf_counter() - began)
        span.set(journey.about(stored))
        if stored.traceparent != parent:
            span.link(spans.parse(stored.traceparent))
        return stored


@contextmanager
def _counting_refusals(front: FrontEnd, tenant_class: str) -> Iterator[dict[str, str | None]]:
    counted: dict[str, str | None] = {"model": None}
    reason = None
    try:
        yield counted
    except Problem as problem:
        reason = problem.code
        raise
    except REDIS_AWAY:
        reason = "queue_unreachable"
        raise
    except StoreError:
        reason = "store_unreachable"
        raise
    finally:
        if reason:
            model = counted["model"]
            known = model if model in front.models.known else ""
            front.telemetry.refused.labels(known, tenant_class, reason).inc()


def _idempotency_key(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is not None and not (0 < len(key) <= MAX_KEY_CHARS and key.isprintable()):
        message = f"must have 1 to {MAX_KEY_CHARS} printable characters"
        raise Malformed(
            f"Idempotency-Key {message}", errors=[FieldError("Idempotency-Key", message)]
        )
    return key


def _parse(body: Mapping[str, Any]) -> GenerateRequest:
    try:
        return GenerateRequest.model_validate(body)
    except ValidationError as error:
        raise Invalid(field_errors(error.errors(include_input=False, include_url=False))) from None


async def _check_webhook(front: FrontEnd, body: GenerateRequest) -> None:
    """Raises: Invalid: this server sends none, or not there."""
    if body.webhook is None:
        return
    if front.webhooks is None:
        said = "this server sends none, since it has no webhooks.secret to sign them with"
        raise Invalid([FieldError("webhook", said)])
    url = httpx.URL(body.webhook.url)
    try:
        await outgoing.resolve(url.host, url.port or 443, front.settings.server.allow_networks)
    except httpx.ConnectError as error:
        raise Invalid([FieldError("webhook.url", str(error))]) from error


def _digest(body: GenerateRequest) -> str:
    """Equal for requests that mean the same, however they were spelled."""
    said = json.dumps(body.model_dump(exclude_none=True), sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()


async def _pictures(front: FrontEnd, fields: Mapping[str, Any]) -> dict[str, bytes]:
    """The request's pictures by field, each a plain PNG. Raises: Invalid."""
    found = {}
    for name in PICTURE_FIELDS:
        if name in fields:
            try:
                found[name] = await _picture(front, fields[name])
            except pictures.PictureError as error:
                raise Invalid([FieldError(name, str(error))]) from error
    return found


def _sized(
    front: FrontEnd,
    body: GenerateRequest,
    image: bytes,
    spec: ModelSpec,
    media_types: tuple[str, ...],
) -> Resolved:
    """The request at the size of its picture. Raises: Invalid: the model does not serve that."""
    sized = with_size_of(body, image, spec)
    try:
        return resolve(sized, spec, front.settings.limits, media_types)
    except Invalid as error:
        said = f"is {sized.width} x {sized.height} pixels, to multiples; send width and height"
        raise Invalid([FieldError("image", f"{said} ({error})")]) from error


async def _picture(front: FrontEnd, value: str) -> bytes:
    data = await _fetch(front, value) if pictures.is_url(value) else None
    loop = asyncio.get_running_loop()
    most = front.settings.limits.max_image_pixels
    return await loop.run_in_executor(
        front.threads,
        lambda: pictures.normalize(pictures.from_base64(value) if data is None else data, most),
    )


async def _fetch(front: FrontEnd, url: str) -> bytes:
    """Raises: pictures.PictureError."""
    server, limits = front.settings.server, front.settings.limits
    if not server.allow_image_urls:
        raise pictures.PictureError(
            "is an address, which this server does not fetch; send the picture itself in base64"
        )
    try:
        return await outgoing.fetch(
            front.http, url, max_bytes=limits.max_body_bytes, timeout_s=server.fetch_timeout_s
        )
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, TimeoutError) as error:
        said = str(error) or "it did not answer in time"
        raise pictures.PictureError(f"cannot be fetched: {said}") from error


def _job(
    body: GenerateRequest, spec: ModelSpec, resolved: Resolved, files: Mapping[str, bytes]
) -> Job:
    job_id = new_job_id()
    keys = {name: input_key(job_id, name) for name in files}
    request = {"model": spec.name, **resolved.fields, **keys, "output": resolved.output}
    request |= body.model_dump(include=SERVICE_MEMBERS, exclude_none=True)
    return Job(
        id=job_id,
        model=spec.name,
        bucket=spec.bucket(request),
        priority=PRIORITIES[body.priority],
        deadline_at=None if body.deadline_s is None else time.time() + body.deadline_s,
        request=request,
        images=resolved.fields["num_images"],
        steps=resolved.steps,
        metadata=body.metadata,
    )


async def _priced(front: FrontEnd, job: Job) -> Job:
    """The job with what it is predicted to cost, where that is known."""
    cost = await front.costs.predict(job.model, job.bucket, job.steps, job.images)
    if cost is None:
        return job
    is_beyond = cost.seconds > job.request.get("deadline_s", math.inf)
    is_tried = is_beyond and await front.costs.is_tried(job, cost)
    run_s = None if is_tried else cost.seconds
    return job.model_copy(update={"cost": cost.device_seconds, "run_s": run_s})


async def _too_soon(front: FrontEnd, job: Job) -> DeadlineTooSoon | None:
    """Why its deadline cannot be met by all that waits and runs now; None: it can, or who knows."""
    deadline_s = job.request.get("deadline_s")
    if deadline_s is None or job.run_s is None:
        return None
    place = await front.costs.newcomer(job)
    needs_s = job.run_s if place.ends_s is None else place.ends_s
    if needs_s <= deadline_s:
        return None
    if job.run_s > deadline_s:
        return DeadlineTooSoon(needs_s, deadline_s, NEVER_S)
    lasts_s = needs_s - (place.starts_s or 0.0)
    wait_s = needs_s - deadline_s
    if lasts_s > deadline_s:  # only for the company, which has to be gone
        wait_s = max(wait_s, await front.costs.thinned_s(job, deadline_s) or 0.0)
    return DeadlineTooSoon(needs_s, deadline_s, wait_s)


async def _put(
    front: FrontEnd, job: Job, files: Mapping[str, bytes], key: str | None, digest: str
) -> Job:
    if files:
        await front.queue.deposit(job.id)
    for name, data in files.items():
        await front.store.put(job.request[name], data, "image/png")
    if front.webhooks and "webhook" in job.request:
        await front.webhooks.pending.add(job.id)
    limits = front.settings.tenant(job.tenant)
    try:
        stored, is_new = await front.queue.put(
            job,
            idempotency_key=key,
            digest=digest,
            limits=limits,
            refusal=await _too_soon(front, job),
        )
    except (DeadlineTooSoon, QueueFull, QuotaExceeded, IdempotencyConflict) as error:
        await _drop(front, job, files)
        raise await _refusal(front, error, limits) from None
    note(job=stored.id)
    if is_new:
        log.info("job %s was accepted for %s", stored.id, stored.model)
        front.telemetry.accepted.labels(job.model, job.tenant_class).inc()
        front.costs.accepted(stored)
    else:
        await _drop(front, job, files)
    return stored


async def _drop(front: FrontEnd, job: Job, files: Mapping[str, bytes]) -> None:
    """What was kept for a job that did not become one."""
    if front.webhooks and "webhook" in job.request:
        await front.webhooks.pending.drop(job.id)
    if files:
        await front.store.delete([job.request[name] for name in files])
        await front.queue.withdraw(job.id)


async def _refusal(
    front: FrontEnd,
    error: DeadlineTooSoon | QueueFull | QuotaExceeded | IdempotencyConflict,
    limits: TenantSettings,
) -> Problem:
    match error:
        case DeadlineTooSoon():
            return Busy(str(error), code="deadline_too_soon", retry_after_s=error.wait_s)
        case QueueFull():
            return await _full(front, error)
        case QuotaExceeded():
            return await _beyond_quota(front, error, limits)
        case _:
            return Conflict(str(error), code="idempotency_conflict")


async def _full(front: FrontEnd, error: QueueFull) -> Busy:
    wait_s = await front.costs.room_s(error.model)
    return Busy(f"{error}; try again in {max(1, math.ceil(wait_s))} s", retry_after_s=wait_s)


async def _beyond_quota(front: FrontEnd, error: QuotaExceeded, limits: TenantSettings) -> Busy:
    wait_s = error.standing.next_s
    if error.quota == "queued":
        wait_s = await front.costs.turn_s(error.oldest)
    return Busy(
        f"the tenant's quota of {quotas.NAMES[error.quota]} is used up; try again in"
        f" {max(1, math.ceil(wait_s))} s, or ask the operator for more",
        code="quota_exceeded",
        retry_after_s=wait_s,
        headers=quotas.left(limits, error.standing),
        members={"violated-policies": [error.quota]},
    )
