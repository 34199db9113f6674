"""Rules of hires fix: its second pass has to be a request that the model serves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from models.spec.hires import BUILT_IN, FIELD, TASK, passes
from service.errors.problems import FieldError
from service.validation.case import Case
from service.validation.steps import STEP_LISTS

OWN = ("width", "height", "strength", "num_inference_steps")
"""Fields of the second pass that are hires fix's own."""


def wrong_hires(
    case: Case, checks: tuple[Callable[[Case], Iterator[FieldError]], ...]
) -> Iterator[FieldError]:
    """Report what cannot be of a request's hires fix.

    Args:
        checks: rules that the second pass has to follow, too.
    """
    if FIELD not in case.given:
        return
    if FIELD not in case.spec.fields:
        said = f"the model {case.spec.name!r} does no image to image with a strength, as hires fix"
        yield FieldError(FIELD, f"{said} has to; leave it out")
        return
    yield from _wrong_beside(case)
    names = (*BUILT_IN, *sorted(case.spec.upscalers))
    if case.fields[FIELD]["upscaler"] not in names:
        yield FieldError(f"{FIELD}.upscaler", f"must be {' or '.join(names)}")
    if not case.waits_for_size:
        yield from _wrong_second(case, checks)


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
    given = {**case.given, **{name: fields[name] for name in OWN}, "image": fields["image"]}
    second = Case(case.spec, case.limits, TASK, fields, given, case.loras)
    for error in (error for check in checks for error in check(second)):
        if error.field in OWN:
            yield FieldError(f"{FIELD}.{_asked_as(error.field, case.given[FIELD])}", error.message)


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
