"""Bytes into a store and back: a local folder, `s3://…`, `gs://…`, or `memory://`.

Images of a request lie under `inputs/JOB/FIELD`, results under `outputs/JOB/…`, what is kept of
unfinished ones under `snapshots/JOB/…`; the job itself carries their keys only. Adapters that
tenants upload lie under `loras/TENANT/…`, images that show adapters under `loras/previews/…`, what
operators do under `audit/YEAR/MONTH/DAY/…`, backups of Redis under `backups/`. Files of the ledger
lie under `ledger/YEAR/MONTH/DAY/HOUR/…`, and stay.
"""

from __future__ import annotations

import asyncio
import mimetypes
import os
import re
import shutil
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, NamedTuple
from urllib.parse import quote

import obstore
from obstore.exceptions import BaseError, NotFoundError
from obstore.store import GCSStore, LocalStore, ObjectStore, S3Store, from_url

from service.jobs.storage.errors import NotStored, StoreError
from service.jobs.storage.private_folders import private_folder
from service.settings.section import ConfigError

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import RetryConfig

Method = Literal["GET", "HEAD"]

MEMORY = "memory:///"
LEDGER = "ledger"
"""Folder of the ledger."""
LEDGER_KEY = re.compile(
    rf"{LEDGER}/\d{{4}}/\d\d/\d\d/\d\d/(?P<first>\d+-\d+)(-(?P<last>\d+-\d+))?\.jsonl\.gz", re.ASCII
)
MAX_PARALLEL = 16
ANSWER_S = 120.0
"""A store that takes longer than that for one file hangs."""
SLOWEST_BYTES_PER_S = 4 * 2**20
"""Rate below which a store of large files counts as hanging."""
OWN_RETRIES: RetryConfig = {"max_retries": 2, "retry_timeout": timedelta(seconds=5)}
"""Retries of the object store's own client, which would try for minutes: callers bound the time."""
REDIRECT_S = 3600.0
"""Lifetime of a redirect to the object store."""

NO_BUCKET = "NoSuchBucket"
"""The error's code at S3 and GCS, whose clients have one kind of error for a missing file, too."""


def input_key(job_id: str, path: str) -> str:
    """Return the key of the image at a path of a request."""
    return f"inputs/{job_id}/{path}"


def output_key(job_id: str, fence: int, index: int, content_type: str) -> str:
    """Return the key of one output of one claim: a stale claim never overwrites its successor's."""
    return f"outputs/{job_id}/{fence}-{index}{mimetypes.guess_extension(content_type) or ''}"


def beside_key(key: str, name: str) -> str:
    """Return the key of a small image of the video under that key."""
    return f"{key}.{name}.webp"


STATE_TYPE = "application/octet-stream"
"""Media type of an image's state."""


def snapshot_key(job_id: str, fence: int, index: int, step: int) -> str:
    """Return the key of one image's state: a stale claim never overwrites its successor's."""
    return f"snapshots/{job_id}/{fence}-{index}-{step}"


def lora_key(tenant: str, digest: str) -> str:
    """Return the key of an adapter's file that a tenant has uploaded."""
    return f"loras/{quote(tenant, safe='')}/{digest}.safetensors"


def preview_key(tenant: str, upload: str) -> str:
    """Return the key of the image that shows an uploaded adapter."""
    return f"loras/previews/{quote(tenant, safe='')}/{upload}"


def file_key(file_id: str) -> str:
    """Return the key of an uploaded file: among inputs, so that deposits cover it."""
    return input_key(file_id, "content")


def result_key(batch_id: str, line: int) -> str:
    """Return the key of the result of one line of a batch."""
    return f"batches/{batch_id}/{line}"


def ledger_key(first: str, last: str) -> str:
    """Return the key of the ledger's file with these records, by the hour (UTC) of the first.

    Both ids are in it: a Redis that was restored may end a file earlier or later than before, and
    must not replace what is stored.
    """
    hour = datetime.fromtimestamp(int(first.partition("-")[0]) / 1000, UTC)
    return f"{LEDGER}/{hour:%Y/%m/%d/%H}/{first}-{last}.jsonl.gz"


def ledger_ids(key: str) -> tuple[str, str | None] | None:
    """Return the ids of a file's first and last record; None: it is no file of the ledger.

    The last one is None where the key does not name it, as keys did before.
    """
    found = LEDGER_KEY.fullmatch(key)
    return (found["first"], found["last"]) if found else None


def job_folders(job_id: str) -> list[str]:
    """Return all keys of a job, as `Store.delete` takes them."""
    return [f"{kind}/{job_id}/" for kind in ("inputs", "outputs", "snapshots")]


class Stat(NamedTuple):
    """Facts about a file that need no reading of it."""

    bytes: int
    version: str
    """Another one wherever the file was written again."""


class Store:
    """Store of files by key.

    Args:
        answer_s: longest time that it takes for one file.
        setting: that names it, for messages.

    Raises: ConfigError: the address is none of a store, or lacks something.
    """

    def __init__(self, url: str, answer_s: float = ANSWER_S, setting: str = "store.url") -> None:
        self.url = url
        self._answer_s = answer_s
        self._setting = setting
        self._store = _open(url, setting)

    async def put(self, key: str, data: bytes, content_type: str) -> None:
        """Whole or not at all: no reader meets half a file. Raises: StoreError."""
        typed = not isinstance(self._store, LocalStore)  # a folder has nowhere to write it
        attributes = {"Content-Type": content_type} if typed else None
        async with self._explained("write", key):
            await obstore.put_async(self._store, key, data, attributes=attributes)

    async def put_file(self, key: str, file: BinaryIO, content_type: str) -> None:
        """Store a large file, piece by piece; whole or not at all. Raises: StoreError."""
        file.seek(0)
        typed = not isinstance(self._store, LocalStore)
        attributes = {"Content-Type": content_type} if typed else None
        slow_s = os.fstat(file.fileno()).st_size / SLOWEST_BYTES_PER_S
        async with self._explained("write", key, slow_s):
            await obstore.put_async(self._store, key, file, attributes=attributes)

    async def get(self, key: str) -> bytes:
        """Return a file's bytes.

        Raises: NotStored, StoreError.
        """
        async with self._explained("read", key):
            return bytes(await (await obstore.get_async(self._store, key)).bytes_async())

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        """Bytes start to end, without end. Raises: NotStored, StoreError."""
        async with self._explained("read", key):
            return bytes(await obstore.get_range_async(self._store, key, start=start, end=end))

    async def stat(self, key: str) -> Stat:
        """Return a file's size and kind.

        Raises: NotStored, StoreError.
        """
        async with self._explained("look up", key):
            meta = await self._head(key)
        return Stat(meta["size"], meta["e_tag"] or meta["last_modified"].isoformat())

    async def _head(self, key: str) -> ObjectMeta:
        try:
            # not by its own coroutines: as in `below`
            return await asyncio.to_thread(obstore.head, self._store, key)
        except (FileNotFoundError, NotFoundError):
            if not isinstance(self._store, LocalStore):  # a HEAD does not say what is not there
                await asyncio.to_thread(obstore.get_range, self._store, key, start=0, end=1)
            raise

    async def exists(self, key: str) -> bool:
        """Return whether there is such a file.

        Raises: StoreError.
        """
        try:
            await self.stat(key)
        except NotStored:
            return False
        return True

    async def below(self, folder: str) -> list[str]:
        """Return the keys below a folder, sorted; none without it. Raises: StoreError."""
        try:
            async with self._explained("list", folder):
                entries = obstore.list(self._store, prefix=folder)
                # not by its own coroutine: a process that ends right after that may abort
                found = await asyncio.to_thread(entries.collect)
        except NotStored:
            return []
        return sorted(entry["path"] for entry in found)

    async def delete(self, keys: Iterable[str]) -> None:
        """Delete those that exist; a key that ends in / stands for all below it.

        Raises: StoreError.
        """
        limit = asyncio.Semaphore(MAX_PARALLEL)

        async def one(key: str) -> None:
            async with limit:
                await (self._delete_below(key) if key.endswith("/") else self._delete_one(key))

        await asyncio.gather(*(one(key) for key in keys))

    async def _delete_below(self, folder: str) -> None:
        if isinstance(self._store, LocalStore) and self._store.prefix:
            return await self._delete_folder(Path(self._store.prefix), folder)
        for key in await self.below(folder):
            await self._delete_one(key)

    async def _delete_folder(self, root: Path, folder: str) -> None:
        """Delete what no list shows: empty folders and files that a dead process half wrote."""
        with suppress(NotStored):
            async with self._explained("delete", folder):
                await asyncio.to_thread(_remove_folder, root / folder)

    async def _delete_one(self, key: str) -> None:
        with suppress(NotStored):
            async with self._explained("delete", key):
                await obstore.delete_async(self._store, key)

    async def redirect_url(self, key: str, method: Method = "GET") -> str | None:
        """An address that serves the file for `REDIRECT_S`; None: serve it yourself.

        Args:
            method: the only one that it will answer.

        Raises: StoreError.
        """
        if not isinstance(self._store, S3Store | GCSStore):
            return None
        async with self._explained("sign", key):
            return await obstore.sign_async(self._store, method, key, timedelta(seconds=REDIRECT_S))

    @asynccontextmanager
    async def _explained(self, act: str, key: str, more_s: float = 0.0) -> AsyncIterator[None]:
        """Bound what a store does by `answer_s` and `more_s`. Raises: StoreError, NotStored."""
        try:
            async with asyncio.timeout(self._answer_s + more_s):
                yield
        except TimeoutError as error:
            raise StoreError(
                f"cannot {act} {key!r} in {self.url}: no answer in time; "
                "check that the store is there"
            ) from error
        except (FileNotFoundError, NotFoundError) as error:
            if act == "write" or NO_BUCKET in str(error):
                raise StoreError(
                    f"cannot {act} {key!r} in {self.url}: the folder or bucket is not there; make "
                    f"it, or correct {self._setting}"
                ) from error
            raise NotStored(key) from error
        except (BaseError, OSError, ValueError) as error:
            raise StoreError(
                f"cannot {act} {key!r} in {self.url}: {_first_line(error)}; "
                "check that the store is there, has room and grants this"
            ) from error


def _open(url: str, setting: str) -> ObjectStore:
    try:
        if "://" not in url:
            folder = Path(url).expanduser()
            private_folder(folder, setting)
            return LocalStore(folder, automatic_cleanup=True)
        if url in ("memory://", MEMORY):
            return from_url(MEMORY)
        return from_url(url, retry_config=OWN_RETRIES)
    except (BaseError, OSError, ValueError) as error:
        raise ConfigError(
            f"{setting}: cannot open {url!r}: {_first_line(error)}; "
            "give a folder, s3://bucket/path or gs://bucket/path"
        ) from error


def _remove_folder(folder: Path) -> None:
    """Remove a folder, and its parent if that is empty then. Raises: OSError."""
    shutil.rmtree(folder)
    with suppress(OSError):
        folder.parent.rmdir()


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
