"""Validation of a model's default hires fix, when its pool starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from models.spec.hires import FIELD, STRENGTH, passes, target_size, type_errors, with_defaults
from models.spec.model_spec import ModelSpec, Size
from models.spec.option import OptionError
from models.spec.passes import denoising_steps
from service.settings.section import ConfigError


def check(spec: ModelSpec) -> None:
    """Validate the hires defaults of a model and of the derived models that its pools serve.

    Args:
        spec: with its upscalers, derived models and served sizes.

    Raises: ConfigError: the default is invalid; names the key.
    """
    for variant in (spec, *spec.variants()):
        for error in _wrong(variant):
            raise ConfigError(f"models.{variant.name}.defaults.{error}")


def _wrong(spec: ModelSpec) -> Iterator[OptionError]:
    hires = spec.defaults.get(FIELD)
    if hires is None:
        return
    if FIELD not in spec.fields:
        message = (
            "the model does no image to image with a strength, and has no upscaler of its latents"
        )
        yield OptionError(FIELD, f"{message}; leave it out")
        return
    yield from type_errors(hires)
    names = spec.hires_upscalers
    if hires.get("upscaler") not in (None, *names):
        yield OptionError(f"{FIELD}.upscaler", f"must be {' or '.join(names)}")
    if (upscaler := hires.get("upscaler") or names[0]) in spec.enlargers:
        for key in sorted({"strength", "num_inference_steps"} & hires.keys()):
            message = f"the upscaler {upscaler!r} has its own second pass; leave it out"
            yield OptionError(f"{FIELD}.{key}", message)
    if hires.get("scale") and (hires.get("width") or hires.get("height")):
        yield OptionError(f"{FIELD}.scale", "set it, or width and height, not both")
    yield from _unserved(hires, spec)


def _unserved(hires: Mapping[str, Any], spec: ModelSpec) -> Iterator[OptionError]:
    """Yield errors of hires defaults' second pass: unsupported size, steps or strength."""
    fields = {**spec.defaults, "strength": STRENGTH}
    multiple, enlargers = spec.limits.size_multiple_px, spec.enlargers
    fields[FIELD] = with_defaults(hires, fields, multiple, enlargers)
    _, second = passes(fields, spec)
    assert second is not None
    size = Size(width=second["width"], height=second["height"])
    side = next((name for name in ("width", "height") if hires.get(name)), "scale")
    if wrong := _wrong_size(size, fields, spec):
        yield OptionError(f"{FIELD}.{side}", f"makes {size}: {wrong}")
    if enlarger := enlargers.get(fields[FIELD]["upscaler"]):
        dim = target_size({"scale": enlarger.scale}, fields["width"], fields["height"], multiple)
        if dim != (size.width, size.height):
            hint = f"must make {dim[0]}x{dim[1]}, {enlarger.scale:g} times as large; leave it out"
            yield OptionError(f"{FIELD}.{side}", hint)
        return
    steps, most = second["num_inference_steps"], spec.limits.max_steps
    if steps > most:
        yield OptionError(f"{FIELD}.num_inference_steps", f"must be {most} at most")
    if denoising_steps(steps, second["strength"], spec.strength_rounds) < 1:
        yield OptionError(
            f"{FIELD}.strength", f"leaves none of the {steps} steps; raise one of them"
        )


def _wrong_size(size: Size, first: Mapping[str, Any], spec: ModelSpec) -> str | None:
    limits, sides = spec.limits, (size.width, size.height)
    if size.width < first["width"] or size.height < first["height"]:
        return f"the first pass's size, {first['width']} x {first['height']}, is larger"
    if max(sides) > limits.max_side_px or size.width * size.height > limits.max_pixels:
        most = f"sides of {limits.max_side_px} and {limits.max_pixels} pixels"
        return f"{most} are the model's maximum"
    if any(side % limits.size_multiple_px for side in sides):
        return f"sides must be multiples of {limits.size_multiple_px}"
    listed = {(listed_size.width, listed_size.height) for listed_size in spec.sizes.listed}
    if spec.sizes.mode == "listed" and sides not in listed:
        return f"the model serves only {', '.join(map(str, spec.sizes.listed))}"
    return None
