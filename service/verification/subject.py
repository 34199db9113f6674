"""Subject of a verification: an uploaded file or a job's output, with its recipe."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from models.media.image_files import ImageFileError
from models.spec.request_images import IMAGE_FIELDS, image_values, with_images
from service.errors.problems import Malformed
from service.front_end.front_end import FrontEnd
from service.http.inflight_limits import Hold
from service.http.json_reader import parse_object
from service.jobs.model.job import Job, MadeBy, Output
from service.jobs.storage.errors import NotStored
from service.recipes import xmp
from service.recipes.recipe import Recipe, digests_of, repeatable
from service.responses.render import output_of
from service.schemas.verify import VerifyRequest

NO_RECIPE = (
    "the file contains no recipe: it was generated without metadata, was saved again, or has a"
    " format without metadata, such as WebM; to verify an output, name its job"
)
FORM = 1
"""Supported version of recipes."""


class Unverifiable(Exception):
    """Error of a file that cannot be verified. The message states the reason."""


@dataclass(frozen=True)
class Subject:
    """File to verify, with its recipe and digests."""

    recipe: Recipe
    """Recipe of the file. For a job's output it includes prompts and input images."""
    index: int
    """Index among the outputs of a job that generates only its image."""
    sha256: str
    pixels_sha256: str
    """SHA-256 of its pixels, as recorded by the job or computed from the file."""
    read: Callable[[], Awaitable[bytes]]
    made_by: MadeBy | None = None
    pool: str | None = None
    """Name of the worker that generated it; None: unknown."""


async def of_file(front: FrontEnd, data: bytes, client: str) -> Subject:
    """Create the subject of an uploaded file.

    Raises: Unverifiable: unreadable, without a recipe, or the recipe lacks prompts or input images.
    """
    recipe = await recipe_in(front, data, client)
    if recipe is None:
        raise Unverifiable(NO_RECIPE)
    if "prompt" not in recipe.request:
        raise Unverifiable("its recipe has no prompts: the server that generated it omits them")
    if recipe.images:
        names = ", ".join(sorted(recipe.images)[:8])
        raise Unverifiable(
            f"it was generated from input images that a file does not contain ({names}); name its"
            " job while the job is stored"
        )
    if sent := sorted(name for name in IMAGE_FIELDS if recipe.request.get(name)):
        raise Unverifiable(
            f"its recipe contains input images ({', '.join(sent)}), and recipes have only their"
            " digests: it was edited"
        )
    try:
        (shown,) = (await front.images.compare([data], client)).files
    except ImageFileError as error:
        raise Unverifiable(f"the file {error}") from None

    async def read() -> bytes:
        return data

    digest = await asyncio.to_thread(lambda: hashlib.sha256(data).hexdigest())
    return Subject(recipe, recipe.frame or 0, digest, shown.pixels_sha256, read)


async def recipe_in(front: FrontEnd, data: bytes, client: str) -> Recipe | None:
    """Read the recipe of a file; None if absent. Raises: Unverifiable."""
    try:
        packet = await asyncio.to_thread(xmp.packet_in, data)
        text = await front.images.recipe(packet, client) if packet else None
        recipe = await asyncio.to_thread(_parsed, text) if text else None
    except (ImageFileError, Malformed, ValueError) as error:
        raise Unverifiable(f"the file's recipe cannot be read: {error}") from None
    if recipe and recipe.recipe != FORM:
        raise Unverifiable(f"its recipe has version {recipe.recipe}, and only {FORM} is supported")
    return recipe


def _parsed(text: str) -> Recipe:
    """Parse the JSON of a recipe in a file. Raises: Malformed."""
    try:
        return Recipe.model_validate(parse_object(text.encode(), "recipe"))
    except ValidationError:
        raise Malformed("it lacks a field, or one is wrong") from None


async def of_job(front: FrontEnd, tenant: str, selected: VerifyRequest, hold: Hold) -> Subject:
    """Create the subject of a tenant's job output.

    Args:
        hold: counts the bytes read of the job's files.

    Raises:
        Unverifiable: its input images are no longer stored.
        Problem: no such output, it is deleted or damaged, or too many bytes are read.
    """
    job = await front.job(selected.job, tenant)
    output = output_of(job, selected.output)
    hold.add(output.bytes)
    in_file = await recipe_in(front, await front.outputs.read(output), hold.client)
    request = with_images(job.request, await _images(front, job, hold))
    each = len(job.outputs) // job.images
    return Subject(
        recipe=_of_job(job, output, request, in_file),
        index=output.index % each,
        sha256=output.sha256,
        pixels_sha256=output.pixels_sha256 or "",
        read=lambda: front.outputs.read(output),
        made_by=output.made_by,
        pool=job.pool,
    )


async def _images(front: FrontEnd, job: Job, hold: Hold) -> Callable[[str, Any], str]:
    """Load a job's input images; return a function from path to base64. Raises: Unverifiable."""
    images: dict[str, str] = {}
    for path, key in image_values(job.request).items():
        try:
            hold.add((await front.store.stat(key)).bytes)
            data = await front.store.get(key)
        except NotStored:
            message = f"it was generated from an input image that is no longer stored ({path})"
            raise Unverifiable(message) from None
        images[path] = (await asyncio.to_thread(base64.b64encode, data)).decode()
    return lambda path, _: images[path]


def _drafted(job: Job, output: Output) -> dict[str, Any] | None:
    """Return the request fields that differed for an output's draft; None: not a branch."""
    if job.drafted is None or output.seed is None:
        return None
    seeds = job.seeds or []
    number = seeds.index(output.seed) if output.seed in seeds else 0
    return job.drafted.of(number, output.seed) or None


def _of_job(job: Job, output: Output, request: Mapping[str, Any], in_file: Recipe | None) -> Recipe:
    """Build the recipe of a job's output. The file's recipe adds the digests of upscalers."""
    recorded = in_file or Recipe(generator="", request={})
    adapters, embeddings = digests_of(job.loras)
    fields = {
        "request": {
            **repeatable(request),
            "model": job.served_by or job.request.get("model", job.model),
            "seed": output.seed,
        },
        "fingerprint": output.made_by.checkpoint if output.made_by else job.fingerprint,
        "loras": adapters,
        "embeddings": embeddings or None,
        "drafted": _drafted(job, output),
    }
    return recorded.model_copy(update=fields)
