"""Loading of a model onto its mesh slice.

The layout is chosen first, from shapes alone, and each array goes straight to where it lies.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from models import registry
from models.adapters.install import install_banks
from models.checkpoint.folder import checkpoint_errors
from models.interface.pipeline import Pipeline, RequestError
from models.loading.preview import MeanLatents, as_preview, fit
from models.loading.sources import (
    FILES,
    SHAPES,
    ControlSource,
    Files,
    ImagePromptSource,
    Reader,
)
from models.nn.kernels.int8_matmul import eight_bit_for
from models.nn.kernels.select import kernel_for
from models.nn.quant.matmul import kind_of
from models.parallel.axis_rules import Layout
from models.vae.config import Tiling
from models.weights.quantize import Rounding
from models.weights.sharing import PlacedArrays
from service.settings.models import ModelSettings, TilingSettings
from service.settings.pools import PoolSettings
from service.settings.section import ConfigError
from service.settings.settings import Settings
from workers.jaxpr.logical_mesh import logical_layout
from workers.loading import layout as slice
from workers.loading.derived import defaults_of, whole_settings, with_fused
from workers.loading.layout import ChosenLayout
from workers.loading.loras import default_pages
from workers.plan.auto_layout import NothingFits
from workers.plan.trace import Sketch, sketch
from workers.programs import aot_key, warmup
from workers.programs.aot_cache import ExecutableFiles, Executables, NoExecutables
from workers.slice import devices as accelerators
from workers.slice import xla_flags
from workers.slice.mesh import make_mesh

log = logging.getLogger(__name__)

NO_PROGRAM = {
    *("source", "base", "image_prompts", "controls", "refiner", "defaults"),
    *("warmup", "batching", "exact_rows", "sizes"),
}
"""Settings of a model that change none: where it comes from (its fingerprint says what it is), and
what is asked of it."""


class NotEnoughMemory(ConfigError):
    """The devices' memory does not hold the model; the message has the numbers."""


@dataclass(frozen=True)
class MeshSlice:
    """The devices of one pool, and how they share its work."""

    layout: Layout
    chosen: ChosenLayout
    model: ModelSettings | None = None
    """Settings with what these devices have made necessary; None: the settings' own."""
    executables: Executables = field(default_factory=NoExecutables)
    """Programs and facts of that model, from starts before."""


class KeptFiles(Files):
    """Files of the checkpoint; results derived from them come from the start before."""

    def __init__(self, opened: MeshSlice, shared: PlacedArrays) -> None:
        super().__init__(shared)
        self._executables = opened.executables
        self._layout = opened.layout

    def preview(self, mean_latents: MeanLatents, latent_channels: int) -> nnx.Linear:
        """Return the linear map of previews, fitted once for this layout."""
        layout = aot_key.of_layout(self._layout)
        rows = self._executables.fact(
            lambda: {"program": ["fit of previews"], "layout": layout},
            lambda: fit(mean_latents)[0].tolist(),
        )
        whole = NamedSharding(self._layout.mesh, PartitionSpec())
        return as_preview(np.array(rows, np.float32), whole)


def configured(
    settings: Settings, pool_name: str, name: str | None = None
) -> tuple[PoolSettings, ModelSettings]:
    """Return the settings of a pool and of a model that it serves; the pool's are that model's.

    Args:
        name: of the model; None: the pool's first.

    Raises: ConfigError: the pool or the model is not there, or one contradicts the other.
    """
    if pool_name not in settings.pools:
        raise ConfigError(f"pools.{pool_name}: there is no such pool; add [pools.{pool_name}]")
    pool = settings.pools[pool_name]
    pool = pool.model_copy(update={"model": name or pool.model, "also": ()})
    if pool.model not in settings.models:
        where = "also" if name in settings.pools[pool_name].also else "model"
        raise ConfigError(
            f"pools.{pool_name}.{where}: add [models.{pool.model}] or correct the name"
        )
    model = whole_settings(settings, pool.model)
    if model.lora_pages is None:
        model = model.model_copy(update={"lora_pages": default_pages(settings, pool.model)})
    if pool.batch_sizes and model.batching == "exact":
        raise ConfigError(
            f"pools.{pool_name}.batch_sizes: models.{pool.model} is batched exactly, in one size; "
            f'leave them out, or set models.{pool.model}.batching = "fast"'
        )
    return pool, model


def set_up(pool: PoolSettings, model: ModelSettings, devices: range | None) -> None:
    """Set what JAX reads at its start: visible devices, flags, precision. Logs what it set.

    Raises: ConfigError: the devices cannot be had so, or a flag undoes the model's batching.
    """
    slice.see_only(devices)
    chip, family = accelerators.chip(), registry.family(model.source, model.base)
    check_flags(pool, model, chip, family)
    wanted = xla_flags.of_settings(pool.flags, chip, family, model.batching)
    for variable, value in xla_flags.environment(wanted, os.environ).items():
        log.info("%s=%s", variable, value)
        os.environ[variable] = value
    if pool.precision != "default":
        log.info("matrix products in %s precision", pool.precision)
        jax.config.update("jax_default_matmul_precision", pool.precision)


def check_flags(pool: PoolSettings, model: ModelSettings, chip: str | None, family: str) -> None:
    """Check a pool's XLA flags.

    Raises: ConfigError: one of the pool's or of the operator's undoes the model's batching.
    """
    by_hand = [
        flag for name in xla_flags.VARIABLES.values() for flag in os.environ.get(name, "").split()
    ]
    given = [*(pool.flags if pool.flags != "auto" else ()), *by_hand]
    try:
        xla_flags.check_batching(given, chip, family, model.batching)
    except ValueError as error:
        raise ConfigError(
            f"models.{pool.model}.{error}: leave it out of the pool's flags and of "
            f'{" and ".join(xla_flags.VARIABLES.values())}, or set batching = "fast"'
        ) from None


def open_slice(
    name: str, pool: PoolSettings, model: ModelSettings, sketch: Sketch,
    devices: Sequence[jax.Device], taken_bytes: int = 0,
) -> MeshSlice:  # fmt: skip
    """The layout of these devices, from the settings and what the model asks of them.

    Args:
        name: the pool's, for messages.
        taken_bytes: of each device's memory, which other models have.

    Raises: ConfigError: the settings do not fit the devices or the model; says the numbers.
    """
    try:
        chosen = slice.choose(pool, model, sketch, devices, taken_bytes)
        table = slice.table_of(pool.table)
    except NothingFits as error:
        raise NotEnoughMemory(f"pools.{name}: {error}") from None
    except ValueError as error:
        raise ConfigError(f"pools.{name}: {error}") from None
    layout = Layout(
        make_mesh(chosen.shape, devices),
        kernel_for(devices[0], model.activation_dtype or model.dtype),
        table,
        eight_bit_for(devices[0].device_kind),
    )
    log.info(
        "%s on %d x %s: %s, %d slots, %s (%s)",
        *(pool.model, len(devices), devices[0].device_kind, chosen.shape, chosen.slots),
        *(chosen.residency, chosen.why),
    )
    return MeshSlice(layout, chosen, model)


def read(pool: PoolSettings, model: ModelSettings, **how: Any) -> Pipeline:
    """The pool's model, with banks for adapters. Raises: as `models.registry.load`."""
    pipeline = registry.load(
        pool.model,
        model.source,
        model.dtype,
        defaults_of(model),
        base=model.base,
        activation_dtype=model.activation_dtype,
        vae_tiling=tiling_of(model),
        qualities=model.quality,
        image_prompts=image_prompts_of(model),
        controls={
            name: ControlSource(one.source, one.mode) for name, one in model.controls.items()
        },
        max_controls=model.max_controls,
        refiner=model.refiner,
        pipeline=model.pipeline,
        **how,
    )
    install_banks(pipeline, model.lora_pages or 0, how.get("sharding"))
    return pipeline


def image_prompts_of(model: ModelSettings) -> dict[str, ImagePromptSource]:
    """Return where the networks of a model's image prompts come from, by name."""
    return {
        name: ImagePromptSource(one.source, one.file, one.encoder)
        for name, one in model.image_prompts.items()
    }


def rounding_of(model: ModelSettings, device: jax.Device | None = None) -> Rounding | None:
    """Return the rounding of weights to 8 bits, to numbers that the device multiplies fast.

    Args:
        device: None: shapes alone are asked for.
    """
    if model.eight_bit is None:
        return None
    if device is None:
        return Rounding(model.eight_bit)
    capability = getattr(device, "compute_capability", "0")
    return Rounding(model.eight_bit, kind_of(device.platform, capability))


def tiling_of(model: ModelSettings) -> Tiling | None:
    """Return the tiling that a model's settings have; None: none."""
    if not model.vae_tiling:
        return None
    tiles = TilingSettings() if model.vae_tiling is True else model.vae_tiling
    return Tiling(tiles.side, tiles.stride)


def abstract(pool: PoolSettings, model: ModelSettings, logical: Layout) -> Pipeline:
    """Return the pool's model with shapes for weights. Raises: as `read`."""
    return read(
        pool,
        model,
        reader=SHAPES,
        sharding=logical.of_parameter,
        rounding=rounding_of(model),
        swap_experts=False,
    )


def sketch_of(
    pool: PoolSettings, model: ModelSettings, folder: Path | None = None
) -> tuple[Sketch, Executables]:
    """Return the sketch of the pool's first warm-up request, and its executables.

    Traced and not compiled, or read from what was traced before. Raises: as `read` does;
    RequestError: of any of them.
    """
    logical = logical_layout()
    pipeline = abstract(pool, model, logical)
    with checkpoint_errors(model.source, (RequestError,)):
        entries = [{**entry, "loras": []} for entry in model.warmup or [{}]]
        first, *others = warmup.requests(pipeline.spec, entries)
        for fields in others:  # a wrong one is found before any weights are read
            warmup.prepare(pipeline, fields)
        there = executables(folder, pipeline, model)
        sketched = there.fact(
            lambda: {
                "program": ["sketch"],
                "request": json.dumps(first, sort_keys=True, default=str),
            },
            lambda: sketch(pipeline, first, logical),
        )
    return sketched, there


def planned(
    name: str,
    pool: PoolSettings,
    model: ModelSettings,
    devices: Sequence[jax.Device],
    folder: Path | None = None,
    taken_bytes: int = 0,
) -> MeshSlice:
    """The slice; with tiles, where the devices have no room for a whole image.

    Args:
        folder: where programs are kept; None: nowhere.
        taken_bytes: of each device's memory, which other models have.

    Raises: ConfigError: the settings do not fit the devices or the model, says the numbers; or a
        warm-up request is none that it can make.
    """

    def opened(model: ModelSettings) -> MeshSlice:
        try:
            sketched, there = sketch_of(pool, model, folder)
        except RequestError as error:
            raise ConfigError(f"models.{pool.model}.warmup: {error}") from error
        opened = open_slice(name, pool, model, sketched, devices, taken_bytes)
        return replace(opened, executables=there)

    try:
        return opened(model)
    except NotEnoughMemory as error:
        if model.vae_tiling is not None:
            raise
        try:
            tiled = opened(model.model_copy(update={"vae_tiling": TilingSettings()}))
        except NotEnoughMemory:
            raise error from None
    log.info("images are decoded in tiles: there is no room for them as a whole")
    return tiled


def load(
    name: str,
    pool: PoolSettings,
    model: ModelSettings,
    devices: Sequence[jax.Device],
    folder: Path | None = None,
    shared: PlacedArrays | None = None,
    taken_bytes: int = 0,
) -> tuple[Pipeline, MeshSlice]:
    """The model as its slice has it.

    Args:
        folder: where programs are kept; None: nowhere.
        shared: arrays of models that were loaded before it; None: it shares its networks' alone.
        taken_bytes: of each device's memory, which something else has.

    Raises:
        ConfigError: the settings do not fit the devices or the model.
        models.checkpoint.folder.CheckpointError, ValueError: the model cannot be loaded; says why.
    """
    opened = planned(name, pool, model, devices, folder, taken_bytes)
    reader = files_of(opened, shared or PlacedArrays())
    return placed(pool, opened.model or model, opened, reader), opened


def files_of(opened: MeshSlice, shared: PlacedArrays) -> Reader:
    """Read the checkpoint for that slice; arrays that are equal lie there once.

    Processes of several hosts must all run what one of them runs, so that none may find there what
    another does not.
    """
    if opened.layout.mesh.is_multi_process:
        return Files(shared)
    return KeptFiles(opened, shared)


def executables(folder: Path | None, pipeline: Pipeline, model: ModelSettings) -> Executables:
    """The programs of a model as this process compiles them, for the next start.

    Args:
        folder: of all models'; several machines may share it. None: nothing is kept.
        model: as it was loaded.
    """
    if folder is None:
        return NoExecutables()
    settings = model.model_dump(mode="json", exclude=NO_PROGRAM)
    of_model = aot_key.of_model(pipeline.spec.fingerprint, settings)
    return ExecutableFiles(folder / "executables", aot_key.of_process() | of_model)


def placed(
    pool: PoolSettings, model: ModelSettings, opened: MeshSlice, reader: Reader = FILES
) -> Pipeline:
    """The model, each array where the slice has it. Raises: as `models.registry.load`."""
    residency = opened.chosen.residency
    how = {
        "sharding": opened.layout.of_parameter,
        "on_host": residency.on_host,
        "rounding": rounding_of(model, opened.layout.mesh.devices.flat[0]),
        "swap_experts": bool(model.swap_experts or residency.by_turns),
        "reader": reader,
    }
    if model.lora is None:
        return read(pool, model, **how)
    return with_fused(model, read(pool, model, reader=SHAPES), partial(read, pool, model, **how))
