"""The model to calibrate, on its devices as a pool has it."""

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
from workers.calibration.drawing import Drawer
from workers.loading import model as loading
from workers.loading.layout import own
from workers.programs.batch_sizes import of_settings
from workers.programs.program_folder import ProgramFolder
from workers.programs.xla_cache import use_compile_cache

ALONE = "calibrate"
"""Name of the pool that a model without one is drawn by."""


@dataclass(frozen=True)
class CalibrationTarget:
    """Model that is asked for."""

    model: str
    """Name of a model of the settings; else a folder or a hub id."""
    pool: str | None = None
    """Pool of the settings whose layout it has; None: the first that serves it."""
    devices: range | None = None
    dtype: str = "bfloat16"
    """Data type of a model that the settings do not have."""


@contextmanager
def opened(
    settings: Settings, asked: CalibrationTarget, out: Path | None = None
) -> Iterator[tuple[Drawer, Path]]:
    """Yield a drawer of the model, and the file that its presets go into.

    Args:
        out: that file; None: the one beside the checkpoint.

    Raises:
        ConfigError: no pool serves it, one of several hosts does, or no file is beside it.
        CheckpointError, ValueError: it cannot be loaded, or the file not written.
    """
    pool, model = settings_of(settings, asked)
    file = out or file_beside(model.source)
    check_writable(file)  # before weights are loaded and hours are drawn
    loading.set_up(pool, model, asked.devices)
    use_compile_cache(settings.compile_folder)
    devices = own(asked.devices)
    programs = ProgramFolder(settings.compile_folder, devices, settings.executables)
    pipeline, where = loading.load(ALONE, pool, model, devices, programs)
    batching = of_settings(pool, model, where.layout, where.chosen.slots)
    drawer = Drawer(pipeline, where.layout, batching, where.executables)
    try:
        yield drawer, file
    finally:
        drawer.close()


def file_beside(source: str) -> Path:
    """Return the file of presets beside a checkpoint, where pools find it.

    Raises:
        ConfigError: it lies in an object store, or is a single file.
        CheckpointError: it is not there.
    """
    if is_url(source):
        raise ConfigError(
            f"{source}: nothing is written into an object store; give --out FILE, and upload it as "
            f"{FILE} beside the checkpoint"
        )
    if single_file(source):
        raise ConfigError(
            f"{source}: no {FILE} is read beside a single file; give --out FILE, and copy its "
            "presets into `quality` of the model's settings"
        )
    return resolve(source) / FILE


def settings_of(settings: Settings, asked: CalibrationTarget) -> tuple[PoolSettings, ModelSettings]:
    """Return the settings of the model and of the pool that it is drawn by.

    Raises: ConfigError: no pool serves it, or one of several hosts does.
    """
    if asked.model not in settings.models:
        given = {"source": asked.model, "dtype": asked.dtype, "lora_pages": 0}
        return PoolSettings(model=asked.model), ModelSettings.model_validate(given)
    pools = {
        name: pool
        for name, pool in settings.pools.items()
        if asked.model in pool.models and asked.pool in (None, name)
    }
    if not pools:
        named = f"pool {asked.pool}" if asked.pool else "pool"
        raise ConfigError(f"no {named} of the settings serves {asked.model}")
    name, first = next(iter(pools.items()))
    if first.hosts.count > 1:
        raise ConfigError(
            f"pools.{name}.hosts: calibration draws with one process; name a pool of one host"
        )
    pool, model = loading.configured(settings, name, asked.model)
    return pool, model.model_copy(update={"lora_pages": 0})
