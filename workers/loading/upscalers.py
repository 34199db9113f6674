"""Loading of the upscalers of the settings, in addition to a model."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from models.checkpoint.hub import resolve_file
from models.spec.hires import BUILT_IN
from models.spec.model_spec import ModelSpec
from models.spec.upscalers import FIELD, Upscaler
from models.upscale.config import COLOURS
from models.upscale.load import LoadedUpscaler, abstract_upscaler, load_upscaler
from service.settings.models import ModelSettings, UpscalerSettings
from service.settings.section import ConfigError
from service.settings.settings import Settings
from workers.jaxpr.axis_tags import Tag
from workers.jaxpr.logical_mesh import logical_layout
from workers.jaxpr.operations import work_of
from workers.jaxpr.peak_memory import peak
from workers.loading.model import abstract
from workers.loading.pool_models import PoolModel

log = logging.getLogger(__name__)


UpscalerCache = dict[tuple[Path, str, int, jax.Device], LoadedUpscaler]
"""Upscalers that a process has loaded, shared by all its models."""


def upscaler_bytes(settings: Settings, models: Sequence[PoolModel]) -> int:
    """Return the memory of a pool's upscalers on the one device that holds them.

    It counts all weights, and the temporaries of the largest tile.
    """
    files = {
        (resolve_file(upscaler.source), upscaler.dtype, upscaler.tile)
        for pool_model in models
        if settings.upscalers
        for upscaler in upscalers_for(settings, spec_of(pool_model)).values()
    }
    needs = [bytes_of(*upscaler) for upscaler in files]
    return sum(weights for weights, _ in needs) + max((tile for _, tile in needs), default=0)


def spec_of(pool_model: PoolModel) -> ModelSpec:
    """Return the spec of a model before it is loaded."""
    return abstract(pool_model.pool, pool_model.model, logical_layout()).spec


def bytes_of(file: Path, dtype: str, tile: int) -> tuple[int, int]:
    """Return the bytes of an upscaler's weights, and of a tile's temporaries at their peak."""
    graph, weights = nnx.split(abstract_upscaler(file, dtype))

    def upscaled(weights: nnx.State[Any, Any], image: jax.Array) -> jax.Array:
        output: jax.Array = nnx.merge(graph, weights)(image)
        return output

    image = jax.ShapeDtypeStruct((1, tile, tile, COLOURS), jnp.dtype(dtype))
    traced = jax.jit(upscaled).trace(weights, image)
    leaves = jax.tree.leaves(weights)
    tags = [*(Tag(dims=(None,) * leaf.ndim) for leaf in leaves), Tag()]
    _, tagged = work_of(traced.jaxpr, tags)
    size = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
    return size, int(sum(peak(traced.jaxpr.jaxpr, tagged).values()))


def upscalers_for(settings: Settings, spec: ModelSpec) -> dict[str, UpscalerSettings]:
    """Return the upscalers of a model, by name; none for video models.

    Raises: ConfigError: an upscaler names a model that does not exist.
    """
    for name, item in settings.upscalers.items():
        if name in BUILT_IN:
            raise ConfigError(f"upscalers.{name}: hires fix has one of that name; choose another")
        for model in sorted(set(item.models) - settings.models.keys()):
            raise ConfigError(f"upscalers.{name}.models: add [models.{model}] or correct the name")
    if any(task.endswith("-to-video") for task in spec.tasks):
        return {}
    served = {name for name, item in settings.models.items() if _is_served(name, item, spec.name)}
    return {
        name: item
        for name, item in settings.upscalers.items()
        if not item.models or served & set(item.models)
    }


def _is_served(name: str, model: ModelSettings, by: str) -> bool:
    """Return whether the workers of one model also serve another."""
    return name == by or (model.is_served_by_base and model.base == by)


def load_upscalers(
    settings: Settings, pipeline: Any, device: jax.Device, cache: UpscalerCache | None = None
) -> dict[str, LoadedUpscaler]:
    """Load a model's upscalers onto one device, and add them to its spec.

    Args:
        cache: upscalers that the process has loaded already; updated.

    Raises: ConfigError, CheckpointError: one is unusable; states the reason.
    """
    cache = {} if cache is None else cache
    loaded = {}
    for name, upscaler in upscalers_for(settings, pipeline.spec).items():
        key = (resolve_file(upscaler.source), upscaler.dtype, upscaler.tile, device)
        if key not in cache:
            cache[key] = load_upscaler(*key)
        loaded[name] = entry = cache[key]
        log.info("upscaler %s: %d times as large, %s", name, entry.spec.scale, entry.network.config)
    notices = (notice for entry in loaded.values() for notice in entry.warnings)
    spec = with_upscalers(pipeline.spec, {name: entry.spec for name, entry in loaded.items()})
    warnings = tuple(dict.fromkeys((*spec.warnings, *notices)))
    pipeline.spec = spec.model_copy(update={"warnings": warnings})
    return loaded


def with_upscalers(spec: ModelSpec, upscalers: Mapping[str, Upscaler]) -> ModelSpec:
    """Return the spec of a model with these upscalers."""
    fields = spec.fields | ({FIELD} if upscalers else set())
    return spec.model_copy(update={"upscalers": dict(upscalers), "fields": fields})
