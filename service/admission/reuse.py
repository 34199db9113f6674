"""Reuse: what was drawn before for the same request is given again, as a job's own files."""

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
from service.jobs.storage import small_images
from service.jobs.storage.errors import StoreError
from service.jobs.storage.object_store import beside_key, output_key
from service.recipes.recipe import recipe_of

log = logging.getLogger("atelier")

USABLE = (JobState.SUCCEEDED, JobState.RUNNING, JobState.QUEUED)
"""States of jobs that have drawn what they were asked for, or are to."""


async def name_of(front: FrontEnd, job: Job, spec: ModelSpec, images: Images) -> str:
    """Return a name that requests for the same files share, and no others.

    They are of one tenant, one checkpoint, and one version of this program.
    """
    digests = await asyncio.to_thread(_digests, images)
    recipe = recipe_of(job.request, int(job.request["seed"]), spec, job.loras, digests)
    preset = spec.qualities.get(str(job.request.get("quality")))
    settings = front.settings
    told = {
        "settings": [one.model_dump(mode="json") for one in (settings.output, settings.safety)],
        "recipe": recipe.to_json(),
        "images": job.images,
        "output": {**job.request["output"], "inline": None},
        "preset": preset.model_dump(mode="json") if preset else None,
        "token_buckets": spec.sizes.token_buckets,
    }
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
    return keys.drawn(job.tenant, digest)


def _digests(images: Images) -> dict[str, str]:
    return {path: hashlib.sha256(image.data).hexdigest() for path, image in images.items()}


async def equal_to(front: FrontEnd, name: str) -> Job | None:
    """Return the job that has drawn what is asked for, or is to; None: there is none."""
    try:
        job_id = await front.queue.redis.get(name)
        job = await front.queue.get(str(job_id)) if job_id else None
    except (RedisError, OSError):
        return None
    return job if job and job.state in USABLE else None


async def remember(front: FrontEnd, name: str, job: Job) -> None:
    """Let later requests find the job, while it is kept. Never fails: it is accepted."""
    with suppress(RedisError, OSError):
        await front.queue.redis.set(name, job.id, ex=round(front.settings.queue.retention_s) + 1)


async def with_copies(front: FrontEnd, job: Job, source: Job) -> Job | None:
    """Return the job with copies of another's files; None: they are not all there any more.

    Raises: StoreError: they cannot be stored.
    """
    outputs = []
    for output in source.outputs:
        try:
            data = await front.outputs.read(output)
        except (Problem, StoreError) as error:
            log.info("what %s has drawn is drawn again: %s", source.id, error)
            return None
        outputs.append(await _stored(front, job, output, data))
    return job.model_copy(update={"outputs": outputs, "reuses": source.id})


async def _stored(front: FrontEnd, job: Job, output: Output, data: bytes) -> Output:
    key = output_key(job.id, NO_CLAIM, output.index, output.content_type)
    await front.store.put(key, data, output.content_type)
    beside = await small_images.of(front.store.get, output.key) if output.num_frames else {}
    for name, small in beside.items():
        await front.store.put(beside_key(key, name), small, small_images.CONTENT_TYPE)
    beside_bytes = sum(map(len, beside.values()))
    return output.model_copy(update={"key": key, "beside_bytes": beside_bytes})
