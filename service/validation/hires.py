"""Rules of hires fix, whose second pass must be valid for the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from models.spec.hires import FIELD, TASK, passes, target_size
from models.spec.passes import denoising_steps
from service.errors.problems import FieldError
from service.validation.case import STEP_LISTS, Case

SECOND_PASS_FIELDS = ("width", "height", "strength", "num_inference_steps")
"""Fields of the second pass that hires fix sets."""
SHARED_FIELDS = ("max_sequence_length", "num_frames")
"""Fields of both passes that listed sizes may contain."""
DEFAULT_HIRES_NOTE = " (hires fix is the model's default: request less, or switch it off)"
"""Suffix of errors of a second pass that comes from the model's defaults."""


def wrong_hires(
    case: Case, checks: tuple[Callable[[Case], Iterator[FieldError]], ...]
) -> Iterator[FieldError]:
    """Report errors of a request's hires fix.

    Args:
        checks: rules that also apply to the second pass.
    """
    if case.requested.get(FIELD) is None and case.fields.get(FIELD) is None:
        return
    by_default = "" if FIELD in case.requested else DEFAULT_HIRES_NOTE
    for error in _wrong(case, checks):
        yield FieldError(error.field, f"{error.message}{by_default}")


def _wrong(
    case: Case, checks: tuple[Callable[[Case], Iterator[FieldError]], ...]
) -> Iterator[FieldError]:
    if FIELD not in case.spec.fields:
        reason = (
            f"the model {case.spec.name!r} does not support image to image with a strength, which"
            " hires fix"
        )
        yield FieldError(
            FIELD, f"{reason} requires, and has no upscaler of its latents; leave it out"
        )
        return
    names, upscaler = case.spec.hires_upscalers, case.fields[FIELD]["upscaler"]
    if names and upscaler not in names:
        yield FieldError(f"{FIELD}.upscaler", f"must be {' or '.join(names)}")
        return
    yield from (
        _wrong_enlarger(case) if upscaler in case.spec.enlargers else _wrong_combinations(case)
    )
    if not case.waits_for_size:
        yield from _wrong_second(case, checks)


def _wrong_enlarger(case: Case) -> Iterator[FieldError]:
    """Report fields that a latent upscaler network determines itself."""
    fields, name = case.fields, case.fields[FIELD]["upscaler"]
    for member in sorted({"strength", "num_inference_steps"} & _requested(case).keys()):
        message = f"the upscaler {name!r} has its own second pass; leave it out"
        yield FieldError(f"{FIELD}.{member}", message)
    scale = case.spec.enlargers[name].scale
    size = fields["width"], fields["height"]
    expected = target_size({"scale": scale}, *size, case.bounds.size_multiple_px)
    if expected != (fields[FIELD]["width"], fields[FIELD]["height"]):
        message = f"must be {expected[0]} x {expected[1]}: the upscaler {name!r} makes it {scale:g}"
        field = _requested_field("width", _requested(case))
        yield FieldError(f"{FIELD}.{field}", f"{message} times as large; leave it out")


def _wrong_combinations(case: Case) -> Iterator[FieldError]:
    """Report fields of the request that are incompatible with a second pass."""
    if case.task == "inpainting":
        yield FieldError(FIELD, "regenerates the whole image; leave it out, or mask_image")
    for name in sorted(STEP_LISTS & case.requested.keys()):
        message = f"uses the scheduler's own steps in both passes; leave it out, or {name}"
        yield FieldError(FIELD, message)


def _wrong_second(
    case: Case, checks: tuple[Callable[[Case], Iterator[FieldError]], ...]
) -> Iterator[FieldError]:
    """Report errors of hires fix's second pass, under the names of its fields."""
    _, fields = passes(case.fields, case.spec)
    assert fields is not None
    yield from _wrong_shape(case.fields, fields, case.bounds.size_multiple_px)
    is_redrawn = case.fields[FIELD]["upscaler"] not in case.spec.enlargers
    if is_redrawn:
        yield from _too_many_steps(case, fields)
    overridden = {name: fields[name] for name in SECOND_PASS_FIELDS if is_redrawn}
    given = {**case.requested, **overridden, **({"image": fields["image"]} if is_redrawn else {})}
    schedule = case.limits.model_copy(update={"max_steps": case.spec.limits.max_steps})
    task = TASK if is_redrawn else case.task
    second = Case(case.spec, schedule, task, fields, given, case.loras)
    requested = _requested(case)
    first = {error.field for check in checks for error in check(case)}
    for error in (error for check in checks for error in check(second)):
        if error.field in SECOND_PASS_FIELDS:
            yield FieldError(f"{FIELD}.{_requested_field(error.field, requested)}", error.message)
        elif error.field in SHARED_FIELDS and error.field not in first:
            yield FieldError(error.field, f"{error.message}, the second pass's")


def _too_many_steps(case: Case, second: Mapping[str, Any]) -> Iterator[FieldError]:
    """Report too many steps of the second pass, of which only a share, `strength`, runs."""
    strength, limit = second["strength"], case.bounds.max_steps
    steps = second["num_inference_steps"]
    if steps > case.spec.limits.max_steps:  # reported by the other checks
        return
    if denoising_steps(steps, strength, case.spec.strength_rounds) > limit:
        message = f"must leave at most {limit} steps to run; lower it, or strength"
        yield FieldError(f"{FIELD}.num_inference_steps", message)


def _requested(case: Case) -> Mapping[str, Any]:
    """Return the hires fix options set by the client or the model's defaults."""
    source = case.requested if FIELD in case.requested else case.spec.defaults_for(case.task)
    return dict(source[FIELD])


def _requested_field(field: str, requested: Mapping[str, Any]) -> str:
    """Return the client's field that determines another field, for errors."""
    if field not in ("width", "height") or field in requested:
        return field
    return next((name for name in ("width", "height") if name in requested), "scale")


def _wrong_shape(
    first: Mapping[str, Any], second: Mapping[str, Any], multiple: int
) -> Iterator[FieldError]:
    """Report a hires target that is smaller, or whose proportions differ by more than rounding."""
    for name in ("width", "height"):
        if second[name] < first[name]:
            yield FieldError(
                f"{FIELD}.{name}", f"must be at least {first[name]}, the first pass's size"
            )
            return
    height = second["width"] * first["height"] / first["width"]
    width = second["height"] * first["width"] / first["height"]
    if abs(height - second["height"]) >= multiple and abs(width - second["width"]) >= multiple:
        message = (
            "has other proportions than the first pass; leave it out: width alone determines both"
        )
        yield FieldError(f"{FIELD}.height", message)
