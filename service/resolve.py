"""A request against a model: defaults filled in, every limit checked. Pure; no queue, no store."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from models.spec import ModelSpec, Task
from service.errors import FieldError, Invalid, NotAcceptable
from service.schemas import MAX_SEED, MEDIA_TYPES, GenerateRequest, model_fields
from service.settings import LimitSettings

IMAGE_FORMATS = ("png", "jpeg", "webp")
VIDEO_FORMATS = ("mp4", "webm", "gif", "png")
PROMPTS = ("prompt", "negative_prompt", "prompt_2", "negative_prompt_2")

DRAWN_SEEDS = 2**32
"""Seeds are drawn below this: torch's generator reads no more bits of one, and every JSON reader
can hold it exactly."""


@dataclass(frozen=True)
class Resolved:
    """A request that the model can serve."""

    task: Task
    fields: dict[str, Any]
    """Every field of the model's business, with its value."""
    output: dict[str, Any]
    """format, quality (may be None), inline."""

    @property
    def steps(self) -> int:
        """Denoising steps over all pictures."""
        fields = self.fields
        return fields["num_images"] * denoising_steps(
            fields["num_inference_steps"], fields.get("strength", 1.0)
        )


@dataclass(frozen=True)
class _Case:
    """What a check looks at."""

    spec: ModelSpec
    limits: LimitSettings
    task: Task
    fields: Mapping[str, Any]


Errors = Iterator[FieldError]


def resolve(
    request: GenerateRequest,
    spec: ModelSpec,
    limits: LimitSettings,
    media_types: tuple[str, ...] = (),
) -> Resolved:
    """Fill in the model's defaults and hold the result against its limits and ours.

    Args:
        media_types: what the Accept header wants, best first, where it wants bytes.

    Raises:
        Invalid: names every field that is wrong.
        NotAcceptable: the output's format is none of `media_types`.
    """
    given = model_fields(request)
    task = task_of(given, spec)
    case = _Case(spec, limits, task, _with_defaults(given, spec, task))
    output = _output(request, task, media_types)
    errors = [error for check in _CHECKS for error in check(case, given)]
    errors += _wrong_output(output["format"], task, media_types, case.fields)
    if errors:
        raise Invalid(errors)
    if media_types and MEDIA_TYPES[output["format"]] not in media_types:
        raise NotAcceptable(f"the output is {MEDIA_TYPES[output['format']]}; accept that, or JSON")
    return Resolved(task, dict(case.fields), output)


def task_of(given: Mapping[str, Any], spec: ModelSpec) -> Task:
    """What the request asks of this model: decided by the pictures that come with it."""
    video = any(task.endswith("-to-video") for task in spec.tasks)
    if "mask_image" in given:
        return "inpainting"
    if "image" in given:
        return "image-to-video" if video else "image-to-image"
    return "text-to-video" if video else "text-to-image"


def denoising_steps(num_inference_steps: int, strength: float) -> int:
    """Steps that run of those asked for.

    Source: Meng et al. 2022 (SDEdit), section 3; rounded as in diffusers' get_timesteps.
    """
    skipped = num_inference_steps - min(num_inference_steps * strength, num_inference_steps)
    return num_inference_steps - int(max(skipped, 0))


def _with_defaults(given: dict[str, Any], spec: ModelSpec, task: Task) -> dict[str, Any]:
    fields = {"num_images": 1, **spec.defaults_for(task), **given}
    if "sigmas" in given:
        fields["num_inference_steps"] = given.get("num_inference_steps", len(given["sigmas"]))
    if "image" not in given:
        fields.pop("strength", None)
        fields |= {"strength": given["strength"]} if "strength" in given else {}
    if "seed" not in given:
        fields["seed"] = secrets.randbelow(DRAWN_SEEDS)
    return fields


def _unserved(case: _Case, given: Mapping[str, Any]) -> Errors:
    served = case.spec.fields | {"prompt", "seed", "num_images"}
    for name in sorted(given.keys() - served):
        yield FieldError(name, f"the model {case.spec.name!r} does not serve this field")


def _wrong_task(case: _Case, given: Mapping[str, Any]) -> Errors:
    picture = "mask_image" if "mask_image" in given else "image"
    if case.task not in case.spec.tasks and (picture in case.spec.fields or picture not in given):
        does = ", ".join(case.spec.tasks)
        field = picture if picture in given else "model"
        yield FieldError(field, f"the model {case.spec.name!r} does {does}, not {case.task}")
    if "mask_image" in given and "image" not in given:
        yield FieldError("mask_image", "send the picture that it masks too, as image")


def _wrong_sizes(case: _Case, given: Mapping[str, Any]) -> Errors:
    bounds, limits = case.spec.limits, case.limits
    top = min(bounds.max_side_px, limits.max_side_px)
    sides = {name: case.fields[name] for name in ("width", "height") if name in case.fields}
    for name, side in sides.items():
        if not bounds.min_side_px <= side <= top:
            yield FieldError(name, f"must be {bounds.min_side_px} to {top} pixels")
        elif side % bounds.size_multiple_px:
            yield FieldError(name, f"must be a multiple of {bounds.size_multiple_px} pixels")
    pixels = min(bounds.max_pixels, limits.max_pixels)
    if len(sides) == 2 and sides["width"] * sides["height"] > pixels:
        yield FieldError("width", f"width times height must be {pixels} pixels at most")


def _wrong_counts(case: _Case, given: Mapping[str, Any]) -> Errors:
    bounds, limits = case.spec.limits, case.limits
    tops = {
        "num_inference_steps": min(bounds.max_steps, limits.max_steps),
        "num_images": min(bounds.max_images, limits.max_images),
        "max_sequence_length": bounds.max_sequence_length,
    }
    for name, top in tops.items():
        if case.fields.get(name, 1) > top:
            yield FieldError(name, f"must be {top} at most")


def _wrong_seed(case: _Case, given: Mapping[str, Any]) -> Errors:
    if case.fields["seed"] + case.fields["num_images"] - 1 > MAX_SEED:
        yield FieldError("seed", f"seed + num_images - 1 must be {MAX_SEED} at most")


def _wrong_prompts(case: _Case, given: Mapping[str, Any]) -> Errors:
    top = case.limits.max_prompt_chars
    for name in PROMPTS:
        if len(given.get(name, "")) > top:
            yield FieldError(name, f"must have {top} characters at most")


def _wrong_strength(case: _Case, given: Mapping[str, Any]) -> Errors:
    strength, steps = case.fields.get("strength"), case.fields.get("num_inference_steps")
    if "strength" in given and "image" not in given:
        yield FieldError("strength", "has no meaning without an image")
    elif strength is not None and steps is not None and denoising_steps(steps, strength) < 1:
        yield FieldError("strength", f"leaves none of the {steps} steps; raise one of them")


def _wrong_sigmas(case: _Case, given: Mapping[str, Any]) -> Errors:
    sigmas = given.get("sigmas")
    if sigmas is None:
        return
    if len(sigmas) != case.fields["num_inference_steps"]:
        yield FieldError("sigmas", "must be as many as num_inference_steps; leave that out")
    if any(a <= b for a, b in itertools.pairwise(sigmas)) or sigmas[-1] <= 0:
        yield FieldError("sigmas", "must fall and stay above 0")


_CHECKS: tuple[Callable[[_Case, Mapping[str, Any]], Errors], ...] = (
    _unserved,
    _wrong_task,
    _wrong_sizes,
    _wrong_counts,
    _wrong_seed,
    _wrong_prompts,
    _wrong_strength,
    _wrong_sigmas,
)


def formats_of(task: Task) -> tuple[str, ...]:
    """The formats that a task's outputs may have, the default first."""
    return VIDEO_FORMATS if task.endswith("-to-video") else IMAGE_FORMATS


def _output(request: GenerateRequest, task: Task, media_types: tuple[str, ...]) -> dict[str, Any]:
    asked = request.output.model_dump() if request.output else {"quality": None, "inline": False}
    accepted = (
        name for kind in media_types for name in formats_of(task) if MEDIA_TYPES[name] == kind
    )
    chosen = asked.get("format") or next(accepted, formats_of(task)[0])
    return asked | {"format": chosen}


def _wrong_output(
    chosen: str, task: Task, media_types: tuple[str, ...], fields: Mapping[str, Any]
) -> Errors:
    if chosen not in formats_of(task):
        yield FieldError("output.format", f"{task} gives {', '.join(formats_of(task))}")
    if media_types and fields["num_images"] > 1:
        yield FieldError(
            "num_images", "one picture at a time where Accept asks for its bytes; ask for JSON"
        )
