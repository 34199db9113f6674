"""`[upscalers.NAME]`: networks that draw finished images larger."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.settings.section import Section


class UpscalerSettings(Section):
    """Upscaler that requests may name, loaded by the workers of its models."""

    source: str
    """Safetensors file of an RRDBNet (ESRGAN, Real-ESRGAN); folder with a single one; or
    `hub-id@revision:file`, the revision and the file's name left out where there is but one."""
    models: tuple[str, ...] = ()
    """Names of the models whose images it is for; a model with a `lora` and its base have the
    same, whichever is named. Left out: all that draw images."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Data type of its weights, and what it computes in."""
    tile: int = Field(256, ge=32, le=2048, multiple_of=8)
    """Side of the squares that an image is drawn in, in its own pixels: memory grows by its
    square."""
