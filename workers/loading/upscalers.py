"""Upscalers of the settings, loaded beside a model."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import jax

from models.checkpoint.hub import resolve_file
from models.spec.model_spec import ModelSpec
from models.spec.upscalers import FIELD, Upscaler
from models.upscale.load import LoadedUpscaler, load_upscaler
from service.settings.models import ModelSettings
from service.settings.section import ConfigError
from service.settings.settings import Settings
from service.settings.upscalers import UpscalerSettings

log = logging.getLogger(__name__)


def upscalers_for(settings: Settings, spec: ModelSpec) -> dict[str, UpscalerSettings]:
    """Return the upscalers that the settings have for a model, by name: none where it makes videos.

    Raises: ConfigError: one is for a model that is not there.
    """
    for name, one in settings.upscalers.items():
        for model in sorted(set(one.models) - settings.models.keys()):
            raise ConfigError(f"upscalers.{name}.models: add [models.{model}] or correct the name")
    if any(task.endswith("-to-video") for task in spec.tasks):
        return {}
    served = {name for name, one in settings.models.items() if _is_served(name, one, spec.name)}
    return {
        name: one
        for name, one in settings.upscalers.items()
        if not one.models or served & set(one.models)
    }


def _is_served(name: str, model: ModelSettings, by: str) -> bool:
    """Return whether the workers of a model serve this one, too."""
    return name == by or (model.is_served_by_base and model.base == by)


def load_upscalers(
    settings: Settings, pipeline: Any, device: jax.Device
) -> dict[str, LoadedUpscaler]:
    """Load a model's upscalers onto one device; they are in its spec then.

    Raises: ConfigError, CheckpointError: one cannot be used; says why.
    """
    loaded = {
        name: load_upscaler(resolve_file(one.source), one.dtype, one.tile, device)
        for name, one in upscalers_for(settings, pipeline.spec).items()
    }
    for name, one in loaded.items():
        log.info("upscaler %s: %d times as large, %s", name, one.spec.scale, one.network.config)
    pipeline.spec = with_upscalers(pipeline.spec, {name: one.spec for name, one in loaded.items()})
    return loaded


def with_upscalers(spec: ModelSpec, upscalers: Mapping[str, Upscaler]) -> ModelSpec:
    """Return the spec of a model with these upscalers."""
    fields = spec.fields | ({FIELD} if upscalers else set())
    return spec.model_copy(update={"upscalers": dict(upscalers), "fields": fields})
