"""Strict models of request bodies: unknown fields are rejected, types are not converted."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Discriminator,
    Field,
    Tag,
)

from models.spec.field_types import (
    ClipSkip,
    Count,
    Fraction,
    FramesPerSecond,
    Index,
    Pixels,
    Scale,
    Score,
    Seed,
    Strength,
)
from models.spec.lora import Expert
from models.spec.prompt_syntax import PromptSyntax
from service.errors.problems import UNION_TAG
from service.schemas.examples import CONTINUE, GENERATE, UPLOAD, schema_example
from service.schemas.request_parts import (
    MAX_HINTS,
    MAX_LISTED_IMAGES,
    MAX_LORAS,
    Body,
    ControlRequest,
    DescendingNoiseLevels,
    HiresRequest,
    ImageData,
    ImagePromptRequest,
    ImageScale,
    Label,
    LoraName,
    LoraRequest,
    Name,
    NamedScheduler,
    OutputRequest,
    QualityAim,
    RefinerRequest,
    Size,
    Text,
    UpscaleRequest,
    Video,
    WebhookRequest,
    kind_of_quality,
)


def _without_default(schema: dict[str, Any]) -> None:
    """Omit a field's default from the schema, because null differs from omission there."""
    schema.pop("default", None)


class GenerateRequest(Body):
    """Request for images or videos. Fields that the model does not serve are rejected."""

    model_config = ConfigDict(json_schema_extra=schema_example(GENERATE))

    model: Name | None = None
    """Name of a model from `GET /v1/models`. Optional if only one is served."""
    prompt: Text
    """Description of the image or video."""
    negative_prompt: Text | None = None
    """Description of what to avoid. Requires guidance."""
    prompt_2: Text | None = None
    """Prompt for the second text encoder. Default: `prompt`."""
    negative_prompt_2: Text | None = None
    """Negative prompt for the second text encoder. Default: `negative_prompt`."""
    prompt_syntax: PromptSyntax | None = None
    """Syntax of all prompts. `plain`: every character is text. `weighted`: as in AUTOMATIC1111,
    `(a)` has weight 1.1, `[a]` 1/1.1 and `(a:1.3)` 1.3; SDXL reads long prompts in chunks, which
    `BREAK` ends. Default: the model's, which is `plain` unless its operator chose another."""
    width: Pixels | None = None
    """Width in pixels. Default: the model's, or for many models that of `image`."""
    height: Pixels | None = None
    """Height in pixels. Default: the model's, or for many models that of `image`."""
    num_frames: Count | None = None
    """Number of frames of a video: the model's `min_frames` plus a multiple of its
    `frames_multiple`."""
    fps: FramesPerSecond | None = None
    """Frames per second of a video. It affects the frames of LTX-2 only, whose motion and sound
    depend on it."""
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
    """Scale of LTX-2's spatio-temporal guidance, away from the prediction without a block's
    self-attention; 0: off. Default: the model's."""
    modality_scale: Scale | None = None
    """Scale of LTX-2's guidance away from the prediction without attention between video and sound;
    1: off. Default: the model's."""
    guidance_rescale: Fraction | None = None
    """Rescaling of guided predictions, against overexposure at strong guidance. Default: the
    model's."""
    cfg_normalization: Scale | None = None
    """Maximum norm of Z-Image's guided predictions, as a multiple of the prompt's prediction's
    norm. 0: no limit. Default: 0."""
    cfg_truncation: Fraction | None = None
    """Share of the way from noise to image after which Z-Image's steps run without guidance.
    Default: 1."""
    num_images: Count | None = None
    """Number of images or videos. Output i equals that of the same request with `seed + i`.
    Default: 1."""
    stop_at_step: Count | None = None
    """Number of denoising steps, fewer than the total, after which the job ends as `paused`. It
    then has a small preview per image instead of files, and `POST /v1/jobs/{id}/continue` finishes
    the chosen images. With two passes (hires fix, presets with smaller first steps) it counts steps
    of the first. Default: no pause."""
    draft_ttl_s: Annotated[float, Field(ge=1)] | None = None
    """Seconds that the drafts of a paused job are kept. Then `continue` computes their steps again.
    Default: the server's maximum, a day unless its operator chose another."""
    seed: Seed | None = None
    """Random seed; the same seed gives the same image. Default: random, and returned."""
    max_sequence_length: Count | None = None
    """Number of text tokens that the prompt is padded or truncated to. Default: the model's."""
    clip_skip: ClipSkip | None = None
    """Number of CLIP's last layers to skip. Default: the model's."""
    original_size: Size | None = None
    """Height and width that condition SDXL as the original image's size. Default: the image's."""
    target_size: Size | None = None
    """Height and width that condition SDXL as the target size. Default: the image's."""
    crops_coords_top_left: Size | None = None
    """Top and left offset that condition SDXL as the crop. Default: 0, 0."""
    negative_original_size: Size | None = None
    """`original_size` for the negative prompt."""
    negative_target_size: Size | None = None
    """`target_size` for the negative prompt."""
    negative_crops_coords_top_left: Size | None = None
    """`crops_coords_top_left` for the negative prompt."""
    aesthetic_score: Score | None = None
    """Aesthetic score that conditions SDXL's refiner. Default: 6."""
    negative_aesthetic_score: Score | None = None
    """`aesthetic_score` for the negative prompt. Default: 2.5."""
    refiner: RefinerRequest | None = None
    """SDXL refiner, which runs the last steps. Default: none, the model runs all."""
    timesteps: DescendingNoiseLevels | None = None
    """Decreasing timesteps of the model, one per step, instead of the schedule's."""
    sigmas: DescendingNoiseLevels | None = None
    """Decreasing sigmas instead of the schedule's. For Flux one per step. For SDXL noise levels, of
    which the last is the end of the last step, usually 0."""
    eta: Fraction | None = None
    """Noise that each DDIM step adds, as a fraction (eta)."""
    scheduler: NamedScheduler | None = None
    """Scheduler and its options. Default: the checkpoint's."""
    quality: (
        Annotated[
            Annotated[Name, Tag(f"{UNION_TAG}name")]
            | Annotated[QualityAim, Tag(f"{UNION_TAG}aim")],
            Discriminator(kind_of_quality),
        ]
        | None
    ) = None
    """Name of one of the model's `qualities`, which trade fidelity for speed. Or an object with
    `min_psnr_db`, for the fastest preset that reached that PSNR in calibration, else `exact`.
    Default: the model's, which is `exact` unless its operator chose another. `output.quality` is
    the encoding quality."""
    image: ImageData | None = None
    """Image to start from. A data URI or bare base64 of a PNG, JPEG or WebP, or an http(s) URL if
    the server allows it."""
    mask_image: ImageData | None = None
    """Mask of `image`: white areas are regenerated."""
    last_image: ImageData | None = None
    """Last frame of the video; `image` is the first."""
    control_image: ImageData | None = None
    """Control image of the spatial layout: edges for a Canny model, depths for a Depth model. It is
    used without preprocessing."""
    reference_images: Annotated[list[ImageData], Field(max_length=MAX_LISTED_IMAGES)] | None = None
    """Additional reference images after `image`, in the order in which the prompt may number
    them."""
    control: Annotated[list[ControlRequest], Field(max_length=MAX_LISTED_IMAGES)] | None = None
    """Control images, all applied at once, each by a ControlNet of the model."""
    image_prompts: (
        Annotated[list[ImagePromptRequest], Field(max_length=MAX_LISTED_IMAGES)] | None
    ) = None
    """Images that serve as prompts, in addition to the text."""
    control_video: Video | None = None
    """Video that VACE follows (edges, depths, poses) or, with `mask_video`, completes. One file,
    MP4 or WebM, or a list of images, one per frame. With fewer frames than `num_frames`, VACE
    continues it."""
    pose_video: Video | None = None
    """Video of the poses for the character of `image` (Wan Animate). One file, MP4 or WebM, or a
    list of images, one per frame. With fewer frames than `num_frames` it plays back and forth."""
    face_video: Video | None = None
    """Video of the face, cropped square, whose expressions Animate's character takes; format as
    `pose_video`."""
    background_video: Video | None = None
    """Video in which Animate's character replaces the person under `mask_video`; format as
    `pose_video`."""
    mask_video: Video | None = None
    """Mask of `control_video` or `background_video`: white areas are regenerated, black ones are
    kept. As many frames as that video, or one image for all. Default: white."""
    conditioning_scale: Annotated[list[ImageScale], Field(max_length=MAX_HINTS)] | None = None
    """Strength of `control_video` and `reference_images` in VACE: one number, or one per layer that
    reads them. Default: 1."""
    strength: Strength | None = None
    """Share of `image` to change. Default: the model's."""
    loras: Annotated[list[LoraRequest], Field(max_length=MAX_LORAS)] | None = None
    """Adapters (LoRA) by name, each with its scale. Their effects add up as in `diffusers`."""
    hires: HiresRequest | None = Field(None, json_schema_extra=_without_default)
    """Hires fix: generates each image at `width` and `height`, enlarges it, and runs image to image
    on the result, in one job. A `refiner` refines the second pass. `null` is one pass, even if the
    model has a default. Default: the model's, which is none unless its operator chose one."""
    upscale: UpscaleRequest | None = None
    """Upscaler that enlarges each finished image. Default: none."""
    output: OutputRequest | None = None
    """Format of the files, and whether the response contains them."""
    reuse: bool | None = None
    """Whether the server may return the files of an earlier identical request, if it caches them
    (`X-Atelier-Cache: hit`). They are the same bytes, and cost nothing. Default: true."""
    priority: Literal["low", "normal", "high"] = "normal"
    """Priority among the tenant's jobs."""
    deadline_s: Annotated[float, Field(gt=0, le=30 * 86400)] | None = None
    """Seconds after which the job expires if it is not done."""
    webhook: WebhookRequest | None = None
    """Webhook to notify when the job has ended."""
    metadata: Annotated[dict[Name, Label], Field(max_length=16)] = Field(default_factory=dict)
    """Names and texts, returned with the job."""


class ContinueRequest(Body):
    """Selection of a paused job's drafts to finish. Omitted fields keep the paused job's values."""

    model_config = ConfigDict(json_schema_extra=schema_example(CONTINUE))

    images: Annotated[list[Index], Field(min_length=1)] | None = None
    """Indices of the images to finish, from 0. Default: all."""
    prompt: Text | None = None
    """Another prompt from `stop_at_step` on. With it, or other fields that change the content, the
    images branch off their drafts, and no single request reproduces them."""
    negative_prompt: Text | None = None
    """Another description of what to avoid."""
    prompt_2: Text | None = None
    """Another prompt for the second text encoder."""
    negative_prompt_2: Text | None = None
    """Another negative prompt for the second text encoder."""
    guidance_scale: Scale | None = None
    """Another guidance scale."""
    true_cfg_scale: Scale | None = None
    """Another guidance scale with a negative prompt, of Flux and Qwen-Image."""
    guidance_scale_2: Scale | None = None
    """Another guidance scale of Wan 2.2's second expert."""
    loras: Annotated[list[LoraRequest], Field(max_length=MAX_LORAS)] | None = None
    """Other adapters; an empty list removes all."""
    seed: Seed | None = None
    """Another seed of the noise that later steps add, one higher for each further image. It affects
    masks and schedulers that add noise."""
    num_inference_steps: Count | None = None
    """More denoising steps than the paused job's. The images continue at the step of the longer
    schedule that has their drafts' noise level, and branch off. The job fails if the schedule has
    no such step, or the scheduler depends on earlier steps."""
    output: OutputRequest | None = None
    """Format of the files, and whether the response contains them."""
    priority: Literal["low", "normal", "high"] | None = None
    """Priority among the tenant's jobs."""
    deadline_s: Annotated[float, Field(gt=0, le=30 * 86400)] | None = None
    """Seconds after which the job expires if it is not done."""
    webhook: WebhookRequest | None = None
    """Webhook to notify when the job has ended."""
    metadata: Annotated[dict[Name, Label], Field(max_length=16)] = Field(default_factory=dict)
    """Names and texts, returned with the job."""


_FILES = {
    "file": {
        "type": "string",
        "format": "binary",
        "description": "The adapter: one safetensors file.",
    },
    "preview": {
        "type": "string",
        "format": "binary",
        "description": "Preview image: PNG, JPEG or WebP.",
    },
}
"""File parts of the upload form."""


def _with_files(schema: dict[str, Any]) -> None:
    schema["properties"] |= _FILES
    schema["required"] = [*schema["required"], "file"]
    schema["examples"] = [UPLOAD]


class LoraUpload(Body):
    """Text fields of the upload form for an adapter."""

    model_config = ConfigDict(json_schema_extra=_with_files)

    name: LoraName
    """Name for requests: up to 100 letters, digits, spaces and `._+()&'-`. The ending
    `.safetensors` is left out."""
    model: Name | None = None
    """Name of the adapter's model. Optional if only one is served."""
    trigger: Label = ""
    """Trigger words that prompts should contain."""
    expert: Expert | None = None
    """Expert of Wan 2.2 that the file is for. Default: `high`, as in diffusers."""


SERVICE_FIELDS = frozenset(
    (
        "model",
        "prompt",
        "seed",
        "num_images",
        "stop_at_step",
        "draft_ttl_s",
        "output",
        "reuse",
        "priority",
        "deadline_s",
        "webhook",
        "metadata",
    )
)
"""Fields that the service itself handles, for every model."""


OFF_BY_NULL = frozenset({"hires"})
"""Fields whose null switches off the model's default. For other fields null equals omission."""


def switched_off(request: GenerateRequest) -> dict[str, None]:
    """Return the fields that the client set to null to switch off a default."""
    nulls = OFF_BY_NULL & request.model_fields_set
    return {name: None for name in sorted(nulls) if getattr(request, name) is None}


def model_fields(request: GenerateRequest) -> dict[str, Any]:
    """Return the fields for the model's pipeline: those that the client set or switched off."""
    given = request.model_dump(exclude_none=True, by_alias=True) | switched_off(request)
    chosen = given.keys() - SERVICE_FIELDS | given.keys() & {"prompt", "seed", "num_images"}
    chosen -= {name for name in chosen if given[name] == []}
    return {name: value for name, value in given.items() if name in chosen}
