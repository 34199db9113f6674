"""Open the model to calibrate on its devices, with the layout of its pool."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from models.checkpoint.hub import resolve, single_file
from models.checkpoint.object_folder import is_url
from models.checkpoint.presets_file import FILE, check_writable
from service.settings.models import ModelSettings
from service.settings.pools import PoolSettings
from service.settings.section import ConfigError
from service.settings.settings import Settings
from workers.calibration.drawing import ImageGenerator
from workers.loading import model as loading
from workers.loading.layout import slice_devices
from workers.programs.batch_sizes import of_settings
from workers.programs.program_folder import ProgramFolder
from workers.programs.xla_cache import use_compile_cache

ALONE = "calibrate"
"""Pool name of a model that no pool serves."""


@dataclass(frozen=True)
class CalibrationTarget:
    """Model to calibrate, with its pool and devices."""

    model: str
    """Name of a model of the settings, otherwise a folder or a hub id."""
    pool: str | None = None
    """Pool of the settings that provides the layout; None: the first that serves the model."""
    devices: range | None = None
    dtype: str = "bfloat16"
    """Data type of a model that is not in the settings."""


@contextmanager
def opened(
    settings: Settings, target: CalibrationTarget, out: Path | None = None
) -> Iterator[tuple[ImageGenerator, Path]]:
    """Load a model to calibrate; yield its image generator, and the path of its presets file.

    Args:
        out: path of the presets file; None: next to the checkpoint.

    Raises:
        ConfigError: no pool serves it, its pool has several hosts, or it has no place for the file.
        CheckpointError, ValueError: it cannot be loaded, or the file cannot be written.
    """
    pool, model = settings_of(settings, target)
    file = out or default_presets_path(model.source)
    check_writable(file)  # fail before weights are loaded
    loading.set_up(pool, model, target.devices)
    use_compile_cache(settings.compile_folder)
    devices = slice_devices(target.devices)
    programs = ProgramFolder(settings.compile_folder, devices, settings.executables)
    pipeline, where = loading.load(ALONE, pool, model, devices, programs)
    batching = of_settings(pool, model, where.layout, where.chosen.slots)
    generator = ImageGenerator(pipeline, where.layout, batching, where.executables)
    try:
        yield generator, file
    finally:
        generator.close()


def default_presets_path(source: str) -> Path:
    """Return the path of the presets file next to a checkpoint, where workers load it.

    Raises:
        ConfigError: the checkpoint is in an object store, or is a single file.
        CheckpointError: it does not exist.
    """
    if is_url(source):
        raise ConfigError(
            f"{source}: nothing is written into an object store; give --out FILE, and upload it as "
            f"{FILE} next to the checkpoint"
        )
    if single_file(source):
        raise ConfigError(
            f"{source}: no {FILE} is read next to a single file; give --out FILE, and copy its "
            "presets into `quality` of the model's settings"
        )
    return resolve(source) / FILE


def settings_of(
    settings: Settings, target: CalibrationTarget
) -> tuple[PoolSettings, ModelSettings]:
    """Return the settings of the model and of its pool.

    Raises: ConfigError: no pool serves it, or its pool has several hosts.
    """
    if target.model not in settings.models:
        given = {"source": target.model, "dtype": target.dtype, "lora_pages": 0}
        return PoolSettings(model=target.model), ModelSettings.model_validate(given)
    pools = {
        name: pool
        for name, pool in settings.pools.items()
        if target.model in pool.models and target.pool in (None, name)
    }
    if not pools:
        named = f"pool {target.pool}" if target.pool else "pool"
        raise ConfigError(f"no {named} of the settings serves {target.model}")
    name, first = next(iter(pools.items()))
    if first.hosts.count > 1:
        raise ConfigError(
            f"pools.{name}.hosts: calibration runs in one process; name a pool of one host"
        )
    pool, model = loading.configured(settings, name, target.model)
    return pool, model.model_copy(update={"lora_pages": 0})
