"""Passes of an image: one, or two at different sizes. No JAX: front ends import this module.

Two passes result from hires fix, or from progressive size: an image's first steps run at a smaller
size, and the other steps form an image-to-image request that begins with the first steps' estimate
of the clean latents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from models.spec import hires
from models.spec.evaluations import ONE_A_STEP, Evaluations
from models.spec.hires import FIELD as HIRES
from models.spec.model_spec import ModelSpec
from models.spec.quality_presets import EXACT, Progressive
from models.spec.request_images import image_values

PROGRESSIVE = "progressive"
"""Internal request field that contains a pass's `StepRange`; clients cannot set it."""
STEP_LISTS = ("timesteps", "sigmas")
"""Fields that list steps explicitly, which `strength` does not shorten."""


@dataclass(frozen=True)
class StepRange:
    """Range of an image's steps that one pass runs, with the full size of the image."""

    before: int
    """Steps of the image before the range."""
    steps: int
    width: int
    height: int


def passes(
    fields: Mapping[str, Any], spec: ModelSpec
) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """Return the requests of the first and the second pass; None: no second pass.

    Args:
        fields: a resolved request.
    """
    return split_request(fields, spec) or hires.passes(fields, spec)


def steps_of(request: Mapping[str, Any], spec: ModelSpec) -> int:
    """Return the number of engine steps of a pass: evaluations of the network."""
    if part := request.get(PROGRESSIVE):
        return int(part.steps)
    strength = request.get("strength", 1.0)
    steps = denoising_steps(request["num_inference_steps"], strength, spec.strength_rounds)
    return evaluations_of(request, spec).count(steps)


def evaluations_of(request: Mapping[str, Any], spec: ModelSpec) -> Evaluations:
    """Return the evaluations of the network that the steps of a request's scheduler cost."""
    name = (request.get("scheduler") or {}).get("name") or spec.scheduler
    return spec.evaluations.get(name, ONE_A_STEP)


def denoising_steps(
    num_inference_steps: int, strength: float, rounds: Literal["down", "up"] = "up"
) -> int:
    """Return how many of the requested steps run at a strength.

    Source: Meng et al. 2022 (SDEdit), section 3. Rounding as in diffusers' get_timesteps: Flux
    rounds the skipped steps down, SDXL the steps that run.
    """
    run = min(num_inference_steps * strength, num_inference_steps)
    if rounds == "down":
        return int(run)
    return num_inference_steps - int(max(num_inference_steps - run, 0))


def split_request(
    fields: Mapping[str, Any], spec: ModelSpec
) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    """Split a request into its small and its full-size steps; None: all steps have full size.

    Args:
        fields: a resolved request.
    """
    preset = _preset(fields, spec)
    if preset is None or reason_without_effect(fields, spec):
        return None
    size, steps = (fields["width"], fields["height"]), fields["num_inference_steps"]
    small, before = _small(size, preset, spec), _before(steps, preset)
    names = ("width", "height")
    first = {
        **fields,
        **dict(zip(names, small, strict=True)),
        PROGRESSIVE: StepRange(0, before, *size),
    }
    rounding = 0.5 if spec.strength_rounds == "down" else -0.5  # in the middle of a step
    second = {
        **fields,
        "image": PROGRESSIVE,
        "strength": (steps - before + rounding) / steps,
        PROGRESSIVE: StepRange(before, steps - before, *size),
    }
    return first, second


def reason_without_effect(fields: Mapping[str, Any], spec: ModelSpec) -> str:
    """Return why a request's progressive preset has no effect; empty if it has one or is not set.

    Args:
        fields: a resolved request.
    """
    preset = _preset(fields, spec)
    if preset is None:
        return ""
    if fields.get(HIRES):
        return "hires fix sets the sizes of its passes"
    if any(image_values(fields).values()):
        return "this request has images"
    if lists := [name for name in STEP_LISTS if fields.get(name) is not None]:
        return f"this request sets {lists[0]}"
    if evaluations_of(fields, spec) != ONE_A_STEP:
        return "its scheduler evaluates the network more than once in some steps"
    size = (fields["width"], fields["height"])
    small = _small(size, preset, spec)
    if small == size:
        return "the model supports no smaller size"
    if not _is_served(small, spec):
        return f"{small[0]} x {small[1]} is not one of this model's listed sizes"
    if not _before(fields["num_inference_steps"], preset):
        return "its share of the steps is less than one step"
    return ""


def _preset(fields: Mapping[str, Any], spec: ModelSpec) -> Progressive | None:
    preset = spec.qualities.get(fields.get("quality") or EXACT)
    return preset.progressive if preset else None


def _before(steps: int, preset: Progressive) -> int:
    """Return the number of progressive steps at the small size, rounded as guidance intervals."""
    return int(preset.until * steps)


def _small(size: tuple[int, int], preset: Progressive, spec: ModelSpec) -> tuple[int, int]:
    """Return the size of a progressive preset's small steps, or the full size if none fits."""
    multiple, least = spec.limits.size_multiple_px, spec.limits.min_side_px
    width, height = (
        max(int(side * preset.scale / multiple + 0.5) * multiple, least, multiple) for side in size
    )
    is_smaller = width <= size[0] and height <= size[1]
    return (width, height) if is_smaller else size


def _is_served(size: tuple[int, int], spec: ModelSpec) -> bool:
    listed = {(entry.width, entry.height) for entry in spec.sizes.listed}
    return spec.sizes.mode == "any" or size in listed
