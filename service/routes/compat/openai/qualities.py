"""Qualities as OpenAI's API names them, and the presets that they stand for here."""

from __future__ import annotations

from collections.abc import Mapping

from models.spec.model_spec import ModelSpec
from models.spec.quality_presets import EXACT

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
_SHOWN = {"fast": "low", "high": "medium", EXACT: "high"}


def preset_of(quality: str | None, spec: ModelSpec) -> str | None:
    """Return the preset that a quality stands for; None: the model's default.

    A model that lacks that preset serves its default, which is no worse than it but for the
    operator's choice. Any other name is a preset's own.
    """
    if quality is None or quality not in _PRESETS:
        return quality
    preset = _PRESETS[quality]
    return preset if "quality" in spec.fields and preset in spec.quality_names else None


def shown_quality(preset: str) -> str:
    """Return what OpenAI's API calls a preset; `auto`: it has no name there."""
    return _SHOWN.get(preset, "auto")
