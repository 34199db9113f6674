"""Executables compiled into an object store; keys that the store already has are skipped."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import jax
from jax.stages import Compiled

from models.parallel import jax_internals
from service.jobs.storage.errors import NotStored
from service.jobs.storage.object_store import Store
from workers.programs import aot_key
from workers.programs.aot_cache import Executables, Key, digest, file_name, packed, unpacked
from workers.programs.bucket_programs import Program
from workers.programs.executable_store import (
    Entry,
    Manifest,
    key_of,
    manifest_name,
    read_manifest,
)

T = TypeVar("T")

SAVE_EVERY_S = 5.0
"""Interval of writing the manifest during a build, so that an interrupted build can continue. A
bucket accepts about one write of an object per second."""


@dataclass(frozen=True)
class ProgramOutcome:
    """Outcome of ahead-of-time compilation of one program."""

    name: str
    outcome: str
    """`built`, `there` (already in the store), or the reason why it cannot be stored."""
    seconds: float = 0.0
    bytes: int = 0

    @property
    def is_in_store(self) -> bool:
        """Return whether workers can fetch the program from the store."""
        return self.outcome in ("built", "there")


@dataclass
class BuildReport:
    """Programs of a build so far. Thread-safe.

    Args:
        on_program: called with each program.
    """

    on_program: Callable[[ProgramOutcome], None]
    programs: list[ProgramOutcome] = field(default_factory=list)

    def add(self, program: ProgramOutcome) -> None:
        """Append a program and pass it to the callback."""
        self.programs.append(program)
        self.on_program(program)


class StoredPrograms:
    """Executables of all models of a remote worker; replaces `ProgramFolder` during a build.

    Args:
        devices: devices of the worker's slice, which may be described only.
    """

    def __init__(self, store: Store, devices: Sequence[jax.Device], report: BuildReport) -> None:
        self._store = store
        self._devices = devices
        self._report = report
        self._models: dict[str, StoredExecutables] = {}

    def of_model(self, model: Key) -> Executables:
        """Return the executables of a model in the store.

        Raises: StoreError: the store does not answer.
        """
        common = aot_key.of_process(self._devices[0]) | dict(model)
        key = key_of(common, self._devices)
        name = file_name(key)
        if name not in self._models:
            self._models[name] = StoredExecutables(self._store, common, key, self._report)
        return self._models[name]

    def save(self) -> None:
        """Write all manifests of executables with new entries. Raises: StoreError."""
        for executables in self._models.values():
            executables.save()


class StoredExecutables:
    """Executables of one model in an object store. Thread-safe.

    Programs are compiled and never loaded, because their devices may be absent.

    Args:
        common: fields that all keys share.
        key: key of the manifest.

    Raises: StoreError: the store does not answer.
    """

    def __init__(self, store: Store, common: Key, key: dict[str, Any], report: BuildReport) -> None:
        self._store = store
        self._common = common
        self._report = report
        try:
            self._manifest = asyncio.run(read_manifest(store, key))
        except NotStored:
            self._manifest = Manifest(key=key)
        self._lock = threading.Lock()
        self._is_saved = True
        self._saved_at = time.monotonic()

    def program(
        self,
        key: Callable[[], Key],
        devices: Sequence[jax.Device],
        build: Callable[[], Compiled],
    ) -> Program:
        """Compile and store a program unless the store has it. The result cannot be called.

        Raises: StoreError; the compiler's error.
        """
        full_key = {**self._common, **key()}
        name = " ".join(full_key["program"])
        if listed := self._manifest.files.get(file_name(full_key)):
            self._report.add(ProgramOutcome(name, "there", bytes=listed.bytes))
            return not_loaded
        started = time.monotonic()
        compiled = build()
        took_s = time.monotonic() - started
        try:
            text = packed(jax_internals.serialize(compiled), full_key)
        except Exception as error:  # programs that call the host cannot be serialized
            self._report.add(ProgramOutcome(name, f"cannot be stored: {error}", took_s))
            return not_loaded
        self._put(full_key, text)
        self._report.add(ProgramOutcome(name, "built", took_s, len(text)))
        return not_loaded

    def fact(self, key: Callable[[], Key], find: Callable[[], T]) -> T:
        """Return a stored fact about programs, or compute and store it. Raises: StoreError."""
        full_key = {**self._common, **key()}
        content: T | None = self._get(full_key)
        if content is None:
            content = find()
            self._put(full_key, packed(content, full_key))
        return content

    def recall(self, key: Callable[[], Key]) -> Any:
        """Return a stored fact about programs, or None. Raises: StoreError."""
        return self._get({**self._common, **key()})

    def save(self) -> None:
        """Write the manifest of executables if it has new entries. Raises: StoreError."""
        with self._lock:
            if not self._is_saved:
                text = self._manifest.model_dump_json(indent=1).encode()
                name = manifest_name(self._manifest.key)
                asyncio.run(self._store.put(name, text, "application/json"))
                self._is_saved, self._saved_at = True, time.monotonic()

    def _get(self, key: Key) -> Any:
        listed = self._manifest.files.get(name := file_name(key))
        if listed is None:
            return None
        try:
            text = asyncio.run(self._store.get(name))
            return unpacked(text, key) if digest(text) == listed.sha256 else None
        except (NotStored, ValueError):  # missing or corrupt: build it again
            return None

    def _put(self, key: Key, text: bytes) -> None:
        name = file_name(key)
        asyncio.run(self._store.put(name, text, "application/octet-stream"))
        entry = Entry(program=list(key["program"]), bytes=len(text), sha256=digest(text))
        with self._lock:
            self._manifest.files[name] = entry
            self._is_saved = False
            is_due = time.monotonic() - self._saved_at > SAVE_EVERY_S
        if is_due:
            self.save()


def not_loaded(*_: Any) -> Any:
    """Placeholder of a program that was stored and not loaded."""
    raise TypeError("a program built for a store cannot be run here")
