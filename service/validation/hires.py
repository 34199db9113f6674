"""Rules of hires fix: its second pass has to be a request that the model serves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from models.spec.hires import FIELD, TASK, passes, target_size
from models.spec.strength import denoising_steps
from service.errors.problems import FieldError
from service.validation.case import Case
from service.validation.steps import STEP_LISTS

OWN = ("width", "height", "strength", "num_inference_steps")
"""Fields of the second pass that are hires fix's own."""
SHARED = ("max_sequence_length", "num_frames")
"""Fields of both passes that a size may be listed with."""
NOT_ASKED = " (hires fix is the model's default: ask for less, or switch it off)"
"""End of errors of a second pass that the client has not asked for."""


def wrong_hires(
    case: Case, checks: tuple[Callable[[Case], Iterator[FieldError]], ...]
) -> Iterator[FieldError]:
    """Report what cannot be of a request's hires fix.

    Args:
        checks: rules that the second pass has to follow, too.
    """
    if case.given.get(FIELD) is None and case.fields.get(FIELD) is None:
        return
    by_default = "" if FIELD in case.given else NOT_ASKED
    for error in _wrong(case, checks):
        yield FieldError(error.field, f"{error.message}{by_default}")


def _wrong(
    case: Case, checks: tuple[Callable[[Case], Iterator[FieldError]], ...]
) -> Iterator[FieldError]:
    if FIELD not in case.spec.fields:
        said = f"the model {case.spec.name!r} does no image to image with a strength, as hires fix"
        yield FieldError(FIELD, f"{said} has to, and has no upscaler of its latents; leave it out")
        return
    names, upscaler = case.spec.hires_upscalers, case.fields[FIELD]["upscaler"]
    if names and upscaler not in names:
        yield FieldError(f"{FIELD}.upscaler", f"must be {' or '.join(names)}")
        return
    yield from _wrong_enlarger(case) if upscaler in case.spec.enlargers else _wrong_beside(case)
    if not case.waits_for_size:
        yield from _wrong_second(case, checks)


def _wrong_enlarger(case: Case) -> Iterator[FieldError]:
    """Report what an enlarger of the model's own latents decides by itself."""
    fields, name = case.fields, case.fields[FIELD]["upscaler"]
    for own in sorted({"strength", "num_inference_steps"} & _asked(case).keys()):
        said = f"the upscaler {name!r} has its own second pass; leave it out"
        yield FieldError(f"{FIELD}.{own}", said)
    scale = case.spec.enlargers[name].scale
    size = fields["width"], fields["height"]
    wanted = target_size({"scale": scale}, *size, case.bounds.size_multiple_px)
    if wanted != (fields[FIELD]["width"], fields[FIELD]["height"]):
        said = f"must make it {wanted[0]} x {wanted[1]}: the upscaler {name!r} draws it {scale:g}"
        asked = _asked_as("width", _asked(case))
        yield FieldError(f"{FIELD}.{asked}", f"{said} times as large; leave it out")


def _wrong_beside(case: Case) -> Iterator[FieldError]:
    """Report fields of the request that a second pass has no use for."""
    if case.task == "inpainting":
        yield FieldError(FIELD, "draws all of the image anew; leave it out, or mask_image")
    for name in sorted(STEP_LISTS & case.given.keys()):
        said = f"takes the scheduler's own steps in both passes; leave it out, or {name}"
        yield FieldError(FIELD, said)


def _wrong_second(
    case: Case, checks: tuple[Callable[[Case], Iterator[FieldError]], ...]
) -> Iterator[FieldError]:
    """Report a second pass that the model does not serve, by the names of hires fix's own."""
    _, fields = passes(case.fields, case.spec)
    assert fields is not None
    yield from _wrong_shape(case.fields, fields, case.bounds.size_multiple_px)
    is_redrawn = case.fields[FIELD]["upscaler"] not in case.spec.enlargers
    if is_redrawn:
        yield from _too_many_steps(case, fields)
    own = {name: fields[name] for name in OWN if is_redrawn}
    given = {**case.given, **own, **({"image": fields["image"]} if is_redrawn else {})}
    schedule = case.limits.model_copy(update={"max_steps": case.spec.limits.max_steps})
    task = TASK if is_redrawn else case.task
    second = Case(case.spec, schedule, task, fields, given, case.loras)
    asked = _asked(case)
    first = {error.field for check in checks for error in check(case)}
    for error in (error for check in checks for error in check(second)):
        if error.field in OWN:
            yield FieldError(f"{FIELD}.{_asked_as(error.field, asked)}", error.message)
        elif error.field in SHARED and error.field not in first:
            yield FieldError(error.field, f"{error.message}, the second pass's")


def _too_many_steps(case: Case, second: Mapping[str, Any]) -> Iterator[FieldError]:
    """Report more steps than the settings allow: of those asked for, `strength` runs a share."""
    strength, most = second["strength"], case.bounds.max_steps
    asked = second["num_inference_steps"]
    if asked > case.spec.limits.max_steps:  # told with the others
        return
    if denoising_steps(asked, strength, case.spec.strength_rounds) > most:
        said = f"must leave {most} to run at most; lower it, or strength"
        yield FieldError(f"{FIELD}.num_inference_steps", said)


def _asked(case: Case) -> Mapping[str, Any]:
    """Return hires fix as the client asks for it, or the model's defaults do."""
    found = case.given if FIELD in case.given else case.spec.defaults_for(case.task)
    return dict(found[FIELD])


def _asked_as(field: str, asked: Mapping[str, Any]) -> str:
    """Return the field by which the client has set another."""
    if field not in ("width", "height") or field in asked:
        return field
    return next((name for name in ("width", "height") if name in asked), "scale")


def _wrong_shape(
    first: Mapping[str, Any], second: Mapping[str, Any], multiple: int
) -> Iterator[FieldError]:
    """Report a target that is smaller, or of other proportions, than rounding leaves open."""
    for name in ("width", "height"):
        if second[name] < first[name]:
            yield FieldError(f"{FIELD}.{name}", f"must be {first[name]} at least, the first pass's")
            return
    height = second["width"] * first["height"] / first["width"]
    width = second["height"] * first["width"] / first["height"]
    if abs(height - second["height"]) >= multiple and abs(width - second["width"]) >= multiple:
        said = "has other proportions than the first pass; leave it out: width alone says both"
        yield FieldError(f"{FIELD}.height", said)
