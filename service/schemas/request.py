"""The bodies that clients send, strictly read: no unknown field, no guessing of types."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import httpx
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from models.spec.field_types import (
    ClipSkip,
    Count,
    Fraction,
    FramesPerSecond,
    NoiseLevel,
    Offset,
    Pixels,
    Scale,
    Seed,
    Strength,
)

MEDIA_TYPES = {
    "png": "image/png",
    "jpeg": "image/jpeg",
    "webp": "image/webp",
    "mp4": "video/mp4",
    "webm": "video/webm",
    "gif": "image/gif",
}
"""Of each output format."""

EndEvent = Literal["succeeded", "failed", "canceled", "expired"]
END_EVENTS: tuple[EndEvent, ...] = ("succeeded", "failed", "canceled", "expired")

_BAD_CHARACTER = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_PLAIN = {"type": "string", "pattern": r"^[^\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f]*$"}


MAX_TEXT_CHARS = 2**20
"""Of any text but an image, whatever the settings say: what is searched in milliseconds."""


def _plain(text: str) -> str:
    if len(text) > MAX_TEXT_CHARS:
        raise ValueError(f"must have at most {MAX_TEXT_CHARS} characters")
    if found := _BAD_CHARACTER.search(text):
        raise ValueError(
            f"character {found.start()} is no text (a control character or half a one)"
        )
    return text


def _scalar(value: Any) -> Any:
    if not isinstance(value, str | bool | int | float | None):
        raise ValueError("must be a text, a number, true, false or null")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("must be a finite number")
    return _plain(value) if isinstance(value, str) else value


def http_url(url: str) -> str:
    """The address as it is. Raises: ValueError: nobody could be asked under it; says why."""
    try:
        parts = urlsplit(url)
        port_is_wrong = parts.port == 0
        httpx.URL(url).host  # noqa: B018 - fails where its international name is none
    except (ValueError, httpx.InvalidURL) as error:
        raise ValueError(f"it is no URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port_is_wrong:
        raise ValueError("it must be a whole http or https URL")
    if parts.username is not None or parts.password is not None:
        raise ValueError("it must not carry a user or a password")
    return url


Text = Annotated[str, AfterValidator(_plain), WithJsonSchema(_PLAIN)]
"""Text without control characters other than tab and line ends."""

Picture = Annotated[str, WithJsonSchema(_PLAIN)]
"""An image in base64, or an address; what it holds is checked where it is decoded."""

Name = Annotated[
    str,
    Field(min_length=1, max_length=200),
    AfterValidator(_plain),
    WithJsonSchema({**_PLAIN, "minLength": 1, "maxLength": 200}),
]
Label = Annotated[
    str,
    Field(max_length=512),
    AfterValidator(_plain),
    WithJsonSchema({**_PLAIN, "maxLength": 512}),
]
Url = Annotated[
    str,
    Field(max_length=2048),
    AfterValidator(_plain),
    AfterValidator(http_url),
    WithJsonSchema({"type": "string", "format": "uri", "maxLength": 2048}),
]
Scalar = Annotated[
    Any,
    AfterValidator(_scalar),
    WithJsonSchema({"type": ["string", "number", "boolean", "null"]}),
]
Falling = Annotated[list[NoiseLevel], Field(min_length=1, max_length=10_000)]
Size = Annotated[list[Offset], Field(min_length=2, max_length=2)]


class Body(BaseModel):
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class OutputRequest(Body):
    """How the pictures or clips come."""

    format: Literal["png", "jpeg", "webp", "mp4", "webm", "gif"] | None = None
    """Left out: what the Accept header asks for, else `png` (`mp4` for video). `png` of a video is
    one lossless output a frame: frame f of clip i has the index i * num_frames + f."""
    quality: Annotated[int, Field(ge=1, le=100)] | None = None
    """Of the formats that lose something; left out: the encoder's default here."""
    inline: bool = False
    """Adds the bytes in base64 to the outputs of the finished job. Where too many are in flight, an
    answer that names a new job and the last event come without them, with a warning."""


class SchedulerRequest(Body):
    """A scheduler by name, with that scheduler's own options beside it."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Scalar]

    name: Name


class WebhookRequest(Body):
    """Where to tell of the job's end, signed as Standard Webhooks says."""

    url: Url
    events: Annotated[list[EndEvent], Field(min_length=1)] = Field(
        default_factory=lambda: list(END_EVENTS)
    )


class GenerateRequest(Body):
    """One request for pictures or clips; a field that the model does not serve is refused."""

    model: Name | None = None
    """A name from `GET /v1/models`; may be left out where only one model is served."""
    prompt: Text
    negative_prompt: Text | None = None
    prompt_2: Text | None = None
    """For the second text encoder; left out: `prompt`."""
    negative_prompt_2: Text | None = None
    width: Pixels | None = None
    height: Pixels | None = None
    num_frames: Count | None = None
    """Of a clip: the model's `min_frames` more than a multiple of its `frames_multiple`."""
    fps: FramesPerSecond | None = None
    """Frames a second at which a clip is played; the frames are the same at any rate."""
    num_inference_steps: Count | None = None
    guidance_scale: Scale | None = None
    true_cfg_scale: Scale | None = None
    guidance_scale_2: Scale | None = None
    guidance_rescale: Fraction | None = None
    num_images: Count | None = None
    """Picture i is what the same request with `seed + i` and one picture gives."""
    seed: Seed | None = None
    """Left out: drawn at random and told in the answer."""
    max_sequence_length: Count | None = None
    clip_skip: ClipSkip | None = None
    original_size: Size | None = None
    target_size: Size | None = None
    crops_coords_top_left: Size | None = None
    negative_original_size: Size | None = None
    negative_target_size: Size | None = None
    negative_crops_coords_top_left: Size | None = None
    timesteps: Falling | None = None
    """The model's own timesteps instead of a spacing's, falling."""
    sigmas: Falling | None = None
    """Instead of the schedule's, falling: one a step (Flux), or noise levels of which the last is
    where the last step leads, usually 0 (SDXL)."""
    eta: Fraction | None = None
    """Of DDIM: how much noise each step adds."""
    scheduler: SchedulerRequest | None = None
    """Left out: the checkpoint's own."""
    quality: Name | None = None
    """A preset of the model's `qualities`, which trades likeness for speed; left out: the model's
    default, which is `exact` unless its operator chose another. How well a file is encoded is
    `output.quality`."""
    image: Picture | None = None
    """A data URI or bare base64 of a PNG, JPEG or WebP; an http(s) URL where the server allows."""
    mask_image: Picture | None = None
    """White where `image` is drawn anew; only with it."""
    last_image: Picture | None = None
    """The picture that a clip ends with; `image` is the one that it begins with."""
    strength: Strength | None = None
    """How much of `image` is drawn anew; only with it."""
    output: OutputRequest | None = None
    priority: Literal["low", "normal", "high"] = "normal"
    deadline_s: Annotated[float, Field(gt=0, le=30 * 86400)] | None = None
    """Seconds from now for which the answer is of use; after them the job expires."""
    webhook: WebhookRequest | None = None
    metadata: Annotated[dict[Name, Label], Field(max_length=16)] = Field(default_factory=dict)
    """Given back untouched."""


SERVICE_FIELDS = frozenset(
    (
        "model",
        "prompt",
        "seed",
        "num_images",
        "output",
        "priority",
        "deadline_s",
        "webhook",
        "metadata",
    )
)
"""Fields that the service itself understands, whatever the model."""


def model_fields(request: GenerateRequest) -> dict[str, Any]:
    """What the client set of the fields that are the model's business."""
    given = request.model_dump(exclude_none=True)
    kept = given.keys() - SERVICE_FIELDS | given.keys() & {"prompt", "seed", "num_images"}
    return {name: value for name, value in given.items() if name in kept}
