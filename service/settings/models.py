"""`[models.NAME]`: checkpoints, and how they are loaded and served."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from models.spec.quality_presets import EightBit, Quality
from service.settings.section import Section


class TilingSettings(Section):
    """Squares that images are encoded and decoded in where memory is short."""

    side: int = Field(512, gt=0)
    """Side of a tile in pixels."""
    stride: int = Field(384, gt=0)
    """Pixels from where one tile begins to where the next one does; what they share is blended."""


class SizeSettings(Section):
    """A size of images or videos that a model is warmed up for."""

    width: int = Field(gt=0)
    """Width in pixels."""
    height: int = Field(gt=0)
    """Height in pixels."""
    num_frames: int | None = Field(None, gt=0)
    """Number of frames of a video. Left out: any."""
    max_sequence_length: int | None = Field(None, gt=0)
    """Text tokens, where requests may choose them. Left out: the model's default."""


class ImagePromptSettings(Section):
    """Network that reads images as prompts, beside a model's own."""

    source: str
    """Folder in diffusers' layout, hub id with an optional @revision, or single file."""
    file: str | None = None
    """File of its weights in a folder or hub repository that has several. Left out: the layout
    says."""
    encoder: str | None = None
    """Folder or hub id of the image encoder, where `source` has none."""


def _as_text(value: Any) -> Any:
    """Return a number as text."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


OF_BASE = ("image_prompts", "controls", "refiner", "latent_upsampler", "pipeline")
"""Settings of networks that lie beside a model's own, and of how it is drawn with."""


class ControlSettings(Section):
    """ControlNet beside a model."""

    source: str
    """Folder in diffusers' layout, hub id with an optional @revision, or, of SDXL, a single file:
    its path, or `owner/name:file` of a hub."""
    mode: Annotated[str, BeforeValidator(_as_text)] | None = None
    """Kind of control images, of a union: its name, such as "openpose", or its number."""


def _with_source(value: Any) -> Any:
    """Return a table, of a source that stands alone."""
    return {"source": value} if isinstance(value, str) else value


class ModelSettings(Section):
    """Settings of how a model is loaded and served."""

    base: str | None = None
    """Configs, tokenizers and whatever networks it lacks for a `source` that is a single file:
    folder in diffusers' layout, or hub id. With a `lora` the name of another model, which this one
    is with that adapter."""
    lora: str | None = None
    """Adapter that every image of this model has: a source as in `[loras]`. The model is served by
    its base's workers, from the same weights, unless it is fused."""
    lora_scale: float = Field(1.0, ge=-100, le=100)
    """Scale of that adapter."""
    fuse: bool = False
    """Whether the adapter is merged into the weights: images cost no more then, and the model has
    workers of its own."""
    source: str = Field("", validate_default=True)
    """Folder in diffusers' layout, here or in an object store (`s3://…`, `gs://…`), hub id with an
    optional @revision, or single file. Left out of a model with a `lora`, which has its base's."""
    pipeline: str | None = None
    """Class of diffusers' pipeline whose inputs the model takes, where `model_index.json` names
    another one of Flux's: `FluxKontextPipeline` for Kontext's weights in a single file, with the
    folder of another Flux as `base`. Left out: as that file says."""
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    """Data type of the weights."""
    activation_dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Data type that the networks compute in. Left out: that of the weights."""
    defaults: dict[str, Any] = Field(default_factory=dict)
    """Defaults of request fields."""
    scheduler: dict[str, Any] | None = None
    """Default of the request field `scheduler`: its name, and options. Left out: the
    checkpoint's."""
    quality: dict[str, Quality] = Field(default_factory=dict)
    """Quality presets by name, beside the model's own or in their place. The preset of requests
    that name none is `defaults.quality`."""
    eight_bit: EightBit | None = None
    """8-bit weights of the denoising network's blocks: "beside" the exact ones, for half of their
    memory more, so that requests may choose; or "instead" of them, for half of it, and then there
    is no `exact`. Left out: none."""
    image_prompts: dict[str, Annotated[ImagePromptSettings, BeforeValidator(_with_source)]] = Field(
        default_factory=dict
    )
    """Networks that read images as prompts, by the names that requests give them: Redux for Flux.
    Each is a source, or a table."""
    controls: dict[str, Annotated[ControlSettings, BeforeValidator(_with_source)]] = Field(
        default_factory=dict
    )
    """ControlNets of SDXL or Flux, by the names that requests give them. Each is a source, or a
    table."""
    max_controls: int = Field(3, ge=1, le=8)
    """Controls that one request may have. Every image of a model with `controls` has memory for so
    many."""
    refiner: str | None = None
    """Refiner of SDXL, for requests that let it take their last steps: folder in diffusers' layout,
    hub id, or single file. Left out: none."""
    latent_upsampler: str | None = None
    """Network of LTX-2 that enlarges latents before its second stage, for requests with `hires`:
    folder or hub id in diffusers' layout, or single file. Left out: the checkpoint's own
    `latent_upsampler`, if it has one."""
    swap_experts: bool | None = None
    """Whether Wan 2.2's experts take turns on the device. Left out: where its memory demands it."""
    vae_tiling: bool | TilingSettings | None = None
    """Whether the VAE works in tiles, which changes images a little. Left out: where the device's
    memory demands it."""
    encoders_on_host: bool | None = None
    """Whether text and image encoders stay in host memory and come to the device a layer at a time.
    Left out: where its memory demands it."""
    lora_pages: int | None = Field(None, ge=0)
    """Room for adapters beside the weights on each device, in pages of 16 ranks: an adapter of rank
    64 takes four. 0: requests may have none. Left out: 16 where `[loras]` name the model, else
    0."""
    batching: Literal["exact", "fast"] = "exact"
    """\"exact": each step has one program of one batch size, so that the same request gives the
    same bytes alone and beside any others. "fast": programs of several batch sizes, chosen by
    measured times; an image differs a little with its neighbours, as `GET /v1/models` reports."""
    exact_rows: int | None = Field(None, gt=0)
    """Images that the one program of exact batching steps together; it is padded where fewer run.
    Left out: as many as `data` of the mesh has side by side, so 1 without it."""
    sizes: Literal["any", "listed"] | tuple[SizeSettings, ...] = "any"
    """Sizes that are served; each new one is compiled, which takes a minute or more. A list of
    them; "listed": those of `warmup`, compiled before the worker is ready; "any": whatever the
    model's limits allow. Others get a 422."""
    token_buckets: float = Field(0.0, ge=0, le=1)
    """Work that a step of Flux, or of Wan's text to video, may cost more, as a fraction, so that
    sizes share it: tokens are padded to the next of a few counts, and a new size compiles no step.
    0.06 has 1024 x 1024, 1152 x 896 and 1216 x 832 in one. 0: each size has steps of its own."""
    objective_s: float = Field(300, gt=0)
    """Time that a job may wait for its first claim, the objective of alerts: the share of a pool
    that KEDA scales by is the same number. Jobs with a `deadline_s` have that one."""
    cold_start_s: float = Field(900, gt=0)
    """Usual time from no worker to the first that is ready: a machine, the weights, warm-up. Alerts
    give a model that long before nobody works for it."""
    warmup: list[dict[str, Any]] = Field([{}])
    """Requests whose programs are compiled before the worker is ready; {} is the model's
    default."""

    @model_validator(mode="after")
    def _is_one_batching(self) -> ModelSettings:
        if self.exact_rows is not None and self.batching != "exact":
            raise ValueError('exact_rows goes with batching = "exact"')
        return self

    @field_validator("source")
    @classmethod
    def _has_weights(cls, source: str, info: ValidationInfo) -> str:
        lora, base = info.data.get("lora"), info.data.get("base")
        if lora is None and not source:
            raise ValueError("say where the model's weights are; only one with a lora has none")
        if lora is not None and (source or base is None):
            raise ValueError("a model with a lora has base, the name of another, and no source")
        return source

    @model_validator(mode="after")
    def _fuses_something(self) -> ModelSettings:
        if self.fuse and self.lora is None:
            raise ValueError("fuse goes with a lora")
        return self

    @model_validator(mode="after")
    def _has_its_bases_networks(self) -> ModelSettings:
        own = [name for name in OF_BASE if getattr(self, name)] if self.is_served_by_base else []
        if own:
            raise ValueError(
                f"{', '.join(own)}: a model that its base's workers serve has its base's; set it "
                "there, or set fuse = true"
            )
        return self

    @property
    def is_served_by_base(self) -> bool:
        """Return whether the workers of its base serve it."""
        return self.lora is not None and not self.fuse
