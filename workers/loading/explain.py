"""Explanation of a layout as text: where each array lies, and how each activation is split."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from flax import nnx

from models.interface.pipeline import Fields, Pipeline
from models.parallel.axis_rules import Axes, Layout, MeshAxes, Split
from service.settings.pools import PoolSettings
from service.settings.section import ConfigError
from service.settings.settings import Settings
from workers.loading import model as loading
from workers.loading import together
from workers.loading.layout import own
from workers.loading.model import MeshSlice
from workers.loading.together import Wanted
from workers.loading.upscalers import upscaler_bytes
from workers.programs import batch_sizes, warmup
from workers.programs.tracer import Tracer

WHOLE = "whole on every device"


def explain(settings: Settings, pool_name: str, devices: range | None = None) -> str:
    """Explain one pool of the settings on this machine's devices; no weights are read.

    Raises: as `workers.pool.process.run_pool`.
    """
    models = together.wanted(settings, pool_name)
    pool = models[0].pool
    if pool.hosts.count > 1:
        raise ConfigError(
            f"pools.{pool_name}.hosts: one process sees one host of {pool.hosts.count}; "
            "`atelier plan` reckons with all of them"
        )
    loading.set_up(pool, models[0].model, devices)
    beside = upscaler_bytes(settings, models)
    slices = together.planned(pool_name, models, own(devices), beside_bytes=beside)
    parts = (
        "\n".join(_of_model(pool_name, one, opened))
        for one, opened in zip(models, slices, strict=True)
    )
    return "\n\n".join(parts)


def _of_model(pool_name: str, one: Wanted, opened: MeshSlice) -> Iterator[str]:
    pool, model = one.pool, opened.model or one.model
    placed = loading.placed(pool, model, opened, loading.SHAPES)
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
    """Yield each parameter of each network: its shape, and what its axes are split over."""
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
            yield f"  {name}  {leaf.dtype}{_shape(leaf.shape)}  {_said(axes, over, layout)}"


def of_activations(
    pipeline: Pipeline, opened: MeshSlice, fields: Fields, rows: int
) -> Iterator[str]:
    """Yield the activations of one denoising step of so many rows, in the order they are made."""
    prepared = warmup.prepare(pipeline, fields)
    row = Tracer(pipeline, opened.layout).encode(prepared.inputs).out_info
    size = f"{prepared.width} x {prepared.height}"
    for phase, step in {step.phase: step for step in prepared.steps}.items():
        splits: list[Split] = []
        recorder = Tracer(pipeline, opened.layout, record=splits.append)
        recorder.step(phase, step.values, row, rows)
        yield f"activations of a step ({phase}, {size} px, {rows} rows)"
        yield from (f"  {line}" for line in _once(splits, opened.layout))


def _once(splits: Sequence[Split], layout: Layout) -> Iterator[str]:
    """Equal ones in a row are said once."""
    before = None
    for one in splits:
        if one != before:
            kind = f"{one.dtype}{_shape(one.shape)}"
            yield f"{one.where}  {kind}  {_said(one.axes, one.over, layout)}"
        before = one


def _said(axes: Axes, over: Sequence[MeshAxes], layout: Layout) -> str:
    """`embed over fsdp 4, heads over tensor 2`."""
    parts = [
        f"{axis} over " + " · ".join(f"{name} {layout.mesh.shape[name]}" for name in names)
        for axis, names in zip(axes, over, strict=True)
        if names
    ]
    return ", ".join(parts) or WHOLE


def _parts(leaf: nnx.Variable, layout: Layout) -> int:
    axes = leaf.axes[-len(leaf.shape) :] if leaf.shape else ()
    return math.prod(map(layout.devices, layout.split(axes, leaf.shape)))


def _bytes(leaf: nnx.Variable) -> int:
    return math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize


def _shape(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _mib(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"
