"""Loading of a model onto its mesh slice.

The layout is chosen first, from abstract shapes. Each array is then loaded directly to its devices.
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
from models.checkpoint.component_overrides import PARTS
from models.checkpoint.folder import checkpoint_errors
from models.interface.pipeline import Fields, Pipeline
from models.loading.preview import MeanLatents, as_preview, fit
from models.loading.sources import (
    FILES,
    SHAPES,
    ControlSource,
    Files,
    ImagePromptSource,
    Reader,
)
from models.nn.quant.matmul import kind_of
from models.parallel.axis_rules import Layout
from models.spec.notices import collected_notices
from models.spec.request import RequestError
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
from workers.loading.trial_times import EstimatedTimes, estimated_times
from workers.plan.search import NothingFits
from workers.plan.trace import Sketch, sketch
from workers.programs import aot_key, warmup
from workers.programs.aot_cache import Executables, ModelExecutables, NoExecutables
from workers.slice import devices as accelerators
from workers.slice import preflight, xla_flags
from workers.slice.kernel_check import usable_kernels
from workers.slice.mesh import make_mesh

log = logging.getLogger(__name__)

NO_PROGRAM = {
    *("source", "base", "image_prompts", "controls", "refiner", "latent_upsampler", *PARTS),
    *("defaults", "warmup", "batching", "exact_rows", "sizes"),
}
"""Settings of a model that do not change its programs: sources (the config digest identifies
those), and request defaults."""


NO_OTHERS: Mapping[str, ModelSettings] = MappingProxyType({})


class NotEnoughMemory(ConfigError):
    """Error of a model that the devices' memory cannot hold; the message states the numbers."""


@dataclass(frozen=True)
class MeshSlice:
    """Devices of one pool with their layout, and the compiled programs of the model."""

    layout: Layout
    chosen: ChosenLayout
    model: ModelSettings | None = None
    """Settings changed to fit these devices; None: the settings are unchanged."""
    estimated: Sequence[EstimatedTimes] = ()
    """Estimated times of each warm-up request."""
    executables: Executables = field(default_factory=NoExecutables)
    """Cached programs and facts of the model from earlier starts."""
    fingerprint: str = ""
    """Fingerprint of the checkpoint, the key of facts about its weights."""


class CachedFiles(Files):
    """Checkpoint reader that reuses results derived from the weights by an earlier start."""

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
        replicated = NamedSharding(self._layout.mesh, PartitionSpec())
        return as_preview(np.array(rows, np.float32), replicated)


def configured(
    settings: Settings, pool_name: str, name: str | None = None
) -> tuple[PoolSettings, ModelSettings]:
    """Return the settings of a pool, reduced to one model, and of that model.

    Args:
        name: name of the model; None: the pool's first.

    Raises: ConfigError: the pool or the model does not exist, or their settings conflict.
    """
    if pool_name not in settings.pools:
        raise ConfigError(f"pools.{pool_name}: there is no such pool; add [pools.{pool_name}]")
    pool = settings.pools[pool_name]
    pool = pool.model_copy(update={"model": name or pool.model, "also": (), "by_turns": ()})
    if pool.model not in settings.models:
        lists = ("also", "by_turns")
        sections = (
            section for section in lists if name in getattr(settings.pools[pool_name], section)
        )
        where = next(sections, "model")
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
    """Set visible devices, XLA flags and precision before JAX starts, and log them.

    Args:
        others: other models of the process, by name.

    Raises: ConfigError: the devices are unavailable, a flag disables the model's batching, or
    another model needs other flags.
    """
    preflight.check(pool, devices)
    slice.restrict_visible_devices(devices)
    chip, family = accelerators.chip(), registry.family(model.source, model.base)
    check_others(
        pool, others, chip, xla_flags.of_settings(pool.flags, chip, family, model.batching)
    )
    set_flags(pool, model, chip, family)


def set_flags(pool: PoolSettings, model: ModelSettings, chip: str | None, family: str) -> None:
    """Set the XLA flags and the matmul precision of a pool for a chip. Raises: ConfigError."""
    check_flags(pool, model, chip, family)
    wanted = xla_flags.of_settings(pool.flags, chip, family, model.batching)
    for variable, value in xla_flags.environment(wanted, os.environ).items():
        log.info("%s=%s", variable, value)
        os.environ[variable] = value
    if pool.precision != "default":
        log.info("matrix products in %s precision", pool.precision)
        jax.config.update("jax_default_matmul_precision", pool.precision)


def check_flags(pool: PoolSettings, model: ModelSettings, chip: str | None, family: str) -> None:
    """Validate a pool's XLA flags.

    Raises: ConfigError: a flag of the pool or the operator disables the model's batching.
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
    """Verify that other models of a pool need the same flags as its first model.

    Raises: ConfigError: one needs other flags; names it.
    """
    for name, other in others.items():
        family = registry.family(other.source, other.base)
        if xla_flags.of_settings(pool.flags, chip, family, other.batching) != flags:
            raise ConfigError(
                f"models.{name} needs other compiler flags than models.{pool.model}, and a "
                "process has one set of them: make a pool for it"
            )


def open_slice(
    name: str, pool: PoolSettings, model: ModelSettings, sketches: Sequence[Sketch],
    devices: Sequence[jax.Device], taken_bytes: int = 0,
) -> MeshSlice:  # fmt: skip
    """Choose the layout of these devices from the settings and the model's sketches.

    Args:
        name: name of the pool, for messages.
        sketches: traces of the warm-up requests; the first decides.
        taken_bytes: memory of each device that other models occupy.

    Raises: ConfigError: the settings do not fit the devices or the model; states the numbers.
    """
    try:
        chosen = slice.choose(pool, model, sketches[0], devices, taken_bytes)
        table = slice.table_of(pool.table)
    except NothingFits as error:
        raise NotEnoughMemory(f"pools.{name}: {error}") from None
    except ValueError as error:
        raise ConfigError(f"pools.{name}: {error}") from None
    dtype = model.activation_dtype or model.dtype
    kernels = usable_kernels(devices[0], dtype, pool.kernels)
    layout = Layout(make_mesh(chosen.shape, devices), kernels.attention, table, kernels.eight_bit)
    log.info(
        "%s on %d x %s: %s, %d slots, %s (%s)",
        *(pool.model, len(devices), devices[0].device_kind, chosen.shape, chosen.slots),
        *(chosen.residency, chosen.why),
    )
    tried = sketches[: len(model.warmup)]
    times = estimated_times(tried, chosen, table, devices, dtype)
    return MeshSlice(layout, chosen, model, times)


def read(pool: PoolSettings, model: ModelSettings, **how: Any) -> Pipeline:
    """Load the pool's model with its adapter banks. Raises: as `models.registry.load`."""
    with collected_notices() as notices:
        pipeline = _loaded(pool, model, **how)
    pipeline.spec = pipeline.spec.model_copy(update={"warnings": tuple(notices)})
    install_banks(pipeline, model.lora_pages or 0, how.get("sharding"))
    return pipeline


def _loaded(pool: PoolSettings, model: ModelSettings, **how: Any) -> Pipeline:
    return registry.load(
        pool.model,
        model.source,
        model.dtype,
        defaults_of(model),
        base=model.base,
        parts=parts_of(model),
        activation_dtype=model.activation_dtype,
        vae_tiling=tiling_of(model),
        qualities=model.quality,
        image_prompts=image_prompts_of(model),
        controls={
            name: ControlSource(control.source, control.mode)
            for name, control in model.controls.items()
        },
        max_controls=model.max_controls,
        refiner=model.refiner,
        latent_upsampler=model.latent_upsampler,
        pipeline=model.pipeline,
        token_buckets=model.token_buckets,
        **how,
    )


def parts_of(model: ModelSettings) -> dict[str, str]:
    """Return the sources of components that replace the checkpoint's, by name."""
    sources = {name: getattr(model, name) for name in PARTS}
    return {name: source for name, source in sources.items() if source and isinstance(source, str)}


def image_prompts_of(model: ModelSettings) -> dict[str, ImagePromptSource]:
    """Return the sources of a model's image-prompt networks, by name."""
    return {
        name: ImagePromptSource(prompt_network.source, prompt_network.file, prompt_network.encoder)
        for name, prompt_network in model.image_prompts.items()
    }


def rounding_of(model: ModelSettings, device: jax.Device | None = None) -> Rounding | None:
    """Return the rounding of weights to 8 bits, in a format that the device multiplies fast.

    Args:
        device: None: only shapes are needed.
    """
    if model.eight_bit is None:
        return None
    if device is None:
        return Rounding(model.eight_bit)
    capability = getattr(device, "compute_capability", "0")
    return Rounding(model.eight_bit, kind_of(device.platform, capability))


def tiling_of(model: ModelSettings) -> Tiling | None:
    """Return the VAE tiling of a model's settings, or None."""
    if not model.vae_tiling:
        return None
    tiles = TilingSettings() if model.vae_tiling is True else model.vae_tiling
    return Tiling(tiles.side, tiles.stride)


def abstract(pool: PoolSettings, model: ModelSettings, logical: Layout) -> Pipeline:
    """Return the pool's model with abstract weights. Raises: as `read`."""
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
    """Return the sketches of the warm-up requests, the model's executables and its fingerprint.

    Requests are traced but not compiled; sketches of earlier starts are reused. Raises: as `read`;
    RequestError: an invalid request.
    """
    logical = logical_layout()
    pipeline = abstract(pool, model, logical)
    with checkpoint_errors(model.source, (RequestError,)):
        entries = [{**entry, "loras": []} for entry in model.warmup or [{}]]
        stored = executables(folder, pipeline, model)

        def sketched(fields: Fields) -> Sketch:
            request = json.dumps(fields, sort_keys=True, default=str)
            key = {"program": ["sketch"], "request": request}
            return stored.fact(lambda: key, lambda: sketch(pipeline, fields, logical))

        sketches = [sketched(fields) for fields in warmup.requests(pipeline.spec, entries)]
    return sketches, stored, pipeline.spec.fingerprint


def plan_slice(
    name: str,
    pool: PoolSettings,
    model: ModelSettings,
    devices: Sequence[jax.Device],
    folder: ModelExecutables | None = None,
    taken_bytes: int = 0,
) -> MeshSlice:
    """Plan the slice; decode in tiles if the devices' memory is too small for a whole image.

    Args:
        folder: store of compiled programs; None: programs are not stored.
        taken_bytes: memory of each device that other models occupy.

    Raises: ConfigError: the settings do not fit the devices or the model, or a warm-up request is
    invalid.
    """

    def opened(model: ModelSettings) -> MeshSlice:
        try:
            sketches, stored, fingerprint = sketches_of(pool, model, folder)
        except RequestError as error:
            raise ConfigError(f"models.{pool.model}.warmup: {error}") from error
        opened = open_slice(name, pool, model, sketches, devices, taken_bytes)
        return replace(opened, executables=stored, fingerprint=fingerprint)

    try:
        return opened(model)
    except NotEnoughMemory as error:
        if model.vae_tiling is not None:
            raise
        try:
            tiled = opened(model.model_copy(update={"vae_tiling": TilingSettings()}))
        except NotEnoughMemory:
            raise error from None
    log.info("images are decoded in tiles: the memory is too small for whole images")
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
    """Plan a slice and load the model onto it.

    Args:
        folder: store of compiled programs; None: programs are not stored.
        shared: arrays of models loaded before; None: only this model's networks share arrays.
        taken_bytes: memory of each device that is occupied.

    Raises:
        ConfigError: the settings do not fit the devices or the model.
        models.checkpoint.folder.CheckpointError, ValueError: the model cannot be loaded.
    """
    opened = plan_slice(name, pool, model, devices, folder, taken_bytes)
    reader = files_of(opened, shared or PlacedArrays())
    return load_placed(pool, opened.model or model, opened, reader), opened


def files_of(opened: MeshSlice, shared: PlacedArrays) -> Reader:
    """Return the checkpoint reader of a slice; it places equal arrays once.

    Processes of several hosts must run the same programs. So on multi-host slices none may reuse
    results that another process lacks.
    """
    if opened.layout.mesh.is_multi_process:
        return Files(shared)
    return CachedFiles(opened, shared)


def executables(
    folder: ModelExecutables | None, pipeline: Pipeline, model: ModelSettings
) -> Executables:
    """Return the executables of a model for this process, which later starts reuse.

    Args:
        folder: store of all models; None: nothing is stored.
        model: settings with which the model was loaded.
    """
    if folder is None:
        return NoExecutables()
    settings = model.model_dump(mode="json", exclude=NO_PROGRAM)
    return folder.of_model(aot_key.of_model(pipeline.spec.config_digest, settings))


def load_placed(
    pool: PoolSettings, model: ModelSettings, opened: MeshSlice, reader: Reader = FILES
) -> Pipeline:
    """Load the model with each array placed by the slice. Raises: as `models.registry.load`."""
    how = read_arguments(model, opened, reader)
    if model.lora is None:
        return read(pool, model, **how)
    return with_fused(model, read(pool, model, reader=SHAPES), partial(read, pool, model, **how))


def read_arguments(model: ModelSettings, opened: MeshSlice, reader: Reader) -> dict[str, Any]:
    """Return the arguments of `read` that place each array on the slice."""
    residency = opened.chosen.residency
    return {
        "sharding": opened.layout.of_parameter,
        "on_host": residency.on_host,
        "rounding": rounding_of(model, opened.layout.mesh.devices.flat[0]),
        "swap_experts": bool(model.swap_experts or residency.swapped),
        "reader": reader,
    }
