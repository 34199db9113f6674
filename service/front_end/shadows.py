"""Shadow jobs: another model repeats a share of an alias's requests, to compare pixels.

A shadow belongs to an internal tenant that no key can have. It has low priority, a small weight,
and no webhook, deadline or metadata. A few at most are queued. It is deleted with its files after
the comparison.
"""

from __future__ import annotations

import asyncio
import io
import logging
import math
import random
from collections.abc import Iterator
from itertools import zip_longest

import av
import numpy as np
from PIL import Image
from redis.exceptions import RedisError

from models.spec.model_spec import ModelSpec
from service.front_end.front_end import FrontEnd
from service.jobs.aliases import AliasJobs
from service.jobs.model.errors import QueueFull, QuotaExceeded, WireError
from service.jobs.model.job import AUDITION_VERSION, PRIORITIES, Job, JobState, Output, new_job_id
from service.jobs.model.state_machine import ENDED
from service.jobs.storage.object_store import job_folders
from service.metrics import versions as outcomes
from service.settings.tenants import TenantSettings

log = logging.getLogger("atelier")

TENANT = "-shadows"
"""Tenant of shadows. Not valid for keys, whose tenants begin with a letter or digit."""
TENANT_CLASS = "shadow"
LIMITS = TenantSettings(weight=0.01, max_queued=16, max_compiling=1)
OMITTED_FIELDS = ("webhook", "deadline_s", "priority", "model")
"""Request fields that a shadow omits."""
PAIRS = 100
"""Maximum pairs examined per round."""
FRESH_S = 60.0
"""Age up to which a pair's shadow may not be queued yet."""
MAX_AGE_S = 3600.0
"""Age after which a pair is abandoned."""


async def record_alias_job(front: FrontEnd, job: Job) -> None:
    """Record an accepted job of an alias for the comparison of versions, and queue its shadow.

    The shadow is queued for a share of jobs. Errors are logged, because the job is already
    accepted. Jobs that generate no whole image of their own are left out: auditions, what continues
    them, and jobs that wait for an equal job's images.
    """
    name = str(job.request.get("model"))
    alias = front.models.aliases.cached.get(name)
    if alias is None or job.version == AUDITION_VERSION or job.awaited:
        return
    try:
        if alias.baseline:
            await AliasJobs(front.queue.redis).note(name, job, alias.window_s)
        if alias.shadow and random.random() < alias.shadow_share:
            await _shadow(front, job, alias.shadow)
    except (RedisError, OSError) as error:
        log.warning(
            "could not record job %s of %s for the comparison of versions: %s", job.id, name, error
        )


async def _shadow(front: FrontEnd, job: Job, name: str) -> None:
    """Queue a shadow and count skipped ones. Raises: redis.exceptions.RedisError, OSError."""
    try:
        queued = await _queue(front, job, name)
    except (QueueFull, QuotaExceeded):
        queued = False
    if not queued:
        front.telemetry.versions.shadows.labels(name, outcomes.SKIPPED).inc()


async def _queue(front: FrontEnd, job: Job, name: str) -> bool:
    """Queue a shadow if both models can run the job. Raises: as `Queue.put`."""
    registered = await front.models.registered()
    version, status = job.served_by or job.model, registered.get(name)
    if status is None or not status.ready or version == name or version not in registered:
        return False
    if not (
        registered[version].spec.interprets_requests_like(status.spec)
        and _has_loras(job, status.spec)
    ):
        return False
    shadow, pairs = shadow_of(job, status.spec), AliasJobs(front.queue.redis)
    await pairs.pair(job.id, shadow.id)
    try:
        await front.queue.put(shadow, limits=LIMITS)
    except (QueueFull, QuotaExceeded):
        await pairs.take(job.id, shadow.id)
        raise
    return True


def _has_loras(job: Job, spec: ModelSpec) -> bool:
    """Check that all adapters of a job are the operator's. Uploads are private to their tenant."""
    return {lora.digest for lora in job.loras} <= {lora.digest for lora in spec.loras.values()}


def shadow_of(job: Job, spec: ModelSpec) -> Job:
    """Build the job by which another model repeats a job, with the job's own input images."""
    fields = {name: value for name, value in job.request.items() if name not in OMITTED_FIELDS}
    return job.model_copy(
        update={
            "id": new_job_id(),
            "model": spec.queue,
            "served_by": None,
            "fingerprint": spec.fingerprint,
            "request": {"model": spec.name, **fields},
            "tenant": TENANT,
            "tenant_class": TENANT_CLASS,
            "weight": LIMITS.weight,
            "max_compiling": LIMITS.max_compiling,
            "priority": PRIORITIES["low"],
            "deadline_at": None,
            "awaits": None,
            "encodes": None,
            "metadata": {},
            "previews": 0,
            "traceparent": None,
            "key_id": None,
            "request_id": None,
        }
    )


async def compare_ended(front: FrontEnd) -> None:
    """Compare ended shadows with their jobs, and delete them.

    Raises: redis.exceptions.RedisError, OSError, StoreError.
    """
    pairs = AliasJobs(front.queue.redis)
    for job_id, shadow_id, age_s in await pairs.pairs(PAIRS):
        job, shadow = await job_of(front, job_id), await job_of(front, shadow_id)
        if shadow is None and age_s < FRESH_S:
            continue
        if not (_is_over(job, shadow) or age_s > MAX_AGE_S or _have_ended(job, shadow)):
            continue
        if await pairs.take(job_id, shadow_id):
            try:
                await _count(front, job, shadow)
            finally:
                await front.queue.delete(shadow_id)
                await front.store.delete(job_folders(shadow_id))


async def job_of(front: FrontEnd, job_id: str) -> Job | None:
    """Load a job; None: no such job, or a newer version of Atelier wrote it, which handles it."""
    try:
        return await front.queue.get(job_id)
    except WireError:
        return None


def _is_over(job: Job | None, shadow: Job | None) -> bool:
    """Return whether a job or its shadow can no longer be compared."""
    return job is None or shadow is None or job.state in ENDED - {JobState.SUCCEEDED}


def _have_ended(job: Job | None, shadow: Job | None) -> bool:
    return job is not None and shadow is not None and job.state.ended and shadow.state.ended


async def _count(front: FrontEnd, job: Job | None, shadow: Job | None) -> None:
    """Compare the outputs of a job and its shadow, and count the outcome. Raises: StoreError."""
    if shadow is None:
        return
    outcome, worst = outcomes.DROPPED, math.inf
    if job and not _is_over(job, shadow) and shadow.state.ended:
        outcome = outcomes.FAILED
        if shadow.state is JobState.SUCCEEDED:
            outcome, worst = await _compare(front, job, shadow)
    model = shadow.request["model"]
    front.telemetry.versions.shadows.labels(model, outcome).inc()
    if worst < math.inf:
        front.telemetry.versions.psnr.labels(model).observe(worst)


async def _compare(front: FrontEnd, job: Job, shadow: Job) -> tuple[str, float]:
    """Compare two jobs' outputs: whether they are equal, and the lowest PSNR of differing ones.

    Files without readable pixels count as different, without a PSNR. Raises: StoreError.
    """
    is_equal, worst = len(job.outputs) == len(shadow.outputs), math.inf
    for output, other in zip(job.outputs, shadow.outputs, strict=False):
        if _pixels(output) == _pixels(other):
            continue
        original, repeated = await front.store.get(output.key), await front.store.get(other.key)
        try:
            psnr_db = await asyncio.to_thread(psnr, original, repeated, output.content_type)
        except (OSError, ValueError) as error:  # raised by Pillow and PyAV
            log.warning("outputs of %s and its shadow cannot be read: %s", job.id, error)
            psnr_db = None
        is_equal = is_equal and psnr_db == math.inf
        worst = min(worst, math.inf if psnr_db is None else psnr_db)
    return (outcomes.EQUAL if is_equal else outcomes.DIFFERENT), worst


def _pixels(output: Output) -> str:
    return output.pixels_sha256 or output.sha256


def psnr(first: bytes, second: bytes, content_type: str) -> float | None:
    """Compute the PSNR in dB of two files' pixels, over all frames; infinite if equal.

    None: they differ in size or number of frames.
    """
    error, count = 0.0, 0
    pairs = zip_longest(_frames(first, content_type), _frames(second, content_type))
    for frame, other in pairs:
        if frame is None or other is None or frame.shape != other.shape:
            return None
        error += float(np.square(frame.astype(np.float32) - other).sum(dtype=np.float64))
        count += frame.size
    return math.inf if not error else 10 * math.log10(255**2 * count / error)


def _frames(data: bytes, content_type: str) -> Iterator[np.ndarray]:
    """Yield the frames of a video, or an image's frames, as RGB."""
    if content_type.startswith("video/"):
        with av.open(io.BytesIO(data), "r") as container:
            for frame in container.decode(video=0):
                yield frame.to_ndarray(format="rgb24")
        return
    with Image.open(io.BytesIO(data)) as image:
        for number in range(getattr(image, "n_frames", 1)):
            image.seek(number)
            yield np.asarray(image.convert("RGB"))
