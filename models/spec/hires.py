"""Hires fix: an image that is drawn twice, the second time larger and from the first.

The second pass is an image-to-image request at the target's size; behind an enlarger of the model's
own latents it is the first pass's request, as the enlarger says it. No JAX in here: the front end
imports it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field

from models.spec.enlargers import Enlarger
from models.spec.refiner import FIELD as REFINER
from models.spec.upscalers import FIELD as UPSCALE

FIELD = "hires"
"""Request field that asks for it."""
LATENT, LANCZOS = "latent", "lanczos"
"""Upscalers that are no network: of the latents, bilinear; of the decoded image."""
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
    """Spec of a model, as far as its passes depend on it."""

    @property
    def task_defaults(self) -> Mapping[str, Mapping[str, Any]]:
        """Defaults by task."""

    @property
    def enlargers(self) -> Mapping[str, Enlarger]:
        """Enlargers of its latents, by name."""


def target_size(
    asked: Mapping[str, Any], width: int, height: int, multiple: int
) -> tuple[int, int]:
    """Return width and height of the second pass, in whole multiples.

    Args:
        asked: `width` and `height`, one of them, or `scale`.
        width, height: of the first pass.
    """

    def whole(side: float) -> int:
        return max(1, math.floor(side / multiple + 0.5)) * multiple

    own = {"width": width, "height": height}
    found = {name: asked[name] for name in own if asked.get(name) is not None}
    named = next(iter(found), None)
    scale = found[named] / own[named] if named else asked.get("scale") or SCALE
    size = {name: found.get(name) or whole(side * scale) for name, side in own.items()}
    return size["width"], size["height"]


def with_defaults(
    asked: Mapping[str, Any],
    fields: Mapping[str, Any],
    multiple: int,
    enlargers: Mapping[str, Enlarger] = NO_ENLARGERS,
) -> dict[str, Any]:
    """Return a request's field with its target's size and all that it leaves open.

    Args:
        fields: the request's others, resolved.
        multiple: of which sides are whole multiples.
        enlargers: the model's, of which the first is the default.
    """
    upscaler = asked.get("upscaler") or next(iter(enlargers), LATENT)
    if upscaler in enlargers:
        asked = {"scale": enlargers[upscaler].scale, **asked}
    width, height = target_size(asked, fields["width"], fields["height"], multiple)
    if upscaler in enlargers:
        return {"width": width, "height": height, "upscaler": upscaler}
    return {
        "width": width,
        "height": height,
        "upscaler": upscaler,
        "strength": asked.get("strength", STRENGTH),
        "num_inference_steps": asked.get("num_inference_steps", fields["num_inference_steps"]),
    }


def passes(
    fields: Mapping[str, Any], spec: Spec
) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """Return the requests of the first and of the second pass; None: there is one alone.

    A refiner belongs to the second, as AUTOMATIC1111 has it by default.

    Args:
        fields: a resolved request.
    """
    asked = fields.get(FIELD)
    if not asked:
        return fields, None
    plain = {name: value for name, value in fields.items() if name not in (FIELD, UPSCALE)}
    first = {name: value for name, value in plain.items() if name != REFINER}
    own = {name: value for name, value in asked.items() if name != "upscaler"}
    if enlarger := spec.enlargers.get(asked["upscaler"]):
        return first, {**plain, **own, **enlarger.second}
    return first, {**spec.task_defaults.get(TASK, {}), **plain, "image": FIELD, **own}


def drawn_size(fields: Mapping[str, Any]) -> tuple[int, int]:
    """Return width and height of the image that a resolved request draws, before upscaling."""
    last = fields.get(FIELD) or fields
    return last["width"], last["height"]
