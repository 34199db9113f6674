"""Last step of admission: store the input files, then put the job into the queue."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from contextlib import suppress

from redis.exceptions import RedisError

from models.spec.request_images import image_values, with_images
from service.admission.drafts import store_drafts
from service.admission.parse import ParsedRequest
from service.admission.price import PricedJob
from service.admission.refusals import AdmissionErrors, problem_of
from service.admission.reuse import find_reusable, register_for_reuse, with_copied_outputs
from service.front_end.front_end import FrontEnd
from service.front_end.shadows import record_alias_job
from service.jobs.model.errors import DeadlineTooShort, DeadlineTooSoon
from service.jobs.model.job import Job, JobState
from service.jobs.producer import Deposit
from service.jobs.queue import AcceptedJob
from service.jobs.scheduling.wait_estimator import WaitEstimate
from service.jobs.storage.object_store import job_folders
from service.schemas.request import switched_off
from service.tracing.log_context import note

log = logging.getLogger("atelier")

SLICE_CHARS = 2**18


async def submit(front: FrontEnd, priced: PricedJob) -> AcceptedJob:
    """Queue the job, or return the existing job of its idempotency key.

    Raises: Problem: the request was rejected, and nothing was stored.
    """
    job, images, key = priced.job, priced.images, priced.parsed.idempotency_key
    source, other_format = await _reusable_jobs(front, priced)
    digest = await asyncio.to_thread(_digest, priced.parsed) if key else ""
    await _store_images(front, priced, source)
    if source and source.state is JobState.SUCCEEDED:
        job = await with_copied_outputs(front, job, source) or job
    elif source:
        job = job.model_copy(update={"awaits": source.id})
    elif other_format:
        job = job.model_copy(update={"encodes": other_format.id})
    limits = await front.tenants.of(job.tenant)
    refusal = None
    if job.reuses is None:
        job, refusal = await _check_deadline(front, job)
    try:
        accepted = await front.queue.accept(
            job,
            idempotency_key=key,
            digest=digest,
            limits=limits,
            input_bytes=sum(len(image.data) for image in images.values())
            + sum(output.bytes + output.beside_bytes for output in job.outputs),
            refusal=refusal,
        )
    except AdmissionErrors as error:
        await _delete_files(front, priced)
        raise await problem_of(front, error, limits) from None
    stored = accepted.job
    note(job=stored.id)
    if accepted.is_new:
        log.info("job %s was accepted for %s", stored.id, stored.model)
        front.telemetry.accepted.labels(job.model, job.tenant_class).inc()
        await _record_accepted(front, priced, stored, source)
    else:
        await _delete_files(front, priced)
    return accepted


async def _reusable_jobs(front: FrontEnd, priced: PricedJob) -> tuple[Job | None, Job | None]:
    """Return the job whose files a request may reuse, or one with its images in another format."""
    if priced.reuse is None or priced.parsed.body.reuse is False:
        return None, None
    if source := await find_reusable(front, priced.reuse.files):
        return source, None
    return None, await find_reusable(front, priced.reuse.images)


async def _record_accepted(
    front: FrontEnd, priced: PricedJob, job: Job, source: Job | None
) -> None:
    """Update metrics, cost cache, reuse index and shadow traffic for a newly accepted job."""
    if job.reuses and source:
        with suppress(RedisError, OSError):  # a failed metric must not fail an accepted job
            source = await front.queue.original_job(source)
        front.telemetry.reuse.saved(job.model, source.usage.device_seconds)
        return
    front.costs.add_accepted(job)
    if priced.reuse:
        await register_for_reuse(front, priced.reuse, job)
    await record_alias_job(front, job)


async def _store_images(front: FrontEnd, priced: PricedJob, source: Job | None) -> None:
    job = priced.job
    if priced.images or job.snapshots or source:
        await front.queue.run(Deposit(job.id))
    keys = image_values(job.request)
    for path, image in priced.images.items():
        await front.store.put(keys[path], image.data, image.file.media_type)
    if priced.drafts is not None:
        await store_drafts(front, job, priced.drafts)


async def _delete_files(front: FrontEnd, priced: PricedJob) -> None:
    """Delete the files of a request that did not create a job."""
    if priced.images or priced.job.snapshots or priced.reuse:
        await front.store.delete(job_folders(priced.job.id))
        await front.queue.withdraw(priced.job.id)


async def _check_deadline(
    front: FrontEnd, job: Job
) -> tuple[Job, DeadlineTooSoon | DeadlineTooShort | None]:
    """Compare a job's deadline with the predicted finish under the present load.

    Returns: the job, marked as credited or guaranteed if its place in the queue is, and the error
        if it cannot finish in time. The error is None if it can, or if its run time is unknown.
    """
    deadline_s = job.request.get("deadline_s")
    if deadline_s is None or job.run_s is None:
        return job, None
    alone_s = job.run_s * job.remaining_share + job.compile_s
    if alone_s > deadline_s:
        return job, DeadlineTooShort(job.run_s * job.remaining_share, job.compile_s, deadline_s)
    place = await front.costs.new_job_estimate(job)
    needs_s = alone_s if place.ends_s is None else place.ends_s
    if needs_s <= deadline_s:
        return place.mark_job(job), None
    return job, await _too_soon(front, job, place, needs_s)


async def _too_soon(
    front: FrontEnd, job: Job, place: WaitEstimate, needs_s: float
) -> DeadlineTooSoon:
    """Build the error for a deadline that cannot be met, with the time until a retry may work."""
    deadline_s = job.request["deadline_s"]
    lasts_s = needs_s - (place.starts_s or 0.0)
    wait_s = needs_s - deadline_s
    if lasts_s > deadline_s:  # concurrent jobs have to end first
        wait_s = max(wait_s, await front.costs.retry_wait_s(job, deadline_s - job.compile_s) or 0.0)
    return DeadlineTooSoon(needs_s, deadline_s, wait_s)


def _digest(parsed: ParsedRequest) -> str:
    """Hash a request so that equivalent requests have equal digests."""
    body = parsed.body
    fields = body.model_dump(exclude_none=True) | switched_off(body)
    normalized = with_images(fields, lambda _, value: sha256_of(value))
    return sha256_of(parsed.drafts + json.dumps(normalized, sort_keys=True))


def sha256_of(text: str) -> str:
    """Hash a text in slices, since hashing a slice blocks other threads (the GIL)."""
    digest = hashlib.sha256()
    for start in range(0, len(text), SLICE_CHARS):
        digest.update(text[start : start + SLICE_CHARS].encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
