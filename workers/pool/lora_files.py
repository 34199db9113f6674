"""Local adapter files: the operator's from the settings, tenants' downloaded from the store."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import mimetypes
import os
from collections.abc import Iterable
from pathlib import Path

from models.spec.lora import Lora, RequestedLora
from service.jobs.storage.errors import NotStored, StoreError
from service.jobs.storage.object_store import Store, lora_key
from service.jobs.storage.private_folders import private_folder
from workers.engine.adapters import LoraGone
from workers.loading.loras import ConfiguredLora
from workers.retry import Patience

log = logging.getLogger(__name__)

PREVIEW_BYTES = 2**20
"""Maximum size of an adapter's preview image."""


class StoredLoras:
    """Adapter files of one worker, with a local cache of stored ones.

    Args:
        configured: adapters of the settings.
        folder: cache of downloaded files; several workers may share it.
        cache_bytes: size limit of the cache; the least recently used files are evicted.
    """

    def __init__(
        self,
        configured: Iterable[ConfiguredLora],
        store: Store,
        patience: Patience,
        folder: Path,
        cache_bytes: int,
    ) -> None:
        self._configured = {lora.lora.digest: lora for lora in configured if lora.path}
        self._store = store
        self._patience = patience
        self._folder = folder
        self._cache_bytes = cache_bytes

    async def find(self, lora: RequestedLora, tenant: str) -> Path:
        """Return the local file of an adapter that a tenant's request names.

        Raises: LoraGone: the adapter was deleted or is damaged; StoreError: the store fails.
        """
        configured_lora = self._configured.get(lora.digest)
        if configured_lora is not None and configured_lora.path is not None:
            return configured_lora.path
        path = self._folder / lora.digest
        if await asyncio.to_thread(_touched, path):
            return path
        data = await self._fetched(lora, tenant)
        await asyncio.to_thread(self._cache, path, data)
        return path

    async def _fetched(self, lora: RequestedLora, tenant: str) -> bytes:
        try:
            key = lora_key(tenant, lora.digest)
            data = await self._patience.until_stored(self._store.get, key)
        except NotStored:
            raise LoraGone(
                f"the adapter {lora.name!r} was deleted before the job needed it; upload it again "
                "and send the request again"
            ) from None
        if await asyncio.to_thread(lambda: hashlib.sha256(data).hexdigest()) != lora.digest:
            raise LoraGone(f"the file of the adapter {lora.name!r} is damaged; upload it again")
        return data

    def _cache(self, path: Path, data: bytes) -> None:
        private_folder(self._folder, "state_dir")
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        part.write_bytes(data)
        part.replace(path)
        _thin_out(self._folder, self._cache_bytes, path)

    async def catalogue(self, configured: Iterable[ConfiguredLora]) -> dict[str, Lora]:
        """Store the preview images of adapters, and return the catalogue's entries by name."""
        return {lora.lora.name: await self._with_preview(lora) for lora in configured}

    async def _with_preview(self, lora: ConfiguredLora) -> Lora:
        if lora.settings.preview is None:
            return lora.lora
        try:
            data = await asyncio.to_thread(_image, lora.settings.preview)
            kind = mimetypes.guess_type(lora.settings.preview)[0] or "image/png"
            key = f"loras/previews/{hashlib.sha256(data).hexdigest()}"
            await self._store.put(key, data, kind)
        except (OSError, ValueError, StoreError) as error:
            log.warning("loras.%s.preview cannot be shown: %s", lora.lora.name, error)
            return lora.lora
        return lora.lora.model_copy(update={"preview": key})


def _touched(path: Path) -> bool:
    """Mark a cached adapter file as used now; return whether it exists."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


def _image(name: str) -> bytes:
    """Read the preview image of an adapter. Raises: OSError; ValueError: it is too large."""
    path = Path(name).expanduser()
    if path.stat().st_size > PREVIEW_BYTES:
        raise ValueError(f"{path} has more than {PREVIEW_BYTES} bytes")
    return path.read_bytes()


def _thin_out(folder: Path, cache_bytes: int, newest: Path) -> None:
    """Delete the least recently used adapter files beyond the cache's size limit."""
    files = [(path, stat) for path in folder.iterdir() if (stat := _stat(path))]
    total = sum(stat.st_size for _, stat in files)
    for path, stat in sorted(files, key=lambda pair: pair[1].st_mtime):
        if total <= cache_bytes or path == newest:
            break
        path.unlink(missing_ok=True)
        total -= stat.st_size


def _stat(path: Path) -> os.stat_result | None:
    """Return a file's status; None: another worker has deleted it."""
    try:
        return path.stat()
    except FileNotFoundError:
        return None
