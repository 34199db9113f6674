"""Shadows: a share of an alias's requests that another model draws, too, to compare pixels.

A shadow is a job of the house: of a tenant that no key can have, of low priority and a small share,
without webhook, deadline or metadata. It waits in the queue as others do, a few at the most, and
leaves with its files when it was compared.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random

from redis.exceptions import RedisError

from models.spec.model_spec import ModelSpec
from service.front_end.front_end import FrontEnd
from service.front_end.pixels import psnr
from service.jobs.alias_jobs import AliasJobs
from service.jobs.model.errors import QueueFull, QuotaExceeded, WireError
from service.jobs.model.job import AUDITIONED, PRIORITIES, Job, JobState, Output, new_job_id
from service.jobs.model.state_machine import ENDED
from service.jobs.storage.object_store import job_folders
from service.metrics import versions as outcomes
from service.settings.tenants import TenantSettings

log = logging.getLogger("atelier")

TENANT = "-shadows"
"""Tenant of shadows. No key's: those begin with a letter or digit."""
TENANT_CLASS = "shadow"
LIMITS = TenantSettings(weight=0.01, max_queued=16, max_compiling=1)
OF_THE_CLIENT = ("webhook", "deadline_s", "priority", "model")
"""Fields of a request that a shadow has not."""
PAIRS = 100
"""Pairs that are looked at in a round."""
FRESH_S = 60.0
"""Age up to which a pair's shadow may still be about to be queued."""
MAX_AGE_S = 3600.0
"""Age of a pair that is not waited for any longer."""


async def watched(front: FrontEnd, job: Job) -> None:
    """Note a job that was just accepted, if it was asked of an alias whose versions are watched.

    Queue its shadow, if it is of the share that has one. Never fails: the job is accepted.
    """
    name = str(job.request.get("model"))
    alias = front.models.aliases.known.get(name)
    if alias is None or job.version == AUDITIONED:  # half an image, or the rest of one
        return
    try:
        if alias.baseline:
            await AliasJobs(front.queue.redis).note(name, job, alias.window_s)
        if alias.shadow and random.random() < alias.shadow_share:
            await _shadow(front, job, alias.shadow)
    except (RedisError, OSError) as error:
        log.warning("job %s of %s is not watched: %s", job.id, name, error)


async def _shadow(front: FrontEnd, job: Job, name: str) -> None:
    """Raises: redis.exceptions.RedisError, OSError."""
    try:
        queued = await _queue(front, job, name)
    except (QueueFull, QuotaExceeded):
        queued = False
    if not queued:
        front.telemetry.versions.shadows.labels(name, outcomes.SKIPPED).inc()


async def _queue(front: FrontEnd, job: Job, name: str) -> bool:
    """Return whether a shadow was queued. Raises: as `Queue.put`."""
    own = await front.models.own()
    mine, status = job.served_by or job.model, own.get(name)
    if status is None or not status.ready or mine == name or mine not in own:
        return False
    if not (own[mine].spec.reads_alike(status.spec) and _has_loras(job, status.spec)):
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
    """Return whether a job's adapters are the operator's: others are their tenant's alone."""
    return {lora.digest for lora in job.loras} <= {lora.digest for lora in spec.loras.values()}


def shadow_of(job: Job, spec: ModelSpec) -> Job:
    """Return the job by which another model draws what a job does. Images are the job's own."""
    kept = {name: value for name, value in job.request.items() if name not in OF_THE_CLIENT}
    return job.model_copy(
        update={
            "id": new_job_id(),
            "model": spec.queue,
            "served_by": None,
            "fingerprint": spec.fingerprint,
            "request": {"model": spec.name, **kept},
            "tenant": TENANT,
            "tenant_class": TENANT_CLASS,
            "weight": LIMITS.weight,
            "max_compiling": LIMITS.max_compiling,
            "priority": PRIORITIES["low"],
            "deadline_at": None,
            "awaits": None,
            "metadata": {},
            "previews": 0,
            "traceparent": None,
            "key_id": None,
            "request_id": None,
        }
    )


async def compare_ended(front: FrontEnd) -> None:
    """Compare the shadows that have ended with their jobs, and remove them.

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
    """Return a job; None: there is none, or a newer Atelier wrote it, which sees to it."""
    try:
        return await front.queue.get(job_id)
    except WireError:
        return None


def _is_over(job: Job | None, shadow: Job | None) -> bool:
    """Return whether there is nothing to compare, and will not be."""
    return job is None or shadow is None or job.state in ENDED - {JobState.SUCCEEDED}


def _have_ended(job: Job | None, shadow: Job | None) -> bool:
    return job is not None and shadow is not None and job.state.ended and shadow.state.ended


async def _count(front: FrontEnd, job: Job | None, shadow: Job | None) -> None:
    """Compare a pair, and count what came of it. Raises: StoreError."""
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
    """Return whether the outputs are equal, and the lowest PSNR of those that are not.

    Files that pixels cannot be read of differ, without one. Raises: StoreError.
    """
    is_equal, worst = len(job.outputs) == len(shadow.outputs), math.inf
    for mine, theirs in zip(job.outputs, shadow.outputs, strict=False):
        if _pixels(mine) == _pixels(theirs):
            continue
        got, drawn = await front.store.get(mine.key), await front.store.get(theirs.key)
        try:
            found = await asyncio.to_thread(psnr, got, drawn, mine.content_type)
        except (OSError, ValueError) as error:  # of Pillow and PyAV
            log.warning("outputs of %s and its shadow cannot be read: %s", job.id, error)
            found = None
        is_equal = is_equal and found == math.inf
        worst = min(worst, math.inf if found is None else found)
    return (outcomes.EQUAL if is_equal else outcomes.DIFFERENT), worst


def _pixels(output: Output) -> str:
    return output.pixels_sha256 or output.sha256
