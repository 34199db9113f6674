"""Hires fix as the defaults of a model have it: checked when its pool starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from models.spec.asked_hires import mistyped
from models.spec.hires import FIELD, STRENGTH, passes, target_size, with_defaults
from models.spec.model_spec import ModelSpec, Size
from models.spec.strength import denoising_steps
from service.settings.section import ConfigError

Wrong = tuple[str, str]
"""Key, and what is wrong with its value."""


def check(spec: ModelSpec) -> None:
    """Check the default of a model, and of those that its pools serve beside it.

    Args:
        spec: with its upscalers, its derived models and the sizes that it serves.

    Raises: ConfigError: it could not be drawn; names the key.
    """
    for one in (spec, *spec.variants()):
        for key, message in _wrong(one):
            raise ConfigError(f"models.{one.name}.defaults.{key}: {message}")


def _wrong(spec: ModelSpec) -> Iterator[Wrong]:
    asked = spec.defaults.get(FIELD)
    if asked is None:
        return
    if FIELD not in spec.fields:
        said = (
            "the model does no image to image with a strength, and has no upscaler of its latents"
        )
        yield FIELD, f"{said}; leave it out"
        return
    yield from mistyped(asked)
    names = spec.hires_upscalers
    if asked.get("upscaler") not in (None, *names):
        yield f"{FIELD}.upscaler", f"must be {' or '.join(names)}"
    if (upscaler := asked.get("upscaler") or names[0]) in spec.enlargers:
        for own in sorted({"strength", "num_inference_steps"} & asked.keys()):
            said = f"the upscaler {upscaler!r} has its own second pass; leave it out"
            yield f"{FIELD}.{own}", said
    if asked.get("scale") and (asked.get("width") or asked.get("height")):
        yield f"{FIELD}.scale", "set it, or width and height, not both"
    yield from _unserved(asked, spec)


def _unserved(asked: Mapping[str, Any], spec: ModelSpec) -> Iterator[Wrong]:
    """Report a second pass of the model's own size and steps that it does not serve."""
    fields = {**spec.defaults, "strength": STRENGTH}
    multiple, enlargers = spec.limits.size_multiple_px, spec.enlargers
    fields[FIELD] = with_defaults(asked, fields, multiple, enlargers)
    _, second = passes(fields, spec)
    assert second is not None
    size = Size(width=second["width"], height=second["height"])
    side = next((name for name in ("width", "height") if asked.get(name)), "scale")
    if wrong := _wrong_size(size, fields, spec):
        yield f"{FIELD}.{side}", f"makes {size}: {wrong}"
    if enlarger := enlargers.get(fields[FIELD]["upscaler"]):
        own = target_size({"scale": enlarger.scale}, fields["width"], fields["height"], multiple)
        if own != (size.width, size.height):
            said = f"must make {own[0]}x{own[1]}, {enlarger.scale:g} times as large; leave it out"
            yield f"{FIELD}.{side}", said
        return
    steps, most = second["num_inference_steps"], spec.limits.max_steps
    if steps > most:
        yield f"{FIELD}.num_inference_steps", f"must be {most} at most"
    if denoising_steps(steps, second["strength"], spec.strength_rounds) < 1:
        yield f"{FIELD}.strength", f"leaves none of the {steps} steps; raise one of them"


def _wrong_size(size: Size, first: Mapping[str, Any], spec: ModelSpec) -> str | None:
    limits, sides = spec.limits, (size.width, size.height)
    if size.width < first["width"] or size.height < first["height"]:
        return f"the first pass's, {first['width']} x {first['height']}, is larger"
    if max(sides) > limits.max_side_px or size.width * size.height > limits.max_pixels:
        most = f"sides of {limits.max_side_px} and {limits.max_pixels} pixels"
        return f"{most} are the model's most"
    if any(side % limits.size_multiple_px for side in sides):
        return f"sides must be multiples of {limits.size_multiple_px}"
    listed = {(one.width, one.height) for one in spec.sizes.listed}
    if spec.sizes.mode == "listed" and sides not in listed:
        return f"the model serves {', '.join(map(str, spec.sizes.listed))} alone"
    return None
