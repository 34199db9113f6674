"""Text report of a layout: how each weight is placed, and how each activation is split."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from flax import nnx

from models.interface.pipeline import Fields, Pipeline
from models.loading.sources import SHAPES
from models.parallel.axis_rules import Axes, Layout, MeshAxes, Split
from service.settings.pools import PoolSettings
from service.settings.section import ConfigError
from service.settings.settings import Settings
from workers.loading import model as loading
from workers.loading import pool_models
from workers.loading.layout import slice_devices
from workers.loading.model import MeshSlice
from workers.loading.pool_models import PoolModel
from workers.loading.upscalers import upscaler_bytes
from workers.programs import batch_sizes, warmup
from workers.programs.tracer import Tracer

WHOLE = "whole on every device"


def explain(settings: Settings, pool_name: str, devices: range | None = None) -> str:
    """Describe the layout of one pool on this machine's devices; reads no weights.

    Raises: as `workers.pool.process.run_pool`.
    """
    models = pool_models.from_settings(settings, pool_name)
    pool = models[0].pool
    if pool.hosts.count > 1:
        raise ConfigError(
            f"pools.{pool_name}.hosts: one process has one host of {pool.hosts.count}; "
            "`atelier plan` includes all of them"
        )
    loading.set_up(pool, models[0].model, devices)
    extra_bytes = upscaler_bytes(settings, models)
    slices = pool_models.plan_slices(
        pool_name, models, slice_devices(devices), extra_bytes=extra_bytes
    )
    parts = (
        "\n".join(_of_model(pool_name, pool_model, opened))
        for pool_model, opened in zip(models, slices, strict=True)
    )
    return "\n\n".join(parts)


def _of_model(pool_name: str, pool_model: PoolModel, opened: MeshSlice) -> Iterator[str]:
    pool, model = pool_model.pool, opened.model or pool_model.model
    placed = loading.load_placed(pool, model, opened, SHAPES)
    yield from (_head(pool_name, pool, opened), "", *of_weights(placed, opened.layout))
    for fields in warmup.requests(placed.spec, model.warmup):
        sizes = batch_sizes.of_settings(pool, model, opened.layout, opened.chosen.slots).sizes
        yield from ("", *of_activations(placed, opened, fields, sizes[-1]))


def _head(name: str, pool: PoolSettings, opened: MeshSlice) -> str:
    devices = opened.layout.mesh.devices.size
    kind = opened.layout.mesh.devices.flat[0].device_kind
    return (
        f"pool {name}: {pool.model} on {devices} x {kind}: {opened.chosen.shape}, "
        f"{opened.chosen.slots} slots, {opened.chosen.residency} ({opened.chosen.why})"
    )


def of_weights(pipeline: Pipeline, layout: Layout) -> Iterator[str]:
    """Yield each parameter of each network with its shape and the mesh axes that split it."""
    for network, state in pipeline.weights._asdict().items():
        if state is None:
            continue
        leaves = nnx.to_flat_state(state)
        total = sum(_bytes(leaf) for _, leaf in leaves)
        share = sum(_bytes(leaf) // _parts(leaf, layout) for _, leaf in leaves)
        yield f"{network}: {_mib(total)}, {_mib(share)} on each device"
        for path, leaf in leaves:
            axes = leaf.axes[-len(leaf.shape) :] if leaf.shape else ()
            name = ".".join(map(str, path))
            over = layout.split(axes, leaf.shape)
            yield f"  {name}  {leaf.dtype}{_shape(leaf.shape)}  {_split_text(axes, over, layout)}"


def of_activations(
    pipeline: Pipeline, opened: MeshSlice, fields: Fields, rows: int
) -> Iterator[str]:
    """Yield the activations of one denoising step of `rows` rows, in order of computation."""
    prepared = warmup.prepare(pipeline, fields)
    row = Tracer(pipeline, opened.layout).encode(prepared.inputs).out_info
    size = f"{prepared.width} x {prepared.height}"
    for step_program, step in {step.program: step for step in prepared.steps}.items():
        splits: list[Split] = []
        recorder = Tracer(pipeline, opened.layout, record=splits.append)
        recorder.step(step_program, step.values, row, rows)
        yield f"activations of a step ({step_program}, {size} px, {rows} rows)"
        yield from (f"  {line}" for line in _once(splits, opened.layout))


def _once(splits: Sequence[Split], layout: Layout) -> Iterator[str]:
    """Yield a line per activation split, without consecutive duplicates."""
    before = None
    for split in splits:
        if split != before:
            kind = f"{split.dtype}{_shape(split.shape)}"
            yield f"{split.where}  {kind}  {_split_text(split.axes, split.over, layout)}"
        before = split


def _split_text(axes: Axes, over: Sequence[MeshAxes], layout: Layout) -> str:
    """Format a split, such as `embed over fsdp 4, heads over tensor 2`."""
    parts = [
        f"{axis} over " + " · ".join(f"{name} {layout.mesh.shape[name]}" for name in names)
        for axis, names in zip(axes, over, strict=True)
        if names
    ]
    return ", ".join(parts) or WHOLE


def _parts(leaf: nnx.Variable[Any], layout: Layout) -> int:
    axes = leaf.axes[-len(leaf.shape) :] if leaf.shape else ()
    return math.prod(map(layout.devices, layout.split(axes, leaf.shape)))


def _bytes(leaf: nnx.Variable[Any]) -> int:
    return int(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize)


def _shape(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _mib(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"
