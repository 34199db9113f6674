"""Loading of all models of a pool onto one mesh slice, where equal weights lie once, or by turns.

Which weights will be equal is known once they are there: until then those of one network, shape and
split are taken for equal, and what that has promised is held against the memory afterwards.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import jax

from models import registry
from models.interface.pipeline import Pipeline
from models.weights.sharing import PlacedArrays
from service.settings.mesh import MeshSettings
from service.settings.models import ModelSettings
from service.settings.pools import PoolSettings
from service.settings.section import ConfigError
from service.settings.settings import Settings
from workers.loading import model as loading
from workers.loading.layout import table_of
from workers.loading.model import MeshSlice, NotEnoughMemory
from workers.plan.estimate import abstract_layout, estimate
from workers.plan.trace import Sketch, Weight
from workers.programs import batch_sizes
from workers.programs.aot_cache import ModelExecutables
from workers.slice.chips import GIB
from workers.slice.device_chip import chip_of
from workers.slice.mesh_shape import MeshShape

log = logging.getLogger(__name__)

LAYOUTS_TRIED = 4
"""Layouts of the first model that are tried, each leaving what the one before did not."""


@dataclass(frozen=True)
class Wanted:
    """Model of a pool, and the pool's settings as if it served that one alone."""

    pool: PoolSettings
    model: ModelSettings


@dataclass(frozen=True)
class Loaded:
    """Model that lies on its slice."""

    pool: PoolSettings
    model: ModelSettings
    pipeline: Pipeline
    opened: MeshSlice


def wanted(settings: Settings, pool_name: str) -> list[Wanted]:
    """Return the models of a pool.

    Raises: ConfigError: one is not there, contradicts the pool, or is of another family.
    """
    first = Wanted(*loading.configured(settings, pool_name))
    others = settings.pools[pool_name].models[1:]
    found = [first, *(Wanted(*loading.configured(settings, pool_name, name)) for name in others)]
    if not settings.pools[pool_name].also:
        return found
    kinds = {one.pool.model: _kind(one.model) for one in found}
    for name, kind in kinds.items():
        if kind != kinds[first.pool.model]:
            raise ConfigError(
                f"pools.{pool_name}.also: {name} has another family or `batching` than "
                f"{first.pool.model}, and other flags of the compiler with it; make a pool for it"
            )
    return found


def _kind(model: ModelSettings) -> tuple[str, str]:
    return registry.family(model.source, model.base), model.batching


def load(
    name: str,
    models: Sequence[Wanted],
    devices: Sequence[jax.Device],
    folder: ModelExecutables | None = None,
    beside_bytes: int = 0,
) -> list[Loaded]:
    """Load the models of a pool.

    Args:
        name: the pool's.
        folder: where programs are kept; None: nowhere.
        beside_bytes: of a device, for what lies beside all models: upscalers.

    Raises: as `workers.loading.model.load`.
    """
    if len(models) == 1:
        (only,) = models
        return [Loaded(only.pool, only.model, *loading.load(
            name, only.pool, only.model, devices, folder, taken_bytes=beside_bytes
        ))]  # fmt: skip
    placed, shared = [], PlacedArrays()
    slices = planned(name, models, devices, folder, beside_bytes)
    for one, opened in zip(models, slices, strict=True):
        model = opened.model or one.model
        reader = loading.files_of(opened, shared)
        pipeline = loading.placed(one.pool, model, opened, reader)
        placed.append(Loaded(one.pool, one.model, pipeline, opened))
    log.info("%.2f GiB of weights lie there once for several", shared.shared_bytes / GIB)
    slices = [one.opened for one in placed]
    check_memory(name, slices, devices, shared.shared_bytes, beside_bytes)
    return placed


def by_turns(
    name: str,
    models: Sequence[Wanted],
    devices: Sequence[jax.Device],
    folder: ModelExecutables | None = None,
    beside_bytes: int = 0,
) -> Iterator[Loaded]:
    """Load one model after another, each as if it were alone.

    Before the next is asked for, the one before has to leave the devices. Args, raises: as `load`.
    """
    for one in models:
        yield from load(name, [one], devices, folder, beside_bytes)


def planned(
    name: str,
    models: Sequence[Wanted],
    devices: Sequence[jax.Device],
    folder: ModelExecutables | None = None,
    beside_bytes: int = 0,
) -> list[MeshSlice]:
    """Plan the slice of each, all of one shape, so that they fit beside each other.

    The first model chooses the shape. Each has as many slots as leave room for one launch of those
    after it. Raises: as `workers.loading.model.planned`.
    """
    first, *others = models
    if not others:
        return [loading.planned(name, first.pool, first.model, devices, folder, beside_bytes)]
    sketches = [loading.sketches_of(one.pool, one.model, folder)[0][0] for one in models]
    beside = f"; the rest of the memory is for {', '.join(one.pool.model for one in others)}"
    try:
        opened = _leaving_room(name, models, sketches, devices, folder, beside_bytes)
    except NotEnoughMemory as error:
        raise NotEnoughMemory(f"{error}{beside}") from None
    shape, slices = opened.chosen.shape, [opened]
    mesh = MeshSettings(ici=dict(shape.ici), dcn=dict(shape.dcn), ring=shape.ring)
    for index, one in enumerate(models[1:], 1):
        pool = one.pool.model_copy(update={"mesh": mesh})
        taken = beside_bytes + sum(part.chosen.device_bytes for part in slices)
        taken -= sum(_alike(sketches, before, shape, first.pool) for before in range(1, index + 1))
        taken += _after(models, sketches, index, shape, devices)
        try:
            slices.append(loading.planned(name, pool, one.model, devices, folder, taken))
        except NotEnoughMemory as error:
            said = ", ".join(other.pool.model for other in models if other is not one)
            raise NotEnoughMemory(f"{error}; the rest of the memory is for {said}") from None
    return slices


def _leaving_room(
    name: str,
    models: Sequence[Wanted],
    sketches: Sequence[Sketch],
    devices: Sequence[jax.Device],
    folder: ModelExecutables | None,
    beside_bytes: int,
) -> MeshSlice:
    """Plan the first model on a shape on which the others fit beside it."""
    first, taken = models[0], beside_bytes
    for _ in range(LAYOUTS_TRIED):
        opened = loading.planned(name, first.pool, first.model, devices, folder, taken)
        needed = beside_bytes + _after(models, sketches, 0, opened.chosen.shape, devices)
        if needed <= taken:
            break
        taken = needed
    return opened


def _after(
    models: Sequence[Wanted],
    sketches: Sequence[Sketch],
    index: int,
    shape: MeshShape,
    devices: Sequence[jax.Device],
) -> int:
    """Bytes a device that the models after one need at the least, less what they may share."""
    return sum(
        _least(models[later], sketches[later], shape, devices)
        - _alike(sketches, later, shape, models[0].pool)
        for later in range(index + 1, len(models))
    )


def _least(one: Wanted, sketch: Sketch, shape: MeshShape, devices: Sequence[jax.Device]) -> int:
    """Bytes a device of a model that has room for one launch; the reserve is the first one's."""
    table = table_of(one.pool.table)
    rows = batch_sizes.least(one.model, abstract_layout(shape, table))
    need = estimate(sketch, shape, chip_of(devices), rows, launch=rows, table=table)
    return need.total_bytes - need.memory["reserve"]


def _alike(sketches: Sequence[Sketch], index: int, shape: MeshShape, pool: PoolSettings) -> int:
    """Bytes a device of a model's weights that one before it has in the same shapes."""
    layout = abstract_layout(shape, table_of(pool.table))
    there: Counter[Weight] = Counter()
    for before in sketches[:index]:
        there |= Counter(before.weights)
    both = Counter(sketches[index].weights) & there
    return sum(count * weight.on_one(layout) for weight, count in both.items())


def check_memory(
    name: str,
    slices: Sequence[MeshSlice],
    devices: Sequence[jax.Device],
    shared_bytes: int,
    beside_bytes: int = 0,
) -> None:
    """Check that the models fit, now that it is known what they share.

    Args:
        shared_bytes: of weights, over all devices together.
        beside_bytes: of a device, for what lies beside all models.

    Raises: NotEnoughMemory: they do not; says the numbers.
    """
    needed = sum(opened.chosen.device_bytes for opened in slices) - shared_bytes // len(devices)
    needed += beside_bytes
    memory = chip_of(devices).memory_bytes
    if needed > memory:
        raise NotEnoughMemory(
            f"pools.{name}.also: all models need about {needed / GIB:.2f} GiB a device, but there "
            f"are {memory / GIB:.2f}: their weights are not equal, as they might have been "
            f"({shared_bytes / GIB:.2f} GiB are). Take fewer slots, or a pool for each"
        )
