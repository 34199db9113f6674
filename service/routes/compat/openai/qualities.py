"""Mapping between OpenAI's quality names and this server's presets."""

from __future__ import annotations

from collections.abc import Mapping

from models.spec.model_spec import ModelSpec
from models.spec.quality_presets import EXACT
from service.routes.compat.endpoint import lowered

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
