"""Upscalers of the settings, loaded beside a model."""

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
from service.settings.models import ModelSettings
from service.settings.section import ConfigError
from service.settings.settings import Settings
from service.settings.upscalers import UpscalerSettings
from workers.jaxpr.axis_tags import Tag
from workers.jaxpr.logical_mesh import logical_layout
from workers.jaxpr.operations import work_of
from workers.jaxpr.peak_memory import peak
from workers.loading.model import abstract
from workers.loading.together import Wanted

log = logging.getLogger(__name__)


Held = dict[tuple[Path, str, int, jax.Device], LoadedUpscaler]
"""Upscalers that a process has loaded, for all its models."""


def upscaler_bytes(settings: Settings, models: Sequence[Wanted]) -> int:
    """Return the bytes that upscalers take on the one device that they lie on.

    The weights of all that a pool's models have, and what the largest tile needs beside them.
    """
    found = {
        (resolve_file(one.source), one.dtype, one.tile)
        for wanted in models
        if settings.upscalers
        for one in upscalers_for(settings, spec_of(wanted)).values()
    }
    needs = [bytes_of(*one) for one in found]
    return sum(weights for weights, _ in needs) + max((tile for _, tile in needs), default=0)


def spec_of(wanted: Wanted) -> ModelSpec:
    """Return the spec of a model that is not loaded yet."""
    return abstract(wanted.pool, wanted.model, logical_layout()).spec


def bytes_of(file: Path, dtype: str, tile: int) -> tuple[int, int]:
    """Return the bytes of an upscaler's weights, and of a tile's temporaries at their peak."""
    graph, weights = nnx.split(abstract_upscaler(file, dtype))

    def drawn(weights: nnx.State, image: jax.Array) -> jax.Array:
        return nnx.merge(graph, weights)(image)

    image = jax.ShapeDtypeStruct((1, tile, tile, COLOURS), jnp.dtype(dtype))
    traced = jax.jit(drawn).trace(weights, image)
    leaves = jax.tree.leaves(weights)
    tags = [*(Tag(dims=(None,) * leaf.ndim) for leaf in leaves), Tag()]
    _, found = work_of(traced.jaxpr, tags)
    size = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
    return size, int(sum(peak(traced.jaxpr.jaxpr, found).values()))


def upscalers_for(settings: Settings, spec: ModelSpec) -> dict[str, UpscalerSettings]:
    """Return the upscalers that the settings have for a model, by name: none where it makes videos.

    Raises: ConfigError: one is for a model that is not there.
    """
    for name, one in settings.upscalers.items():
        if name in BUILT_IN:
            raise ConfigError(f"upscalers.{name}: hires fix has one of that name; choose another")
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
    settings: Settings, pipeline: Any, device: jax.Device, held: Held | None = None
) -> dict[str, LoadedUpscaler]:
    """Load a model's upscalers onto one device; they are in its spec then.

    Args:
        held: those that other models of the process have, which are not loaded again.

    Raises: ConfigError, CheckpointError: one cannot be used; says why.
    """
    held = {} if held is None else held
    loaded = {}
    for name, asked in upscalers_for(settings, pipeline.spec).items():
        key = (resolve_file(asked.source), asked.dtype, asked.tile, device)
        if key not in held:
            held[key] = load_upscaler(*key)
        loaded[name] = one = held[key]
        log.info("upscaler %s: %d times as large, %s", name, one.spec.scale, one.network.config)
    pipeline.spec = with_upscalers(pipeline.spec, {name: one.spec for name, one in loaded.items()})
    return loaded


def with_upscalers(spec: ModelSpec, upscalers: Mapping[str, Upscaler]) -> ModelSpec:
    """Return the spec of a model with these upscalers."""
    fields = spec.fields | ({FIELD} if upscalers else set())
    return spec.model_copy(update={"upscalers": dict(upscalers), "fields": fields})
