"""Loading of a model onto its mesh slice.

The layout is chosen first, from shapes alone, and each array goes straight to where it lies.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from models import registry
from models.adapters.install import install_banks
from models.checkpoint.folder import checkpoint_errors
from models.interface.pipeline import Fields, Pipeline, RequestError
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
from workers.loading.trial_times import trial_s
from workers.plan.auto_layout import NothingFits
from workers.plan.trace import Sketch, sketch
from workers.programs import aot_key, warmup
from workers.programs.aot_cache import Executables, ModelExecutables, NoExecutables
from workers.slice import devices as accelerators
from workers.slice import preflight, xla_flags
from workers.slice.mesh import make_mesh

log = logging.getLogger(__name__)

NO_PROGRAM = {
    *("source", "base", "image_prompts", "controls", "refiner", "latent_upsampler"),
    *("defaults", "warmup", "batching", "exact_rows", "sizes"),
}
"""Settings of a model that change none: where it comes from (the digest of its configs says what it
is), and what is asked of it."""


NO_OTHERS: Mapping[str, ModelSettings] = MappingProxyType({})


class NotEnoughMemory(ConfigError):
    """The devices' memory does not hold the model; the message has the numbers."""


@dataclass(frozen=True)
class MeshSlice:
    """The devices of one pool, and how they share its work."""

    layout: Layout
    chosen: ChosenLayout
    model: ModelSettings | None = None
    """Settings with what these devices have made necessary; None: the settings' own."""
    trial_s: Sequence[float] = ()
    """Seconds that trying each warm-up request out takes, by estimate."""
    executables: Executables = field(default_factory=NoExecutables)
    """Programs and facts of that model, from starts before."""
    fingerprint: str = ""
    """Fingerprint of its checkpoint, for facts about weights."""


class KeptFiles(Files):
    """Files of the checkpoint; results derived from them come from the start before."""

    def __init__(self, opened: MeshSlice, shared: PlacedArrays) -> None:
        super().__init__(shared)
        self._executables = opened.executables
        self._layout = opened.layout
        self._fingerprint = opened.fingerprint

    def preview(self, mean_latents: MeanLatents, latent_channels: int) -> nnx.Linear:
        """Return the linear map of previews, fitted once for this layout."""
        key = {
            "program": ["fit of previews"],
            "checkpoint": self._fingerprint,
            "layout": aot_key.of_layout(self._layout),
        }
        rows = self._executables.fact(lambda: key, lambda: fit(mean_latents)[0].tolist())
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
    pool = pool.model_copy(update={"model": name or pool.model, "also": (), "by_turns": ()})
    if pool.model not in settings.models:
        lists = ("also", "by_turns")
        found = (one for one in lists if name in getattr(settings.pools[pool_name], one))
        where = next(found, "model")
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


def set_up(
    pool: PoolSettings,
    model: ModelSettings,
    devices: range | None,
    others: Mapping[str, ModelSettings] = NO_OTHERS,
) -> None:
    """Set what JAX reads at its start: visible devices, flags, precision. Logs what it set.

    Args:
        others: by name, models that the process serves besides.

    Raises: ConfigError: the devices cannot be had, a flag undoes the model's batching, or another
        model wants other flags.
    """
    preflight.check(pool, devices)
    slice.see_only(devices)
    chip, family = accelerators.chip(), registry.family(model.source, model.base)
    check_others(
        pool, others, chip, xla_flags.of_settings(pool.flags, chip, family, model.batching)
    )
    set_flags(pool, model, chip, family)


def set_flags(pool: PoolSettings, model: ModelSettings, chip: str | None, family: str) -> None:
    """Set the flags and the precision of a pool on such a chip. Raises: ConfigError."""
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


def check_others(
    pool: PoolSettings,
    others: Mapping[str, ModelSettings],
    chip: str | None,
    flags: Mapping[str, Sequence[str]],
) -> None:
    """Check that other models of a pool want the flags that its first one has.

    Raises: ConfigError: one wants others; names it.
    """
    for name, other in others.items():
        family = registry.family(other.source, other.base)
        if xla_flags.of_settings(pool.flags, chip, family, other.batching) != flags:
            raise ConfigError(
                f"models.{name} wants other flags of the compiler than models.{pool.model}, and a "
                "process has one set of them: make a pool for it"
            )


def open_slice(
    name: str, pool: PoolSettings, model: ModelSettings, sketches: Sequence[Sketch],
    devices: Sequence[jax.Device], taken_bytes: int = 0,
) -> MeshSlice:  # fmt: skip
    """The layout of these devices, from the settings and what the model asks of them.

    Args:
        name: the pool's, for messages.
        sketches: of the warm-up requests; the first one decides.
        taken_bytes: of each device's memory, which other models have.

    Raises: ConfigError: the settings do not fit the devices or the model; says the numbers.
    """
    try:
        chosen = slice.choose(pool, model, sketches[0], devices, taken_bytes)
        table = slice.table_of(pool.table)
    except NothingFits as error:
        raise NotEnoughMemory(f"pools.{name}: {error}") from None
    except ValueError as error:
        raise ConfigError(f"pools.{name}: {error}") from None
    dtype = model.activation_dtype or model.dtype
    layout = Layout(
        make_mesh(chosen.shape, devices),
        kernel_for(devices[0], dtype),
        table,
        eight_bit_for(devices[0].device_kind),
    )
    log.info(
        "%s on %d x %s: %s, %d slots, %s (%s)",
        *(pool.model, len(devices), devices[0].device_kind, chosen.shape, chosen.slots),
        *(chosen.residency, chosen.why),
    )
    tried = sketches[: len(model.warmup)]
    return MeshSlice(layout, chosen, model, trial_s(tried, chosen, table, devices, dtype))


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
        latent_upsampler=model.latent_upsampler,
        pipeline=model.pipeline,
        token_buckets=model.token_buckets,
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


def sketches_of(
    pool: PoolSettings, model: ModelSettings, folder: ModelExecutables | None = None
) -> tuple[list[Sketch], Executables, str]:
    """Return the sketches of the pool's warm-up requests, its executables and fingerprint.

    Traced and not compiled, or read from what was traced before. Raises: as `read` does;
    RequestError: of any of them.
    """
    logical = logical_layout()
    pipeline = abstract(pool, model, logical)
    with checkpoint_errors(model.source, (RequestError,)):
        entries = [{**entry, "loras": []} for entry in model.warmup or [{}]]
        there = executables(folder, pipeline, model)

        def sketched(fields: Fields) -> Sketch:
            request = json.dumps(fields, sort_keys=True, default=str)
            key = {"program": ["sketch"], "request": request}
            return there.fact(lambda: key, lambda: sketch(pipeline, fields, logical))

        found = [sketched(fields) for fields in warmup.requests(pipeline.spec, entries)]
    return found, there, pipeline.spec.fingerprint


def planned(
    name: str,
    pool: PoolSettings,
    model: ModelSettings,
    devices: Sequence[jax.Device],
    folder: ModelExecutables | None = None,
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
            sketches, there, fingerprint = sketches_of(pool, model, folder)
        except RequestError as error:
            raise ConfigError(f"models.{pool.model}.warmup: {error}") from error
        opened = open_slice(name, pool, model, sketches, devices, taken_bytes)
        return replace(opened, executables=there, fingerprint=fingerprint)

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
    folder: ModelExecutables | None = None,
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


def executables(
    folder: ModelExecutables | None, pipeline: Pipeline, model: ModelSettings
) -> Executables:
    """The programs of a model as this process compiles them, for the next start.

    Args:
        folder: of all models'. None: nothing is kept.
        model: as it was loaded.
    """
    if folder is None:
        return NoExecutables()
    settings = model.model_dump(mode="json", exclude=NO_PROGRAM)
    return folder.of_model(aot_key.of_model(pipeline.spec.config_digest, settings))


def placed(
    pool: PoolSettings, model: ModelSettings, opened: MeshSlice, reader: Reader = FILES
) -> Pipeline:
    """The model, each array where the slice has it. Raises: as `models.registry.load`."""
    how = placing(model, opened, reader)
    if model.lora is None:
        return read(pool, model, **how)
    return with_fused(model, read(pool, model, reader=SHAPES), partial(read, pool, model, **how))


def placing(model: ModelSettings, opened: MeshSlice, reader: Reader) -> dict[str, Any]:
    """Return what `read` is told of where the slice has each array."""
    residency = opened.chosen.residency
    return {
        "sharding": opened.layout.of_parameter,
        "on_host": residency.on_host,
        "rounding": rounding_of(model, opened.layout.mesh.devices.flat[0]),
        "swap_experts": bool(model.swap_experts or residency.by_turns),
        "reader": reader,
    }
