"""Fields of a request with its model's defaults, validated. Pure: no queue, no store."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from models.media.image_files import ImageFile
from models.media.scaling import size_of_area, within_pixels
from models.requests import REQUESTS
from models.spec.evaluations import ONE_A_STEP
from models.spec.hires import FIELD as HIRES
from models.spec.hires import with_defaults as with_target
from models.spec.lora import Lora, RequestedLora
from models.spec.model_spec import ModelSpec, Task
from models.spec.option import OptionError
from models.spec.output_options import TRANSPARENT, WITH_ALPHA
from models.spec.passes import evaluations_of, passes, steps_of
from models.spec.quality_presets import EXACT, Measured
from models.spec.request import RequestError, read_request
from models.spec.scheduler_names import resolve_scheduler
from models.spec.upscalers import FIELD as UPSCALE
from models.spec.upscalers import with_defaults as with_upscaler
from service.errors.problems import FieldError, Invalid, NotAcceptable
from service.jobs.model.job import FieldWarning
from service.schemas.request import GenerateRequest, model_fields
from service.schemas.request_parts import MEDIA_TYPES, OutputRequest
from service.settings.limits import LimitSettings
from service.validation.case import STEP_LISTS, Case, listed_steps
from service.validation.embeddings import requested_embeddings
from service.validation.ineffective_fields import all_warnings
from service.validation.loras import requested_loras
from service.validation.rules import UNEVEN, all_errors

IMAGE_FORMATS = ("png", "jpeg", "webp")
VIDEO_FORMATS = ("mp4", "webm", "gif", "png")

QUALITY, MIN_PSNR_DB = "quality", "min_psnr_db"
SCHEDULER = "scheduler"
MAX_RANDOM_SEED = 2**32
"""Upper bound of random seeds. Torch's generator uses no more bits, and every JSON reader can
represent these numbers exactly."""


@dataclass(frozen=True)
class ResolvedFields:
    """Valid request for images or videos, with all defaults applied."""

    task: Task
    fields: dict[str, Any]
    """Fields that the model serves, with their values."""
    output: dict[str, Any]
    """format, quality (may be None), background (absent if opaque), inline, metadata."""
    steps: int
    """Denoising steps over all images."""
    warnings: list[FieldWarning]
    """Warnings about fields without effect, or with an unexpected one."""
    loras: tuple[RequestedLora, ...] = ()
    """Adapters that affect any step, and embeddings that the prompts name."""


def resolve(
    request: GenerateRequest,
    spec: ModelSpec,
    limits: LimitSettings,
    media_types: tuple[str, ...] = (),
    loras: Sequence[Lora] = (),
) -> ResolvedFields:
    """Apply the model's defaults, and validate the result against the model's and server's limits.

    Args:
        media_types: media types of the Accept header, best first, if it requests files.
        loras: adapters and embeddings that the tenant may name, for any model.

    Raises:
        Invalid: lists every invalid field.
        NotAcceptable: the output's format is not in `media_types`.
    """
    given = model_fields(request)
    task = task_of(given, spec)
    fields = _with_defaults(given, spec, task)
    unknown = _take_scheduler(given, fields, spec)
    output = _output(request, task, media_types, fields)
    unmet = _take_preset(given, fields, spec, task)
    case = Case(spec, limits, task, fields, given, loras)
    errors = [*all_errors(case), *unknown, *unmet]
    if not errors:
        errors += [*_wrong_stop(request, fields, spec), *_wrong_for_family(fields, spec)]
    errors += _wrong_output(output["format"], task, media_types, fields)
    errors += _wrong_background(output, spec, fields)
    if errors:
        raise Invalid(errors)
    if media_types and MEDIA_TYPES[output["format"]] not in media_types:
        raise NotAcceptable(f"the output is {MEDIA_TYPES[output['format']]}; accept that, or JSON")
    return ResolvedFields(
        task=task,
        fields=fields,
        output=output,
        steps=sum(steps_of_passes(fields, spec)),
        warnings=all_warnings(case, output),
        loras=(
            *requested_loras(given.get("loras", ()), spec, loras),
            *requested_embeddings(fields, spec, loras),
        ),
    )


def _wrong_stop(
    request: GenerateRequest, fields: Mapping[str, Any], spec: ModelSpec
) -> list[FieldError]:
    """Report a `stop_at_step` that is not less than the number of steps of the first pass."""
    if request.stop_at_step is None:
        return []
    if "resume" in spec.lacks:
        return [FieldError("stop_at_step", f"the model {spec.name!r} cannot stop and resume")]
    if evaluations_of(fields, spec) != ONE_A_STEP:
        return [FieldError("stop_at_step", f"cannot be combined with this scheduler: {UNEVEN}")]
    steps = steps_of_passes(fields, spec)[0] // int(fields["num_images"])
    if request.stop_at_step < steps:
        return []
    message = f"must be less than {steps}, the steps of each image or of its first pass"
    return [FieldError("stop_at_step", message)]


def _wrong_for_family(fields: Mapping[str, Any], spec: ModelSpec) -> Iterator[FieldError]:
    """Report a field that the family's request class rejects, as its worker would.

    Families of newer releases are unknown here; their workers validate alone. Adapters are
    validated separately, since the worker's have other fields than the client's.
    """
    if spec.family not in REQUESTS:
        return
    try:
        read_request(REQUESTS[spec.family], {**fields, "loras": None})
    except RequestError as error:
        yield FieldError(error.field, error.message)


def _take_scheduler(
    given: dict[str, Any], fields: dict[str, Any], spec: ModelSpec
) -> list[FieldError]:
    """Replace other programs' names of schedulers by the model's, or return an error."""
    try:
        for values in (given, fields):
            if values.get(SCHEDULER):
                values[SCHEDULER] = resolve_scheduler(
                    values[SCHEDULER], spec.schedulers, spec.scheduler
                )
    except OptionError as error:
        return [FieldError(f"{SCHEDULER}.{error.field}", error.message)]
    return []


def _take_preset(
    given: dict[str, Any], fields: dict[str, Any], spec: ModelSpec, task: Task
) -> list[FieldError]:
    """Replace a minimum PSNR by the name of a preset, or return an error."""
    if not isinstance(given.get("quality"), dict):
        return []
    chosen = _select_preset(fields, spec, task)
    if isinstance(chosen, FieldError):
        given.pop("quality")
        fields["quality"] = spec.defaults.get("quality", EXACT)
        return [chosen]
    given["quality"] = fields["quality"] = chosen
    return []


def _select_preset(fields: Mapping[str, Any], spec: ModelSpec, task: Task) -> str | FieldError:
    """Select the fastest preset whose images all reached the requested PSNR, or return an error.

    The result is `exact`, which always qualifies, if no other preset qualifies or is faster.
    Results apply only to the calibrated number of steps, in one pass of the model's first task.

    Args:
        fields: fields with defaults applied, and an aim as quality.
    """
    if QUALITY not in spec.fields:
        return _wrong_aim(f"the model {spec.name!r} has no presets; leave it out")
    minimum_db = float(fields[QUALITY][MIN_PSNR_DB])
    measured = _applicable_results(fields, spec, task)
    qualifying = {
        name: figures for name, figures in measured.items() if figures.worst_db >= minimum_db
    }
    if qualifying:
        fastest = min(
            qualifying, key=lambda name: (qualifying[name].time, -qualifying[name].worst_db)
        )
        return EXACT if spec.has_exact and qualifying[fastest].time >= 1 else fastest
    return EXACT if spec.has_exact else _wrong_aim(_no_preset_message(measured, minimum_db, spec))


def _applicable_results(
    fields: Mapping[str, Any], spec: ModelSpec, task: Task
) -> Mapping[str, Measured]:
    """Return the calibration results that apply to a request, by preset."""
    if task != spec.tasks[0] or fields.get(HIRES):
        return {}
    return {
        name: preset.measured
        for name, preset in spec.qualities.items()
        if preset.measured and preset.measured.steps == fields["num_inference_steps"]
    }


def _no_preset_message(measured: Mapping[str, Measured], wanted_db: float, spec: ModelSpec) -> str:
    """Explain why no preset of a model without `exact` qualifies."""
    if measured:
        best = max(measured, key=lambda name: measured[name].worst_db)
        return (
            f"no preset reaches {wanted_db:g} dB; the closest is {best!r}, with"
            f" {measured[best].worst_db:g} dB at worst"
        )
    step_counts = {preset.measured.steps for preset in spec.qualities.values() if preset.measured}
    if not step_counts:
        return (
            f"the presets of {spec.name!r} have not been measured, and it has no exact preset;"
            " name a preset"
        )
    steps = ", ".join(map(str, sorted(step_counts)))
    return f"was measured only for {spec.tasks[0]} in one pass of {steps} steps; name a preset"


def _wrong_aim(message: str) -> FieldError:
    return FieldError(f"{QUALITY}.{MIN_PSNR_DB}", message)


def steps_of_passes(fields: Mapping[str, Any], spec: ModelSpec) -> list[int]:
    """Compute the denoising steps of each pass of a resolved request, over all images."""
    return [
        int(fields["num_images"]) * steps_of(pass_fields, spec)
        for pass_fields in passes(fields, spec)
        if pass_fields is not None
    ]


def with_size_of(request: GenerateRequest, image: ImageFile, spec: ModelSpec) -> GenerateRequest:
    """Set a request's missing size from its image, rounded down to the model's multiple.

    Scaled to the model's area, if it has one.

    Source: diffusers image_processor.py, VaeImageProcessor.get_default_height_width.
    """
    if request.width is not None and request.height is not None:
        return request
    multiple = spec.limits.size_multiple_px
    size = within_pixels((image.width, image.height), spec.sized_within_px)
    if spec.sized_area_px is not None:
        size = size_of_area(size, spec.sized_area_px)
    defaults = dict(
        zip(("width", "height"), (side - side % multiple for side in size), strict=True)
    )
    missing = {name: side for name, side in defaults.items() if getattr(request, name) is None}
    return request.model_copy(update=missing)


def task_of(given: Mapping[str, Any], spec: ModelSpec) -> Task:
    """Determine the task from the images that the request contains."""
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
        fields["seed"] = secrets.randbelow(MAX_RANDOM_SEED)
    return fields


def _has_hires(given: Mapping[str, Any], spec: ModelSpec, task: Task) -> bool:
    """Check whether the model has a default second pass that this request's fields permit.

    If so, a null that disables it is kept, because repeating the request without it would run two
    passes.
    """
    lists = frozenset() if spec.enlargers else STEP_LISTS
    has_room = lists.isdisjoint(given) and "mask_image" not in given
    return has_room and spec.defaults_for(task).get(HIRES) is not None


def formats_of(task: Task) -> tuple[str, ...]:
    """List the formats of a task's outputs, the default first."""
    return VIDEO_FORMATS if task.endswith("-to-video") else IMAGE_FORMATS


def _output(
    request: GenerateRequest, task: Task, media_types: tuple[str, ...], fields: Mapping[str, Any]
) -> dict[str, Any]:
    options = (request.output or OutputRequest()).model_dump()
    accepted = [
        name for kind in media_types for name in formats_of(task) if MEDIA_TYPES[name] == kind
    ]
    accepted.sort(key=lambda name: _is_in_parts(name, task, fields))
    chosen = options.get("format") or next(iter(accepted), formats_of(task)[0])
    if options["background"] != TRANSPARENT:  # same digests as before this field existed
        del options["background"]
    return options | {"format": chosen}


def _is_in_parts(format: str, task: Task, fields: Mapping[str, Any]) -> bool:
    """Return whether one video becomes several files, one per frame."""
    is_clip = task.endswith("-to-video") and fields.get("num_frames", 1) > 1
    return is_clip and format in IMAGE_FORMATS


def _wrong_background(
    output: Mapping[str, Any], spec: ModelSpec, fields: Mapping[str, Any]
) -> Iterator[FieldError]:
    if output.get("background") != TRANSPARENT:
        return
    name = "output.background"
    if not spec.has_alpha:
        message = f"the model {spec.name!r} does not generate transparent images; leave it out"
        yield FieldError(name, message)
    elif output["format"] not in WITH_ALPHA:
        message = f"{output['format']} cannot be transparent: use {' or '.join(WITH_ALPHA)}"
        yield FieldError(name, message)
    elif fields.get(UPSCALE):
        yield FieldError(name, f"cannot be transparent together with {UPSCALE}: leave one out")


def _wrong_output(
    chosen: str, task: Task, media_types: tuple[str, ...], fields: Mapping[str, Any]
) -> Iterator[FieldError]:
    if chosen not in formats_of(task):
        yield FieldError("output.format", f"{task} outputs {', '.join(formats_of(task))}")
    elif media_types and _is_in_parts(chosen, task, fields):
        yield FieldError(
            "output.format",
            f"a video as {chosen} is one file per frame: accept JSON, and fetch each by its url",
        )
    if media_types and fields["num_images"] > 1:
        yield FieldError("num_images", "one at a time if Accept requests the bytes; accept JSON")
