"""Mesh slice of a pool, from its settings: devices, mesh shape, weight residency and slots."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import jax

from models.parallel.axis_rules import TABLE, Table
from models.parallel.mesh_axes import CROSSING, MESH_AXES, mesh_axes_of
from service.settings.models import ModelSettings
from service.settings.pools import PoolSettings
from service.settings.section import ConfigError
from workers.plan import search
from workers.plan.estimate import Estimate, abstract_layout, estimate
from workers.plan.offload import Residency, residencies
from workers.plan.search import NothingFits
from workers.plan.trace import Sketch
from workers.programs import batch_sizes
from workers.slice import devices as accelerators
from workers.slice.chips import Chip
from workers.slice.device_chip import chip_of
from workers.slice.mesh_shape import MeshShape, slots_of


@dataclass(frozen=True)
class ChosenLayout:
    """Layout and residency chosen for a slice."""

    shape: MeshShape
    slots: int
    residency: Residency
    why: str
    """Reason for the shape."""
    device_bytes: int = 0
    """Estimated bytes of the model on a device, including the reserve."""


def restrict_visible_devices(devices: range | None) -> None:
    """Restrict this process to some accelerators of the machine, before JAX starts.

    Raises: ConfigError: the machine cannot be divided this way.
    """
    if devices is None:
        return
    try:
        os.environ.update(accelerators.visible(devices))
    except ValueError as error:
        raise ConfigError(f"--devices: {error}") from None


def slice_devices(devices: range | None) -> Sequence[jax.Device]:
    """Return the devices of the slice; virtual CPU devices, visible to all processes, are selected.

    Raises: ConfigError: too few devices; states the numbers.
    """
    seen = jax.devices()
    if devices is None or seen[0].platform != "cpu" or jax.process_count() > 1:
        return seen
    if devices.stop > len(seen):
        raise ConfigError(
            f"--devices {devices.start}-{devices.stop - 1}: this machine has {len(seen)} devices; "
            "JAX_NUM_CPU_DEVICES gives it more virtual ones"
        )
    return [seen[i] for i in devices]


def choose(
    pool: PoolSettings,
    model: ModelSettings,
    sketch: Sketch,
    devices: Sequence[jax.Device],
    taken_bytes: int = 0,
) -> ChosenLayout:
    """Choose the layout by settings or by the planner's estimate; offload to the host as needed.

    `slots` do not affect the layout and residency: different programs generate different images,
    and pools that differ only in slots must generate the same.

    Args:
        taken_bytes: memory of each device that other models occupy.

    Raises:
        NothingFits: the devices' memory is too small for one launch.
        ValueError: the layout does not fit the devices or the model, or the slots do not fit.
    """
    refused: list[NothingFits] = []
    for residency in residencies(sketch, model.swap_experts, model.encoders_on_host):
        try:
            return _with(residency, pool, model, sketch, devices, taken_bytes)
        except NothingFits as error:
            refused.append(error)
    raise refused[-1]


def _with(
    residency: Residency,
    pool: PoolSettings,
    model: ModelSettings,
    sketch: Sketch,
    devices: Sequence[jax.Device],
    taken_bytes: int,
) -> ChosenLayout:
    """Choose the layout for one placement of networks.

    Raises: NothingFits, ValueError: as `choose`.
    """
    hosts = len({device.process_index for device in devices})
    devices_per_host, chip, table = len(devices) // hosts, chip_of(devices), table_of(pool.table)
    chip = replace(chip, memory_bytes=chip.memory_bytes - taken_bytes)
    if pool.mesh == "auto":
        soonest = _soonest(sketch, chip, devices_per_host, hosts, table, residency)
        shape, why = soonest.shape, soonest.why
    else:
        given = MeshShape(pool.mesh.ici, pool.mesh.dcn, pool.mesh.ring)
        shape, why = given.over(devices_per_host, hosts, sketch.heads), "as in the settings"
    layout = abstract_layout(shape, table)

    def need(slots: int, launch: int) -> Estimate:
        return estimate(sketch, shape, chip, slots, launch=launch, table=table, residency=residency)

    rows = batch_sizes.least(model, layout)
    if not (single_launch := need(rows, rows)).fits:
        raise NothingFits(f"{sketch.model}: {single_launch.refusal()}")

    def full(slots: int) -> Estimate:
        return need(slots, batch_sizes.most(model, layout, slots))

    slots = _slots(pool, shape, full)
    return ChosenLayout(shape, slots, residency, why, full(slots).total_bytes)


def _slots(pool: PoolSettings, shape: MeshShape, need: Callable[[int], Estimate]) -> int:
    """Return the slots of the settings; by default, limited by the memory.

    Raises: ValueError: the memory holds fewer slots; states how many.
    """
    slots = slots_of(pool.slots, pool.per_device_batch_size, shape)
    if need(slots).fits:
        return slots
    counts = range(shape.size("data"), slots + 1, shape.size("data"))
    fitting = bisect_left(counts, True, key=lambda count: not need(count).fits) * counts.step
    if fitting and pool.slots is None and pool.per_device_batch_size is None:
        return fitting
    raise ValueError(
        f"{slots} slots are too many, {fitting} fit: {need(slots).refusal()}; "
        "encoders_on_host, swap_experts and vae_tiling save memory, and change images slightly"
    )


def _soonest(
    sketch: Sketch, chip: Chip, each: int, hosts: int, table: Table, residency: Residency
) -> Estimate:
    """Choose the fastest layout over the axes between hosts. Raises: NothingFits: none fits."""
    between = [{axis: hosts} for axis in CROSSING] if hosts > 1 else [None]
    estimates, refused = [], []
    for dcn in between:
        try:
            estimates.append(
                search.choose(sketch, chip, each, dcn=dcn, table=table, residency=residency)
            )
        except NothingFits as error:
            refused.append(error)
    if not estimates:
        raise refused[0]
    return min(estimates, key=lambda candidate: candidate.request_s)


def table_of(rows: Mapping[str, Sequence[str]]) -> Table:
    """Return the sharding table, with the rows of the settings in place of its own.

    `context` stands for both of its mesh axes.

    Raises: ValueError: a logical or mesh axis does not exist.
    """
    table = dict(TABLE)
    for axis, names in rows.items():
        if axis not in TABLE:
            raise ValueError(f"logical axis {axis!r} does not exist: {', '.join(sorted(TABLE))}")
        mesh_axes = [part for name in names for part in mesh_axes_of(name)]
        for name in mesh_axes:
            if name not in MESH_AXES:
                raise ValueError(f"mesh axis {name!r} does not exist: {', '.join(MESH_AXES)}")
        table[axis] = tuple(mesh_axes)
    return MappingProxyType(table)
