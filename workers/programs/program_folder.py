"""Folder of one process's compiled programs, for all models that it serves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import jax

from service.jobs.storage.object_store import Store
from workers.programs import aot_key
from workers.programs.aot_cache import ExecutableFiles, Executables, Key, file_name
from workers.programs.executable_store import SETTING, Fetch, key_of


class ProgramFolder:
    """Folder that executables are read from and written to.

    Args:
        path: several machines may share it.
        devices: of the process's slice.
        store: address of executables made elsewhere; None: there is none.

    Raises: ConfigError: that is no address of a store.
    """

    def __init__(self, path: Path, devices: Sequence[jax.Device], store: str | None = None) -> None:
        self._path = path / "executables"
        self._devices = devices
        self._store = None if store is None else Store(store, setting=SETTING)
        self._fetches: dict[str, Fetch] = {}

    def of_model(self, model: Key) -> Executables:
        """Return the executables of a model, whose key is `aot_key.of_model`'s.

        Those that were made elsewhere begin to arrive.
        """
        common = aot_key.of_process(self._devices[0]) | dict(model)
        if self._store is None:
            return ExecutableFiles(self._path, common)
        key = key_of(common, self._devices)
        name = file_name(key)
        if name not in self._fetches:
            self._fetches[name] = Fetch(self._store, key, self._path)
        return ExecutableFiles(self._path, common, awaited=self._fetches[name].wait)
