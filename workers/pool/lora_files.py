"""Files of adapters: the operator's where the settings have them, tenants' out of the store."""

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
"""Maximum size of an image that shows an adapter."""


class StoredLoras:
    """Files of adapters for one pool.

    Args:
        configured: adapters of the settings.
        folder: keeps what comes out of the store; several pools may share it.
        keep_bytes: of it; the longest unused files leave.
    """

    def __init__(
        self,
        configured: Iterable[ConfiguredLora],
        store: Store,
        patience: Patience,
        folder: Path,
        keep_bytes: int,
    ) -> None:
        self._own = {one.lora.digest: one for one in configured if one.path}
        self._store = store
        self._patience = patience
        self._folder = folder
        self._keep_bytes = keep_bytes

    async def find(self, lora: RequestedLora, tenant: str) -> Path:
        """Return the file of an adapter that a tenant's request names.

        Raises: LoraGone: there is none any more, or it is damaged; StoreError: not now.
        """
        own = self._own.get(lora.digest)
        if own is not None and own.path is not None:
            return own.path
        path = self._folder / lora.digest
        if await asyncio.to_thread(_touched, path):
            return path
        data = await self._fetched(lora, tenant)
        await asyncio.to_thread(self._keep, path, data)
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

    def _keep(self, path: Path, data: bytes) -> None:
        private_folder(self._folder, "state_dir")
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        part.write_bytes(data)
        part.replace(path)
        _thin_out(self._folder, self._keep_bytes, path)

    async def show(self, configured: Iterable[ConfiguredLora]) -> dict[str, Lora]:
        """Store the images that show adapters, and return the catalogue's entries by name."""
        return {one.lora.name: await self._shown(one) for one in configured}

    async def _shown(self, one: ConfiguredLora) -> Lora:
        if one.settings.preview is None:
            return one.lora
        try:
            data = await asyncio.to_thread(_image, one.settings.preview)
            kind = mimetypes.guess_type(one.settings.preview)[0] or "image/png"
            key = f"loras/previews/{hashlib.sha256(data).hexdigest()}"
            await self._store.put(key, data, kind)
        except (OSError, ValueError, StoreError) as error:
            log.warning("loras.%s.preview cannot be shown: %s", one.lora.name, error)
            return one.lora
        return one.lora.model_copy(update={"preview": key})


def _touched(path: Path) -> bool:
    """Return whether a file is kept; marks it as used now."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


def _image(name: str) -> bytes:
    """Raises: OSError; ValueError: it is too large."""
    path = Path(name).expanduser()
    if path.stat().st_size > PREVIEW_BYTES:
        raise ValueError(f"{path} has more than {PREVIEW_BYTES} bytes")
    return path.read_bytes()


def _thin_out(folder: Path, keep_bytes: int, newest: Path) -> None:
    """Delete the files that were used longest ago, beyond so many bytes."""
    files = [(path, stat) for path in folder.iterdir() if (stat := _stat(path))]
    total = sum(stat.st_size for _, stat in files)
    for path, stat in sorted(files, key=lambda pair: pair[1].st_mtime):
        if total <= keep_bytes or path == newest:
            break
        path.unlink(missing_ok=True)
        total -= stat.st_size


def _stat(path: Path) -> os.stat_result | None:
    """Return a file's facts; None: another pool has deleted it meanwhile."""
    try:
        return path.stat()
    except FileNotFoundError:
        return None
