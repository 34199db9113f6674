"""`[upscalers.NAME]`: networks that enlarge generated images."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.settings.section import Section


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
