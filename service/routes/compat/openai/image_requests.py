"""Image requests of OpenAI's API, and their conversion to the fields of `POST /v1/generate`.

Source: openai-python, src/openai/types/image_generate_params.py, image_edit_params.py,
image_create_variation_params.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from models.spec.model_spec import ModelSpec
from service.errors.problems import FieldError, Invalid
from service.routes.compat.endpoint import file_format, lowered
from service.routes.compat.names import FieldNames
from service.routes.compat.nearest_size import size_of_ratio
from service.routes.compat.openai import examples
from service.routes.compat.openai.extra_fields import OpenAIBody, merge_extra_fields, split_images
from service.routes.compat.openai.field_values import preset_of, sides_of
from service.schemas.examples import schema_example
from service.schemas.request_parts import MAX_LISTED_IMAGES
from service.settings.limits import LimitSettings

IMAGE_TASKS = frozenset(("text-to-image", "image-to-image", "inpainting"))
MAX_PARTIAL_IMAGES = 3
SIDES = frozenset(("width", "height"))


class ImageRequest(OpenAIBody):
    """Request for images (`images.generate`).

    Other fields of `POST /v1/generate` may be added.
    """

    model_config = ConfigDict(extra="allow", json_schema_extra=schema_example(examples.REQUEST))

    prompt: str
    """Description of the image."""
    model: str | None = None
    """Name of a model from `GET /v1/models`. Optional if only one model is served."""
    n: int | None = None
    """Number of images. Default: 1."""
    size: str | None = None
    """Width and height in pixels, such as `1024x1024`. `auto` (default): the model's size, or the
    size closest to the input image."""
    quality: str | None = None
    """`low`, `medium` or `high`: the presets `fast`, `high` and `exact` if the model has them. `hd`
    equals `high`; `auto` and `standard` select the model's default. Or a preset's name."""
    response_format: Annotated[Literal["url", "b64_json"], BeforeValidator(lowered)] | None = None
    """Signed links that expire (`url`), or base64 (default)."""
    output_format: (
        Annotated[Literal["png", "jpeg", "webp"], BeforeValidator(file_format)] | None
    ) = None
    """Format of the files. Default: `png`."""
    output_compression: Annotated[int, Field(ge=0, le=100)] | None = None
    """Encoding quality of JPEG and WebP."""
    background: (
        Annotated[Literal["auto", "opaque", "transparent"], BeforeValidator(lowered)] | None
    ) = None
    """Background; `transparent` is rejected, since no model here generates an alpha channel."""
    moderation: str | None = None
    """Accepted without effect: the operator configures the safety check."""
    service_tier: str | None = None
    """Accepted without effect: `priority` orders the jobs of a key."""
    style: str | None = None
    """Accepted without effect, with a warning: describe the style in the prompt."""
    user: str | None = None
    """Identifier of an end user, stored in the job's metadata."""
    safety_identifier: str | None = None
    """Alternative to `user`, with precedence."""
    stream: bool | None = None
    """Respond with server-sent events."""
    partial_images: Annotated[int, Field(ge=0, le=MAX_PARTIAL_IMAGES)] | None = None
    """Number of previews in the stream. Fast jobs may send fewer."""


_FILES: Mapping[str, Any] = {
    "image": {
        "type": "string",
        "format": "binary",
        "description": "Input image: PNG, JPEG or WebP. `image[]` is the same and may be repeated:"
        " further images become `reference_images`, if the model accepts any.",
    },
    "mask": {
        "type": "string",
        "format": "binary",
        "description": "PNG or WebP: the image is regenerated where it is transparent.",
    },
}


def _with_image_and_mask(schema: dict[str, Any]) -> None:
    schema["properties"] |= _FILES
    schema["required"] = [*schema.get("required", ()), "image"]
    schema["examples"] = [examples.EDIT]


def _with_image(schema: dict[str, Any]) -> None:
    schema["properties"]["image"] = _FILES["image"]
    schema["required"] = [*schema.get("required", ()), "image"]
    schema["examples"] = [examples.VARIATION]


class ImageEditForm(ImageRequest):
    """Form for edits of an image, as OpenAI's `images.edit`."""

    model_config = ConfigDict(json_schema_extra=_with_image_and_mask)

    input_fidelity: str | None = None
    """Fidelity to the input image: `low` (default); `high` has no effect, since `strength` controls
    this."""


class ImageEditBody(ImageEditForm):
    """JSON body for edits of an image: OpenAI's `images`, or `image` as in other engines."""

    images: Any = None
    """Input images: each an object with `image_url`, or a data URI, base64 or URL."""
    image: Any = None
    """Alternative name of `images`."""
    mask: Any = None
    """Mask, in the same form."""

    def input_images(self) -> list[str]:
        """Return the input images, each a data URI, base64 or a URL. Raises: Invalid."""
        name = "image" if self.images is None else "images"
        value = getattr(self, name)
        items = value if isinstance(value, list) else [value]
        if value in (None, []):
            message = 'send at least one image, as a data URI: {"image_url": "data:…"}'
            raise Invalid([FieldError("images", message)])
        return [_image_url(item, f"{name}.{index}") for index, item in enumerate(items)]

    def masks(self) -> list[str]:
        """Return the mask, if any, as in `input_images`. Raises: Invalid."""
        return [_image_url(self.mask, "mask")] if self.mask else []


def _image_url(item: Any, field: str) -> str:
    """Return an image's data URI, base64 or URL. Raises: Invalid: it is none."""
    url = item.get("image_url", item.get("url")) if isinstance(item, Mapping) else item
    url = url.get("url") if isinstance(url, Mapping) else url
    if not isinstance(url, str) or not url:
        message = "must have an image_url, a data URI or a URL; uploaded files cannot be referenced"
        raise Invalid([FieldError(field, message)])
    return url


class ImageVariationForm(ImageRequest):
    """Form for variations of an image, as OpenAI's `images.create_variation`."""

    model_config = ConfigDict(json_schema_extra=_with_image)

    prompt: str = ""
    """Description of the image. Default: none."""


def to_generate_fields(
    body: ImageRequest, spec: ModelSpec, limits: LimitSettings
) -> dict[str, Any]:
    """Convert an OpenAI image request to the fields of `POST /v1/generate`.

    Args:
        limits: of the server, within which `aspect_ratio` selects a size.

    Raises: Invalid.
    """
    if errors := [*_unserved(body, spec)]:
        raise Invalid(errors)
    extra_fields = split_images(body.model_extra or {})
    ratio = extra_fields.pop("aspect_ratio", None)
    fields, names = _fields(body, spec), field_names(body)
    if ratio is not None and not SIDES & {*fields, *extra_fields}:
        size = size_of_ratio(spec, limits, ratio, "aspect_ratio")
        fields |= zip(("width", "height"), size, strict=True) if size else ()
    if user := body.safety_identifier or body.user:
        fields["metadata"] = {"user": user} | _members(extra_fields, "metadata")
    if "output" in fields and "output" in extra_fields:
        output = _members(extra_fields, "output")
        fields["output"] = merge_extra_fields(fields["output"], output, names, inside="output.")
    return merge_extra_fields(fields, extra_fields, names)


def _fields(body: ImageRequest, spec: ModelSpec) -> dict[str, Any]:
    output = {
        "format": body.output_format,
        "quality": _quality(body.output_compression),
        "background": None if body.background == "auto" else body.background,
    }
    fields = {
        "model": body.model,
        "prompt": body.prompt,
        "num_images": body.n,
        "quality": preset_of(body.quality, spec),
        "output": {name: value for name, value in output.items() if value is not None} or None,
        **sides_of(body.size),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _quality(compression: int | None) -> int | None:
    return None if compression is None else max(1, compression)


def _members(extra_fields: dict[str, Any], name: str) -> dict[str, Any]:
    """Remove a nested object from the additional fields and return it. Raises: Invalid."""
    members = extra_fields.pop(name, {})
    if not isinstance(members, dict):
        raise Invalid([FieldError(name, "must be an object")])
    return members


def _unserved(body: ImageRequest, spec: ModelSpec) -> Iterator[FieldError]:
    if not IMAGE_TASKS & {*spec.tasks}:
        message = f"the model {spec.name!r} generates videos; use POST /v1/videos"
        yield FieldError("model", message)


def field_names(body: ImageRequest) -> FieldNames:
    """Return the OpenAI names of the converted fields, for errors."""
    foreign = {
        "num_images": "n",
        "mask_image": "mask",
        **{f"reference_images.{number}": "image" for number in range(MAX_LISTED_IMAGES)},
        "output.format": "output_format",
        "output.quality": "output_compression",
        "output.background": "background",
        "metadata.user": "user",
    }
    if sides_of(body.size):
        foreign |= {"width": "size", "height": "size"}
    return FieldNames(foreign)
