"""Progressive size: an image's first steps are drawn smaller, and the others from what they show.

The other steps are those of an image-to-image request that begins with the small steps' estimate of
the clean latents. No JAX in here: the front end imports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.spec.hires import FIELD as HIRES
from models.spec.model_spec import ModelSpec
from models.spec.quality_presets import EXACT, Progressive
from models.spec.request_images import image_values

FIELD = "progressive"
"""Field of a pass's request that has its `StepRange`; none of clients'."""
STEP_LISTS = ("timesteps", "sigmas")
"""Fields that tell steps one by one, which `strength` does not leave out."""


@dataclass(frozen=True)
class StepRange:
    """Steps of an image that one pass draws, and the size of the whole image."""

    before: int
    """Steps of the image before them."""
    steps: int
    width: int
    height: int


def parts(
    fields: Mapping[str, Any], spec: ModelSpec
) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    """Return the requests of the small and of the full steps; None: all steps are full ones.

    Args:
        fields: a resolved request.
    """
    preset = _preset(fields, spec)
    if preset is None or why_idle(fields, spec):
        return None
    size, steps = (fields["width"], fields["height"]), fields["num_inference_steps"]
    small, before = _small(size, preset, spec), _before(steps, preset)
    names = ("width", "height")
    first = {**fields, **dict(zip(names, small, strict=True)), FIELD: StepRange(0, before, *size)}
    rounding = 0.5 if spec.strength_rounds == "down" else -0.5  # in the middle of a step
    second = {
        **fields,
        "image": FIELD,
        "strength": (steps - before + rounding) / steps,
        FIELD: StepRange(before, steps - before, *size),
    }
    return first, second


def why_idle(fields: Mapping[str, Any], spec: ModelSpec) -> str:
    """Return why no step of a request is smaller, though its preset asks for it; else nothing.

    Args:
        fields: a resolved request.
    """
    preset = _preset(fields, spec)
    if preset is None:
        return ""
    if fields.get(HIRES):
        return "hires fix has sizes of its own"
    if any(image_values(fields).values()):
        return "this request has images"
    if lists := [name for name in STEP_LISTS if fields.get(name) is not None]:
        return f"this request has {lists[0]} of its own"
    size = (fields["width"], fields["height"])
    small = _small(size, preset, spec)
    if small == size:
        return "the model draws no smaller image"
    if not _is_served(small, spec):
        return f"this model's sizes are listed, and {small[0]} x {small[1]} is none of them"
    if not _before(fields["num_inference_steps"], preset):
        return "its share of the steps is less than one"
    return ""


def _preset(fields: Mapping[str, Any], spec: ModelSpec) -> Progressive | None:
    preset = spec.qualities.get(fields.get("quality") or EXACT)
    return preset.progressive if preset else None


def _before(steps: int, preset: Progressive) -> int:
    """Return the number of small steps, as many as a guidance interval would guide."""
    return int(preset.until * steps)


def _small(size: tuple[int, int], preset: Progressive, spec: ModelSpec) -> tuple[int, int]:
    """Return the size of the small steps, in whole multiples; where none is smaller, the size."""
    multiple, least = spec.limits.size_multiple_px, spec.limits.min_side_px
    width, height = (
        max(int(side * preset.scale / multiple + 0.5) * multiple, least, multiple) for side in size
    )
    is_smaller = width <= size[0] and height <= size[1]
    return (width, height) if is_smaller else size


def _is_served(size: tuple[int, int], spec: ModelSpec) -> bool:
    listed = {(one.width, one.height) for one in spec.sizes.listed}
    return spec.sizes.mode == "any" or size in listed
