"""`[models.NAME]`: checkpoints, and how they are loaded and served."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from models.spec.quality_presets import EightBit, Quality
from service.settings.section import Section


class TilingSettings(Section):
    """Squares that pictures are encoded and decoded in where memory is short."""

    side: int = Field(512, gt=0)
    """Pixels."""
    stride: int = Field(384, gt=0)
    """Pixels from where one begins to where the next one does; what they share is blended."""


class SizeSettings(Section):
    width: int = Field(gt=0)
    height: int = Field(gt=0)
    num_frames: int | None = Field(None, gt=0)
    """Of a clip; left out: any number."""
    max_sequence_length: int | None = Field(None, gt=0)
    """Text tokens, where requests may choose them; left out: the model's default."""


class ModelSettings(Section):
    source: str
    """A folder in diffusers' layout, a hub id with an optional @revision, or a single file."""
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    """Of the weights."""
    activation_dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """What the networks compute in; left out: as the weights."""
    defaults: dict[str, Any] = Field(default_factory=dict)
    """Of request fields."""
    quality: dict[str, Quality] = Field(default_factory=dict)
    """Presets by name, beside the model's own or in their place. Which one a request has that
    names none is a default like any other: `defaults.quality`."""
    eight_bit: EightBit | None = None
    """Whether the denoising network's blocks have weights of 8 bits: `beside` their exact ones, for
    half of their memory more, so that requests may choose; or `instead` of them, for half of it,
    and then there is no `exact`. Left out: none, and no preset has 8 bits."""
    base: str | None = None
    """Where configs and tokenizers come from if `source` is a single file of weights: a folder in
    diffusers' layout, or a hub id."""
    swap_experts: bool | None = None
    """Whether experts take turns on the device instead of lying there together (Wan 2.2); left
    out: where the device's memory demands it."""
    vae_tiling: bool | TilingSettings | None = None
    """Left out: where the device's memory demands it, which changes pictures a little."""
    encoders_on_host: bool | None = None
    """Whether text and image encoders lie in host memory and come to the device a layer at a time
    when they are used; left out: where the device's memory demands it."""
    batching: Literal["exact", "fast"] = "exact"
    """"exact": each step has one program of one batch size, so that the same request has the same
    bytes alone and beside any others. "fast": programs of several batch sizes, chosen by measured
    times; a picture differs a little by its company, as `GET /v1/models` tells."""
    exact_rows: int | None = Field(None, gt=0)
    """Pictures that the one program of exact batching steps together; where fewer are under way it
    is padded. Left out: as many as `data` of the mesh has side by side, so 1 without it."""
    sizes: Literal["any", "listed"] | tuple[SizeSettings, ...] = "any"
    """Of pictures and clips that are served: each new one is compiled, which takes a minute or
    more. A list of them; "listed": those of `warmup`, which are compiled before the pool is ready;
    "any": whatever the model's limits allow. Another one is refused with 422."""
    warmup: list[dict[str, Any]] = Field([{}])
    """Requests whose shapes are compiled before the pool is ready; {} is the model's default."""

    @model_validator(mode="after")
    def _is_one_batching(self) -> ModelSettings:
        if self.exact_rows is not None and self.batching != "exact":
            raise ValueError('exact_rows goes with batching = "exact"')
        return self
