"""Last step of admission: a job into the queue, and its images into the store before it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging

from models.spec.request_images import image_values, with_images
from service.admission.price import Priced
from service.admission.refusals import Refused, problem_of
from service.front_end.front_end import FrontEnd
from service.jobs.model.errors import DeadlineTooShort, DeadlineTooSoon
from service.jobs.model.job import Job
from service.schemas.request import GenerateRequest
from service.tracing.log_context import note

log = logging.getLogger("atelier")

SLICE_CHARS = 2**18


async def submit(front: FrontEnd, priced: Priced) -> Job:
    """Queue the job, or find the one that its idempotency key stands for.

    Raises: Problem: it was refused, and nothing was kept.
    """
    job, images, key = priced.job, priced.images, priced.parsed.idempotency_key
    digest = await asyncio.to_thread(_digest, priced.parsed.body) if key else ""
    await _store_images(front, priced)
    limits = front.settings.tenant(job.tenant)
    try:
        stored, is_new = await front.queue.put(
            job,
            idempotency_key=key,
            digest=digest,
            limits=limits,
            input_bytes=sum(len(picture.data) for picture in images.values()),
            refusal=await _too_soon(front, job),
        )
    except Refused as error:
        await _delete_images(front, priced)
        raise await problem_of(front, error, limits) from None
    note(job=stored.id)
    if is_new:
        log.info("job %s was accepted for %s", stored.id, stored.model)
        front.telemetry.accepted.labels(job.model, job.tenant_class).inc()
        front.costs.accepted(stored)
    else:
        await _delete_images(front, priced)
    return stored


async def _store_images(front: FrontEnd, priced: Priced) -> None:
    job = priced.job
    if priced.images:
        await front.queue.deposit(job.id)
    keys = image_values(job.request)
    for path, picture in priced.images.items():
        await front.store.put(keys[path], picture.data, picture.file.media_type)


async def _delete_images(front: FrontEnd, priced: Priced) -> None:
    """Delete what was stored for a job that did not become one."""
    if priced.images:
        await front.store.delete(list(image_values(priced.job.request).values()))
        await front.queue.withdraw(priced.job.id)


async def _too_soon(front: FrontEnd, job: Job) -> DeadlineTooSoon | DeadlineTooShort | None:
    """Return why present load rules the deadline out; None: it does not, or nobody knows."""
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


def _digest(body: GenerateRequest) -> str:
    """Equal for requests that mean the same, however they were spelled."""
    fields = body.model_dump(exclude_none=True)
    hashed = with_images(fields, lambda _, value: sha256_of(value))
    return sha256_of(json.dumps(hashed, sort_keys=True))


def sha256_of(text: str) -> str:
    """Return the digest of a text, made in slices: other threads wait for as long as one takes."""
    digest = hashlib.sha256()
    for start in range(0, len(text), SLICE_CHARS):
        digest.update(text[start : start + SLICE_CHARS].encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
