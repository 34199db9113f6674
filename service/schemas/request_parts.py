"""Values and parts of the bodies that clients send, strictly read."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import httpx
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    model_validator,
)

from models.spec.field_types import (
    Count,
    Fraction,
    NoiseLevel,
    Offset,
    Pixels,
    Strength,
)
from models.spec.hires import HiresScale
from models.spec.refiner import SWITCH, Switch
from service.errors.field_paths import UNION_TAG

MEDIA_TYPES = {
    "png": "image/png",
    "jpeg": "image/jpeg",
    "webp": "image/webp",
    "mp4": "video/mp4",
    "webm": "video/webm",
    "gif": "image/gif",
}
"""Media type of each output format."""

EndEvent = Literal["succeeded", "paused", "failed", "canceled", "expired"]
END_EVENTS: tuple[EndEvent, ...] = ("succeeded", "paused", "failed", "canceled", "expired")

_BAD_CHARACTER = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_PLAIN = {"type": "string", "pattern": r"^[^\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f]*$"}


LoraName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
"""Name of an uploaded adapter: a part of addresses."""
LoraScale = Annotated[float, Field(ge=-100, le=100)]
MAX_LORAS = 64
"""Maximum number of adapters per request, whatever the settings say."""
MAX_LORA_INTERVALS = 16
"""Maximum number of intervals of an adapter's scale."""
MAX_LISTED_IMAGES = 16
"""Maximum number of images in one list of a request, whatever the model."""
ImageScale = Annotated[float, Field(ge=0, le=10)]
"""Strength of an image's effect."""
MAX_SENT_FRAMES = 1024
"""Maximum number of frames of a video that comes as a list of them, whatever the model."""
MAX_HINTS = 100
"""Maximum number of factors of `conditioning_scale`, whatever the model."""
MAX_TEXT_CHARS = 2**20
"""Maximum length of any text but an image, whatever the settings say: searched in milliseconds."""


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


def _kind_of_video(value: Any) -> str:
    return f"{UNION_TAG}frames" if isinstance(value, list) else f"{UNION_TAG}file"


Video = Annotated[
    Annotated[Picture, Tag(f"{UNION_TAG}file")]
    | Annotated[
        list[Picture],
        Field(max_length=MAX_SENT_FRAMES),
        Tag(f"{UNION_TAG}frames"),
    ],
    Discriminator(_kind_of_video),
]
"""A video in base64, or an address; or a list of images, one a frame."""

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


TITLES = {
    "clip_skip": "CLIP skip",
    "loras": "Adapters (LoRA)",
    "deadline_s": "Deadline in seconds",
    "eta": "Eta of DDIM",
    "fps": "Frames per second",
    "num_frames": "Frames",
    "num_images": "Images",
    "num_inference_steps": "Steps",
    "true_cfg_scale": "True CFG scale",
}
"""Titles for forms, where a field's name alone does not read well."""


def title_of(field: str, _: object) -> str:
    """Return a field's title: its name in words."""
    return TITLES.get(field, field.replace("_", " ").capitalize())


class Body(BaseModel):
    """Base of the parts of a request: frozen, strict, without unknown fields."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        field_title_generator=title_of,
    )


class OutputRequest(Body):
    """Files of a job: their format and quality."""

    format: Literal["png", "jpeg", "webp", "mp4", "webm", "gif"] | None = None
    """Format of the files. Default: what the Accept header asks for, else `png` (`mp4` for video).
    `png` of a video is one lossless output a frame: frame f of video i has the index
    i * num_frames + f."""
    quality: Annotated[int, Field(ge=1, le=100)] | None = None
    """Encoding quality of lossy formats. Default: the encoder's."""
    inline: bool = False
    """Whether the outputs of the finished job also hold their bytes in base64. Where too many bytes
    are in flight, the answer that names a new job and the last event come without them, with a
    warning."""
    metadata: bool = True
    """Whether the files hold their recipe: fields, seed and model, as Atelier and AUTOMATIC1111
    read them, and IPTC's mark of made images. Input images, `webhook` and `metadata` are never in
    it. False where the operator has switched it off."""


class SchedulerRequest(Body):
    """Scheduler by name, with its own options beside it."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Scalar]

    name: Name
    """Name of one of the model's `schedulers`."""


class WebhookRequest(Body):
    """Address to notify of the job's end, by messages signed as Standard Webhooks says."""

    url: Url
    """Address that is sent a POST."""
    events: Annotated[list[EndEvent], Field(min_length=1)] = Field(
        default_factory=lambda: list(END_EVENTS)
    )
    """End states that it is told of. Default: all."""


class LoraInterval(Body):
    """Scale of an adapter in a part of the steps."""

    start: Fraction = Field(alias="from")
    """Share of the steps before it."""
    to: Fraction
    """Share of the steps before its end."""
    scale: LoraScale
    """Strength of the adapter's effect in these steps."""

    @model_validator(mode="after")
    def _ends_after_its_start(self) -> LoraInterval:
        if self.start >= self.to:
            raise ValueError(f"from {self.start:g} must be less than to {self.to:g}")
        return self


def _apart(intervals: list[LoraInterval]) -> list[LoraInterval]:
    """Return the intervals. Raises: ValueError: some overlap."""
    ordered = sorted(intervals, key=lambda one: one.start)
    for one, after in pairwise(ordered):
        if after.start < one.to:
            raise ValueError(
                f"the intervals {one.start:g} to {one.to:g} and {after.start:g} to {after.to:g}"
                " overlap"
            )
    return intervals


def _kind_of_scale(value: Any) -> str:
    return f"{UNION_TAG}intervals" if isinstance(value, list) else f"{UNION_TAG}number"


LoraIntervals = Annotated[
    list[LoraInterval],
    Field(min_length=1, max_length=MAX_LORA_INTERVALS),
    AfterValidator(_apart),
]


class LoraRequest(Body):
    """Adapter by name, with its scale."""

    name: Name
    """Name of an adapter from `GET /v1/loras`."""
    scale: Annotated[
        Annotated[LoraScale, Tag(f"{UNION_TAG}number")]
        | Annotated[LoraIntervals, Tag(f"{UNION_TAG}intervals")],
        Discriminator(_kind_of_scale),
    ] = 1.0
    """Strength of its effect: a number, which may be negative, or a list of intervals of the steps,
    each with its scale; outside of all of them it is 0."""


class QualityAim(Body):
    """Likeness that is wanted, in place of a preset's name."""

    min_psnr_db: Annotated[float, Field(gt=0, le=100)]
    """PSNR against the exact image that every image of the calibration set has kept: the fastest
    preset that has is taken, and `exact` where none is known to. Unless that is taken, it promises
    nothing of one request's image."""


def kind_of_quality(value: Any) -> str:
    """Return the tag of a preset's name, or of an aim."""
    return f"{UNION_TAG}{'name' if isinstance(value, str) else 'aim'}"


class ControlRequest(Body):
    """Image that says what is where, by a ControlNet of the model."""

    name: Name
    """Name of one of the model's `controls`."""
    image: Picture
    """Image to follow: as its ControlNet reads it, or any image with `preprocess`."""
    scale: ImageScale = 1.0
    """Strength of its effect."""
    start: Fraction = 0.0
    """Share of the steps before it."""
    end: Fraction = 1.0
    """Share of the steps before its end."""
    preprocess: Literal["canny"] | None = None
    """Preprocessing of `image`: `canny` draws its edges. Default: none, it is used as it is."""

    @model_validator(mode="after")
    def _ends_after_its_start(self) -> ControlRequest:
        if self.start >= self.end:
            raise ValueError(f"start {self.start:g} must be less than end {self.end:g}")
        return self


class ImagePromptRequest(Body):
    """Image that says what to draw, as the prompt does: by Redux or an IP-Adapter of the model."""

    image: Picture
    """Image whose content or style is wanted."""
    name: Name | None = None
    """Name of one of the model's `image_prompts`. May be left out where it has only one."""
    scale: ImageScale = 1.0
    """Strength of its effect."""


class UpscaleRequest(Body):
    """Upscaler of the finished image, which has more pixels then than `width` and `height` say."""

    name: Name | None = None
    """Name of one of the model's `upscalers`. May be left out where it has only one."""
    scale: Annotated[float, Field(ge=1, le=16)] | None = None
    """Sides of the output, relative to `width` and `height`: at most the upscaler's own scale;
    less is resized from that. Default: the upscaler's own."""


class HiresRequest(Body):
    """Second pass over each image, as image to image at a larger size."""

    scale: HiresScale | None = None
    """Sides of the target, relative to `width` and `height`, rounded to the model's multiple.
    Default: 2, where neither `width` nor `height` is set."""
    width: Pixels | None = None
    """Width of the target, in place of `scale`. Default: by `height`."""
    height: Pixels | None = None
    """Height of the target, in place of `scale`. Default: by `width`."""
    upscaler: Name | None = None
    """Upscaler between the passes, one of the model's `hires_upscalers`, of which the first is the
    default. `latent`: the latents are resized, which needs a `strength` of about 0.5 or more.
    `lanczos`: the decoded image is resized. One of the model's `upscalers`: its image is resized to
    the target. Any other is a network that enlarges the model's own latents, and has a `scale`,
    steps and guidance of its own."""
    strength: Strength | None = None
    """Share of the second pass's steps that run: how much is drawn anew. Default: 0.7."""
    num_inference_steps: Count | None = None
    """Number of denoising steps of the second pass, of which `strength` runs a share. Default: the
    first pass's."""

    @model_validator(mode="after")
    def _has_one_size(self) -> HiresRequest:
        if self.scale is not None and (self.width, self.height) != (None, None):
            raise ValueError("send scale, or width and height, not both")
        return self


class RefinerRequest(Body):
    """Refiner of the model, which takes the last steps."""

    switch: Switch = SWITCH
    """Share of the noise schedule before its steps, as diffusers' `denoising_end` and
    `denoising_start` count it."""
