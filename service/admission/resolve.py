"""Second step of admission: check a request against its model, its images and its webhook URL."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import httpx

from models.media.image_files import ImageFile
from models.spec.embeddings import PROMPTS
from models.spec.lora import Lora
from models.spec.model_spec import ModelSpec
from models.spec.request_images import IMAGE_FIELDS, VIDEO_FIELDS, field_of, listed_paths
from service.admission import input_files
from service.admission.parse import Caller, ParsedRequest
from service.errors.problems import FieldError, Invalid
from service.front_end.front_end import FrontEnd
from service.http import fetch
from service.jobs.model.job import FieldWarning
from service.schemas.request import GenerateRequest
from service.settings.tenants import TenantSettings
from service.validation.resolved_fields import ResolvedFields, resolve, with_size_of

Images = Mapping[str, input_files.RequestImage]
"""Input files of a request, by field path."""

NO_SECRET = (
    "the tenant {tenant!r} has no secret for signing messages; ask the operator to create one:"
    " atelier webhooks create --tenant {tenant}"
)

SHORT_CHARS = 4000
"""Length of all prompts up to which a request is resolved in the event loop. Hostile prompts of
40,000 characters, which name embeddings, take 0.3 s."""
TRANSPARENT = "has transparent pixels, which become white; send an opaque image for another colour"
VIDEOS, MASK = ("control_video", "background_video"), "mask_video"
"""Fields of videos, of which a request has at most one, and of their mask."""


@dataclass(frozen=True)
class ResolvedRequest:
    """Request that its model can serve, with its input files."""

    parsed: ParsedRequest
    spec: ModelSpec
    fields: ResolvedFields
    images: Images


async def resolve_request(
    front: FrontEnd, caller: Caller, parsed: ParsedRequest
) -> ResolvedRequest:
    """Fill in the model's defaults, check every limit, and read the input images.

    Raises:
        Problem: the model is unknown, a field is wrong, an image cannot be read, or the webhook's
            host cannot be resolved.
        ClientDisconnect: the client disconnected.
    """
    body = parsed.body
    spec = (await front.models.get(body.model, _point(caller, parsed))).spec
    offered = await front.loras.of(caller.tenant) if body.loras or spec.embedding_sizes else ()
    fields = await _resolved(front, parsed, body, spec, offered)
    draft_warnings = _draft_warnings(front, body)
    await _check_webhook(front, caller, body)
    images = await _images(front, caller, fields)
    files = {path: image.file for path, image in images.items()}
    if errors := [*_wrong_masks(files), *_wrong_shapes(files, spec)]:
        raise Invalid(errors)
    _check_stored(images, await front.tenants.of(caller.tenant))
    if fields.task in spec.sized_by_image:
        fields = await _sized(front, parsed, files, spec, offered)
    warnings = [*fields.warnings, *draft_warnings, *_transparency_warnings(files)]
    fields = replace(fields, warnings=[*caller.warnings, *warnings])
    return ResolvedRequest(parsed, spec, fields, images)


async def _resolved(
    front: FrontEnd,
    parsed: ParsedRequest,
    body: GenerateRequest,
    spec: ModelSpec,
    offered: Sequence[Lora],
) -> ResolvedFields:
    """Resolve a request, in a thread if its prompts are long. Raises: Invalid."""
    work = partial(resolve, body, spec, front.settings.limits, parsed.media_types, offered)
    chars = sum(len(getattr(body, name) or "") for name in PROMPTS)
    return work() if chars <= SHORT_CHARS else await asyncio.to_thread(work)


def _draft_warnings(front: FrontEnd, body: GenerateRequest) -> list[FieldWarning]:
    """Check the lifetime of drafts; warn if there are none. Raises: Invalid: it is too long."""
    longest_s = front.settings.queue.max_draft_ttl_s
    if body.draft_ttl_s is None:
        return []
    if body.draft_ttl_s > longest_s:
        raise Invalid([FieldError("draft_ttl_s", f"must be at most {longest_s:g} on this server")])
    if body.stop_at_step is None:
        return [FieldWarning(field="draft_ttl_s", message="has no effect without stop_at_step")]
    return []


def _point(caller: Caller, parsed: ParsedRequest) -> float:
    """Return a number in [0, 1) that selects a version of the request's model alias.

    It is random, or derived from the idempotency key so that repeated requests get the same
    version.
    """
    if parsed.idempotency_key is None:
        return random.random()
    key = f"{caller.tenant} {parsed.idempotency_key}"
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:6]) / 2**48


def _wrong_masks(files: Mapping[str, ImageFile]) -> Iterator[FieldError]:
    """Report a mask whose number of frames is neither its video's nor 1.

    Args:
        files: all files of a request, by path.
    """
    masks = _frames(MASK, files)
    for name in VIDEOS:
        frames = _frames(name, files)
        if frames and masks not in (0, 1, frames):
            message = f"has {masks} frames, and {name} {frames}: send as many, or one image"
            yield FieldError(MASK, message)


def _frames(field: str, files: Mapping[str, ImageFile]) -> int:
    """Count the frames of a field with a video or a list of frames."""
    return sum(file.frames for path, file in files.items() if field_of(path) == field)


def _transparency_warnings(files: Mapping[str, ImageFile]) -> Iterator[FieldWarning]:
    """Warn about images with transparent pixels; one warning for all frames of a video."""
    paths = (path for path, file in files.items() if file.is_transparent and "mask" not in path)
    names = (field_of(path) if field_of(path) in VIDEO_FIELDS else path for path in paths)
    for name in dict.fromkeys(names):
        yield FieldWarning(field=name, message=TRANSPARENT)


def _wrong_shapes(files: Mapping[str, ImageFile], spec: ModelSpec) -> Iterator[FieldError]:
    """Yield an error for each image whose size the model does not accept."""
    for path, file in files.items():
        if message := spec.wrong_shape(path, file.width, file.height):
            yield FieldError(path, message)


async def _check_webhook(front: FrontEnd, caller: Caller, body: GenerateRequest) -> None:
    """Check that the tenant can sign messages and that the webhook's host resolves.

    Raises: Invalid, ClientDisconnect.
    """
    if body.webhook is None:
        return
    if not await front.webhooks.keys.of(caller.tenant):
        raise Invalid([FieldError("webhook", NO_SECRET.format(tenant=caller.tenant))])
    url = httpx.URL(body.webhook.url)
    try:
        lookup = front.resolver.resolve(fetch.host_of(url), url.port or 443, caller.client)
        await caller.while_connected(lookup)
    except httpx.ConnectError as error:
        raise Invalid([FieldError("webhook.url", str(error))]) from error


async def _images(front: FrontEnd, caller: Caller, resolved: ResolvedFields) -> Images:
    """Read the input images, if the request has any. Raises: Invalid, ClientDisconnect."""
    if not resolved.fields.keys() & IMAGE_FIELDS:
        return {}
    return await caller.while_connected(input_files.read_all(front, resolved.fields, caller.client))


def _check_stored(images: Images, limits: TenantSettings) -> None:
    """Check that the images alone fit into the tenant's quota of stored bytes. Raises: Invalid."""
    sizes = {name: len(image.data) for name, image in images.items()}
    if limits.stored_bytes is None or sum(sizes.values()) <= limits.stored_bytes:
        return
    message = (
        f"the request's images have {sum(sizes.values())} bytes, and the tenant may store"
        f" {limits.stored_bytes} in total; send smaller files, or ask the operator for more"
    )
    raise Invalid([FieldError(max(sizes, key=lambda name: sizes[name]), message)])


def _sizing(files: Mapping[str, ImageFile], spec: ModelSpec) -> str:
    """Return the path of the input image that determines the request's size."""
    references = listed_paths(files, "reference_images") if spec.sized_by_last else []
    return ["image", *references][-1]


async def _sized(
    front: FrontEnd,
    parsed: ParsedRequest,
    files: Mapping[str, ImageFile],
    spec: ModelSpec,
    offered: Sequence[Lora],
) -> ResolvedFields:
    """Resolve the request again, at its input image's size. Raises: Invalid: unsupported size."""
    path = _sizing(files, spec)
    sized = with_size_of(parsed.body, files[path], spec)
    try:
        return await _resolved(front, parsed, sized, spec, offered)
    except Invalid as error:
        message = (
            f"has {sized.width} x {sized.height} pixels, rounded to multiples; send width and"
            " height"
        )
        raise Invalid([FieldError(path, f"{message} ({error})")]) from error
