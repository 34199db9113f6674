"""Executables compiled elsewhere: fetched from an object store before anything is compiled.

A store contains the same files as a folder (aot_cache.py), and a manifest for each model and kind
of slice. The manifest lists the files and their digests. `atelier compile` creates them, and
workers write nothing. A digest only detects damage: anyone with write access to the store can run
code in the workers that fetch from it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import jax
from pydantic import BaseModel, Field, ValidationError

from service.jobs.storage.errors import NotStored, StoreError
from service.jobs.storage.object_store import Store
from workers import metrics
from workers.programs import aot_key
from workers.programs.aot_cache import (
    MAX_BYTES,
    Key,
    digest,
    evict_oldest,
    file_name,
    write_atomically,
)

log = logging.getLogger(__name__)

SETTING = "executables"
"""Name of the setting with the executable store's address."""
FORMAT = 1
AT_ONCE = 8
"""Maximum concurrent downloads; each file is held in memory, at most 0.13 GB."""
MANIFESTS = "manifests/"
THREAD = "fetch executables"


class Entry(BaseModel):
    """Executable in a manifest: name of its file, size and digest."""

    program: list[str]
    """Name of the program or fact, for people."""
    bytes: int
    sha256: str


class Manifest(BaseModel):
    """Executables of one model on one kind of slice."""

    format: int = FORMAT
    key: dict[str, Any]
    """Key shared by all of its files: process, model and devices."""
    files: dict[str, Entry] = Field(default_factory=dict)
    """Executable files of the manifest, by name."""


def key_of(common: Key, devices: Sequence[jax.Device]) -> dict[str, Any]:
    """Return the key shared by the executables of one model on one slice, as JSON values."""
    key = {**common, "devices": aot_key.of_devices(devices)}
    return json.loads(json.dumps(key))  # type: ignore[no-any-return]


def manifest_name(key: Key) -> str:
    """Return the object key of a manifest in its store."""
    return f"{MANIFESTS}{file_name(key)}.json"


async def read_manifest(store: Store, key: Key) -> Manifest:
    """Fetch the executable manifest of a key.

    Raises: NotStored; StoreError: the store fails, or the manifest is invalid.
    """
    name = manifest_name(key)
    manifest = parsed(await store.get(name), name)
    if manifest.key != key:
        raise StoreError(f"{name} in {store.url} has another key; delete it")
    return manifest


def parsed(text: bytes, name: str) -> Manifest:
    """Parse an executable manifest. Raises: StoreError: it is invalid."""
    try:
        manifest = Manifest.model_validate_json(text)
    except ValidationError as error:
        raise StoreError(f"{name} is damaged ({error.error_count()} errors); delete it") from error
    if manifest.format != FORMAT:
        raise StoreError(f"{name} is of format {manifest.format}, which this version cannot read")
    return manifest


async def nearest(store: Store, key: Key) -> list[str]:
    """Return the parts of a key in which the most similar manifest differs; empty: no manifest.

    Raises: NotStored, StoreError.
    """
    others = [parsed(await store.get(name), name) for name in await store.below(MANIFESTS)]
    return min((differing(key, other.key) for other in others), key=len, default=[])


def differing(ours: Key, theirs: Key) -> list[str]:
    """Return the names of the parts that differ between two keys of executables."""
    names = sorted({*ours, *theirs})
    return [name for name in names if ours.get(name) != theirs.get(name)]


class Fetch:
    """Background download of one model's executables into a folder during a worker's start.

    Args:
        key: key of the manifest.
        folder: cache folder of executables.
    """

    def __init__(self, store: Store, key: Key, folder: Path) -> None:
        self._store = store
        self._key = key
        self._folder = folder
        self._listed: Future[Mapping[str, Future[str]]] = Future()
        """Files being fetched, by name; each result is the reason of a failure, or empty."""
        threading.Thread(target=self._run, name=THREAD, daemon=True).start()

    def wait(self, name: str) -> None:
        """Wait until a file is fetched or has failed; return at once if no manifest lists it."""
        arriving = self._listed.result().get(name)
        if arriving is not None:
            arriving.result()

    def _run(self) -> None:
        started = time.monotonic()
        try:
            arriving = asyncio.run(self._begin())
            if arriving:
                self._log_result(arriving, time.monotonic() - started)
        except Exception as error:
            log.warning("executables are not fetched, and so they are compiled: %s", error)
        finally:
            if not self._listed.done():
                self._listed.set_result({})
            for file in self._listed.result().values():
                if not file.done():
                    file.set_result("it was given up")

    async def _begin(self) -> Mapping[str, Future[str]]:
        """Fetch the manifest's executables that the folder lacks. Raises: StoreError, OSError."""
        try:
            manifest = await read_manifest(self._store, self._key)
        except NotStored:
            await self._explain_absence()
            return {}
        present = {path.name for path in self._folder.glob("*")}
        wanted = {
            name: download for name, download in manifest.files.items() if name not in present
        }
        arriving = {name: Future[str]() for name in wanted}
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._listed.set_result(arriving)
        limit = asyncio.Semaphore(AT_ONCE)

        async def download(name: str, entry: Entry) -> None:
            async with limit:
                reason = await self._fetched(name, entry)
            metrics.executables.labels("unfetched" if reason else "fetched").inc()
            arriving[name].set_result(reason)

        # Small files first: facts, which are read before any program.
        ascending = sorted(wanted.items(), key=lambda item: item[1].bytes)
        await asyncio.gather(*(download(*item) for item in ascending))
        evict_oldest(self._folder, MAX_BYTES)
        return arriving

    async def _fetched(self, name: str, entry: Entry) -> str:
        """Fetch one executable; return the reason it is unusable, or an empty string."""
        try:
            text = await self._store.get(name)
            if digest(text) != entry.sha256:
                return "its digest is not the manifest's"
            await asyncio.to_thread(write_atomically, self._folder / name, text)
        except NotStored:
            return "it is listed and not there"
        except (StoreError, OSError) as error:
            return str(error)
        return ""

    async def _explain_absence(self) -> None:
        different = ", ".join(await nearest(self._store, self._key))
        hint = f"; the most similar ones there differ in: {different}" if different else ""
        log.warning(
            "%s has no executables for this model on these devices, which are compiled%s",
            *(self._store.url, hint),
        )

    def _log_result(self, arriving: Mapping[str, Future[str]], took_s: float) -> None:
        reasons = [reason for file in arriving.values() if (reason := file.result())]
        log.info(
            "fetched %d executables from %s in %.1f s",
            *(len(arriving) - len(reasons), self._store.url, took_s),
        )
        if reasons:
            log.warning(
                "%d of %d executables cannot be fetched from %s and are compiled: %s",
                *(len(reasons), len(arriving), self._store.url, reasons[0]),
            )
