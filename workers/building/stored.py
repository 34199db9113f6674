"""Executables that are compiled for a store: what is there under its key is not compiled again."""

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
"""Interval of writing the manifest while programs are compiled, so that a build which is cut off
goes on from there: a bucket takes one write of an object each second."""


@dataclass(frozen=True)
class Built:
    """One program of a build."""

    name: str
    outcome: str
    """`built`, `there`, or why it cannot be kept."""
    seconds: float = 0.0
    bytes: int = 0

    @property
    def is_in_store(self) -> bool:
        """Return whether workers find it."""
        return self.outcome in ("built", "there")


@dataclass
class BuildReport:
    """Programs of a build so far. From any thread.

    Args:
        tell: called with each.
    """

    tell: Callable[[Built], None]
    programs: list[Built] = field(default_factory=list)

    def add(self, one: Built) -> None:
        """Add a program."""
        self.programs.append(one)
        self.tell(one)


class StoredPrograms:
    """Executables of all models of a worker that is not here, in the place of `ProgramFolder`.

    Args:
        devices: of its slice, which may be described.
    """

    def __init__(self, store: Store, devices: Sequence[jax.Device], report: BuildReport) -> None:
        self._store = store
        self._devices = devices
        self._report = report
        self._models: dict[str, StoredExecutables] = {}

    def of_model(self, model: Key) -> Executables:
        """Return the executables of a model. Raises: StoreError: the store does not answer."""
        common = aot_key.of_process(self._devices[0]) | dict(model)
        key = key_of(common, self._devices)
        name = file_name(key)
        if name not in self._models:
            self._models[name] = StoredExecutables(self._store, common, key, self._report)
        return self._models[name]

    def save(self) -> None:
        """Write all manifests that have grown. Raises: StoreError."""
        for one in self._models.values():
            one.save()


class StoredExecutables:
    """Executables of one model. From any thread.

    Programs are compiled and never loaded: their devices may be described and not there.

    Args:
        common: of all keys.
        key: of the manifest.

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
        """Compile the program and store it, unless it is there. Nothing can be run by it.

        Raises: StoreError; the compiler's error.
        """
        whole = {**self._common, **key()}
        said = " ".join(whole["program"])
        if listed := self._manifest.files.get(file_name(whole)):
            self._report.add(Built(said, "there", bytes=listed.bytes))
            return nothing
        started = time.monotonic()
        compiled = build()
        took_s = time.monotonic() - started
        try:
            text = packed(jax_internals.serialize(compiled), whole)
        except Exception as error:  # some programs call the host, and cannot be kept
            self._report.add(Built(said, f"cannot be kept: {error}", took_s))
            return nothing
        self._put(whole, text)
        self._report.add(Built(said, "built", took_s, len(text)))
        return nothing

    def fact(self, key: Callable[[], Key], find: Callable[[], T]) -> T:
        """Return the fact out of the store, or find and store it. Raises: StoreError."""
        whole = {**self._common, **key()}
        content: T | None = self._get(whole)
        if content is None:
            content = find()
            self._put(whole, packed(content, whole))
        return content

    def recall(self, key: Callable[[], Key]) -> Any:
        """Return the fact out of the store; None: there is none. Raises: StoreError."""
        return self._get({**self._common, **key()})

    def save(self) -> None:
        """Write the manifest, if it has grown. Raises: StoreError."""
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
        except (NotStored, ValueError):  # what is not right is built again
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


def nothing(*_: Any) -> Any:
    """Stand for a program that was stored and not loaded."""
    raise TypeError("a program that was built for a store runs where it is fetched")
