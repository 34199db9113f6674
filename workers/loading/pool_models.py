"""Loading of all models of a pool onto one mesh slice, sharing equal weights, or one at a time.

Weights can only be compared after loading. Before, weights of equal network, shape and split are
assumed equal. `check_memory` verifies that assumption afterwards.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax

from models import registry
from models.interface.pipeline import Pipeline
from models.weights.sharing import PlacedArrays
from service.settings.models import ModelSettings
from service.settings.pools import MeshSettings, PoolSettings
from service.settings.section import ConfigError
from service.settings.settings import Settings
from workers.loading import backends
from workers.loading import model as loading
from workers.loading.layout import table_of
from workers.loading.model import MeshSlice, NotEnoughMemory
from workers.loading.trial_times import EstimatedTimes
from workers.plan.estimate import abstract_layout, estimate
from workers.plan.trace import Sketch, Weight
from workers.programs import batch_sizes
from workers.programs.aot_cache import ModelExecutables
from workers.slice.chips import GIB
from workers.slice.device_chip import chip_of
from workers.slice.mesh_shape import MeshShape

log = logging.getLogger(__name__)

LAYOUTS_TRIED = 4
"""Maximum number of layouts of the first model to try; each reserves what the last one lacked."""


@dataclass(frozen=True)
class PoolModel:
    """Model of a pool, with the pool's settings reduced to this model."""

    pool: PoolSettings
    model: ModelSettings


class ServedModel(Protocol):
    """Protocol of a loaded model of a process, whichever backend generates its images."""

    @property
    def pool(self) -> PoolSettings:
        """Settings of the model's pool, reduced to this model."""

    @property
    def model(self) -> ModelSettings:
        """Settings of the served model."""

    @property
    def pipeline(self) -> Any:
        """Loaded pipeline of the model, with its `spec`."""

    @property
    def estimated(self) -> Sequence[EstimatedTimes]:
        """Estimated times of each warm-up request; empty: unknown."""


@dataclass(frozen=True)
class DiffusersModel:
    """Model whose images diffusers generates."""

    pool: PoolSettings
    model: ModelSettings
    pipeline: Any
    estimated: Sequence[EstimatedTimes] = ()


@dataclass(frozen=True)
class LoadedModel:
    """Model loaded natively onto its mesh slice."""

    pool: PoolSettings
    model: ModelSettings
    pipeline: Pipeline
    opened: MeshSlice

    @property
    def estimated(self) -> Sequence[EstimatedTimes]:
        """Estimated times of each warm-up request."""
        return self.opened.estimated


def diffusers_model(settings: Settings, pool_name: str) -> PoolModel | None:
    """Return the model of a pool that diffusers serves; None: all are native.

    Raises: ConfigError: the pool or the model does not exist, or diffusers cannot serve it so.
    """
    pool, _ = loading.configured(settings, pool_name)
    for name in settings.pools[pool_name].models:
        pool, model = loading.configured(settings, pool_name, name)
        if backends.backend_of(model) == "diffusers":
            others = ("also", "by_turns")
            update = {other: getattr(settings.pools[pool_name], other) for other in others}
            backends.check(pool_name, pool.model_copy(update=update), model)
            return PoolModel(pool, model)
    return None


def from_settings(settings: Settings, pool_name: str) -> list[PoolModel]:
    """Return the native models of a pool.

    Raises: ConfigError: one does not exist, conflicts with the pool, has another family, or is
    served by diffusers, without layouts and compiled programs.
    """
    if served := diffusers_model(settings, pool_name):
        raise ConfigError(
            f"models.{served.pool.model} is served by diffusers, which has no layout to choose and "
            "compiles nothing"
        )
    first = PoolModel(*loading.configured(settings, pool_name))
    others = settings.pools[pool_name].models[1:]
    models = [
        first,
        *(PoolModel(*loading.configured(settings, pool_name, name)) for name in others),
    ]
    if not settings.pools[pool_name].also:
        return models
    kinds = {entry.pool.model: _kind(entry.model) for entry in models}
    for name, kind in kinds.items():
        if kind != kinds[first.pool.model]:
            raise ConfigError(
                f"pools.{pool_name}.also: {name} has another family or `batching` than "
                f"{first.pool.model}, and other flags of the compiler with it; make a pool for it"
            )
    return models


def _kind(model: ModelSettings) -> tuple[str, str]:
    return registry.family(model.source, model.base), model.batching


def load(
    name: str,
    models: Sequence[PoolModel],
    devices: Sequence[jax.Device],
    folder: ModelExecutables | None = None,
    extra_bytes: int = 0,
) -> list[LoadedModel]:
    """Load the models of a pool.

    Args:
        name: name of the pool.
        folder: store of compiled programs; None: programs are not stored.
        extra_bytes: bytes on a device outside all models, for upscalers.

    Raises: as `workers.loading.model.load`.
    """
    if len(models) == 1:
        (only,) = models
        return [LoadedModel(only.pool, only.model, *loading.load(
            name, only.pool, only.model, devices, folder, taken_bytes=extra_bytes
        ))]  # fmt: skip
    placed, shared = [], PlacedArrays()
    slices = plan_slices(name, models, devices, folder, extra_bytes)
    for entry, opened in zip(models, slices, strict=True):
        model = opened.model or entry.model
        reader = loading.files_of(opened, shared)
        pipeline = loading.load_placed(entry.pool, model, opened, reader)
        placed.append(LoadedModel(entry.pool, entry.model, pipeline, opened))
    log.info("%.2f GiB of weights are shared by several models", shared.shared_bytes / GIB)
    slices = [entry.opened for entry in placed]
    check_memory(name, slices, devices, shared.shared_bytes, extra_bytes)
    return placed


def load_one_by_one(
    name: str,
    models: Sequence[PoolModel],
    devices: Sequence[jax.Device],
    folder: ModelExecutables | None = None,
    extra_bytes: int = 0,
) -> Iterator[LoadedModel]:
    """Load the models one at a time, each as if it had the devices alone.

    Free the previous model before you request the next. Args, raises: as `load`.
    """
    for entry in models:
        yield from load(name, [entry], devices, folder, extra_bytes)


def plan_slices(
    name: str,
    models: Sequence[PoolModel],
    devices: Sequence[jax.Device],
    folder: ModelExecutables | None = None,
    extra_bytes: int = 0,
) -> list[MeshSlice]:
    """Plan the slice of each model, all with one mesh shape, so that they fit together.

    The first model chooses the shape. Each gets as many slots as leave memory for one launch of
    every later model. Raises: as `workers.loading.model.plan_slice`.
    """
    first, *others = models
    if not others:
        return [loading.plan_slice(name, first.pool, first.model, devices, folder, extra_bytes)]
    sketches = [loading.sketches_of(entry.pool, entry.model, folder)[0][0] for entry in models]
    hint = f"; the rest of the memory is for {', '.join(entry.pool.model for entry in others)}"
    try:
        opened = _leaving_room(name, models, sketches, devices, folder, extra_bytes)
    except NotEnoughMemory as error:
        raise NotEnoughMemory(f"{error}{hint}") from None
    shape, slices = opened.chosen.shape, [opened]
    mesh = MeshSettings(ici=dict(shape.ici), dcn=dict(shape.dcn), ring=shape.ring)
    for index, entry in enumerate(models[1:], 1):
        pool = entry.pool.model_copy(update={"mesh": mesh})
        taken = extra_bytes + sum(part.chosen.device_bytes for part in slices)
        taken -= sum(
            _shared_bytes(sketches, before, shape, first.pool) for before in range(1, index + 1)
        )
        taken += _after(models, sketches, index, shape, devices)
        try:
            slices.append(loading.plan_slice(name, pool, entry.model, devices, folder, taken))
        except NotEnoughMemory as error:
            names = ", ".join(other.pool.model for other in models if other is not entry)
            raise NotEnoughMemory(f"{error}; the rest of the memory is for {names}") from None
    return slices


def _leaving_room(
    name: str,
    models: Sequence[PoolModel],
    sketches: Sequence[Sketch],
    devices: Sequence[jax.Device],
    folder: ModelExecutables | None,
    extra_bytes: int,
) -> MeshSlice:
    """Plan the first model of a pool with a shape that leaves memory for the others."""
    first, taken = models[0], extra_bytes
    for _ in range(LAYOUTS_TRIED):
        opened = loading.plan_slice(name, first.pool, first.model, devices, folder, taken)
        needed = extra_bytes + _after(models, sketches, 0, opened.chosen.shape, devices)
        if needed <= taken:
            break
        taken = needed
    return opened


def _after(
    models: Sequence[PoolModel],
    sketches: Sequence[Sketch],
    index: int,
    shape: MeshShape,
    devices: Sequence[jax.Device],
) -> int:
    """Return the minimum bytes per device of later models, without weights that can be shared."""
    return sum(
        _least(models[later], sketches[later], shape, devices)
        - _shared_bytes(sketches, later, shape, models[0].pool)
        for later in range(index + 1, len(models))
    )


def _least(
    wanted_model: PoolModel, sketch: Sketch, shape: MeshShape, devices: Sequence[jax.Device]
) -> int:
    """Return the bytes per device of a model with memory for one launch, without the reserve."""
    table = table_of(wanted_model.pool.table)
    rows = batch_sizes.least(wanted_model.model, abstract_layout(shape, table))
    need = estimate(sketch, shape, chip_of(devices), rows, launch=rows, table=table)
    return need.total_bytes - need.memory["reserve"]


def _shared_bytes(
    sketches: Sequence[Sketch], index: int, shape: MeshShape, pool: PoolSettings
) -> int:
    """Return the bytes per device of weights whose shapes equal those of an earlier model."""
    layout = abstract_layout(shape, table_of(pool.table))
    earlier: Counter[Weight] = Counter()
    for before in sketches[:index]:
        earlier |= Counter(before.weights)
    common = Counter(sketches[index].weights) & earlier
    return sum(count * weight.on_one(layout) for weight, count in common.items())


def check_memory(
    name: str,
    slices: Sequence[MeshSlice],
    devices: Sequence[jax.Device],
    shared_bytes: int,
    extra_bytes: int = 0,
) -> None:
    """Verify that the models fit, given the weights that they actually share.

    Args:
        shared_bytes: bytes of shared weights, over all devices together.
        extra_bytes: bytes on a device outside all models.

    Raises: NotEnoughMemory: they do not fit; states the numbers.
    """
    needed = sum(opened.chosen.device_bytes for opened in slices) - shared_bytes // len(devices)
    needed += extra_bytes
    memory = chip_of(devices).memory_bytes
    if needed > memory:
        raise NotEnoughMemory(
            f"pools.{name}.also: all models need about {needed / GIB:.2f} GiB a device, but there "
            f"are {memory / GIB:.2f}: their weights are not equal, as they might have been "
            f"({shared_bytes / GIB:.2f} GiB are). Take fewer slots, or a pool for each"
        )
