"""Validation rules for well-formed requests.

Each check compares fields with the limits of model and server, and reports every violation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

from models.spec.controls import FIELD as CONTROL
from models.spec.evaluations import ONE_A_STEP
from models.spec.field_types import MAX_SEED, REFINER
from models.spec.hires import FIELD as HIRES
from models.spec.hires import generated_size
from models.spec.image_prompts import FIELD as IMAGE_PROMPTS
from models.spec.image_prompts import name_of
from models.spec.model_spec import Task
from models.spec.passes import denoising_steps, evaluations_of
from models.spec.prompt_syntax import passages
from models.spec.quality_presets import EXACT
from models.spec.request_images import VIDEO_FIELDS
from models.spec.step_plan import MAX_STRETCH, PlannedCache
from models.spec.upscalers import FIELD as UPSCALE
from models.spec.upscalers import MAX_SIDE_PX, upscaled
from service.errors.problems import FieldError
from service.schemas.limits import has_no_upscaler, takes_no_loras
from service.validation.case import STEP_LISTS, Case, listed_steps
from service.validation.hires import wrong_hires
from service.validation.loras import wrong_loras

PROMPTS = ("prompt", "negative_prompt", "prompt_2", "negative_prompt_2")
TASK_IMAGES: Mapping[Task, frozenset[str]] = {
    "text-to-image": frozenset(),
    "image-to-image": frozenset({"image"}),
    "inpainting": frozenset({"image", "mask_image"}),
    "text-to-video": frozenset(),
    "image-to-video": frozenset({"image"}),
}
"""Image fields that determine a request's task."""
UNEVEN = "it evaluates the network more than once in some steps; choose another scheduler"
"""Reason for which a field needs a scheduler with one evaluation a step."""
IMAGE_DESCRIPTIONS = {
    "image": "the input image, as image",
    "mask_image": "an image that is white where the image is to be regenerated, as mask_image",
    "last_image": "the image that the video ends with, as last_image",
    "pose_video": "the video of poses, as pose_video",
    "face_video": "the video of a face, as face_video",
    "control_image": "the image of edges or depths to follow, as control_image",
}


Errors = Iterator[FieldError]


def all_errors(case: Case) -> list[FieldError]:
    """List all errors of a request, in the order of the checks."""
    return [error for check in _CHECKS for error in check(case)]


def _unserved(case: Case) -> Errors:
    served = case.spec.fields | {"prompt", "seed", "num_images"}
    for name in sorted(case.requested.keys() - served - {"loras", UPSCALE, HIRES}):
        yield FieldError(name, f"the model {case.spec.name!r} does not support this field")


def _wrong_task(case: Case) -> Errors:
    if case.task not in case.spec.tasks:
        yield from _no_such_task(case)
    elif "mask_image" in case.requested and "image" not in case.requested:
        yield FieldError("mask_image", "also send the image that it masks, as image")
    if "last_image" in case.requested and "image" not in case.requested:
        yield FieldError("last_image", "also send the first image of the video, as image")
    for name in sorted(case.spec.needed - case.requested.keys()):
        words = IMAGE_DESCRIPTIONS.get(name, name)
        yield FieldError(name, f"the model {case.spec.name!r} requires it: send {words}")


def _no_such_task(case: Case) -> Errors:
    """Report input images that the model requires or does not accept."""
    sent = case.requested.keys() & TASK_IMAGES["inpainting"]
    tasks = ", ".join(case.spec.tasks)
    candidates = [TASK_IMAGES[task] for task in case.spec.tasks if TASK_IMAGES[task] >= sent]
    if candidates:
        for name in sorted(min(candidates, key=len) - sent):
            message = (
                f"the model {case.spec.name!r} supports {tasks}: send {IMAGE_DESCRIPTIONS[name]}"
            )
            yield FieldError(name, message)
        return
    picture = "mask_image" if "mask_image" in sent else "image"
    if picture in case.spec.fields:  # otherwise `_unserved` has reported it
        yield FieldError(picture, f"the model {case.spec.name!r} supports {tasks}, not {case.task}")


def _wrong_sizes(case: Case) -> Errors:
    bounds = case.bounds
    sides = {name: case.fields[name] for name in ("width", "height") if name in case.fields}
    for name, side in sides.items():
        if not bounds.min_side_px <= side <= bounds.max_side_px:
            message = f"must be {bounds.min_side_px} to {bounds.max_side_px} pixels"
            yield FieldError(name, message)
        elif side % bounds.size_multiple_px:
            yield FieldError(name, f"must be a multiple of {bounds.size_multiple_px} pixels")
    pixels = bounds.max_pixels
    if len(sides) == 2 and sides["width"] * sides["height"] > pixels:
        yield FieldError("width", f"width times height must be {pixels} pixels at most")


def _unlisted_size(case: Case) -> Errors:
    sizes = case.spec.sizes
    if sizes.mode == "any":
        return
    lengths = {size.max_sequence_length for size in sizes.listed if size.fits(case.fields)}
    if lengths:
        if not lengths & {None, case.fields.get("max_sequence_length")}:
            listed = " or ".join(map(str, sorted(filter(None, lengths))))
            yield FieldError("max_sequence_length", f"must be {listed} with this size")
        return
    sides = {(size.width, size.height) for size in sizes.listed}
    is_of_frames = (case.fields.get("width"), case.fields.get("height")) in sides
    listed = ", ".join(map(str, sizes.listed))
    message = f"the model {case.spec.name!r} supports only these sizes: {listed}"
    yield FieldError("num_frames" if is_of_frames else "width", message)


def _wrong_frames(case: Case) -> Errors:
    frames = case.fields.get("num_frames")
    if frames is None:
        return
    bounds = case.bounds
    minimum, multiple, top = bounds.min_frames, bounds.frames_multiple, bounds.max_frames
    if frames > top:
        yield FieldError("num_frames", f"must be {top} at most")
    elif (frames - minimum) % multiple or frames < minimum:
        below = frames - (frames - minimum) % multiple
        options = [f"{count}" for count in (below, below + multiple) if minimum <= count <= top]
        message = f"must be {minimum} more than a multiple of {multiple}: {' or '.join(options)}"
        yield FieldError("num_frames", message)
    if frames == 1 and "last_image" in case.requested:
        yield FieldError("num_frames", "must be more than 1 with last_image")
    pixels = bounds.max_clip_pixels
    if frames * case.fields.get("width", 1) * case.fields.get("height", 1) > pixels:
        yield FieldError(
            "num_frames", f"width times height times num_frames must be {pixels} at most"
        )


def _wrong_counts(case: Case) -> Errors:
    bounds = case.bounds
    tops = {
        "num_inference_steps": bounds.max_steps,
        "num_images": bounds.max_images,
        "max_sequence_length": bounds.max_sequence_length,
        "clip_skip": bounds.max_clip_skip,
    }
    for name, top in tops.items():
        if case.fields.get(name, 0) > top:
            yield FieldError(name, f"must be {top} at most")
    multiple = case.spec.limits.sequence_length_multiple
    if case.fields.get("max_sequence_length", 0) % multiple:
        yield FieldError("max_sequence_length", f"must be a multiple of {multiple}")
    if case.fields.get("num_inference_steps", bounds.min_steps) < bounds.min_steps:
        name = next(iter(sorted(STEP_LISTS & case.requested.keys())), "num_inference_steps")
        yield FieldError(name, f"must make {bounds.min_steps} steps at least")


def _wrong_references(case: Case) -> Errors:
    count, top = len(case.requested.get("reference_images", ())), case.bounds.max_reference_images
    if count > top and "reference_images" in case.spec.fields:
        yield FieldError("reference_images", f"has {count} images; the model accepts {top} at most")


def _wrong_control_video(case: Case) -> Errors:
    if "control_video" not in case.spec.fields:
        return
    if "mask_video" in case.requested and "control_video" not in case.requested:
        yield FieldError("control_video", "also send the video that mask_video masks")
    if {"image", "control_video"} <= case.requested.keys():
        yield FieldError("image", "send it as a frame of control_video")
    count, top = len(case.requested.get("conditioning_scale", ())), case.bounds.conditioning_scales
    if count not in (0, 1, top):
        yield FieldError("conditioning_scale", f"has {count} numbers; send one, or {top}")


def _wrong_background(case: Case) -> Errors:
    if "background_video" not in case.spec.fields:
        return
    names = {"background_video", "mask_video"}
    if len(sent := case.requested.keys() & names) == 1:
        yield FieldError((names - sent).pop(), f"send it with {sent.pop()}")


def _wrong_frames_sent(case: Case) -> Errors:
    frames = case.fields.get("num_frames", 1)
    for name in VIDEO_FIELDS:
        sent = case.requested.get(name)
        if name in case.spec.fields and isinstance(sent, list) and len(sent) > frames:
            yield FieldError(name, f"has {len(sent)} frames; num_frames is {frames}")


def _wrong_image_prompts(case: Case) -> Errors:
    available, entries = case.spec.image_prompts, case.requested.get(IMAGE_PROMPTS, ())
    if IMAGE_PROMPTS not in case.spec.fields or not entries:
        return
    top = case.bounds.max_image_prompts
    if len(entries) > top:
        message = f"has {len(entries)} images; the model accepts {top} at most"
        yield FieldError(IMAGE_PROMPTS, message)
    for index, entry in enumerate(entries):
        if name_of(entry.get("name"), available) not in available:
            message = f"must be {' or '.join(sorted(available))}"
            yield FieldError(f"{IMAGE_PROMPTS}.{index}.name", message)


def _wrong_controls(case: Case) -> Errors:
    available, entries = case.spec.controls, case.requested.get(CONTROL, ())
    if CONTROL not in case.spec.fields or not entries:
        return
    if len(entries) > (top := case.bounds.max_controls):
        yield FieldError(CONTROL, f"has {len(entries)} entries; the model accepts {top} at most")
    for index, entry in enumerate(entries):
        if entry["name"] not in available:
            message = f"must be {' or '.join(sorted(available))}"
            yield FieldError(f"{CONTROL}.{index}.name", message)


def _wrong_seed(case: Case) -> Errors:
    if case.fields["seed"] + case.fields["num_images"] - 1 > MAX_SEED:
        yield FieldError("seed", f"seed + num_images - 1 must be {MAX_SEED} at most")


def _wrong_prompts(case: Case) -> Errors:
    top = case.limits.max_prompt_chars
    for name in PROMPTS:
        if len(case.requested.get(name, "")) > top:
            yield FieldError(name, f"must have {top} characters at most")


def _wrong_weights(case: Case) -> Errors:
    if case.fields.get("prompt_syntax") != "weighted":
        return
    for name in PROMPTS:
        text = case.requested.get(name, "")
        try:  # too long prompts are reported elsewhere
            passages(text[: case.limits.max_prompt_chars])
        except ValueError as error:
            yield FieldError(name, str(error))


def _wrong_strength(case: Case) -> Errors:
    strength, steps = case.fields.get("strength"), case.fields.get("num_inference_steps")
    needed = case.spec.strength_needs
    if "strength" in case.requested and needed not in case.requested:
        yield FieldError("strength", f"has no effect without {needed}")
    elif (
        strength is not None
        and steps is not None
        and denoising_steps(steps, strength, case.spec.strength_rounds) < 1
    ):
        yield FieldError(
            "strength", f"leaves no step of {steps} to run; raise it or num_inference_steps"
        )


def _wrong_step_lists(case: Case) -> Errors:
    lists = sorted(STEP_LISTS & case.requested.keys())
    for name in lists:
        steps = listed_steps(name, case.requested[name], case.spec)
        if steps != case.fields["num_inference_steps"]:
            yield FieldError(name, f"make {steps} steps, not num_inference_steps; leave that out")
        if any(a <= b for a, b in itertools.pairwise(case.requested[name])):
            yield FieldError(name, "must fall")
    if len(lists) > 1:
        yield FieldError("timesteps", "send these or sigmas, not both")


def _wrong_sigmas(case: Case) -> Errors:
    sigmas = case.requested.get("sigmas")
    if sigmas is None:
        return
    if case.spec.sigmas_are == "noise levels":
        if len(sigmas) < 2:
            yield FieldError("sigmas", "must be one per step and a final one, usually 0")
    elif not 0 < min(sigmas) <= max(sigmas) <= 1:
        yield FieldError("sigmas", "must be one per step, each at most 1 and above 0")


def _untaken_step_lists(case: Case) -> Errors:
    """Report `timesteps` or `sigmas` that the selected scheduler cannot run."""
    scheduler = case.requested.get("scheduler", {}).get("name", case.spec.scheduler)
    supported = case.spec.step_lists.get(scheduler, STEP_LISTS)
    for name in sorted((STEP_LISTS & case.requested.keys()) - supported):
        yield FieldError(name, f"the scheduler {scheduler} does not accept them; leave them out")


def _wrong_scheduler(case: Case) -> Errors:
    if "scheduler" not in case.requested or "scheduler" not in case.spec.fields:
        return
    chosen, spec = case.requested["scheduler"], case.spec
    name = chosen["name"]
    if name not in spec.schedulers:
        available = ", ".join(spec.schedulers) or "none but the checkpoint's own"
        message = f"the model {spec.name!r} has no scheduler {name!r}; available: {available}"
        yield FieldError("scheduler.name", message)
        return
    options = spec.schedulers[name]
    for key in sorted(chosen.keys() - {"name"}):
        if key not in options:
            takes = ", ".join(sorted(options)) or "no options"
            yield FieldError(f"scheduler.{key}", f"{name} accepts {takes}")
        elif wrong := options[key].error(chosen[key]):
            yield FieldError(f"scheduler.{key}", wrong)
        elif rivals := [
            other for other in options[key].excludes if chosen[key] and chosen.get(other)
        ]:
            yield FieldError(
                f"scheduler.{key}", f"cannot be true together with {', '.join(rivals)}"
            )


def _wrong_evaluations(case: Case) -> Errors:
    """Report fields that a scheduler with more than one evaluation a step excludes."""
    evaluations = evaluations_of(case.fields, case.spec)
    if case.fields.get("num_inference_steps", evaluations.min_steps) < evaluations.min_steps:
        message = f"must be at least {evaluations.min_steps} with this scheduler"
        yield FieldError("num_inference_steps", message)
    refiner = case.requested.get(REFINER) or case.fields.get(REFINER)
    if evaluations != ONE_A_STEP and refiner and REFINER in case.spec.fields:
        yield FieldError(REFINER, f"cannot be combined with this scheduler: {UNEVEN}")


def _wrong_quality(case: Case) -> Errors:
    name, names = case.fields.get("quality", EXACT), case.spec.quality_names
    if name not in names and "quality" in case.spec.fields:
        available = ", ".join(names)
        message = f"the model {case.spec.name!r} has no preset {name!r}; available: {available}"
        yield FieldError("quality", message)
        return
    steps, preset = case.fields.get("num_inference_steps"), case.spec.qualities.get(name)
    plans = preset.step_cache if preset else None
    if steps and isinstance(plans, PlannedCache) and not plans.serves(steps):
        counts = ", ".join(map(str, plans.step_counts))
        message = (
            f"the preset {name!r} has plans for {counts} steps, and {steps} are more than"
            f" {MAX_STRETCH} times from the nearest; change num_inference_steps or the preset"
        )
        yield FieldError("quality", message)


def _wrong_upscale(case: Case) -> Errors:
    if UPSCALE not in case.requested:
        return
    available, options = case.spec.upscalers, case.fields[UPSCALE]
    if not available:
        yield FieldError(UPSCALE, has_no_upscaler(case.spec))
    elif (name := options["name"]) not in available:
        yield FieldError(f"{UPSCALE}.name", f"must be {' or '.join(sorted(available))}")
    elif options["scale"] > (top := available[name].scale):
        yield FieldError(f"{UPSCALE}.scale", f"must be {top} at most, the scale of {name!r}")
    else:
        yield from _too_large(case, options["scale"])


def _too_large(case: Case, scale: float) -> Errors:
    """Report images that are too large after upscaling, if their size is known."""
    if case.waits_for_size:
        return
    sides = [upscaled(side, scale) for side in generated_size(case.fields)]
    if max(sides) > MAX_SIDE_PX:
        message = f"makes a side of {max(sides)} pixels; the maximum is {MAX_SIDE_PX}"
        yield FieldError(f"{UPSCALE}.scale", message)
    elif sides[0] * sides[1] > (top := case.bounds.max_upscaled_pixels):
        message = f"makes {sides[0]} x {sides[1]} pixels; the maximum is {top}"
        yield FieldError(f"{UPSCALE}.scale", message)


def _wrong_hires(case: Case) -> Errors:
    checks = (_wrong_sizes, _unlisted_size, _wrong_frames, _wrong_counts, _wrong_strength)
    yield from wrong_hires(case, checks)


def _wrong_loras(case: Case) -> Errors:
    entries = case.requested.get("loras", ())
    if case.spec.lora_pages:
        yield from wrong_loras(entries, case.spec, case.limits.max_loras, case.loras)
    elif entries:
        yield FieldError("loras", takes_no_loras(case.spec))


_CHECKS: tuple[Callable[[Case], Errors], ...] = (
    _unserved,
    _wrong_task,
    _wrong_sizes,
    _unlisted_size,
    _wrong_frames,
    _wrong_counts,
    _wrong_references,
    _wrong_control_video,
    _wrong_background,
    _wrong_frames_sent,
    _wrong_image_prompts,
    _wrong_controls,
    _wrong_seed,
    _wrong_prompts,
    _wrong_weights,
    _wrong_strength,
    _wrong_step_lists,
    _wrong_sigmas,
    _untaken_step_lists,
    _wrong_scheduler,
    _wrong_evaluations,
    _wrong_quality,
    _wrong_upscale,
    _wrong_hires,
    _wrong_loras,
)
