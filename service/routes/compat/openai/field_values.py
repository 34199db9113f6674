"""Values of OpenAI's fields: sizes such as `1024x1024`, and names of quality."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from models.spec.model_spec import ModelSpec
from models.spec.quality_presets import EXACT
from service.errors.problems import FieldError, Invalid
from service.routes.compat.endpoint import lowered
from service.routes.compat.nearest_size import nearest
from service.settings.limits import LimitSettings

AUTO = "auto"
_SIZE = re.compile(r"(\d{1,5}) ?[xX*\u00d7] ?(\d{1,5})", re.ASCII)
"""Also as DashScope and others write it: `1024*1024`, `1024X1024`, `1024 x 1024`."""


def sides_of(size: str | None) -> dict[str, int]:
    """Parse a size to width and height; empty for `auto`. Raises: Invalid."""
    plain = lowered(size)
    if plain in (None, AUTO):
        return {}
    match = _SIZE.fullmatch(plain)
    if not match:
        raise Invalid([FieldError("size", "write WIDTHxHEIGHT, such as 1024x1024, or auto")])
    return {"width": int(match[1]), "height": int(match[2])}


@contextmanager
def naming_sizes(spec: ModelSpec, limits: LimitSettings, size: str | None) -> Iterator[None]:
    """Add the closest supported size to errors about OpenAI's `size`. Raises: Invalid."""
    try:
        yield
    except Invalid as problem:
        messages = [error.message for error in problem.errors if error.field == "size"]
        sides = sides_of(size) if messages else {}
        if not sides or not all(sides.values()):
            raise
        wide, high = nearest(spec, limits, sides["width"], sides["height"])
        default_size = f"{spec.defaults.get('width', wide)}x{spec.defaults.get('height', high)}"
        message = (
            f"{'; '.join(messages)}; the nearest is {wide}x{high}, the model's own {default_size}"
        )
        others = [error for error in problem.errors if error.field != "size"]
        raise Invalid([FieldError("size", message), *others], code=problem.code) from problem


_PRESETS: Mapping[str, str | None] = {
    "auto": None,
    "standard": None,
    "low": "fast",
    "medium": "high",
    "high": EXACT,
    "hd": EXACT,
    "xhigh": EXACT,
    "max": EXACT,
}
"""Preset by OpenAI's name; None: the model's default."""
_OPENAI_NAMES = {"fast": "low", "high": "medium", EXACT: "high"}


def preset_of(quality: str | None, spec: ModelSpec) -> str | None:
    """Return the preset of an OpenAI quality; None: the model's default.

    A model without that preset uses its default, which is at least as good unless the operator
    configured otherwise. Other names are returned as presets.
    """
    name = lowered(quality)
    if name not in _PRESETS:
        return quality
    preset = _PRESETS[name]
    return preset if "quality" in spec.fields and preset in spec.quality_names else None


def missing_preset(quality: str | None, spec: ModelSpec) -> str | None:
    """Return the preset of an OpenAI quality if the model lacks it; None: it has it."""
    preset = _PRESETS.get(lowered(quality) or "")
    if preset is None or preset in spec.quality_names:
        return None
    return preset


def openai_quality(preset: str) -> str:
    """Return OpenAI's name of a preset; `auto` if it has none."""
    return _OPENAI_NAMES.get(preset, "auto")
