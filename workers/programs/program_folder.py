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
    """Cache folder for executables of several models, optionally filled from an object store.

    Args:
        path: parent folder; several machines may share it.
        devices: devices of the process's slice.
        store: address of executables compiled elsewhere; None: not used.

    Raises: ConfigError: the address is invalid.
    """

    def __init__(self, path: Path, devices: Sequence[jax.Device], store: str | None = None) -> None:
        self._path = path / "executables"
        self._devices = devices
        self._store = None if store is None else Store(store, setting=SETTING)
        self._fetches: dict[str, Fetch] = {}

    def of_model(self, model: Key) -> Executables:
        """Return the executables of a model; `model` is the key from `aot_key.of_model`.

        The first call starts to fetch those compiled elsewhere.
        """
        common = aot_key.of_process(self._devices[0]) | dict(model)
        if self._store is None:
            return ExecutableFiles(self._path, common)
        key = key_of(common, self._devices)
        name = file_name(key)
        if name not in self._fetches:
            self._fetches[name] = Fetch(self._store, key, self._path)
        return ExecutableFiles(self._path, common, awaited=self._fetches[name].wait)
