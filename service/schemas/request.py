"""Bodies that clients send, strictly read: no unknown field, no conversion of types."""

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
from service.errors.field_paths import UNION_TAG
from service.schemas.examples import CONTINUE, GENERATE, UPLOAD, shown
from service.schemas.request_parts import (
    MAX_HINTS,
    MAX_LISTED_IMAGES,
    MAX_LORAS,
    Body,
    ControlRequest,
    Falling,
    HiresRequest,
    ImagePromptRequest,
    ImageScale,
    Label,
    LoraName,
    LoraRequest,
    Name,
    OutputRequest,
    Picture,
    QualityAim,
    RefinerRequest,
    SchedulerRequest,
    Size,
    Text,
    UpscaleRequest,
    Video,
    WebhookRequest,
    kind_of_quality,
)


def _without_default(schema: dict[str, Any]) -> None:
    """Leave the default of a field open whose null is not the same as leaving it out."""
    schema.pop("default", None)


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
    stop_at_step: Count | None = None
    """Denoising steps after which the images stop, fewer than they have: the job ends as `paused`,
    with a small preview of each image in place of its files, and `POST /v1/jobs/{id}/continue`
    finishes those that are chosen. Of two passes (hires fix, presets with smaller first steps) it
    is a step of the first. Default: none, the images are finished."""
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
    quality: (
        Annotated[
            Annotated[Name, Tag(f"{UNION_TAG}name")]
            | Annotated[QualityAim, Tag(f"{UNION_TAG}aim")],
            Discriminator(kind_of_quality),
        ]
        | None
    ) = None
    """Name of one of the model's `qualities`, which trade likeness for speed; or an object with
    `min_psnr_db`, for the fastest of them that has kept it where it was measured, or `exact`.
    Default: the model's, which is `exact` unless its operator chose another. `output.quality` is
    how well a file is encoded."""
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
    hires: HiresRequest | None = Field(None, json_schema_extra=_without_default)
    """Hires fix: each image is drawn at `width` and `height`, enlarged, and drawn again from that
    by image to image, in one job. A `refiner` refines the second pass. `null` is one pass, whatever
    the model's default is. Default: the model's, which is none unless its operator chose one."""
    upscale: UpscaleRequest | None = None
    """Upscaler that draws each finished image larger. Default: none."""
    output: OutputRequest | None = None
    """Format of the files, and whether they come inline."""
    reuse: bool | None = None
    """Permission to give files again that the same request was given before, where the server keeps
    track of them (`X-Atelier-Cache: hit`): they are the same bytes, and cost nothing. Default:
    true."""
    priority: Literal["low", "normal", "high"] = "normal"
    """Priority among the tenant's jobs."""
    deadline_s: Annotated[float, Field(gt=0, le=30 * 86400)] | None = None
    """Seconds until the job expires if it is not done by then."""
    webhook: WebhookRequest | None = None
    """Address to notify when the job has ended."""
    metadata: Annotated[dict[Name, Label], Field(max_length=16)] = Field(default_factory=dict)
    """Names and texts that are returned with the job."""


class ContinueRequest(Body):
    """Choice among the drafts of an audition. Fields that are left out are the audition's."""

    model_config = ConfigDict(json_schema_extra=shown(CONTINUE))

    images: Annotated[list[Index], Field(min_length=1)] | None = None
    """Numbers of the images to finish, from 0. Default: all."""
    prompt: Text | None = None
    """Another prompt from `stop_at_step` on, as the other fields that say what to draw: the images
    are branches of their drafts then, and no request draws them in one run."""
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
    """Other adapters; an empty list: none."""
    seed: Seed | None = None
    """Another seed of the noise that later steps add, higher by one for each further image: of
    schedulers that add any, and of masks."""
    num_inference_steps: Count | None = None
    """Number of denoising steps, as the audition has it: drafts lie on its schedule."""
    output: OutputRequest | None = None
    """Format of the files, and whether they come inline."""
    priority: Literal["low", "normal", "high"] | None = None
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
        "stop_at_step",
        "output",
        "reuse",
        "priority",
        "deadline_s",
        "webhook",
        "metadata",
    )
)
"""Fields that the service itself understands, whatever the model."""


OFF_BY_NULL = frozenset({"hires"})
"""Fields whose null switches the model's default off. Of any other it is the same as nothing."""


def switched_off(request: GenerateRequest) -> dict[str, None]:
    """Return the fields that the client has switched off, each with its null."""
    nulls = OFF_BY_NULL & request.model_fields_set
    return {name: None for name in sorted(nulls) if getattr(request, name) is None}


def model_fields(request: GenerateRequest) -> dict[str, Any]:
    """Return the fields that the client has set, or switched off, and the model serves."""
    given = request.model_dump(exclude_none=True, by_alias=True) | switched_off(request)
    chosen = given.keys() - SERVICE_FIELDS | given.keys() & {"prompt", "seed", "num_images"}
    chosen -= {name for name in chosen if given[name] == []}
    return {name: value for name, value in given.items() if name in chosen}
