"""Bodies that clients send, strictly read: no unknown field, no conversion of types."""

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
    ClipSkip,
    Count,
    Fraction,
    FramesPerSecond,
    NoiseLevel,
    Offset,
    Pixels,
    Scale,
    Score,
    Seed,
    Strength,
)
from models.spec.hires import LATENT, STRENGTH
from models.spec.lora import Expert
from models.spec.prompt_syntax import PromptSyntax
from models.spec.refiner import SWITCH, Switch
from service.errors.field_paths import UNION_TAG
from service.schemas.examples import GENERATE, UPLOAD, shown

MEDIA_TYPES = {
    "png": "image/png",
    "jpeg": "image/jpeg",
    "webp": "image/webp",
    "mp4": "video/mp4",
    "webm": "video/webm",
    "gif": "image/gif",
}
"""Media type of each output format."""

EndEvent = Literal["succeeded", "failed", "canceled", "expired"]
END_EVENTS: tuple[EndEvent, ...] = ("succeeded", "failed", "canceled", "expired")

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

    scale: Annotated[float, Field(ge=1, le=8)] | None = None
    """Sides of the target, relative to `width` and `height`, rounded to the model's multiple.
    Default: 2, where neither `width` nor `height` is set."""
    width: Pixels | None = None
    """Width of the target, in place of `scale`. Default: by `height`."""
    height: Pixels | None = None
    """Height of the target, in place of `scale`. Default: by `width`."""
    upscaler: Name = LATENT
    """Upscaler between the passes. `latent`: the latents are resized, which needs a `strength` of
    about 0.5 or more. `lanczos`: the decoded image is resized. Or one of the model's `upscalers`,
    whose image is resized to the target."""
    strength: Strength = STRENGTH
    """Share of the second pass's steps that run: how much is drawn anew."""
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


class GenerateRequest(Body):
    """One request for images or videos; a field that the model does not serve is refused."""

    model_config = ConfigDict(json_schema_extra=shown(GENERATE))

    model: Name | None = None
    """Name of a model from `GET /v1/models`. May be left out where only one is served."""
    prompt: Text
    """Description of the image or video."""
    negative_prompt: Text | None = None
    """Description of what to avoid. Needs guidance."""
    prompt_2: Text | None = None
    """Prompt for the second text encoder. Default: `prompt`."""
    negative_prompt_2: Text | None = None
    """Negative prompt for the second text encoder. Default: `negative_prompt`."""
    prompt_syntax: PromptSyntax | None = None
    """Reading of all prompts. `plain`: every character is text. `weighted`: as AUTOMATIC1111 reads
    them, `(a)` is 1.1 times as strong, `[a]` 1.1 times weaker, `(a:1.3)` 1.3 times as strong, and
    SDXL reads long prompts in chunks, which `BREAK` ends. Default: the model's, which is `plain`
    unless its operator chose another."""
    width: Pixels | None = None
    """Width in pixels. Default: the model's, or of many models that of `image`."""
    height: Pixels | None = None
    """Height in pixels. Default: the model's, or of many models that of `image`."""
    num_frames: Count | None = None
    """Number of frames of a video. It is the model's `min_frames` more than a multiple of its
    `frames_multiple`."""
    fps: FramesPerSecond | None = None
    """Frames per second of a video. The frames are the same at any rate, but for LTX-2, whose
    motion and sound go by it."""
    num_inference_steps: Count | None = None
    """Number of denoising steps. Default: the model's."""
    guidance_scale: Scale | None = None
    """Guidance scale: how closely to follow the prompt. Default: the model's."""
    true_cfg_scale: Scale | None = None
    """Guidance scale of Flux and Qwen-Image with a negative prompt. Default: the model's."""
    guidance_scale_2: Scale | None = None
    """Guidance scale of Wan 2.2's second expert. Default: `guidance_scale`."""
    audio_guidance_scale: Scale | None = None
    """Guidance scale of LTX-2's sound. Default: the model's."""
    stg_scale: Scale | None = None
    """Scale of LTX-2's spatio-temporal guidance, away from what a block would draw without its
    self-attention; 0: none. Default: the model's."""
    modality_scale: Scale | None = None
    """Scale of LTX-2's guidance away from a video and a sound that know nothing of each other; 1:
    none. Default: the model's."""
    guidance_rescale: Fraction | None = None
    """Rescaling of guided predictions, against overexposure at strong guidance. Default: the
    model's."""
    cfg_normalization: Scale | None = None
    """Limit to the norm of Z-Image's guided predictions, as a multiple of the prompt's own; 0:
    none. Default: 0."""
    cfg_truncation: Fraction | None = None
    """Share of the way from noise to image behind which Z-Image's steps are not guided. Default:
    1."""
    num_images: Count | None = None
    """Number of images or videos. Number i is what the same request with `seed + i` gives. Default:
    1."""
    seed: Seed | None = None
    """Random seed; the same one gives the same image. Default: drawn at random, and returned."""
    max_sequence_length: Count | None = None
    """Number of text tokens that the prompt is padded or cut to. Default: the model's."""
    clip_skip: ClipSkip | None = None
    """Number of CLIP's last layers to leave out. Default: the model's own."""
    original_size: Size | None = None
    """Height and width that SDXL takes for those of the original image. Default: the image's."""
    target_size: Size | None = None
    """Height and width that SDXL takes for those of the target. Default: the image's."""
    crops_coords_top_left: Size | None = None
    """Top and left offset that SDXL takes for those of its crop. Default: 0, 0."""
    negative_original_size: Size | None = None
    """`original_size` for the negative prompt."""
    negative_target_size: Size | None = None
    """`target_size` for the negative prompt."""
    negative_crops_coords_top_left: Size | None = None
    """`crops_coords_top_left` for the negative prompt."""
    aesthetic_score: Score | None = None
    """Aesthetic score that SDXL's refiner takes for the image's. Default: 6."""
    negative_aesthetic_score: Score | None = None
    """`aesthetic_score` for the negative prompt. Default: 2.5."""
    refiner: RefinerRequest | None = None
    """Refiner of SDXL, which takes the last steps. Default: none, the model takes all."""
    timesteps: Falling | None = None
    """Timesteps of the model, falling, one per step. They replace those of the schedule."""
    sigmas: Falling | None = None
    """Sigmas, falling, in place of the schedule's. For Flux one per step; for SDXL noise levels, of
    which the last is where the last step ends, usually 0."""
    eta: Fraction | None = None
    """Share of noise that each step of DDIM adds."""
    scheduler: SchedulerRequest | None = None
    """Scheduler and its options. Default: the checkpoint's own."""
    quality: Name | None = None
    """Name of one of the model's `qualities`, which trade likeness for speed. Default: the model's,
    which is `exact` unless its operator chose another. `output.quality` is how well a file is
    encoded."""
    image: Picture | None = None
    """Image to start from. A data URI or bare base64 of a PNG, JPEG or WebP, or an http(s) URL
    where the server allows it."""
    mask_image: Picture | None = None
    """Mask of `image`: white where it is redrawn."""
    last_image: Picture | None = None
    """Last frame of the video; `image` is the first."""
    control_image: Picture | None = None
    """Image that says what is where: edges for a Canny model, depths for a Depth model. It is used
    as it is."""
    reference_images: Annotated[list[Picture], Field(max_length=MAX_LISTED_IMAGES)] | None = None
    """Further images that the model sees beside `image`, in the order that the prompt may count
    them in."""
    control: Annotated[list[ControlRequest], Field(max_length=MAX_LISTED_IMAGES)] | None = None
    """Images that say what is where, all at once, each by a ControlNet of the model."""
    image_prompts: (
        Annotated[list[ImagePromptRequest], Field(max_length=MAX_LISTED_IMAGES)] | None
    ) = None
    """Images that say what to draw, beside the prompt."""
    control_video: Video | None = None
    """Video that VACE follows (edges, depths, poses) or, with `mask_video`, completes. One file,
    MP4 or WebM, or a list of images, one a frame. With fewer frames than `num_frames` it is
    continued."""
    pose_video: Video | None = None
    """Video of the poses that Animate gives the character of `image`. One file, MP4 or WebM, or a
    list of images, one a frame. With fewer frames than `num_frames` it runs back and forth."""
    face_video: Video | None = None
    """Video of the face whose expressions Animate's character has, cut out square; as
    `pose_video`."""
    background_video: Video | None = None
    """Video in which Animate's character replaces who is under `mask_video`; as `pose_video`."""
    mask_video: Video | None = None
    """Mask of `control_video` or `background_video`: white where it is drawn anew, black where it
    is kept. It has as many frames, or one image for all of them. Default: white."""
    conditioning_scale: Annotated[list[ImageScale], Field(max_length=MAX_HINTS)] | None = None
    """Strength of the effect that `control_video` and `reference_images` have in VACE: one number,
    or one for each layer that reads them. Default: 1."""
    strength: Strength | None = None
    """Share of `image` to redraw. Default: the model's."""
    loras: Annotated[list[LoraRequest], Field(max_length=MAX_LORAS)] | None = None
    """Adapters (LoRA) by name, each with its scale, all at once: as `diffusers` adds them up."""
    hires: HiresRequest | None = None
    """Hires fix: each image is drawn at `width` and `height`, enlarged, and drawn again from that
    by image to image, in one job. A `refiner` refines the second pass. Default: none."""
    upscale: UpscaleRequest | None = None
    """Upscaler that draws each finished image larger. Default: none."""
    output: OutputRequest | None = None
    """Format of the files, and whether they come inline."""
    priority: Literal["low", "normal", "high"] = "normal"
    """Priority among the tenant's jobs."""
    deadline_s: Annotated[float, Field(gt=0, le=30 * 86400)] | None = None
    """Seconds until the job expires if it is not done by then."""
    webhook: WebhookRequest | None = None
    """Address to notify when the job has ended."""
    metadata: Annotated[dict[Name, Label], Field(max_length=16)] = Field(default_factory=dict)
    """Names and texts that are returned with the job."""


_FILES = {
    "file": {
        "type": "string",
        "format": "binary",
        "description": "The adapter: one safetensors file.",
    },
    "preview": {
        "type": "string",
        "format": "binary",
        "description": "PNG, JPEG or WebP that shows it.",
    },
}
"""Parts of an upload's form that are files."""


def _with_files(schema: dict[str, Any]) -> None:
    schema["properties"] |= _FILES
    schema["required"] = [*schema["required"], "file"]
    schema["examples"] = [UPLOAD]


class LoraUpload(Body):
    """Form of an upload, beside its files."""

    model_config = ConfigDict(json_schema_extra=_with_files)

    name: LoraName
    """Name that requests give it: up to 100 letters, digits, dots, dashes and underscores."""
    model: Name | None = None
    """Name of the model that it is for. May be left out where only one is served."""
    trigger: Label = ""
    """Words that a prompt should hold."""
    expert: Expert | None = None
    """Expert of Wan 2.2 that the file is for. Default: `high`, as in diffusers."""


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
    """Return the fields that the client has set and the model serves."""
    given = request.model_dump(exclude_none=True, by_alias=True)
    chosen = given.keys() - SERVICE_FIELDS | given.keys() & {"prompt", "seed", "num_images"}
    chosen -= {name for name in chosen if given[name] == []}
    return {name: value for name, value in given.items() if name in chosen}
