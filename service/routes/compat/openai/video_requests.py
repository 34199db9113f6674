"""Requests for videos, and what they say in our fields.

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
from service.routes.compat.door import DoorBody
from service.routes.compat.names import Names
from service.routes.compat.openai import examples
from service.routes.compat.openai.further import joined
from service.routes.compat.openai.sizes import sides_of
from service.schemas.examples import shown
from service.schemas.request import GenerateRequest

VIDEO_TASKS = frozenset(("text-to-video", "image-to-video"))
REMIXED_FROM = "remixed_from_video_id"
"""Name in a job's metadata of the video that it is a remix of."""
MAX_SECONDS = 3600
_FPS = 16
"""Frames per second of a model without a default."""


class VideoSettings(DoorBody):
    """Settings of a video; any other field of `POST /v1/generate` may stand beside them."""

    model_config = ConfigDict(extra="allow")

    prompt: str
    """Description of the video."""
    model: str | None = None
    """Name of a model from `GET /v1/models`. May be left out where only one is served."""
    seconds: Annotated[float, Field(gt=0, le=MAX_SECONDS)] | None = None
    """Length of the video: the nearest number of frames that the model makes. `num_frames` says it
    exactly."""
    size: str | None = None
    """Width and height in pixels, such as `832x480`. Default, and `auto`: the model's own."""


class InputReference(DoorBody):
    """Image that a video begins with."""

    image_url: str | None = None
    """A data URI, or an http(s) URL where the server allows it."""
    file_id: str | None = None
    """Refused: there are no uploaded files to refer to."""


class VideoRequest(VideoSettings):
    """Request for a video (`videos.create`) as JSON."""

    model_config = ConfigDict(json_schema_extra=shown(examples.VIDEO_REQUEST))

    input_reference: InputReference | None = None
    """Image that the video begins with."""


def _with_file(schema: dict[str, Any]) -> None:
    schema["properties"]["input_reference"] = {
        "type": "string",
        "format": "binary",
        "description": "PNG, JPEG or WebP that the video begins with.",
    }
    schema["examples"] = [examples.VIDEO_FORM]


class VideoForm(VideoSettings):
    """Request for a video (`videos.create`) as a form."""

    model_config = ConfigDict(json_schema_extra=_with_file)

    image_url: str | None = Field(None, alias="input_reference[image_url]")
    """The image's data URI, or its http(s) URL where the server allows it."""
    file_id: str | None = Field(None, alias="input_reference[file_id]")
    """Refused: there are no uploaded files to refer to."""

    @property
    def input_reference(self) -> InputReference | None:
        """Return the image where it is no file."""
        if self.image_url is None and self.file_id is None:
            return None
        return InputReference(image_url=self.image_url, file_id=self.file_id)


class RemixRequest(DoorBody):
    """Request for the same video by another prompt (`videos.remix`)."""

    model_config = ConfigDict(json_schema_extra=shown(examples.REMIX))

    prompt: str
    """Description of the new video."""


def translated(asked: VideoSettings, spec: ModelSpec, image: str | None = None) -> dict[str, Any]:
    """Return a request in our fields.

    Args:
        image: that the video begins with, in base64 or as an address.

    Raises: Invalid: it asks for what is not served.
    """
    if errors := [*_unserved(asked, spec)]:
        raise Invalid(errors)
    further = asked.model_extra or {}
    fields = {
        "model": asked.model,
        "prompt": asked.prompt,
        "num_frames": _frames(asked.seconds, further.get("fps"), spec),
        "image": image,
        **sides_of(asked.size),
    }
    given = {name: value for name, value in fields.items() if value is not None}
    return joined(given, further, names_of(asked))


def image_of(asked: InputReference | None) -> str | None:
    """Return the image of a request that is no file. Raises: Invalid."""
    if asked is None:
        return None
    if asked.file_id is not None:
        said = "there are no uploaded files to refer to; send the image itself"
        raise Invalid([FieldError("input_reference.file_id", said)])
    if asked.image_url is None:
        raise Invalid([FieldError("input_reference", "send a file, or an image_url")])
    return asked.image_url


def _frames(seconds: float | None, fps: Any, spec: ModelSpec) -> int | None:
    """Return the number of frames that a model makes nearest to so many seconds.

    Of an `fps` that none can be, admission says so: the number is that of the model's own.
    """
    if seconds is None:
        return None
    is_rate = type(fps) is int and 0 < fps <= MAX_FPS
    rate = fps if is_rate else spec.defaults.get("fps", _FPS)
    least, multiple = spec.limits.min_frames, spec.limits.frames_multiple
    return int(least + multiple * max(0, round((seconds * rate - least) / multiple)))


def _unserved(asked: VideoSettings, spec: ModelSpec) -> Iterator[FieldError]:
    if not VIDEO_TASKS & {*spec.tasks}:
        said = f"the model {spec.name!r} makes images; ask POST /v1/images/generations"
        yield FieldError("model", said)
    if (asked.model_extra or {}).get("num_images", 1) != 1:
        yield FieldError("num_images", "one video a request; ask again")


def names_of(asked: VideoSettings) -> Names:
    """Return what our fields are called in such a request."""
    foreign = {"image": "input_reference"}
    if asked.seconds is not None:
        foreign["num_frames"] = "seconds"
    if sides_of(asked.size):
        foreign |= {"width": "size", "height": "size"}
    return Names(foreign)


@contextmanager
def naming_frames(asked: VideoSettings, fields: Mapping[str, Any]) -> Iterator[None]:
    """Name the frames that so many seconds are in an error about them. Raises: Invalid.

    Args:
        fields: the request in ours.
    """
    try:
        yield
    except Invalid as problem:
        if asked.seconds is None or all(one.field != "seconds" for one in problem.errors):
            raise
        are = f"{asked.seconds:g} s are {fields['num_frames']} frames: "
        errors = [
            FieldError(one.field, are + one.message) if one.field == "seconds" else one
            for one in problem.errors
        ]
        raise Invalid(errors, code=problem.code) from problem


def remixed(
    request: Mapping[str, Any], job_id: str, prompt: str, images: Mapping[str, str]
) -> dict[str, Any]:
    """Return the request of a job with another prompt: its settings, images and seed.

    Args:
        request: resolved fields of the job.
        images: its images by path, in base64.
    """
    kept = GenerateRequest.model_fields.keys() - {"webhook", "deadline_s", "prompt_2"}
    fields = {name: value for name, value in request.items() if name in kept}
    fields = with_images(fields, lambda path, _: images[path])
    return {**fields, "prompt": prompt, "metadata": {REMIXED_FROM: job_id}}
