"""`[models.NAME]` and `[upscalers.NAME]`: models and upscalers that workers load."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from models.spec.quality_presets import EightBit, Quality
from service.settings.section import Section


class TilingSettings(Section):
    """Tiled VAE encoding and decoding, which needs less device memory."""

    side: int = Field(512, gt=0)
    """Side of a tile in pixels."""
    stride: int = Field(384, gt=0)
    """Distance in pixels between the starts of adjacent tiles. Their overlap is blended."""


class SizeSettings(Section):
    """Image or video size whose programs are compiled at warm-up."""

    width: int = Field(gt=0)
    """Width in pixels."""
    height: int = Field(gt=0)
    """Height in pixels."""
    num_frames: int | None = Field(None, gt=0)
    """Number of frames of a video. Default: any."""
    max_sequence_length: int | None = Field(None, gt=0)
    """Maximum number of text tokens, if requests may choose it. Default: the model's."""


class ImagePromptSettings(Section):
    """Image-prompt network (such as Flux Redux) that extends a model."""

    source: str
    """Folder in diffusers' layout, hub id with an optional @revision, or single file."""
    file: str | None = None
    """Weights file, if the folder or hub repository has several. Default: according to the
    layout."""
    encoder: str | None = None
    """Folder or hub id of the image encoder, if `source` has none."""


def _as_text(value: Any) -> Any:
    """Convert an integer to text, so that a control mode may be written as a number."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


OF_BASE = (
    *("image_prompts", "controls", "refiner", "latent_upsampler", "pipeline"),
    *("vae", "text_encoder", "text_encoder_2", "transformer_2"),
)
"""Settings of additional networks and of the pipeline. A model served by its base's workers
inherits them."""


class ControlSettings(Section):
    """Additional ControlNet of a model, for requests with control images."""

    source: str
    """Folder in diffusers' layout or hub id with an optional @revision. For SDXL also a single
    file: its path, or `owner/name:file` on the hub."""
    mode: Annotated[str, BeforeValidator(_as_text)] | None = None
    """Control type of a union ControlNet: its name, such as "openpose", or its number."""


def _with_scheduler_name(value: Any) -> Any:
    """Expand a scheduler's name to a table; sources of schedulers stay text."""
    is_name = isinstance(value, str) and "/" not in value and not value.endswith(".json")
    return {"name": value} if is_name else value


def _with_source(value: Any) -> Any:
    """Expand a setting's source that is a plain string to a table."""
    return {"source": value} if isinstance(value, str) else value


class ModelSettings(Section):
    """Checkpoint of one model, and how workers load and serve it."""

    base: str | None = None
    """Source of configs, tokenizers and missing networks if `source` is a single file: folder in
    diffusers' layout, or hub id. With `lora`: the name of another model, to which the adapter is
    applied."""
    lora: str | None = None
    """Adapter applied to every image of this model: a source as in `[loras]`. The base's workers
    serve the model from the same weights, unless it is fused."""
    lora_scale: float = Field(1.0, ge=-100, le=100)
    """Scale of that adapter."""
    fuse: bool = False
    """Whether the adapter is merged into the weights. Images then cost no extra time, but the model
    needs workers of its own."""
    source: str = Field("", validate_default=True)
    """Folder in diffusers' layout, local or in an object store (`s3://…`, `gs://…`), hub id with an
    optional @revision, or single file. Omit it for a model with a `lora`, which uses its base's."""
    backend: Literal["auto", "native", "diffusers"] = "auto"
    """Generator of the images. "native": JAX. "diffusers": the checkpoint's pipeline of diffusers
    on torch, one image at a time; needs the extra `diffusers`. "auto": native where the family is
    supported, else diffusers."""
    cpu_offload: bool = False
    """Whether the networks of a diffusers model stay in host memory, and each moves to the GPU for
    its turn. Slower, for GPUs with too little memory."""
    pipeline: str | None = None
    """Class of diffusers' pipeline that defines the model's inputs, if it is another Flux class
    than `model_index.json` names. Example: `FluxKontextPipeline` for Kontext weights in a single
    file, with another Flux folder as `base`. Default: according to `model_index.json`."""
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    """Data type of the weights."""
    activation_dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Data type that the networks compute in. Default: `dtype`."""
    defaults: dict[str, Any] = Field(default_factory=dict)
    """Defaults of request fields."""
    scheduler: Annotated[str | dict[str, Any], BeforeValidator(_with_scheduler_name)] | None = None
    """Default of the request field `scheduler`: its name, or a table of its name and options. Text
    with a `/` or the ending `.json` is a source in place of the checkpoint's scheduler: a config
    file, or a folder or hub id of a scheduler or of a whole checkpoint. Default: the checkpoint's.
    """
    quality: dict[str, Quality] = Field(default_factory=dict)
    """Quality presets by name, which extend or replace the model's own. `defaults.quality` is the
    preset of requests that name none."""
    eight_bit: EightBit | None = None
    """8-bit weights of the denoising network's blocks. `beside`: in addition to the exact weights,
    so that requests may choose; needs half as much memory again. `instead`: in place of them, with
    half the memory and without the preset `exact`. Default: none."""
    image_prompts: dict[str, Annotated[ImagePromptSettings, BeforeValidator(_with_source)]] = Field(
        default_factory=dict
    )
    """Image-prompt networks, by the names that requests use: Redux for Flux. Each is a source or a
    table."""
    controls: dict[str, Annotated[ControlSettings, BeforeValidator(_with_source)]] = Field(
        default_factory=dict
    )
    """ControlNets of SDXL, Flux, Qwen-Image or Z-Image, by the names that requests use. Each is a
    source or a table."""
    max_controls: int = Field(3, ge=1, le=8)
    """Maximum number of controls per request. If the model has `controls`, memory for this number
    is reserved for every image."""
    vae: str | None = None
    """Autoencoder in place of the checkpoint's: a folder, hub id or object store URL of one or of a
    whole checkpoint, or a single file: its path, or `owner/name:file` on the hub. Default: the
    checkpoint's."""
    text_encoder: str | None = None
    """Text encoder in place of the checkpoint's, a source as for `vae`. Default: the
    checkpoint's."""
    text_encoder_2: str | None = None
    """Second text encoder in place of the checkpoint's, such as T5 for Flux; a source as for `vae`.
    Default: the checkpoint's."""
    transformer_2: str | None = None
    """Low-noise expert of Wan 2.2 in place of the checkpoint's, a source as for `vae`. With a
    single file of the high-noise expert as `source`, both experts are single files. Default: the
    checkpoint's."""
    refiner: str | None = None
    """SDXL refiner for requests that run their last steps on it: folder in diffusers' layout, hub
    id, or single file. Default: none."""
    latent_upsampler: str | None = None
    """Network of LTX-2 that enlarges latents before the second stage of requests with `hires`:
    folder or hub id in diffusers' layout, or single file. Default: the checkpoint's
    `latent_upsampler`, if any."""
    swap_experts: bool | None = None
    """Whether Wan 2.2's two experts share device memory by swapping. Default: if memory requires
    it."""
    vae_tiling: bool | TilingSettings | None = None
    """Whether the VAE works in tiles, which changes images slightly. Default: if device memory
    requires it."""
    encoders_on_host: bool | None = None
    """Whether text and image encoders stay in host memory and are copied to the device layer by
    layer. Default: if device memory requires it."""
    lora_pages: int | None = Field(None, ge=0)
    """Device memory reserved for adapters, in pages of 16 ranks: an adapter of rank 64 takes four.
    0: requests may not use adapters. Any more allows them for a diffusers model, which reserves
    nothing. Default: 16 if `[loras]` name the model, else 0."""
    batching: Literal["exact", "fast"] = "exact"
    """\"exact": each step runs one program with a fixed batch size. The same request gives the same
    bytes alone and in a batch. "fast": programs of several batch sizes, chosen by measured times.
    An image then depends slightly on the rest of its batch, as `GET /v1/models` reports."""
    exact_rows: int | None = Field(None, gt=0)
    """Batch size of the step program with exact batching; smaller batches are padded. Default: the
    size of the mesh axis `data`, or 1 without it."""
    sizes: Literal["any", "listed"] | tuple[SizeSettings, ...] = "any"
    """Sizes that the model serves. Compiling a new size takes a minute or more. A list of sizes;
    "listed": those of `warmup`, compiled before the worker is ready; "any": all within the model's
    limits. Other sizes get a 422."""
    token_buckets: float = Field(0.0, ge=0, le=1)
    """Maximum extra work per step, as a fraction, that padding may cause so that sizes share
    programs. Tokens are padded to one of a few counts, so a new size compiles no step. For Flux,
    Chroma, FLUX.2, Z-Image, Qwen-Image, and Wan's text to video. 0.06 puts 1024 x 1024, 1152 x 896
    and 1216 x 832 in one bucket. 0: each size has its own steps."""
    objective_s: float = Field(300, gt=0)
    """Objective for the time from submission to first claim, used by alerts. KEDA's threshold, in
    seconds of work per worker, is the same number. A job's `deadline_s` overrides it."""
    cold_start_s: float = Field(900, gt=0)
    """Usual time to start the first worker: machine, weights and warm-up. Alerts wait this long
    before they report a model without workers."""
    warmup: list[dict[str, Any]] = Field([{}])
    """Requests whose programs are compiled before the worker is ready. {} is the model's default
    request."""

    @model_validator(mode="after")
    def _is_one_batching(self) -> ModelSettings:
        if self.exact_rows is not None and self.batching != "exact":
            raise ValueError('exact_rows requires batching = "exact"')
        return self

    @field_validator("source")
    @classmethod
    def _has_weights(cls, source: str, info: ValidationInfo) -> str:
        lora, base = info.data.get("lora"), info.data.get("base")
        if lora is None and not source:
            raise ValueError("name the model's weights; only a model with a lora has no source")
        if lora is not None and (source or base is None):
            raise ValueError(
                "a model with a lora needs base, the name of another model, and no source"
            )
        return source

    @model_validator(mode="after")
    def _fuses_something(self) -> ModelSettings:
        if self.fuse and self.lora is None:
            raise ValueError("fuse requires a lora")
        return self

    @model_validator(mode="after")
    def _has_its_bases_networks(self) -> ModelSettings:
        keys = [name for name in OF_BASE if getattr(self, name)] if self.is_served_by_base else []
        if self.is_served_by_base and isinstance(self.scheduler, str):
            keys.append("scheduler")
        if keys:
            raise ValueError(
                f"{', '.join(keys)}: a model that its base's workers serve uses its base's values;"
                " set them there, or set fuse = true"
            )
        return self

    @property
    def is_served_by_base(self) -> bool:
        """Report whether the workers of its base serve this model."""
        return self.lora is not None and not self.fuse


class UpscalerSettings(Section):
    """Upscaler that requests may name, loaded by the workers of its models."""

    source: str
    """Safetensors file of an RRDBNet (ESRGAN, Real-ESRGAN), folder that contains only this file, or
    `hub-id@revision:file`. The revision and the file's name may be omitted if unambiguous."""
    models: tuple[str, ...] = ()
    """Models that may use it. A model with a `lora` and its base share their upscalers. Default:
    all models that generate images."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Data type of its weights and computation."""
    tile: int = Field(256, ge=32, le=2048, multiple_of=8)
    """Side of the tiles in which an image is upscaled, in pixels of the input. Memory grows with
    its square."""
