"""Effective limits of a request: the stricter of model and server."""

from __future__ import annotations

from functools import lru_cache

from pydantic import ConfigDict

from models.spec.model_spec import Limits, ModelSpec
from service.settings.limits import LimitSettings


class Bounds(Limits):
    """Effective limits: the stricter of the model's and the server's."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    max_clip_pixels: int
    """Maximum pixels of a whole video: width times height times frames."""
    max_upscaled_pixels: int
    """Maximum pixels of an image after an upscaler."""
    max_prompt_chars: int
    """Maximum characters of each prompt."""
    max_loras: int
    """Maximum number of adapters per request, if the model accepts any."""


@lru_cache(maxsize=64)
def bounds_of(model: Limits, server: LimitSettings) -> Bounds:
    """Combine the model's and the server's limits; sizes are rounded down to supported ones."""
    side = min(model.max_side_px, server.max_side_px)
    frames = min(model.max_frames, server.max_frames)
    stricter = {
        "max_side_px": side - side % model.size_multiple_px,
        "max_pixels": min(model.max_pixels, server.max_pixels),
        "max_frames": frames - max(0, frames - model.min_frames) % model.frames_multiple,
        "max_steps": min(model.max_steps, server.max_steps),
        "max_images": min(model.max_images, server.max_images),
        "max_clip_pixels": server.max_clip_pixels,
        "max_upscaled_pixels": server.max_upscaled_pixels,
        "max_prompt_chars": server.max_prompt_chars,
        "max_loras": server.max_loras,
    }
    return Bounds.model_construct(**{**dict(model), **stricter})


def has_no_upscaler(model: ModelSpec) -> str:
    """Return the message for requests to upscale with a model that has no upscaler."""
    if any(task.endswith("-to-video") for task in model.tasks):
        return f"the model {model.name!r} generates videos, which are not upscaled"
    return f"the model {model.name!r} has no upscaler; its operator can add one in [upscalers]"


def takes_no_loras(model: ModelSpec) -> str:
    """Return the message for requests with adapters to a model that accepts none."""
    if "adapters" in model.lacks:
        return f"the pipeline of the model {model.name!r} loads no adapters"
    return (
        f"the model {model.name!r} accepts no adapters; its operator can enable them in"
        f" models.{model.name}.lora_pages"
    )
