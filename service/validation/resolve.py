"""A request against a model: defaults filled in, every limit checked. Pure; no queue, no store."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from models.spec.hires import FIELD as HIRES
from models.spec.hires import with_defaults as with_target
from models.spec.image_files import ImageFile
from models.spec.image_sizes import size_of_area, within_pixels
from models.spec.lora import Lora, RequestedLora
from models.spec.model_spec import ModelSpec, Task
from models.spec.passes import passes, steps_of
from models.spec.quality_presets import EXACT
from models.spec.upscalers import FIELD as UPSCALE
from models.spec.upscalers import with_defaults as with_upscaler
from service.errors.problems import FieldError, Invalid, NotAcceptable
from service.jobs.model.job import Warned
from service.schemas.request import GenerateRequest, model_fields
from service.schemas.request_parts import MEDIA_TYPES, OutputRequest
from service.settings.limits import LimitSettings
from service.validation.case import Case
from service.validation.ineffective_fields import all_warnings
from service.validation.loras import requested
from service.validation.quality_aim import chosen_preset
from service.validation.rules import all_errors
from service.validation.steps import STEP_LISTS, listed_steps

IMAGE_FORMATS = ("png", "jpeg", "webp")
VIDEO_FORMATS = ("mp4", "webm", "gif", "png")

DRAWN_SEEDS = 2**32
"""Seeds are drawn below this: torch's generator reads no more bits of one, and every JSON reader
can hold it exactly."""


@dataclass(frozen=True)
class Resolved:
    """A request that the model can serve."""

    task: Task
    fields: dict[str, Any]
    """Fields that the model serves, each with its value."""
    output: dict[str, Any]
    """format, quality (may be None), inline, metadata."""
    steps: int
    """Denoising steps over all images."""
    warnings: list[Warned]
    """Warnings about fields without effect, or with another than they name."""
    loras: tuple[RequestedLora, ...] = ()
    """Adapters that count in any step."""


def resolve(
    request: GenerateRequest,
    spec: ModelSpec,
    limits: LimitSettings,
    media_types: tuple[str, ...] = (),
    loras: Sequence[Lora] = (),
) -> Resolved:
    """Fill in the model's defaults and hold the result against its limits and ours.

    Args:
        media_types: what the Accept header wants, best first, where it wants bytes.
        loras: adapters that the tenant may name, of any model.

    Raises:
        Invalid: names every field that is wrong.
        NotAcceptable: the output's format is none of `media_types`.
    """
    given = model_fields(request)
    task = task_of(given, spec)
    fields = _with_defaults(given, spec, task)
    output = _output(request, task, media_types, fields)
    unmet = _take_preset(given, fields, spec, task)
    case = Case(spec, limits, task, fields, given, loras)
    errors = [*all_errors(case), *unmet]
    if not errors:
        errors += _wrong_stop(request, fields, spec)
    errors += _wrong_output(output["format"], task, media_types, fields)
    if errors:
        raise Invalid(errors)
    if media_types and MEDIA_TYPES[output["format"]] not in media_types:
        raise NotAcceptable(f"the output is {MEDIA_TYPES[output['format']]}; accept that, or JSON")
    return Resolved(
        task=task,
        fields=fields,
        output=output,
        steps=sum(steps_of_passes(fields, spec)),
        warnings=all_warnings(case, output),
        loras=requested(given.get("loras", ()), spec, loras),
    )


def _wrong_stop(
    request: GenerateRequest, fields: Mapping[str, Any], spec: ModelSpec
) -> list[FieldError]:
    """Check that an audition's images stop before their first pass is over."""
    if request.stop_at_step is None:
        return []
    steps = steps_of_passes(fields, spec)[0] // int(fields["num_images"])
    if request.stop_at_step < steps:
        return []
    said = f"must be less than {steps}, the steps of each image or of its first pass"
    return [FieldError("stop_at_step", said)]


def _take_preset(
    given: dict[str, Any], fields: dict[str, Any], spec: ModelSpec, task: Task
) -> list[FieldError]:
    """Put the preset's name in place of a likeness that is wanted, or return why there is none."""
    if not isinstance(given.get("quality"), dict):
        return []
    chosen = chosen_preset(fields, spec, task)
    if isinstance(chosen, FieldError):
        given.pop("quality")
        fields["quality"] = spec.defaults.get("quality", EXACT)
        return [chosen]
    given["quality"] = fields["quality"] = chosen
    return []


def steps_of_passes(fields: Mapping[str, Any], spec: ModelSpec) -> list[int]:
    """Return the denoising steps of each pass of a resolved request, over all images."""
    return [
        int(fields["num_images"]) * steps_of(one, spec)
        for one in passes(fields, spec)
        if one is not None
    ]


def with_size_of(request: GenerateRequest, image: ImageFile, spec: ModelSpec) -> GenerateRequest:
    """The request with what it leaves open of its size as its image has it, in whole multiples.

    Scaled to the model's area, where it has one.

    Source: diffusers image_processor.py, VaeImageProcessor.get_default_height_width.
    """
    if request.width is not None and request.height is not None:
        return request
    multiple = spec.limits.size_multiple_px
    size = within_pixels((image.width, image.height), spec.sized_within_px)
    if spec.sized_area_px is not None:
        size = size_of_area(size, spec.sized_area_px)
    own = dict(zip(("width", "height"), (side - side % multiple for side in size), strict=True))
    left = {name: side for name, side in own.items() if getattr(request, name) is None}
    return request.model_copy(update=left)


def task_of(given: Mapping[str, Any], spec: ModelSpec) -> Task:
    """Return the task that the request asks for, decided by the images that come with it."""
    video = any(task.endswith("-to-video") for task in spec.tasks)
    if "mask_image" in given:
        return "inpainting"
    if "image" in given:
        return "image-to-video" if video else "image-to-image"
    return "text-to-video" if video else "text-to-image"


def _with_defaults(given: dict[str, Any], spec: ModelSpec, task: Task) -> dict[str, Any]:
    fields = {"num_images": 1, **spec.defaults_for(task), **given}
    for name in STEP_LISTS & given.keys():
        listed = listed_steps(name, given[name], spec)
        fields["num_inference_steps"] = given.get("num_inference_steps", listed)
    if spec.strength_needs not in given:
        fields.pop("strength", None)
        fields |= {"strength": given["strength"]} if "strength" in given else {}
    if UPSCALE in given:
        fields[UPSCALE] = with_upscaler(given[UPSCALE], spec.upscalers)
    if HIRES not in spec.fields or (given.get(HIRES) is None and not _has_hires(given, spec, task)):
        fields.pop(HIRES, None)
    if fields.get(HIRES) is not None:
        multiple = spec.limits.size_multiple_px
        fields[HIRES] = with_target(fields[HIRES], fields, multiple, spec.enlargers)
    if "seed" not in given:
        fields["seed"] = secrets.randbelow(DRAWN_SEEDS)
    return fields


def _has_hires(given: Mapping[str, Any], spec: ModelSpec, task: Task) -> bool:
    """Return whether the model has a default second pass, and a request's fields room for it.

    Where it has, the null of a request that switches it off is kept: without it the request, sent
    again, would draw two passes.
    """
    lists = frozenset() if spec.enlargers else STEP_LISTS
    has_room = lists.isdisjoint(given) and "mask_image" not in given
    return has_room and spec.defaults_for(task).get(HIRES) is not None


def formats_of(task: Task) -> tuple[str, ...]:
    """The formats that a task's outputs may have, the default first."""
    return VIDEO_FORMATS if task.endswith("-to-video") else IMAGE_FORMATS


def _output(
    request: GenerateRequest, task: Task, media_types: tuple[str, ...], fields: Mapping[str, Any]
) -> dict[str, Any]:
    asked = (request.output or OutputRequest()).model_dump()
    accepted = [
        name for kind in media_types for name in formats_of(task) if MEDIA_TYPES[name] == kind
    ]
    accepted.sort(key=lambda name: _is_in_parts(name, task, fields))
    chosen = asked.get("format") or next(iter(accepted), formats_of(task)[0])
    return asked | {"format": chosen}


def _is_in_parts(format: str, task: Task, fields: Mapping[str, Any]) -> bool:
    """Return whether one video becomes several files: its frames."""
    is_clip = task.endswith("-to-video") and fields.get("num_frames", 1) > 1
    return is_clip and format in IMAGE_FORMATS


def _wrong_output(
    chosen: str, task: Task, media_types: tuple[str, ...], fields: Mapping[str, Any]
) -> Iterator[FieldError]:
    if chosen not in formats_of(task):
        yield FieldError("output.format", f"{task} gives {', '.join(formats_of(task))}")
    elif media_types and _is_in_parts(chosen, task, fields):
        yield FieldError(
            "output.format",
            f"a video as {chosen} is one file a frame: accept JSON, and fetch each by its url",
        )
    if media_types and fields["num_images"] > 1:
        yield FieldError(
            "num_images", "one at a time where Accept asks for the bytes; ask for JSON"
        )
