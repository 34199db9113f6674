"""Reuse of results: serve copies of a tenant's earlier output files for an identical request."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

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
    output_key,
    sibling_key,
    small_images_of,
)
from service.recipes.recipe import OF_FILES, recipe_of

log = logging.getLogger("atelier")

LOSSLESS_WEBP = ("webp", 100)
"""Format and quality of WebP files that contain the exact pixels."""
USABLE = (JobState.SUCCEEDED, JobState.RUNNING, JobState.QUEUED)
"""States of jobs that have produced their files or will do so."""


@dataclass(frozen=True)
class ReuseKeys:
    """Redis keys by which equal requests find the job with their files.

    They cover the tenant, the checkpoint, this program's version, and all fields that affect the
    files.
    """

    files: str
    """Key that requests for identical files share."""
    images: str | None
    """Key that requests share if only the files' formats differ; None for videos."""
    is_lossless: bool
    """Whether the files contain the exact pixels."""


async def reuse_keys(front: FrontEnd, job: Job, spec: ModelSpec, images: Images) -> ReuseKeys:
    """Return the Redis keys by which equal requests find a job."""
    digests = await asyncio.to_thread(_digests, images)
    output = job.request["output"]
    recipe = recipe_of(job.request, int(job.request["seed"]), spec, job.loras, digests)
    preset = spec.qualities.get(str(job.request.get("quality")))
    settings = front.settings
    identity = {
        "settings": [
            section.model_dump(mode="json") for section in (settings.output, settings.safety)
        ],
        "recipe": recipe.to_json(),
        "images": job.images,
        "output": {**output, "inline": None},
        "preset": preset.model_dump(mode="json") if preset else None,
        "token_buckets": spec.sizes.token_buckets,
    }
    other = {name: value for name, value in output.items() if name not in OF_FILES}
    fields = {**recipe.request, "output": other}
    of_images = {"recipe": recipe.model_copy(update={"request": fields}).to_json(), "output": other}
    is_image = job.request.get("num_frames") is None
    return ReuseKeys(
        _key(job, identity),
        _key(job, {**identity, **of_images, "any format": True}) if is_image else None,
        output["format"] == "png" or (output["format"], output.get("quality")) == LOSSLESS_WEBP,
    )


def _key(job: Job, identity: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    return keys.reusable_job(job.tenant, digest)


def _digests(images: Images) -> dict[str, str]:
    return {path: hashlib.sha256(image.data).hexdigest() for path, image in images.items()}


async def find_reusable(front: FrontEnd, name: str | None) -> Job | None:
    """Return the job of a key that has produced its files or will do so; None if unknown."""
    try:
        job_id = await front.queue.redis.get(name) if name else None
        job = await front.queue.get(str(job_id)) if job_id else None
    except (RedisError, OSError):
        return None
    return job if job and job.state in USABLE else None


async def register_for_reuse(front: FrontEnd, names: ReuseKeys, job: Job) -> None:
    """Register the job for reuse until it is deleted; Redis errors are ignored."""
    kept_s = round(front.settings.queue.retention_s) + 1
    with suppress(RedisError, OSError):
        await front.queue.redis.set(names.files, job.id, ex=kept_s)
        if names.images and names.is_lossless:
            await front.queue.redis.set(names.images, job.id, ex=kept_s)


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
        await front.store.put(sibling_key(key, name), content, SMALL_IMAGE_TYPE)
    small_bytes = sum(map(len, small_files.values()))
    return output.model_copy(update={"key": key, "beside_bytes": small_bytes})
