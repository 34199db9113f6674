"""Fields of hosted services that other vendors' clients send, and this server's models do not have.

Source: the models' schemas at fal.ai and replicate.com, such as black-forest-labs/flux-dev.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.jobs.model.job import FieldWarning
from service.routes.compat.call import Call
from service.routes.compat.names import FieldNames
from service.routes.compat.nearest_size import OF_IMAGE, size_of_ratio
from service.schemas.request import GenerateRequest

_SAFETY = "has no effect; this server's operator configures the safety check"
_SPEED = "has no effect; quality selects one of the model's presets"
_PROMPT = "has no effect; the prompt is used as it is"
NO_EFFECT: Mapping[str, str] = {
    **dict.fromkeys(("acceleration", "go_fast", "complexity"), _SPEED),
    **dict.fromkeys(
        ("disable_safety_checker", "safety_tolerance", "safety_checker", "enable_safety_checks"),
        _SAFETY,
    ),
    **dict.fromkeys(
        ("expand_prompt", "enable_prompt_expansion", "enhance_prompt", "prompt_upsampling"), _PROMPT
    ),
    "apply_watermark": "has no effect; no output has a visible watermark",
    "high_noise_frac": "has no effect; refiner sets the base's share of the steps",
    "frame_count": "has no effect; num_frames sets the number of frames",
    "output_type": "has no effect; output.format sets the format of files",
    "megapixels": "has no effect; width and height set the size",
}
"""Message for each field that is accepted without effect."""
NEUTRAL = (None, False, "", "none", "regular", "auto", "pil")
"""Values of such a field without a warning."""
EMPTY: tuple[Any, ...] = (None, "", [], {})
"""Values of fields that ask for nothing."""
OFF = (("refine", "no_refiner"),)
"""Values of fields that switch off what this server does by other fields."""


def asks_for_nothing(value: Any) -> bool:
    """Return whether the value of a field that is not served is empty, or switches it off."""
    return value is False or value in EMPTY


_NATIVE_FIELDS = frozenset(GenerateRequest.model_fields)
SIDES = ("width", "height")
_MEGAPIXELS = " MP"


def without_effect(
    fields: Mapping[str, Any], names: FieldNames
) -> tuple[dict[str, Any], list[FieldWarning]]:
    """Return a vendor's request fields without those of `NO_EFFECT`, and a warning for each.

    Fields that this API does not have are omitted if they are empty or false.

    Args:
        names: of fields in the vendor's API.
    """
    remaining = {
        name: value
        for name, value in fields.items()
        if name not in NO_EFFECT and (name in _NATIVE_FIELDS or not asks_for_nothing(value))
        if (name, value) not in OFF
    }
    warnings = [
        FieldWarning(field=names.of(name), message=NO_EFFECT[name])
        for name, value in fields.items()
        if name in NO_EFFECT and value not in NEUTRAL
    ]
    return remaining, warnings


async def with_size(call: Call, fields: Mapping[str, Any], names: FieldNames) -> dict[str, Any]:
    """Replace `aspect_ratio` and `megapixels` in a vendor's request by width and height.

    FLUX.2's models at Replicate have the area as `resolution`, such as `1 MP`. The size is the
    nearest that the model supports, by default with its area. Width and height of the request take
    precedence.

    Raises: Problem: no such model, or an aspect ratio that is none.
    """
    if "aspect_ratio" not in fields:
        return dict(fields)
    rest = {name: value for name, value in fields.items() if name != "aspect_ratio"}
    resolution = rest.get("resolution")
    if isinstance(resolution, str) and resolution.endswith(_MEGAPIXELS):
        rest["megapixels"] = rest.pop("resolution").removesuffix(_MEGAPIXELS)
    elif resolution in OF_IMAGE:
        del rest["resolution"]
    if {*SIDES} & rest.keys():
        return rest
    front, name = call.front, names.of("aspect_ratio")
    spec = (await front.models.get(fields["model"])).spec
    ratio, area = fields["aspect_ratio"], rest.get("megapixels")
    size = size_of_ratio(spec, front.settings.limits, ratio, name, area)
    if size is None:
        return rest
    rest.pop("megapixels", None)
    return rest | dict(zip(SIDES, size, strict=True))
