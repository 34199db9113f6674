"""Hires fix and the refiner of AUTOMATIC1111 in our fields.

Source: AUTOMATIC1111 modules/processing.py, StableDiffusionProcessingTxt2Img; modules/
sd_samplers_common.py, setup_img2img_steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from models.spec.hires import FIELD, LANCZOS, LATENT
from models.spec.model_spec import ModelSpec
from models.spec.refiner import FIELD as REFINER
from models.spec.refiner import SWITCH
from models.spec.strength import denoising_steps
from service.errors.problems import FieldError, Invalid
from service.routes.compat.a1111.bodies import ImageToImage, TextToImage

STRENGTH = 0.75
"""Default of `denoising_strength` there."""
LEAST_STRENGTH = 0.01
"""Below that the second pass's schedule would have thousands of steps, of which it runs few."""
BUILT_IN: Mapping[str, str] = {"Latent": LATENT, "Lanczos": LANCZOS, "None": LANCZOS}
"""Upscalers that are no network: "None" is resized as "Lanczos", there too."""
FORMER: Mapping[str, str] = {
    "firstphase_width": "send the first pass's as width, and the target's as hr_resize_x",
    "firstphase_height": "send the first pass's as height, and the target's as hr_resize_y",
}
"""Fields of the first pass's size in its earlier versions, where `width` is the target's."""
SAME: Mapping[str, Sequence[Any]] = {
    **dict.fromkeys(FORMER, (0, None)),
    "hr_checkpoint_name": (None, "", "None", "Use same checkpoint"),
    "hr_sampler_name": (None, "", "Use same sampler"),
    "hr_scheduler": (None, "", "Automatic", "Use same scheduler"),
    "hr_prompt": (None, ""),
    "hr_negative_prompt": (None, ""),
    "hr_additional_modules": (None, [], ["Use same choices"]),
}
"""Values of fields that would make the second pass differ from the first in more than its size."""


def upscalers_of(spec: ModelSpec) -> list[str]:
    """Return the names that `hr_upscaler` may have."""
    return [*BUILT_IN, *spec.upscalers]


def with_passes(asked: TextToImage, spec: ModelSpec) -> dict[str, Any]:
    """Return the fields of hires fix and of the refiner. Raises: Invalid."""
    wrong = [*_wrong(asked, spec)]
    if wrong:
        raise Invalid(wrong)
    return {FIELD: _hires(asked, spec), REFINER: _refiner(asked)}


def _wrong(asked: TextToImage, spec: ModelSpec) -> Iterator[FieldError]:
    if _names_refiner(asked) and REFINER not in spec.fields:
        said = f"the model {spec.name!r} has no refiner; leave it out"
        yield FieldError("refiner_checkpoint", said)
    if not asked.enable_hr:
        return
    if isinstance(asked, ImageToImage):
        yield FieldError("enable_hr", "is of txt2img; send the larger width and height")
    if FIELD not in spec.fields:
        said = f"the model {spec.name!r} does no image to image, as hires fix has to"
        yield FieldError("enable_hr", said)
    if (asked.hr_upscaler or "Latent") not in upscalers_of(spec):
        yield FieldError("hr_upscaler", f"must be {' or '.join(upscalers_of(spec))}")
    if not LEAST_STRENGTH <= _strength(asked) <= 1:
        yield FieldError("denoising_strength", f"must be {LEAST_STRENGTH} to 1 with enable_hr")
    else:
        yield from _too_many_steps(asked, spec)
    given = asked.__pydantic_extra__ or {}
    for name, allowed in SAME.items():
        if given.get(name) in allowed:
            continue
        if name in FORMER:
            yield FieldError(name, f"{FORMER[name]}; leave it out")
        elif given[name] != _of_first(asked, name):
            yield FieldError(name, "the second pass is as the first; leave it out")
    if given.get("hr_cfg") not in (None, asked.cfg_scale):
        yield FieldError("hr_cfg", "the second pass is guided as the first; leave it out")


def _too_many_steps(asked: TextToImage, spec: ModelSpec) -> Iterator[FieldError]:
    """Report steps of the second pass whose schedule, of which they are the last, is too long."""
    strength, longest = _strength(asked), spec.limits.max_steps
    most = denoising_steps(longest, strength, spec.strength_rounds)
    if _wanted(asked, spec) > most:
        name = "hr_second_pass_steps" if asked.hr_second_pass_steps else "steps"
        beside = "" if strength == 1 else f" with a denoising_strength of {strength:g}"
        yield FieldError(name, f"must be {most} at most{beside}")


def _of_first(asked: TextToImage, name: str) -> Any:
    """Return what the first pass has, of a field of the second one."""
    return getattr(asked, name.removeprefix("hr_"), None)


def _hires(asked: TextToImage, spec: ModelSpec) -> dict[str, Any] | None:
    if not asked.enable_hr:
        return None
    sides = {"width": asked.hr_resize_x or None, "height": asked.hr_resize_y or None}
    scale = None if any(sides.values()) else asked.hr_scale or 2.0
    name = asked.hr_upscaler or "Latent"
    fields = {
        **sides,
        "scale": scale,
        "upscaler": BUILT_IN.get(name, name),
        "strength": _strength(asked),
        "num_inference_steps": _steps(asked, spec),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _steps(asked: TextToImage, spec: ModelSpec) -> int:
    """Return the steps of which `denoising_strength` leaves as many as are asked for.

    There, hires fix runs all of its steps.
    """
    wanted, strength, rounds = _wanted(asked, spec), _strength(asked), spec.strength_rounds
    least = max(wanted, int((wanted - 1) / strength))
    return next(n for n in count(least) if denoising_steps(n, strength, rounds) >= wanted)


def _wanted(asked: TextToImage, spec: ModelSpec) -> int:
    """Return the steps that the second pass is to run."""
    return asked.hr_second_pass_steps or asked.steps or spec.defaults["num_inference_steps"]


def _strength(asked: TextToImage) -> float:
    return STRENGTH if asked.denoising_strength is None else asked.denoising_strength


def _names_refiner(asked: TextToImage) -> bool:
    return asked.refiner_checkpoint not in (None, "", "None")


def _refiner(asked: TextToImage) -> dict[str, Any] | None:
    if not _names_refiner(asked):
        return None
    switch = asked.refiner_switch_at
    return {"switch": SWITCH if switch is None else switch}
