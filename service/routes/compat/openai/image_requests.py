"""Requests for images as OpenAI's clients send them, and what they say in our fields.

Source: openai-python, src/openai/types/image_generate_params.py, image_edit_params.py,
image_create_variation_params.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from models.spec.model_spec import ModelSpec
from service.errors.problems import FieldError, Invalid
from service.routes.compat.door import DoorBody
from service.routes.compat.names import Names
from service.routes.compat.openai import examples
from service.routes.compat.openai.further import joined
from service.routes.compat.openai.qualities import preset_of
from service.routes.compat.openai.sizes import sides_of
from service.schemas.examples import shown
from service.schemas.request_parts import MAX_LISTED_IMAGES

IMAGE_TASKS = frozenset(("text-to-image", "image-to-image", "inpainting"))
MAX_PARTIAL_IMAGES = 3


class ImageRequest(DoorBody):
    """Request for images (`images.generate`).

    Any other field of `POST /v1/generate` may stand beside these.
    """

    model_config = ConfigDict(extra="allow", json_schema_extra=shown(examples.REQUEST))

    prompt: str
    """Description of the image."""
    model: str | None = None
    """Name of a model from `GET /v1/models`. May be left out where only one is served."""
    n: int | None = None
    """Number of images. Default: 1."""
    size: str | None = None
    """Width and height in pixels, such as `1024x1024`. `auto`, as the default: the model's own, or
    the nearest to the image that is sent."""
    quality: str | None = None
    """`low`, `medium` or `high`: the presets `fast`, `high` and `exact` where the model has them;
    `hd` is `high`, `auto` and `standard` are the model's default. Or a preset's name."""
    response_format: Literal["url", "b64_json"] | None = None
    """Form of the images: signed links that expire, or base64, which is the default."""
    output_format: Literal["png", "jpeg", "webp"] | None = None
    """Format of the files. Default: `png`."""
    output_compression: Annotated[int, Field(ge=0, le=100)] | None = None
    """Encoding quality of JPEG and WebP."""
    background: Literal["auto", "opaque", "transparent"] | None = None
    """Background; no model here makes a transparent one."""
    moderation: Literal["auto", "low"] | None = None
    """Filter of what is made; without effect, since the operator decides."""
    style: str | None = None
    """Style of the image; refused, since the prompt says it."""
    user: str | None = None
    """Name of an end user, which the job's metadata keep."""
    safety_identifier: str | None = None
    """Another name of `user`, which goes before it."""
    stream: bool | None = None
    """Answer by server-sent events."""
    partial_images: Annotated[int, Field(ge=0, le=MAX_PARTIAL_IMAGES)] | None = None
    """Number of previews in the stream. There are fewer where the image is done sooner."""


_FILES: Mapping[str, Any] = {
    "image": {
        "type": "string",
        "format": "binary",
        "description": "PNG, JPEG or WebP to start from; `image[]` is the same, and may come"
        " several times: the further ones are `reference_images`, where the model sees any.",
    },
    "mask": {
        "type": "string",
        "format": "binary",
        "description": "PNG or WebP: the image is redrawn where it is transparent.",
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
    """Form that asks for edits of an image (`images.edit`)."""

    model_config = ConfigDict(json_schema_extra=_with_image_and_mask)

    input_fidelity: Literal["low", "high"] | None = None
    """Likeness to the image: `low`, the default; `high` is refused, since `strength` says it."""


class ImageVariationForm(ImageRequest):
    """Form that asks for variations of an image (`images.create_variation`)."""

    model_config = ConfigDict(json_schema_extra=_with_image)

    prompt: str = ""
    """Description of the image. Default: none."""


def translated(asked: ImageRequest, spec: ModelSpec) -> dict[str, Any]:
    """Return a request in our fields. Raises: Invalid: it asks for what is not served."""
    if errors := [*_unserved(asked, spec)]:
        raise Invalid(errors)
    further = dict(asked.model_extra or {})
    fields, names = _fields(asked, spec), names_of(asked)
    if user := asked.safety_identifier or asked.user:
        fields["metadata"] = {"user": user} | _members(further, "metadata")
    if "output" in fields and "output" in further:
        output = _members(further, "output")
        fields["output"] = joined(fields["output"], output, names, inside="output.")
    return joined(fields, further, names)


def _fields(asked: ImageRequest, spec: ModelSpec) -> dict[str, Any]:
    output = {"format": asked.output_format, "quality": _quality(asked.output_compression)}
    fields = {
        "model": asked.model,
        "prompt": asked.prompt,
        "num_images": asked.n,
        "quality": preset_of(asked.quality, spec),
        "output": {name: value for name, value in output.items() if value is not None} or None,
        **sides_of(asked.size),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _quality(compression: int | None) -> int | None:
    return None if compression is None else max(1, compression)


def _members(further: dict[str, Any], name: str) -> dict[str, Any]:
    """Take an object out of the further fields. Raises: Invalid: it is none."""
    found = further.pop(name, {})
    if not isinstance(found, dict):
        raise Invalid([FieldError(name, "must be an object")])
    return found


def _unserved(asked: ImageRequest, spec: ModelSpec) -> Iterator[FieldError]:
    if not IMAGE_TASKS & {*spec.tasks}:
        said = f"the model {spec.name!r} makes videos; ask POST /v1/videos"
        yield FieldError("model", said)
    if asked.background == "transparent":
        yield FieldError("background", "no model here makes a transparent one; leave it out")
    if asked.style is not None:
        yield FieldError("style", "is not served; say the style in the prompt")
    if getattr(asked, "input_fidelity", None) == "high":
        yield FieldError("input_fidelity", "is not served; strength says how much is redrawn")
    if asked.stream and asked.response_format == "url":
        yield FieldError("response_format", "a stream has its images in base64; leave it out")
    if asked.partial_images and not asked.stream:
        yield FieldError("partial_images", "come in a stream; send stream: true")


def names_of(asked: ImageRequest) -> Names:
    """Return what our fields are called in such a request."""
    foreign = {
        "num_images": "n",
        "mask_image": "mask",
        **{f"reference_images.{number}": "image" for number in range(MAX_LISTED_IMAGES)},
        "output.format": "output_format",
        "output.quality": "output_compression",
        "metadata.user": "user",
    }
    if sides_of(asked.size):
        foreign |= {"width": "size", "height": "size"}
    return Names(foreign)
