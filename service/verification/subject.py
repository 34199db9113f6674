"""Subjects of verification: a file that was sent, or an output of a job, with its recipe."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from models.spec.image_files import ImageFileError
from models.spec.request_images import image_values, with_images
from service.errors.problems import Malformed
from service.front_end.front_end import FrontEnd
from service.http.inflight_limits import Hold
from service.http.json_reader import parse_object
from service.jobs.model.job import Job, MadeBy, Output
from service.jobs.storage.errors import NotStored
from service.recipes import xmp
from service.recipes.recipe import Recipe, repeatable
from service.responses.render import output_of
from service.schemas.verify import VerifyRequest

NO_RECIPE = (
    "the file says nothing of how it was made: it was made without metadata, was saved again, or is"
    " of a format that has no place for it, such as WebM; of an output, name its job"
)
FORM = 1
"""Version of the recipes that are read."""


class CannotTell(Exception):
    """A file cannot be held to its recipe; the message says why."""


@dataclass(frozen=True)
class Subject:
    """File to verify, and how it was made."""

    recipe: Recipe
    """Recipe of the file; of a job's output with prompts and input images, too."""
    index: int
    """Index that it has among the outputs of a job of its image alone."""
    sha256: str
    pixels_sha256: str
    """SHA-256 of its pixels: as a job has recorded them, or as they are in the file."""
    read: Callable[[], Awaitable[bytes]]
    made_by: MadeBy | None = None


async def of_file(front: FrontEnd, data: bytes, client: str) -> Subject:
    """Return a file as a subject.

    Raises: CannotTell: it has no recipe, or one without prompts or input images, or cannot be read.
    """
    recipe = await _recipe(front, data, client)
    if recipe is None:
        raise CannotTell(NO_RECIPE)
    if "prompt" not in recipe.request:
        raise CannotTell("its recipe has no prompts: the server that made it leaves them out")
    if recipe.images:
        names = ", ".join(sorted(recipe.images)[:8])
        raise CannotTell(
            f"it was begun from input images that a file does not hold ({names}); name its job"
            " while that is kept"
        )
    try:
        (shown,) = (await front.images.compared([data], client)).files
    except ImageFileError as error:
        raise CannotTell(f"the file {error}") from None

    async def read() -> bytes:
        return data

    digest = await asyncio.to_thread(lambda: hashlib.sha256(data).hexdigest())
    return Subject(recipe, recipe.frame or 0, digest, shown.pixels_sha256, read)


async def _recipe(front: FrontEnd, data: bytes, client: str) -> Recipe | None:
    """Return the recipe in a file; None: it has none. Raises: CannotTell."""
    try:
        packet = await asyncio.to_thread(xmp.packet_in, data)
        text = await front.images.recipe(packet, client) if packet else None
        recipe = await asyncio.to_thread(_parsed, text) if text else None
    except (ImageFileError, Malformed, ValueError) as error:
        raise CannotTell(f"the file's recipe cannot be read: {error}") from None
    if recipe and recipe.recipe != FORM:
        raise CannotTell(f"its recipe is of version {recipe.recipe}, and {FORM} is read here")
    return recipe


def _parsed(text: str) -> Recipe:
    """Raises: Malformed, ValueError."""
    return Recipe.model_validate(parse_object(text.encode(), "recipe"))


async def of_job(front: FrontEnd, tenant: str, asked: VerifyRequest, hold: Hold) -> Subject:
    """Return an output of a tenant's job as a subject.

    Args:
        hold: counts the bytes of the job's files that are read.

    Raises:
        CannotTell: its input images are no longer stored.
        Problem: there is no such output, it is no longer stored or damaged, or too much is read.
    """
    job = await front.job(asked.job, tenant)
    output = output_of(job, asked.output)
    hold.add(output.bytes)
    in_file = await _recipe(front, await front.outputs.read(output), hold.client)
    request = with_images(job.request, await _images(front, job, hold))
    each = len(job.outputs) // job.images
    return Subject(
        recipe=_of_job(job, output, request, in_file),
        index=output.index % each,
        sha256=output.sha256,
        pixels_sha256=output.pixels_sha256 or "",
        read=lambda: front.outputs.read(output),
        made_by=output.made_by,
    )


async def _images(front: FrontEnd, job: Job, hold: Hold) -> Callable[[str, Any], str]:
    """Return the function that puts a job's input images into its request. Raises: CannotTell."""
    found: dict[str, str] = {}
    for path, key in image_values(job.request).items():
        try:
            hold.add((await front.store.stat(key)).bytes)
            data = await front.store.get(key)
        except NotStored:
            said = f"it was begun from an input image that is no longer stored ({path})"
            raise CannotTell(said) from None
        found[path] = (await asyncio.to_thread(base64.b64encode, data)).decode()
    return lambda path, _: found[path]


def _drafted(job: Job, output: Output) -> dict[str, Any] | None:
    """Return what an output's draft had otherwise; None: it is no branch."""
    if job.drafted is None or output.seed is None:
        return None
    seeds = job.seeds or []
    number = seeds.index(output.seed) if output.seed in seeds else 0
    return job.drafted.of(number, output.seed) or None


def _of_job(job: Job, output: Output, request: Mapping[str, Any], in_file: Recipe | None) -> Recipe:
    """Return the recipe of a job's output; the file's has the digests of upscalers beside it."""
    known = in_file or Recipe(generator="", request={})
    fields = {
        "request": {
            **repeatable(request),
            "model": job.served_by or job.request.get("model", job.model),
            "seed": output.seed,
        },
        "fingerprint": output.made_by.checkpoint if output.made_by else job.fingerprint,
        "loras": {lora.name: lora.digest for lora in job.loras},
        "drafted": _drafted(job, output),
    }
    return known.model_copy(update=fields)
