"""Admission of requests of OpenAI's image APIs: input files, and warnings about unused fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from models.media.image_files import ImageFileError
from models.spec.model_spec import ModelSpec
from service.admission.input_files import bytes_of
from service.errors.problems import FieldError, Invalid
from service.jobs.model.job import FieldWarning, Job
from service.responses.wait import while_connected
from service.routes.compat import forms
from service.routes.compat.call import Call
from service.routes.compat.incoming_request import IncomingRequest
from service.routes.compat.nearest_size import nearest
from service.routes.compat.openai.extra_fields import merge_extra_fields
from service.routes.compat.openai.field_values import missing_preset, naming_sizes
from service.routes.compat.openai.image_requests import (
    ImageEditBody,
    ImageRequest,
    field_names,
    to_generate_fields,
)

MESSAGES: Mapping[str, str] = {
    "style": "has no effect; describe the style in the prompt",
    "moderation": "has no effect; this server's operator configures the safety check",
    "input_fidelity": "has no effect; strength determines how much changes",
    "service_tier": "has no effect; priority orders the jobs of a key",
}
"""Message by field."""
_DEFAULTS = frozenset({None, "auto", "default"})
"""Values that name what happens without the field."""
_FIDELITY = "low"
"""Value of `input_fidelity` that the edits here have."""


def warnings_of(body: ImageRequest, spec: ModelSpec) -> list[FieldWarning]:
    """Return a warning for each OpenAI image field that has no effect."""
    return [FieldWarning(field=name, message=text) for name, text in _warnings(body, spec)]


def _warnings(body: ImageRequest, spec: ModelSpec) -> Iterator[tuple[str, str]]:
    for name, message in MESSAGES.items():
        value = getattr(body, name, None)
        if value not in _DEFAULTS and (name, value) != ("input_fidelity", _FIDELITY):
            yield name, message
    if preset := missing_preset(body.quality, spec):
        default = spec.defaults.get("quality", spec.quality_names[0])
        yield "quality", f"the model has no preset {preset!r}; its default {default!r} is used"
    if body.stream and body.response_format == "url":
        yield "response_format", "has no effect; a stream contains images in base64"
    if body.partial_images and not body.stream:
        yield "partial_images", "has no effect without stream: true"


TEXTS = (b"data:", b"iVBORw0KGgo", b"/9j/", b"UklGR")
"""Beginnings of texts with an image in base64: data URIs, PNG, JPEG and WebP."""


@dataclass(frozen=True)
class ImageOptions:
    """Parsed OpenAI image request, with its files by field name of `POST /v1/generate`."""

    body: ImageRequest
    files: Mapping[str, bytes] = field(default_factory=dict)
    references: Sequence[bytes] = ()
    """Additional images, which become `reference_images`."""


async def admit_images(
    incoming: IncomingRequest, parsed: ImageOptions, warnings: Sequence[FieldWarning] = ()
) -> Job:
    """Admit an OpenAI request for images; return its job.

    Args:
        warnings: about fields that the caller's API has in addition.

    Raises: Problem.
    """
    front, body = incoming.call.front, parsed.body
    spec = (await front.models.get(body.model)).spec
    limits = front.settings.limits
    _check_count(parsed, spec)
    fields = to_generate_fields(body, spec, limits)
    fields = merge_extra_fields(
        await _image_fields(incoming.call, parsed), fields, field_names(body)
    )
    _check_mask(fields, spec)
    if parsed.files and not spec.scales_sizes and not {"width", "height"} & fields.keys():
        fields |= await _size_of_image(incoming.call, spec, parsed.files["image"])
    with naming_sizes(spec, limits, body.size):
        return await incoming.admit(
            fields,
            field_names(body),
            previews=body.partial_images or 0,
            warnings=[*warnings, *warnings_of(body, spec)],
        )


async def _image_fields(call: Call, parsed: ImageOptions) -> dict[str, Any]:
    """Return an OpenAI request's images as fields; the mask's transparent pixels become white."""
    fields: dict[str, Any] = {name: forms.in_base64(data) for name, data in parsed.files.items()}
    if parsed.references:
        fields["reference_images"] = [forms.in_base64(data) for data in parsed.references]
    if "mask_image" in parsed.files:
        mask = call.front.images.mask(parsed.files["mask_image"], call.client)
        try:
            fields["mask_image"] = await while_connected(call.request, mask)
        except ImageFileError as error:
            raise Invalid([FieldError("mask", str(error))]) from error
    return fields


async def _size_of_image(call: Call, spec: ModelSpec, image: bytes) -> dict[str, int]:
    """Return the model's size that is closest to an image's. Raises: Invalid."""
    check = call.front.images.check(image, call.client)
    try:
        file = await while_connected(call.request, check)
    except ImageFileError as error:
        raise Invalid([FieldError("image", str(error))]) from error
    width, height = nearest(spec, call.front.settings.limits, file.width, file.height)
    return {"width": width, "height": height}


def _check_count(parsed: ImageOptions, spec: ModelSpec) -> None:
    """Check the number of images against the model's limit. Raises: Invalid."""
    count, max_references = len(parsed.references), spec.limits.max_reference_images
    if count > max_references:
        message = (
            f"has {1 + count} images; the model {spec.name!r} accepts {1 + max_references} at most"
        )
        raise Invalid([FieldError("image", message)])


def _check_mask(fields: Mapping[str, Any], spec: ModelSpec) -> None:
    """Check that a request for an inpainting model has a mask. Raises: Invalid."""
    if spec.tasks == ("inpainting",) and "image" in fields and "mask_image" not in fields:
        message = (
            f"the model {spec.name!r} does inpainting: as mask, send an image that is transparent"
            " where"
        )
        raise Invalid([FieldError("mask", f"{message} the image is to be regenerated")])


async def in_files(call: Call, contents: Sequence[bytes], field: str = "image") -> list[bytes]:
    """Return the images of a form, of which some may be texts: data URIs or base64.

    Args:
        field: name of their part, for errors.

    Raises: Invalid: such an image cannot be read.
    """
    return [
        (await from_texts(call, [data.decode(errors="replace")], field))[0]
        if data.startswith(TEXTS)
        else data
        for data in contents
    ]


async def from_texts(call: Call, texts: Sequence[str], field: str = "image") -> list[bytes]:
    """Read images, each a data URI, base64 or a URL.

    Args:
        field: of the request, for errors.

    Raises: Invalid.
    """
    try:
        return [
            await while_connected(call.request, bytes_of(call.front, text, call.client))
            for text in texts
        ]
    except ImageFileError as error:
        raise Invalid([FieldError(field, str(error))]) from error


async def edit_options(call: Call, body: ImageEditBody) -> ImageOptions:
    """Read the images of an edit as JSON. Raises: Invalid: as `input_images`, or no image."""
    options = await input_images(call, body, body.input_images())
    masks = await from_texts(call, body.masks(), "mask")
    files = {**options.files, **({"mask_image": masks[0]} if masks else {})}
    return ImageOptions(body, files, options.references)


async def input_images(call: Call, body: ImageRequest, urls: Sequence[str]) -> ImageOptions:
    """Read the input images of a conversation or an edit, each a data URI or a URL.

    Raises: Invalid: an image cannot be read, or the model takes fewer; none is fetched then.
    """
    spec = (await call.front.models.get(body.model)).spec
    most = 1 + spec.limits.max_reference_images if "image" in spec.fields else 0
    if len(urls) > most:
        message = f"has {len(urls)} images; the model {spec.name!r} accepts {most} at most"
        raise Invalid([FieldError("image", message)])
    files = await from_texts(call, urls)
    return ImageOptions(body, {"image": files[0]} if files else {}, files[1:])
