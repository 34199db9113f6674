"""Reuse of results: serve copies of a tenant's earlier output files for an identical request."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from contextlib import suppress

from redis.exceptions import RedisError

from models.spec.model_spec import ModelSpec
from service.admission.resolve import Images
from service.errors.problems import Problem
from service.front_end.front_end import FrontEnd
from service.jobs.model.job import NO_CLAIM, Job, JobState, Output
from service.jobs.redis import keys
from service.jobs.storage.errors import StoreError
from service.jobs.storage.object_store import (
    SMALL_IMAGE_TYPE,
    beside_key,
    output_key,
    small_images_of,
)
from service.recipes.recipe import recipe_of

log = logging.getLogger("atelier")

USABLE = (JobState.SUCCEEDED, JobState.RUNNING, JobState.QUEUED)
"""States of jobs that have produced their files or will do so."""


async def reuse_key(front: FrontEnd, job: Job, spec: ModelSpec, images: Images) -> str:
    """Return the Redis key that requests for identical files share.

    It covers the tenant, the checkpoint, this program's version, and all fields that affect the
    files.
    """
    digests = await asyncio.to_thread(_digests, images)
    recipe = recipe_of(job.request, int(job.request["seed"]), spec, job.loras, digests)
    preset = spec.qualities.get(str(job.request.get("quality")))
    settings = front.settings
    identity = {
        "settings": [
            section.model_dump(mode="json") for section in (settings.output, settings.safety)
        ],
        "recipe": recipe.to_json(),
        "images": job.images,
        "output": {**job.request["output"], "inline": None},
        "preset": preset.model_dump(mode="json") if preset else None,
        "token_buckets": spec.sizes.token_buckets,
    }
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    return keys.reusable_job(job.tenant, digest)


def _digests(images: Images) -> dict[str, str]:
    return {path: hashlib.sha256(image.data).hexdigest() for path, image in images.items()}


async def find_reusable(front: FrontEnd, name: str) -> Job | None:
    """Return the job that has produced the same files or will do so; None if unknown."""
    try:
        job_id = await front.queue.redis.get(name)
        job = await front.queue.get(str(job_id)) if job_id else None
    except (RedisError, OSError):
        return None
    return job if job and job.state in USABLE else None


async def register_for_reuse(front: FrontEnd, name: str, job: Job) -> None:
    """Register the job for reuse until it is deleted; Redis errors are ignored."""
    with suppress(RedisError, OSError):
        await front.queue.redis.set(name, job.id, ex=round(front.settings.queue.retention_s) + 1)


async def with_copied_outputs(front: FrontEnd, job: Job, source: Job) -> Job | None:
    """Return the job with copies of another job's outputs; None if these cannot be read.

    Raises: StoreError: the copies cannot be stored.
    """
    outputs = []
    for output in source.outputs:
        try:
            data = await front.outputs.read(output)
        except (Problem, StoreError) as error:
            log.info("cannot reuse the outputs of %s: %s", source.id, error)
            return None
        outputs.append(await _store_copy(front, job, output, data))
    return job.model_copy(update={"outputs": outputs, "reuses": source.id})


async def _store_copy(front: FrontEnd, job: Job, output: Output, data: bytes) -> Output:
    key = output_key(job.id, NO_CLAIM, output.index, output.content_type)
    await front.store.put(key, data, output.content_type)
    small_files = await small_images_of(front.store.get, output.key) if output.num_frames else {}
    for name, content in small_files.items():
        await front.store.put(beside_key(key, name), content, SMALL_IMAGE_TYPE)
    small_bytes = sum(map(len, small_files.values()))
    return output.model_copy(update={"key": key, "beside_bytes": small_bytes})
