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

from models.spec.image_files import ImageFile
from models.spec.model_spec import PICTURE_FIELDS, ModelSpec
from service.admission import quotas, request_images
from service.errors.handlers import MAX_ERRORS, NO_FIELD, REDIS_AWAY, field_errors
from service.errors.problems import Busy, Conflict, FieldError, Invalid, Malformed, Problem
from service.front_end.front_end import FrontEnd
from service.http import fetch
from service.http.body import read_json
from service.http.inflight_limits import Hold
from service.jobs import job_spans
from service.jobs.model.errors import DeadlineTooShort, DeadlineTooSoon
from service.jobs.model.job import PRIORITIES, Job, new_job_id
from service.jobs.queue import IdempotencyConflict, QueueFull, QuotaExceeded
from service.jobs.storage.errors import StoreError
from service.jobs.storage.object_store import input_key
from service.responses.wait import unless_left
from service.schemas.request import GenerateRequest
from service.settings.tenants import TenantSettings
from service.tracing import spans
from service.tracing.log_context import hide_prompts, note
from service.validation.resolve import Resolved, resolve, with_size_of

log = logging.getLogger("atelier")

Files = Mapping[str, request_images.Picture]
"""Pictures of a request, by field."""

SERVICE_MEMBERS = {"priority", "deadline_s", "webhook"}
"""Of the request that are not the model's business, and are shown with it."""

NO_SECRET = (
    "the tenant {tenant!r} has no secret to sign messages with; ask the operator to make one:"
    " atelier webhooks create --tenant {tenant}"
)

SLICE_CHARS = 2**18

MAX_KEY_CHARS = 255
"""Of an Idempotency-Key."""


async def admit(
    request: Request,
    front: FrontEnd,
    tenant: str,
    hold: Hold,
    media_types: tuple[str, ...] = (),
) -> Job:
    """The job that this HTTP request asks for: a new one, or the one its key stands for.

    Args:
        hold: counts the bytes of its body.
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
        body = await read_json(request, front.settings.limits.max_body_bytes, hold, _parse)
        began = time.perf_counter()
        hide_prompts(dict(body))
        counted["model"] = body.model
        spec = (await front.models.get(body.model)).spec
        counted["model"] = spec.name
        resolved = resolve(body, spec, front.settings.limits, media_types)
        await _check_webhook(request, front, body, hold.client, tenant)
        files = await _pictures(request, front, resolved, hold.client)
        _check_stored(files, limits)
        if resolved.task in spec.sized_by_image:
            resolved = _sized(front, body, files["image"].file, spec, media_types)
        owned = _job(body, spec, resolved, files).model_copy(
            update={
                "tenant": tenant,
                "tenant_class": limits.metrics_class,
                "weight": limits.weight,
                "max_compiling": limits.max_compiling,
                "traceparent": parent,
            }
        )
        job = await _priced(front, owned)
        digest = await asyncio.to_thread(_digest, body) if idempotency_key else ""
        stored = await _put(front, job, files, idempotency_key, digest)
        front.telemetry.admissions.labels(spec.name).observe(time.perf_counter() - began)
        span.set(job_spans.about(stored))
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
    unknown = [name for name in body if name not in GenerateRequest.model_fields]
    if len(unknown) > MAX_ERRORS:  # each of which would cost an error of Pydantic's
        raise Invalid([FieldError(name, NO_FIELD) for name in unknown[:MAX_ERRORS]])
    try:
        return GenerateRequest.model_validate(body)
    except ValidationError as error:
        raise Invalid(field_errors(error.errors(include_input=False, include_url=False))) from None


async def _check_webhook(
    request: Request, front: FrontEnd, body: GenerateRequest, client: str, tenant: str
) -> None:
    """Raises: Invalid: its messages cannot be signed, or not be sent there; ClientDisconnect."""
    if body.webhook is None:
        return
    if not await front.webhooks.keys.of(tenant):
        raise Invalid([FieldError("webhook", NO_SECRET.format(tenant=tenant))])
    url = httpx.URL(body.webhook.url)
    try:
        looked_up = front.resolver.resolve(fetch.host_of(url), url.port or 443, client)
        await unless_left(request, looked_up)
    except httpx.ConnectError as error:
        raise Invalid([FieldError("webhook.url", str(error))]) from error


def _digest(body: GenerateRequest) -> str:
    """Equal for requests that mean the same, however they were spelled."""
    fields = body.model_dump(exclude_none=True)
    files = {name: sha256_of(fields[name]) for name in PICTURE_FIELDS & fields.keys()}
    return sha256_of(json.dumps({**fields, **files}, sort_keys=True))


def sha256_of(text: str) -> str:
    """The digest of a text, in slices: other threads wait for as long as one takes."""
    digest = hashlib.sha256()
    for start in range(0, len(text), SLICE_CHARS):
        digest.update(text[start : start + SLICE_CHARS].encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


async def _pictures(request: Request, front: FrontEnd, resolved: Resolved, client: str) -> Files:
    """The request's pictures, while its client is there. Raises: Invalid, ClientDisconnect."""
    if not resolved.fields.keys() & PICTURE_FIELDS:
        return {}
    return await unless_left(request, request_images.read_all(front, resolved.fields, client))


def _check_stored(files: Files, limits: TenantSettings) -> None:
    """Raises: Invalid: the tenant may not even store these pictures alone."""
    sizes = {name: len(picture.data) for name, picture in files.items()}
    if limits.stored_bytes is None or sum(sizes.values()) <= limits.stored_bytes:
        return
    said = (
        f"the request's pictures have {sum(sizes.values())} bytes, and the tenant may have"
        f" {limits.stored_bytes} stored in all; send smaller files, or ask the operator for more"
    )
    raise Invalid([FieldError(max(sizes, key=lambda name: sizes[name]), said)])


def _sized(
    front: FrontEnd,
    body: GenerateRequest,
    image: ImageFile,
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


def _job(body: GenerateRequest, spec: ModelSpec, resolved: Resolved, files: Files) -> Job:
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
        warnings=resolved.warnings,
        metadata=body.metadata,
    )


async def _priced(front: FrontEnd, job: Job) -> Job:
    """The job with what it is predicted to cost, where that is known."""
    cost = await front.costs.predict(job.model, job.bucket, job.steps, job.images)
    if cost is None:
        return job
    compile_s = await front.costs.compile_s(job.model, job.bucket)
    is_beyond = cost.seconds + compile_s > job.request.get("deadline_s", math.inf)
    is_tried = is_beyond and await front.costs.is_tried(job, cost)
    return job.model_copy(
        update={
            "cost": cost.device_seconds + compile_s,
            "compile_s": compile_s,
            "run_s": None if is_tried else cost.seconds,
        }
    )


async def _too_soon(front: FrontEnd, job: Job) -> DeadlineTooSoon | DeadlineTooShort | None:
    """Why its deadline cannot be met by all that waits and runs now; None: it can, or who knows."""
    deadline_s = job.request.get("deadline_s")
    if deadline_s is None or job.run_s is None:
        return None
    alone_s = job.run_s + job.compile_s
    if alone_s > deadline_s:
        return DeadlineTooShort(job.run_s, job.compile_s, deadline_s)
    place = await front.costs.newcomer(job)
    needs_s = alone_s if place.ends_s is None else place.ends_s
    if needs_s <= deadline_s:
        return None
    lasts_s = needs_s - (place.starts_s or 0.0)
    wait_s = needs_s - deadline_s
    if lasts_s > deadline_s:  # only for the company, which has to be gone
        wait_s = max(wait_s, await front.costs.thinned_s(job, deadline_s - job.compile_s) or 0.0)
    return DeadlineTooSoon(needs_s, deadline_s, wait_s)


async def _put(front: FrontEnd, job: Job, files: Files, key: str | None, digest: str) -> Job:
    if files:
        await front.queue.deposit(job.id)
    for name, picture in files.items():
        await front.store.put(job.request[name], picture.data, picture.file.media_type)
    limits = front.settings.tenant(job.tenant)
    try:
        stored, is_new = await front.queue.put(
            job,
            idempotency_key=key,
            digest=digest,
            limits=limits,
            input_bytes=sum(len(picture.data) for picture in files.values()),
            refusal=await _too_soon(front, job),
        )
    except (
        DeadlineTooSoon,
        DeadlineTooShort,
        QueueFull,
        QuotaExceeded,
        IdempotencyConflict,
    ) as error:
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


async def _drop(front: FrontEnd, job: Job, files: Files) -> None:
    """What was kept for a job that did not become one."""
    if files:
        await front.store.delete([job.request[name] for name in files])
        await front.queue.withdraw(job.id)


async def _refusal(
    front: FrontEnd,
    error: DeadlineTooSoon | DeadlineTooShort | QueueFull | QuotaExceeded | IdempotencyConflict,
    limits: TenantSettings,
) -> Problem:
    match error:
        case DeadlineTooSoon():
            return Busy(str(error), code="deadline_too_soon", retry_after_s=error.wait_s)
        case DeadlineTooShort():
            too_short = [FieldError("deadline_s", str(error))]
            return Invalid(too_short, code="deadline_too_soon")
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
    wait_s, act = error.standing.next_s, ""
    if error.quota == "queued":
        wait_s = await front.costs.turn_s(error.oldest)
    if error.quota == "stored-bytes":
        wait_s, act = error.standing.leaves_s, "delete jobs whose pictures you have, "
    return Busy(
        f"the tenant's quota of {quotas.NAMES[error.quota]} is used up; {act}try again in"
        f" {max(1, math.ceil(wait_s))} s, or ask the operator for more",
        code="quota_exceeded",
        retry_after_s=wait_s,
        headers=quotas.left(limits, error.standing),
        members={"violated-policies": [error.quota]},
    )
