"""Conversion of AUTOMATIC1111's hires fix and refiner to this API's fields.

Source: AUTOMATIC1111 modules/processing.py, StableDiffusionProcessingTxt2Img; modules/
sd_samplers_common.py, setup_img2img_steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from models.spec.field_types import REFINER, SWITCH
from models.spec.hires import FIELD, LANCZOS, LATENT
from models.spec.model_spec import ModelSpec
from models.spec.passes import denoising_steps
from service.errors.problems import FieldError, Invalid
from service.routes.compat.a1111.bodies import ImageToImage, TextToImage

STRENGTH = 0.75
"""AUTOMATIC1111's default of `denoising_strength`."""
MIN_STRENGTH = 0.01
"""Minimum strength; below it the second pass needs a schedule of thousands of steps, and runs few.
"""
BUILT_IN: Mapping[str, str] = {"Latent": LATENT, "Lanczos": LANCZOS, "None": LANCZOS}
"""Upscalers without a network; "None" resizes like "Lanczos", as in AUTOMATIC1111."""
RETIRED_FIELDS: Mapping[str, str] = {
    "firstphase_width": "send the first pass's width as width, and the target's as hr_resize_x",
    "firstphase_height": "send the first pass's height as height, and the target's as hr_resize_y",
}
"""Fields of earlier versions for the first pass's size, in which `width` is the output's."""
SAME_AS_FIRST_PASS: Mapping[str, Sequence[Any]] = {
    **dict.fromkeys(RETIRED_FIELDS, (0, None)),
    "hr_checkpoint_name": (None, "", "None", "Use same checkpoint"),
    "hr_sampler_name": (None, "", "Use same sampler"),
    "hr_scheduler": (None, "", "Automatic", "Use same scheduler"),
    "hr_prompt": (None, ""),
    "hr_negative_prompt": (None, ""),
    "hr_additional_modules": (None, [], ["Use same choices"]),
}
"""Values of second-pass fields that keep its settings equal to the first pass's."""


def upscalers_of(spec: ModelSpec) -> list[str]:
    """Return the accepted values of AUTOMATIC1111's `hr_upscaler` for a model."""
    return [*BUILT_IN, *spec.upscalers]


def with_passes(body: TextToImage, spec: ModelSpec) -> dict[str, Any]:
    """Convert AUTOMATIC1111's fields of hires fix and refiner. Raises: Invalid."""
    errors = [*_wrong(body, spec)]
    if errors:
        raise Invalid(errors)
    return {FIELD: _hires(body, spec), REFINER: _refiner(body)}


def _wrong(body: TextToImage, spec: ModelSpec) -> Iterator[FieldError]:
    if _names_refiner(body) and REFINER not in spec.fields:
        message = f"the model {spec.name!r} has no refiner; leave it out"
        yield FieldError("refiner_checkpoint", message)
    if not body.enable_hr:
        return
    if isinstance(body, ImageToImage):
        yield FieldError("enable_hr", "applies to txt2img only; send the larger width and height")
    if FIELD not in spec.fields:
        message = (
            f"the model {spec.name!r} does not support image to image, which hires fix requires"
        )
        yield FieldError("enable_hr", message)
    if (body.hr_upscaler or "Latent") not in upscalers_of(spec):
        yield FieldError("hr_upscaler", f"must be {' or '.join(upscalers_of(spec))}")
    if not MIN_STRENGTH <= _strength(body) <= 1:
        yield FieldError("denoising_strength", f"must be {MIN_STRENGTH} to 1 with enable_hr")
    else:
        yield from _too_many_steps(body, spec)
    extra_fields = body.__pydantic_extra__ or {}
    for name, allowed in SAME_AS_FIRST_PASS.items():
        if extra_fields.get(name) in allowed:
            continue
        if name in RETIRED_FIELDS:
            yield FieldError(name, f"{RETIRED_FIELDS[name]}; leave it out")
        elif extra_fields[name] != _first_pass_value(body, name):
            yield FieldError(name, "the second pass uses the first pass's value; leave it out")
    if extra_fields.get("hr_cfg") not in (None, body.cfg_scale):
        yield FieldError("hr_cfg", "the second pass uses the first pass's guidance; leave it out")


def _too_many_steps(body: TextToImage, spec: ModelSpec) -> Iterator[FieldError]:
    """Report an error if the second pass, the end of a longer schedule, exceeds `max_steps`."""
    strength, max_schedule_steps = _strength(body), spec.limits.max_steps
    max_steps = denoising_steps(max_schedule_steps, strength, spec.strength_rounds)
    if _second_pass_steps(body, spec) > max_steps:
        name = "hr_second_pass_steps" if body.hr_second_pass_steps else "steps"
        condition = "" if strength == 1 else f" with a denoising_strength of {strength:g}"
        yield FieldError(name, f"must be {max_steps} at most{condition}")


def _first_pass_value(body: TextToImage, name: str) -> Any:
    """Return the first pass's value of a field that the second pass may override."""
    return getattr(body, name.removeprefix("hr_"), None)


def _hires(body: TextToImage, spec: ModelSpec) -> dict[str, Any] | None:
    if not body.enable_hr:
        return None
    sides = {"width": body.hr_resize_x or None, "height": body.hr_resize_y or None}
    scale = None if any(sides.values()) else body.hr_scale or 2.0
    name = body.hr_upscaler or "Latent"
    fields = {
        **sides,
        "scale": scale,
        "upscaler": BUILT_IN.get(name, name),
        "strength": _strength(body),
        "num_inference_steps": _schedule_steps(body, spec),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _schedule_steps(body: TextToImage, spec: ModelSpec) -> int:
    """Return the schedule length at which `denoising_strength` leaves the requested steps.

    AUTOMATIC1111's hires fix runs all of its steps.
    """
    requested, strength, rounds = (
        _second_pass_steps(body, spec),
        _strength(body),
        spec.strength_rounds,
    )
    shortest = max(requested, int((requested - 1) / strength))
    return next(n for n in count(shortest) if denoising_steps(n, strength, rounds) >= requested)


def _second_pass_steps(body: TextToImage, spec: ModelSpec) -> int:
    """Return the number of steps that the second pass runs."""
    return body.hr_second_pass_steps or body.steps or spec.defaults["num_inference_steps"]


def _strength(body: TextToImage) -> float:
    return STRENGTH if body.denoising_strength is None else body.denoising_strength


def _names_refiner(body: TextToImage) -> bool:
    return body.refiner_checkpoint not in (None, "", "None")


def _refiner(body: TextToImage) -> dict[str, Any] | None:
    if not _names_refiner(body):
        return None
    switch = body.refiner_switch_at
    return {"switch": SWITCH if switch is None else switch}
