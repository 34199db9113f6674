"""Hires fix: generate an image, enlarge it, and refine it in a second pass. No JAX.

The second pass is an image-to-image request at the target size. After an enlarger of the model's
latents it is the first pass's request, with the fields that the enlarger prescribes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from models.spec.field_types import REFINER, Count, Pixels, Strength
from models.spec.option import OptionError
from models.spec.type_messages import type_message
from models.spec.upscalers import FIELD as UPSCALE
from models.spec.upscalers import Enlarger

FIELD = "hires"
"""Request field of hires fix."""
LATENT, LANCZOS = "latent", "lanczos"
"""Built-in upscalers, without a network: bilinear on the latents, or Lanczos on the decoded image.
"""
BUILT_IN = (LATENT, LANCZOS)
HiresScale = Annotated[float, Field(ge=1, le=8)]
SCALE = 2.0
"""Default scale of both sides, as AUTOMATIC1111's `hr_scale`."""
STRENGTH = 0.7
"""Default strength of the second pass, as AUTOMATIC1111's."""
TASK: Literal["image-to-image"] = "image-to-image"
"""Task of the second pass."""
NO_ENLARGERS: Mapping[str, Enlarger] = MappingProxyType({})


class Spec(Protocol):
    """Fields of a model's spec that determine the passes of a request."""

    @property
    def task_defaults(self) -> Mapping[str, Mapping[str, Any]]:
        """Defaults of request fields by task."""

    @property
    def enlargers(self) -> Mapping[str, Enlarger]:
        """Enlargers of the model's latents, by name."""


def target_size(
    options: Mapping[str, Any], width: int, height: int, multiple: int
) -> tuple[int, int]:
    """Return width and height of hires fix's second pass, in whole multiples.

    Args:
        options: `width` and `height`, one of them, or `scale`.
        width, height: of the first pass.
    """

    def rounded(side: float) -> int:
        return max(1, math.floor(side / multiple + 0.5)) * multiple

    first = {"width": width, "height": height}
    requested = {name: options[name] for name in first if options.get(name) is not None}
    named = next(iter(requested), None)
    scale = requested[named] / first[named] if named else options.get("scale") or SCALE
    size = {name: requested.get(name) or rounded(side * scale) for name, side in first.items()}
    return size["width"], size["height"]


def with_defaults(
    options: Mapping[str, Any],
    fields: Mapping[str, Any],
    multiple: int,
    enlargers: Mapping[str, Enlarger] = NO_ENLARGERS,
) -> dict[str, Any]:
    """Return the request's `hires` field with the target size and all defaults filled in.

    Args:
        fields: the request's other fields, resolved.
        multiple: unit of the sides in pixels.
        enlargers: the model's enlargers; the first is the default.
    """
    upscaler = options.get("upscaler") or next(iter(enlargers), LATENT)
    if upscaler in enlargers:
        options = {"scale": enlargers[upscaler].scale, **options}
    width, height = target_size(options, fields["width"], fields["height"], multiple)
    if upscaler in enlargers:
        return {"width": width, "height": height, "upscaler": upscaler}
    return {
        "width": width,
        "height": height,
        "upscaler": upscaler,
        "strength": options.get("strength", STRENGTH),
        "num_inference_steps": options.get("num_inference_steps", fields["num_inference_steps"]),
    }


def passes(
    fields: Mapping[str, Any], spec: Spec
) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """Return the requests of the first and the second pass; None: no second pass.

    A refiner belongs to the second pass, as in AUTOMATIC1111 by default.

    Args:
        fields: a resolved request.
    """
    options = fields.get(FIELD)
    if not options:
        return fields, None
    plain = {name: value for name, value in fields.items() if name not in (FIELD, UPSCALE)}
    first = {name: value for name, value in plain.items() if name != REFINER}
    second = {name: value for name, value in options.items() if name != "upscaler"}
    if enlarger := spec.enlargers.get(options["upscaler"]):
        return first, {**plain, **second, **enlarger.second}
    return first, {**spec.task_defaults.get(TASK, {}), **plain, "image": FIELD, **second}


class HiresSettings(BaseModel):
    """Schema of the `hires` field in settings."""

    model_config = ConfigDict(extra="forbid")

    scale: HiresScale | None = None
    width: Pixels | None = None
    height: Pixels | None = None
    upscaler: str | None = None
    strength: Strength | None = None
    num_inference_steps: Count | None = None


def type_errors(options: Any) -> Iterator[OptionError]:
    """Yield the type errors of a `hires` field in settings, with their paths as fields."""
    try:
        TypeAdapter(HiresSettings).validate_python(options, strict=True)
    except ValidationError as error:
        for problem in error.errors():
            yield OptionError(".".join((FIELD, *map(str, problem["loc"]))), type_message(problem))


def generated_size(fields: Mapping[str, Any]) -> tuple[int, int]:
    """Return the width and height of a resolved request's image, before upscaling."""
    last = fields.get(FIELD) or fields
    return last["width"], last["height"]
