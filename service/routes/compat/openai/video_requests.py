"""Video requests of OpenAI's API, and their conversion to the fields of `POST /v1/generate`.

Source: openai-python, src/openai/types/video_create_params.py, video_remix_params.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from models.spec.field_types import MAX_FPS
from models.spec.model_spec import ModelSpec
from models.spec.request_images import with_images
from service.errors.problems import FieldError, Invalid
from service.routes.compat.endpoint import CompatibleRequestBody
from service.routes.compat.names import FieldNames
from service.routes.compat.openai import examples
from service.routes.compat.openai.extra_fields import merge_extra_fields
from service.routes.compat.openai.field_values import sides_of
from service.schemas.examples import schema_example
from service.schemas.request import GenerateRequest

VIDEO_TASKS = frozenset(("text-to-video", "image-to-video"))
REMIXED_FROM = "remixed_from_video_id"
"""Key of a job's metadata with the id of the video that it remixes."""
MAX_SECONDS = 3600
_FPS = 16
"""Frames per second of models without a default."""


class VideoSettings(CompatibleRequestBody):
    """Settings of a video request; other fields of `POST /v1/generate` may be added."""

    model_config = ConfigDict(extra="allow")

    prompt: str
    """Description of the video."""
    model: str | None = None
    """Name of a model from `GET /v1/models`. Optional if only one model is served."""
    seconds: Annotated[float, Field(gt=0, le=MAX_SECONDS)] | None = None
    """Length of the video, rounded to a supported number of frames. `num_frames` sets it exactly.
    """
    size: str | None = None
    """Width and height in pixels, such as `832x480`. Default, and `auto`: the model's size."""


class InputReference(CompatibleRequestBody):
    """First frame of a requested video."""

    image_url: str | None = None
    """Data URI, or an http(s) URL if the server allows it."""
    file_id: str | None = None
    """Rejected: uploaded files cannot be referenced."""


class VideoRequest(VideoSettings):
    """Request for a video as JSON, as OpenAI's `videos.create`."""

    model_config = ConfigDict(json_schema_extra=schema_example(examples.VIDEO_REQUEST))

    input_reference: InputReference | None = None
    """First frame of the video."""


def _with_file(schema: dict[str, Any]) -> None:
    schema["properties"]["input_reference"] = {
        "type": "string",
        "format": "binary",
        "description": "First frame of the video: PNG, JPEG or WebP.",
    }
    schema["examples"] = [examples.VIDEO_FORM]


class VideoForm(VideoSettings):
    """Request for a video as a form, as OpenAI's `videos.create`."""

    model_config = ConfigDict(json_schema_extra=_with_file)

    image_url: str | None = Field(None, alias="input_reference[image_url]")
    """The image's data URI, or an http(s) URL if the server allows it."""
    file_id: str | None = Field(None, alias="input_reference[file_id]")
    """Rejected: uploaded files cannot be referenced."""

    @property
    def input_reference(self) -> InputReference | None:
        """Return the form's first frame, unless it is an uploaded file."""
        if self.image_url is None and self.file_id is None:
            return None
        return InputReference(image_url=self.image_url, file_id=self.file_id)


class RemixRequest(CompatibleRequestBody):
    """Request for the same video with another prompt, as OpenAI's `videos.remix`."""

    model_config = ConfigDict(json_schema_extra=schema_example(examples.REMIX))

    prompt: str
    """Prompt of the new video."""


def to_generate_fields(
    body: VideoSettings, spec: ModelSpec, image: str | None = None
) -> dict[str, Any]:
    """Convert an OpenAI video request to the fields of `POST /v1/generate`.

    Args:
        image: first frame, in base64 or as a URL.

    Raises: Invalid: a value is unsupported.
    """
    if errors := [*_unserved(body, spec)]:
        raise Invalid(errors)
    extra_fields = body.model_extra or {}
    fields = {
        "model": body.model,
        "prompt": body.prompt,
        "num_frames": _frames(body.seconds, extra_fields.get("fps"), spec),
        "image": image,
        **sides_of(body.size),
    }
    present = {name: value for name, value in fields.items() if value is not None}
    return merge_extra_fields(present, extra_fields, field_names(body))


def image_of(reference: InputReference | None) -> str | None:
    """Return the image URL of a video's first frame. Raises: Invalid."""
    if reference is None:
        return None
    if reference.file_id is not None:
        message = "references to uploaded files are not supported; send the image itself"
        raise Invalid([FieldError("input_reference.file_id", message)])
    if reference.image_url is None:
        raise Invalid([FieldError("input_reference", "send a file, or an image_url")])
    return reference.image_url


def _frames(seconds: float | None, fps: Any, spec: ModelSpec) -> int | None:
    """Return the supported number of frames closest to a video's length in seconds.

    An invalid `fps` is replaced with the model's here; admission rejects it later.
    """
    if seconds is None:
        return None
    is_rate = type(fps) is int and 0 < fps <= MAX_FPS
    rate = fps if is_rate else spec.defaults.get("fps", _FPS)
    least, multiple = spec.limits.min_frames, spec.limits.frames_multiple
    return int(least + multiple * max(0, round((seconds * rate - least) / multiple)))


def _unserved(body: VideoSettings, spec: ModelSpec) -> Iterator[FieldError]:
    if not VIDEO_TASKS & {*spec.tasks}:
        message = f"the model {spec.name!r} generates images; use POST /v1/images/generations"
        yield FieldError("model", message)
    if (body.model_extra or {}).get("num_images", 1) != 1:
        yield FieldError("num_images", "one video per request; send another request")


def field_names(body: VideoSettings) -> FieldNames:
    """Return the OpenAI names of the converted fields, for errors."""
    foreign = {"image": "input_reference"}
    if body.seconds is not None:
        foreign["num_frames"] = "seconds"
    if sides_of(body.size):
        foreign |= {"width": "size", "height": "size"}
    return FieldNames(foreign)


@contextmanager
def naming_frames(body: VideoSettings, fields: Mapping[str, Any]) -> Iterator[None]:
    """Add the number of frames to errors about `seconds` raised inside. Raises: Invalid.

    Args:
        fields: the converted request.
    """
    try:
        yield
    except Invalid as problem:
        if body.seconds is None or all(error.field != "seconds" for error in problem.errors):
            raise
        prefix = f"{body.seconds:g} s are {fields['num_frames']} frames: "
        errors = [
            FieldError(error.field, prefix + error.message) if error.field == "seconds" else error
            for error in problem.errors
        ]
        raise Invalid(errors, code=problem.code) from problem


def remix_fields(
    request: Mapping[str, Any], job_id: str, prompt: str, images: Mapping[str, str]
) -> dict[str, Any]:
    """Return a job's request with another prompt but the same settings, images and seed.

    Args:
        request: resolved fields of the job.
        images: its input images by path, in base64.
    """
    names = GenerateRequest.model_fields.keys() - {"webhook", "deadline_s", "prompt_2"}
    fields = {name: value for name, value in request.items() if name in names}
    fields = with_images(fields, lambda path, _: images[path])
    return {**fields, "prompt": prompt, "metadata": {REMIXED_FROM: job_id}}
