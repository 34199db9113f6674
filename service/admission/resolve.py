"""Second step of admission: a request against its model, its images and its webhook's address."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import httpx

from models.spec.image_files import ImageFile
from models.spec.lora import Lora
from models.spec.model_spec import ModelSpec
from models.spec.request_images import IMAGE_FIELDS, listed_paths
from service.admission import request_images
from service.admission.caller import Caller
from service.admission.parse import Parsed
from service.errors.problems import FieldError, Invalid
from service.front_end.front_end import FrontEnd
from service.http import fetch
from service.schemas.request import GenerateRequest
from service.settings.tenants import TenantSettings
from service.validation.resolve import Resolved, resolve, with_size_of
from service.validation.videos import wrong_masks

Images = Mapping[str, request_images.RequestImage]
"""Image files of a request, by path."""

NO_SECRET = (
    "the tenant {tenant!r} has no secret to sign messages with; ask the operator to make one:"
    " atelier webhooks create --tenant {tenant}"
)


@dataclass(frozen=True)
class ResolvedRequest:
    """A request that its model can serve, with the files that come with it."""

    parsed: Parsed
    spec: ModelSpec
    fields: Resolved
    images: Images


async def resolve_request(front: FrontEnd, caller: Caller, parsed: Parsed) -> ResolvedRequest:
    """Fill in the model's defaults, check every limit, and read the images.

    Raises:
        Problem: the model is unknown, a field is wrong, an image cannot be read, or the webhook's
            address cannot be reached.
        ClientDisconnect: the client has left meanwhile.
    """
    body = parsed.body
    spec = (await front.models.get(body.model, _point(caller, parsed))).spec
    offered = await front.loras.of(caller.tenant) if body.loras else ()
    fields = resolve(body, spec, front.settings.limits, parsed.media_types, offered)
    await _check_webhook(front, caller, body)
    images = await _images(front, caller, fields)
    files = {path: image.file for path, image in images.items()}
    if wrong := [*wrong_masks(files), *_wrong_shapes(files, spec)]:
        raise Invalid(wrong)
    _check_stored(images, await front.tenants.of(caller.tenant))
    if fields.task in spec.sized_by_image:
        fields = _sized(front, parsed, files, spec, offered)
    return ResolvedRequest(parsed, spec, fields, images)


def _point(caller: Caller, parsed: Parsed) -> float:
    """Return where a request stands among all, from 0 to 1: a repeated one where it stood."""
    if parsed.idempotency_key is None:
        return random.random()
    key = f"{caller.tenant} {parsed.idempotency_key}"
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:6]) / 2**48


def _wrong_shapes(files: Mapping[str, ImageFile], spec: ModelSpec) -> Iterator[FieldError]:
    """Report images that the model cannot read for their size."""
    for path, file in files.items():
        if wrong := spec.wrong_shape(path, file.width, file.height):
            yield FieldError(path, wrong)


async def _check_webhook(front: FrontEnd, caller: Caller, body: GenerateRequest) -> None:
    """Raises: Invalid: its messages cannot be signed, or not be sent there; ClientDisconnect."""
    if body.webhook is None:
        return
    if not await front.webhooks.keys.of(caller.tenant):
        raise Invalid([FieldError("webhook", NO_SECRET.format(tenant=caller.tenant))])
    url = httpx.URL(body.webhook.url)
    try:
        looked_up = front.resolver.resolve(fetch.host_of(url), url.port or 443, caller.client)
        await caller.connected(looked_up)
    except httpx.ConnectError as error:
        raise Invalid([FieldError("webhook.url", str(error))]) from error


async def _images(front: FrontEnd, caller: Caller, resolved: Resolved) -> Images:
    """Raises: Invalid, ClientDisconnect."""
    if not resolved.fields.keys() & IMAGE_FIELDS:
        return {}
    return await caller.connected(request_images.read_all(front, resolved.fields, caller.client))


def _check_stored(images: Images, limits: TenantSettings) -> None:
    """Raises: Invalid: the tenant may not even store these images alone."""
    sizes = {name: len(picture.data) for name, picture in images.items()}
    if limits.stored_bytes is None or sum(sizes.values()) <= limits.stored_bytes:
        return
    said = (
        f"the request's images have {sum(sizes.values())} bytes, and the tenant may have"
        f" {limits.stored_bytes} stored in all; send smaller files, or ask the operator for more"
    )
    raise Invalid([FieldError(max(sizes, key=lambda name: sizes[name]), said)])


def _sizing(files: Mapping[str, ImageFile], spec: ModelSpec) -> str:
    """Return the path of the image whose size the request's is."""
    references = listed_paths(files, "reference_images") if spec.sized_by_last else []
    return ["image", *references][-1]


def _sized(
    front: FrontEnd,
    parsed: Parsed,
    files: Mapping[str, ImageFile],
    spec: ModelSpec,
    offered: Sequence[Lora],
) -> Resolved:
    """The request at the size of its image. Raises: Invalid: the model does not serve that."""
    path = _sizing(files, spec)
    sized = with_size_of(parsed.body, files[path], spec)
    try:
        return resolve(sized, spec, front.settings.limits, parsed.media_types, offered)
    except Invalid as error:
        said = f"is {sized.width} x {sized.height} pixels, to multiples; send width and height"
        raise Invalid([FieldError(path, f"{said} ({error})")]) from error
