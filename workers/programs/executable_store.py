"""Executables made elsewhere: files and a manifest in a store, fetched before anything compiles.

A store has the files that a folder has (aot_cache.py), under the same names, and a manifest for
each model on each kind of slice: which files there are, and the digest of each. Files are made by
`atelier compile`, and workers write nothing there. A digest shows damage and nothing else: whoever
may write to the store can run code in all workers that fetch from it.
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
    MOST_BYTES,
    Key,
    digest,
    evict_oldest,
    file_name,
    write_whole,
)

log = logging.getLogger(__name__)

SETTING = "executables"
"""Setting that names the store."""
FORMAT = 1
AT_ONCE = 8
"""Files that are fetched at the same time; each is held in memory, 0.13 GB at the most."""
MANIFESTS = "manifests/"
THREAD = "fetch executables"


class Entry(BaseModel):
    """File of a manifest."""

    program: list[str]
    """Name of the program or fact, for people."""
    bytes: int
    sha256: str


class Manifest(BaseModel):
    """Executables of one model on one kind of slice."""

    format: int = FORMAT
    key: dict[str, Any]
    """Key that all of its files have in common: of the process, the model, and the devices."""
    files: dict[str, Entry] = Field(default_factory=dict)
    """Files by name."""


def key_of(common: Key, devices: Sequence[jax.Device]) -> dict[str, Any]:
    """Return what executables of one model on one slice have in common, as JSON has it."""
    key = {**common, "devices": aot_key.of_devices(devices)}
    return json.loads(json.dumps(key))  # type: ignore[no-any-return]


def manifest_name(key: Key) -> str:
    """Return the key of a manifest in its store."""
    return f"{MANIFESTS}{file_name(key)}.json"


async def read_manifest(store: Store, key: Key) -> Manifest:
    """Return the manifest of that key.

    Raises: NotStored; StoreError: the store does not answer, or has something else there.
    """
    name = manifest_name(key)
    manifest = parsed(await store.get(name), name)
    if manifest.key != key:
        raise StoreError(f"{name} in {store.url} is of another key; delete it")
    return manifest


def parsed(text: bytes, name: str) -> Manifest:
    """Read a manifest. Raises: StoreError: it is none."""
    try:
        manifest = Manifest.model_validate_json(text)
    except ValidationError as error:
        raise StoreError(f"{name} is damaged ({error.error_count()} errors); delete it") from error
    if manifest.format != FORMAT:
        raise StoreError(f"{name} is of format {manifest.format}, which this version cannot read")
    return manifest


async def nearest(store: Store, key: Key) -> list[str]:
    """Return the parts of a key in which the most similar manifest differs; empty: there is none.

    Raises: NotStored, StoreError.
    """
    others = [parsed(await store.get(name), name) for name in await store.below(MANIFESTS)]
    return min((differing(key, other.key) for other in others), key=len, default=[])


def differing(ours: Key, theirs: Key) -> list[str]:
    """Return the names of what differs between two keys."""
    names = sorted({*ours, *theirs})
    return [name for name in names if ours.get(name) != theirs.get(name)]


class Fetch:
    """Fetching of one model's executables into a folder, beside whatever else a start does.

    Args:
        key: of the manifest.
        folder: that executables are read from.
    """

    def __init__(self, store: Store, key: Key, folder: Path) -> None:
        self._store = store
        self._key = key
        self._folder = folder
        self._listed: Future[Mapping[str, Future[str]]] = Future()
        """Files that arrive, by name; of each, why it did not, or nothing."""
        threading.Thread(target=self._run, name=THREAD, daemon=True).start()

    def wait(self, name: str) -> None:
        """Return when a file is in the folder, or will not be: it is in no manifest, or failed."""
        arriving = self._listed.result().get(name)
        if arriving is not None:
            arriving.result()

    def _run(self) -> None:
        started = time.monotonic()
        try:
            arriving = asyncio.run(self._begin())
            if arriving:
                self._tell(arriving, time.monotonic() - started)
        except Exception as error:
            log.warning("executables are not fetched, and so they are compiled: %s", error)
        finally:
            if not self._listed.done():
                self._listed.set_result({})
            for one in self._listed.result().values():
                if not one.done():
                    one.set_result("it was given up")

    async def _begin(self) -> Mapping[str, Future[str]]:
        """Raises: StoreError, OSError."""
        try:
            manifest = await read_manifest(self._store, self._key)
        except NotStored:
            await self._explain_absence()
            return {}
        there = {path.name for path in self._folder.glob("*")}
        wanted = {name: one for name, one in manifest.files.items() if name not in there}
        arriving = {name: Future[str]() for name in wanted}
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._listed.set_result(arriving)
        limit = asyncio.Semaphore(AT_ONCE)

        async def one(name: str, entry: Entry) -> None:
            async with limit:
                reason = await self._fetched(name, entry)
            metrics.executables.labels("unfetched" if reason else "fetched").inc()
            arriving[name].set_result(reason)

        # The small ones first: facts, which are asked for before any program is.
        ascending = sorted(wanted.items(), key=lambda item: item[1].bytes)
        await asyncio.gather(*(one(*item) for item in ascending))
        evict_oldest(self._folder, MOST_BYTES)
        return arriving

    async def _fetched(self, name: str, entry: Entry) -> str:
        """Fetch one file; return why it cannot be used, or nothing."""
        try:
            text = await self._store.get(name)
            if digest(text) != entry.sha256:
                return "its digest is not the manifest's"
            await asyncio.to_thread(write_whole, self._folder / name, text)
        except NotStored:
            return "it is listed and not there"
        except (StoreError, OSError) as error:
            return str(error)
        return ""

    async def _explain_absence(self) -> None:
        different = ", ".join(await nearest(self._store, self._key))
        near = f"; the most similar ones there differ in: {different}" if different else ""
        log.warning(
            "%s has no executables for this model on these devices, which are compiled%s",
            *(self._store.url, near),
        )

    def _tell(self, arriving: Mapping[str, Future[str]], took_s: float) -> None:
        reasons = [reason for one in arriving.values() if (reason := one.result())]
        log.info(
            "fetched %d executables from %s in %.1f s",
            *(len(arriving) - len(reasons), self._store.url, took_s),
        )
        if reasons:
            log.warning(
                "%d of %d executables cannot be fetched from %s and are compiled: %s",
                *(len(reasons), len(arriving), self._store.url, reasons[0]),
            )
