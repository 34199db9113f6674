"""Field types and nested objects of request bodies."""

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
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    model_validator,
)

from models.spec.field_types import (
    SWITCH,
    Count,
    Fraction,
    NoiseLevel,
    Offset,
    Pixels,
    Strength,
    Switch,
)
from models.spec.hires import HiresScale
from models.spec.lora import without_ending
from models.spec.output_options import Background
from service.errors.problems import UNION_TAG

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


_LORA_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9 ._+()&'-]{0,98}[A-Za-z0-9._+()&'-])?")


def _check_lora_name(name: str) -> str:
    if not _LORA_NAME.fullmatch(name):
        raise ValueError(
            "must have up to 100 letters, digits, spaces and ._+()&'-, and begin with a letter or"
            " digit"
        )
    return name


LoraName = Annotated[
    str,
    AfterValidator(_check_lora_name),
    AfterValidator(without_ending),
    WithJsonSchema({"type": "string", "pattern": f"^{_LORA_NAME.pattern}$"}),
]
"""Name of an uploaded adapter, without the ending of a file."""
LoraScale = Annotated[float, Field(ge=-100, le=100)]
MAX_LORAS = 64
"""Maximum number of adapters per request, regardless of settings."""
MAX_LORA_INTERVALS = 16
"""Maximum number of intervals of an adapter's scale."""
MAX_LISTED_IMAGES = 16
"""Maximum number of images in one list of a request, regardless of model."""
ImageScale = Annotated[float, Field(ge=0, le=10)]
"""Strength of an image's effect."""
MAX_SENT_FRAMES = 1024
"""Maximum number of frames of a video sent as a list, regardless of model."""
MAX_HINTS = 100
"""Maximum number of factors of `conditioning_scale`, regardless of model."""
MAX_TEXT_CHARS = 2**20
"""Maximum length of any text but an image, regardless of settings. Searching it takes
milliseconds."""


def _plain(text: str) -> str:
    if len(text) > MAX_TEXT_CHARS:
        raise ValueError(f"must have at most {MAX_TEXT_CHARS} characters")
    if match := _BAD_CHARACTER.search(text):
        raise ValueError(
            f"character {match.start()} is not text (a control character or an unpaired surrogate)"
        )
    return text


def _scalar(value: Any) -> Any:
    if not isinstance(value, str | bool | int | float | None):
        raise ValueError("must be a text, a number, true, false or null")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("must be a finite number")
    return _plain(value) if isinstance(value, str) else value


def http_url(url: str) -> str:
    """Validate an http(s) URL that clients supply.

    Raises: ValueError: not a URL that can be requested; the message states why.
    """
    try:
        parts = urlsplit(url)
        port_is_wrong = parts.port == 0
        httpx.URL(url).host  # noqa: B018 - raises on an invalid international name
    except (ValueError, httpx.InvalidURL):
        raise ValueError("it is not a URL; its host or port is invalid") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port_is_wrong:
        raise ValueError("it must be an absolute http or https URL")
    if parts.username is not None or parts.password is not None:
        raise ValueError("it must not contain a user or a password")
    return url


Text = Annotated[str, AfterValidator(_plain), WithJsonSchema(_PLAIN)]
"""Text without control characters other than tab and line ends."""

ImageData = Annotated[str, WithJsonSchema(_PLAIN)]
"""Image in base64, or a URL. The content is validated when it is decoded."""


def _kind_of_video(value: Any) -> str:
    return f"{UNION_TAG}frames" if isinstance(value, list) else f"{UNION_TAG}file"


Video = Annotated[
    Annotated[ImageData, Tag(f"{UNION_TAG}file")]
    | Annotated[
        list[ImageData],
        Field(max_length=MAX_SENT_FRAMES),
        Tag(f"{UNION_TAG}frames"),
    ],
    Discriminator(_kind_of_video),
]
"""Video in base64, or a URL; or a list of images, one per frame."""

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
DescendingNoiseLevels = Annotated[list[NoiseLevel], Field(min_length=1, max_length=10_000)]
Size = Annotated[list[Offset], Field(min_length=2, max_length=2)]


TITLES = {
    "clip_skip": "CLIP skip",
    "loras": "Adapters (LoRA)",
    "deadline_s": "Deadline in seconds",
    "draft_ttl_s": "Lifetime of drafts in seconds",
    "eta": "Eta of DDIM",
    "fps": "Frames per second",
    "num_frames": "Frames",
    "num_images": "Images",
    "num_inference_steps": "Steps",
    "true_cfg_scale": "True CFG scale",
}
"""Form titles of fields whose name alone is unclear."""


def title_of(field: str, _: object) -> str:
    """Return a field's OpenAPI title, by default its name in words."""
    return TITLES.get(field, field.replace("_", " ").capitalize())


class Body(BaseModel):
    """Base of request objects: frozen, strict, without unknown fields."""

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
    """Format of the files. Default: according to the Accept header, else `png` (`mp4` for video).
    With `png` a video becomes one lossless output per frame: frame f of video i has the index i *
    num_frames + f."""
    quality: Annotated[int, Field(ge=1, le=100)] | None = None
    """Encoding quality of lossy formats. Default: the encoder's."""
    background: Background | None = None
    """`transparent`: images with alpha, as PNG or WebP, of models with `has_alpha` (`GET
    /v1/models`). Default: `opaque`."""
    inline: bool = False
    """Whether the outputs of the finished job include their bytes in base64. If too many bytes are
    in flight, the response that creates a job and the last event omit them, with a warning."""
    metadata: bool = True
    """Whether the files contain their recipe: fields, seed and model, readable by Atelier and
    AUTOMATIC1111, and IPTC's mark of generated images. It never includes input images, `webhook`
    and `metadata`. Always false if the operator has disabled it."""


class SchedulerRequest(Body):
    """Scheduler by name, with its options as further fields."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Scalar]

    name: Name
    """Name of one of the model's `schedulers`."""


def _named(value: Any) -> Any:
    """Expand a scheduler given as plain text to an object with its name."""
    return {"name": value} if isinstance(value, str) else value


NamedScheduler = Annotated[
    SchedulerRequest, BeforeValidator(_named, json_schema_input_type=SchedulerRequest | Name)
]
"""Scheduler with options, or only its name."""


class WebhookRequest(Body):
    """Webhook that receives a message, signed as in Standard Webhooks, when the job has ended."""

    url: Url
    """URL that receives a POST."""
    events: Annotated[list[EndEvent], Field(min_length=1)] = Field(
        default_factory=lambda: list(END_EVENTS)
    )
    """End states to report. Default: all."""


class LoraInterval(Body):
    """Scale of an adapter in one interval of the steps."""

    start: Fraction = Field(alias="from")
    """Start of the interval, as a share of the steps."""
    to: Fraction
    """End of the interval, as a share of the steps."""
    scale: LoraScale
    """Strength of the adapter's effect in these steps."""

    @model_validator(mode="after")
    def _ends_after_its_start(self) -> LoraInterval:
        if self.start >= self.to:
            raise ValueError(f"from {self.start:g} must be less than to {self.to:g}")
        return self


def _check_overlaps(intervals: list[LoraInterval]) -> list[LoraInterval]:
    """Reject overlapping intervals of a LoRA's scale. Raises: ValueError."""
    ordered = sorted(intervals, key=lambda interval: interval.start)
    for interval, following in pairwise(ordered):
        if following.start < interval.to:
            raise ValueError(
                f"the intervals {interval.start:g} to {interval.to:g} and {following.start:g} to"
                f" {following.to:g} overlap"
            )
    return intervals


def _kind_of_scale(value: Any) -> str:
    return f"{UNION_TAG}intervals" if isinstance(value, list) else f"{UNION_TAG}number"


LoraIntervals = Annotated[
    list[LoraInterval],
    Field(min_length=1, max_length=MAX_LORA_INTERVALS),
    AfterValidator(_check_overlaps),
]


class LoraRequest(Body):
    """LoRA adapter of a request: its name and scale."""

    name: Name
    """Name of an adapter from `GET /v1/loras`."""
    scale: Annotated[
        Annotated[LoraScale, Tag(f"{UNION_TAG}number")]
        | Annotated[LoraIntervals, Tag(f"{UNION_TAG}intervals")],
        Discriminator(_kind_of_scale),
    ] = 1.0
    """Strength of its effect: a number, which may be negative, or a list of intervals of the steps,
    each with its scale. Outside the intervals the scale is 0."""


class QualityAim(Body):
    """Minimum fidelity, instead of a preset's name."""

    min_psnr_db: Annotated[float, Field(gt=0, le=100)]
    """PSNR against the exact image. The fastest preset whose calibration images all reached it is
    used, or `exact` if none did. Except for `exact`, this guarantees nothing for an individual
    image."""


def kind_of_quality(value: Any) -> str:
    """Return the union tag of `quality`: a preset's name or an aim."""
    return f"{UNION_TAG}{'name' if isinstance(value, str) else 'aim'}"


class ControlRequest(Body):
    """Control image of the spatial layout, for a ControlNet of the model."""

    name: Name
    """Name of one of the model's `controls`."""
    image: ImageData
    """Control image in the form that the ControlNet expects, or any image with `preprocess`."""
    scale: ImageScale = 1.0
    """Strength of its effect."""
    start: Fraction = 0.0
    """Start of its effect, as a share of the steps."""
    end: Fraction = 1.0
    """End of its effect, as a share of the steps."""
    preprocess: Literal["canny"] | None = None
    """Preprocessing of `image`: `canny` detects edges. Default: none."""

    @model_validator(mode="after")
    def _ends_after_its_start(self) -> ControlRequest:
        if self.start >= self.end:
            raise ValueError(f"start {self.start:g} must be less than end {self.end:g}")
        return self


class ImagePromptRequest(Body):
    """Image that serves as a prompt, for Redux or an IP-Adapter of the model."""

    image: ImageData
    """Image with the desired content or style."""
    name: Name | None = None
    """Name of one of the model's `image_prompts`. Optional if the model has only one."""
    scale: ImageScale = 1.0
    """Strength of its effect."""


class UpscaleRequest(Body):
    """Upscaler of the finished image. The output is larger than `width` and `height`."""

    name: Name | None = None
    """Name of one of the model's `upscalers`. Optional if the model has only one."""
    scale: Annotated[float, Field(ge=1, le=16)] | None = None
    """Sides of the output, relative to `width` and `height`: at most the upscaler's own scale. For
    smaller values its result is scaled down. Default: the upscaler's own."""


class HiresRequest(Body):
    """Hires fix: second pass over each image, as image to image at a larger size."""

    scale: HiresScale | None = None
    """Sides of the target, relative to `width` and `height`, rounded to the model's multiple.
    Default: 2, if neither `width` nor `height` is set."""
    width: Pixels | None = None
    """Width of the target, instead of `scale`. Default: in proportion to `height`."""
    height: Pixels | None = None
    """Height of the target, instead of `scale`. Default: in proportion to `width`."""
    upscaler: Name | None = None
    """Upscaler between the passes: one of the model's `hires_upscalers`, by default the first.
    `latent` resizes the latents, which needs a `strength` of about 0.5 or more. `lanczos` resizes
    the decoded image. One of the model's `upscalers` enlarges the image, which is resized to the
    target. Others are networks that enlarge the model's latents, with their own `scale`, steps and
    guidance."""
    strength: Strength | None = None
    """Share of the second pass's steps that run, that is, how much changes. Default: 0.7."""
    num_inference_steps: Count | None = None
    """Number of denoising steps of the second pass, before `strength` is applied. Default: the
    first pass's."""

    @model_validator(mode="after")
    def _has_one_size(self) -> HiresRequest:
        if self.scale is not None and (self.width, self.height) != (None, None):
            raise ValueError("send scale, or width and height, not both")
        return self


class RefinerRequest(Body):
    """SDXL refiner, which runs the last steps."""

    switch: Switch = SWITCH
    """Share of the noise schedule before the refiner starts, as in diffusers' `denoising_end` and
    `denoising_start`."""
