"""Last step of admission: a job into the queue, and its images into the store before it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from contextlib import suppress

from redis.exceptions import RedisError

from models.spec.request_images import image_values, with_images
from service.admission.drafts import store_drafts
from service.admission.parse import Parsed
from service.admission.price import Priced
from service.admission.refusals import Refused, problem_of
from service.admission.reuse import equal_to, remember, with_copies
from service.front_end.front_end import FrontEnd
from service.front_end.shadows import watched
from service.jobs.model.errors import DeadlineTooShort, DeadlineTooSoon
from service.jobs.model.job import Job, JobState
from service.jobs.queue import Accepted
from service.jobs.scheduling.wait_estimator import Place
from service.jobs.storage.object_store import job_folders
from service.schemas.request import switched_off
from service.tracing.log_context import note

log = logging.getLogger("atelier")

SLICE_CHARS = 2**18


async def submit(front: FrontEnd, priced: Priced) -> Accepted:
    """Queue the job, or find the one that its idempotency key stands for.

    Raises: Problem: it was refused, and nothing was kept.
    """
    job, images, key = priced.job, priced.images, priced.parsed.idempotency_key
    source = await _source(front, priced)
    digest = await asyncio.to_thread(_digest, priced.parsed) if key else ""
    await _store_images(front, priced, source)
    if source and source.state is JobState.SUCCEEDED:
        job = await with_copies(front, job, source) or job
    elif source:
        job = job.model_copy(update={"awaits": source.id})
    limits = await front.tenants.of(job.tenant)
    refusal = None
    if job.reuses is None:
        job, refusal = await _held_against_load(front, job)
    try:
        accepted = await front.queue.accept(
            job,
            idempotency_key=key,
            digest=digest,
            limits=limits,
            input_bytes=sum(len(picture.data) for picture in images.values())
            + sum(output.bytes + output.beside_bytes for output in job.outputs),
            refusal=refusal,
        )
    except Refused as error:
        await _delete_files(front, priced)
        raise await problem_of(front, error, limits) from None
    stored = accepted.job
    note(job=stored.id)
    if accepted.is_new:
        log.info("job %s was accepted for %s", stored.id, stored.model)
        front.telemetry.accepted.labels(job.model, job.tenant_class).inc()
        await _see_to(front, priced, stored, source)
    else:
        await _delete_files(front, priced)
    return accepted


async def _source(front: FrontEnd, priced: Priced) -> Job | None:
    """Return the job that has drawn the same, or is to, if its files may be given again."""
    if priced.reuse is None or priced.parsed.body.reuse is False:
        return None
    return await equal_to(front, priced.reuse)


async def _see_to(front: FrontEnd, priced: Priced, job: Job, source: Job | None) -> None:
    """Tell whom it concerns that a new job was accepted."""
    if job.reuses and source:
        with suppress(RedisError, OSError):  # the job is accepted, whatever else can be told
            source = await front.queue.drawer(source)
        front.telemetry.reuse.saved(job.model, source.usage.device_seconds)
        return
    front.costs.accepted(job)
    if priced.reuse:
        await remember(front, priced.reuse, job)
    await watched(front, job)


async def _store_images(front: FrontEnd, priced: Priced, source: Job | None) -> None:
    job = priced.job
    if priced.images or job.snapshots or source:
        await front.queue.deposit(job.id)
    keys = image_values(job.request)
    for path, picture in priced.images.items():
        await front.store.put(keys[path], picture.data, picture.file.media_type)
    if priced.drafts is not None:
        await store_drafts(front, job, priced.drafts)


async def _delete_files(front: FrontEnd, priced: Priced) -> None:
    """Delete what was stored for a job that did not become one."""
    if priced.images or priced.job.snapshots or priced.reuse:
        await front.store.delete(job_folders(priced.job.id))
        await front.queue.withdraw(priced.job.id)


async def _held_against_load(
    front: FrontEnd, job: Job
) -> tuple[Job, DeadlineTooSoon | DeadlineTooShort | None]:
    """Hold a job's deadline against present load.

    Returns: the job, credited or guaranteed as its place is, and why the deadline is ruled
        out; None: it is not, or nobody knows.
    """
    deadline_s = job.request.get("deadline_s")
    if deadline_s is None or job.run_s is None:
        return job, None
    alone_s = job.run_s * job.undone + job.compile_s
    if alone_s > deadline_s:
        return job, DeadlineTooShort(job.run_s * job.undone, job.compile_s, deadline_s)
    place = await front.costs.newcomer(job)
    needs_s = alone_s if place.ends_s is None else place.ends_s
    if needs_s <= deadline_s:
        return place.given_to(job), None
    return job, await _too_soon(front, job, place, needs_s)


async def _too_soon(front: FrontEnd, job: Job, place: Place, needs_s: float) -> DeadlineTooSoon:
    """Return the refusal of a job that would be done too late, with when to ask again."""
    deadline_s = job.request["deadline_s"]
    lasts_s = needs_s - (place.starts_s or 0.0)
    wait_s = needs_s - deadline_s
    if lasts_s > deadline_s:  # only for the company, which has to be gone
        wait_s = max(wait_s, await front.costs.thinned_s(job, deadline_s - job.compile_s) or 0.0)
    return DeadlineTooSoon(needs_s, deadline_s, wait_s)


def _digest(parsed: Parsed) -> str:
    """Equal for requests that mean the same, however they were spelled."""
    body = parsed.body
    fields = body.model_dump(exclude_none=True) | switched_off(body)
    hashed = with_images(fields, lambda _, value: sha256_of(value))
    return sha256_of(parsed.drafts + json.dumps(hashed, sort_keys=True))


def sha256_of(text: str) -> str:
    """Return the digest of a text, made in slices: other threads wait for as long as one takes."""
    digest = hashlib.sha256()
    for start in range(0, len(text), SLICE_CHARS):
        digest.update(text[start : start + SLICE_CHARS].encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
