"""Store of files by key: a local folder, `s3://…`, `gs://…`, or `memory://`.

A request's images are stored under `inputs/JOB/FIELD`, results under `outputs/JOB/…`, and snapshots
of unfinished images under `snapshots/JOB/…`. The job contains only their keys. Tenants' adapters
are under `loras/TENANT/…` and the adapters' preview images under `loras/previews/…`. The audit log
is under `audit/YEAR/MONTH/DAY/…`, backups of Redis under `backups/`. Ledger files are under
`ledger/YEAR/MONTH/DAY/HOUR/…` and are never deleted.
"""

from __future__ import annotations

import asyncio
import mimetypes
import os
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple, TypeVar
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

T = TypeVar("T")

Method = Literal["GET", "HEAD"]

MEMORY = "memory:///"
LEDGER = "ledger"
"""Folder of the ledger."""
LEDGER_KEY = re.compile(
    rf"{LEDGER}/\d{{4}}/\d\d/\d\d/\d\d/(?P<first>\d+-\d+)(-(?P<last>\d+-\d+))?\.jsonl\.gz", re.ASCII
)
MAX_PARALLEL = 16
THREADS = 32
"""Maximum number of threads that wait for a store. They are its own: a store that hangs then does
not hold up what others do in threads, such as reading requests."""
ANSWER_S = 120.0
"""Timeout of one file operation."""
SLOWEST_BYTES_PER_S = 4 * 2**20
"""Minimum transfer rate of large files; below it a store counts as hanging."""
OWN_RETRIES: RetryConfig = {"max_retries": 2, "retry_timeout": timedelta(seconds=5)}
"""Retries inside the object store's client, limited because callers bound the total time."""
REDIRECT_S = 3600.0
"""Lifetime of a signed URL of the object store."""

NO_BUCKET = "NoSuchBucket"
"""Error code of S3 and GCS for a missing bucket. Their clients raise the same exception for a
missing file."""
SMALL_IMAGES, SMALL_IMAGE_TYPE = ("thumbnail", "spritesheet"), "image/webp"
"""Small images that are stored next to a video's file, and their media type."""


def input_key(job_id: str, path: str) -> str:
    """Return the key of the image at a path of a request."""
    return f"inputs/{job_id}/{path}"


def output_key(job_id: str, fence: int, index: int, content_type: str) -> str:
    """Return the key of an output of one claim, so that stale claims never overwrite later ones."""
    return f"outputs/{job_id}/{fence}-{index}{mimetypes.guess_extension(content_type) or ''}"


def sibling_key(key: str, name: str) -> str:
    """Return the store key of a video's thumbnail or sprite sheet."""
    return f"{key}.{name}.webp"


async def small_images_of(get: Callable[[str], Awaitable[bytes]], key: str) -> dict[str, bytes]:
    """Return the existing small images of a video by name.

    Args:
        get: reads a key of the store.
        key: the video's key.

    Raises: StoreError: the store cannot be read.
    """
    images = {}
    for name in SMALL_IMAGES:
        with suppress(NotStored):
            images[name] = await get(sibling_key(key, name))
    return images


STATE_TYPE = "application/octet-stream"
"""Media type of an image's state."""


def snapshot_key(job_id: str, fence: int, index: int, step: int) -> str:
    """Return the key of an image's state, so that stale claims never overwrite later ones."""
    return f"snapshots/{job_id}/{fence}-{index}-{step}"


def lora_key(tenant: str, digest: str) -> str:
    """Return the key of an uploaded adapter's file."""
    return f"loras/{quote(tenant, safe='')}/{digest}.safetensors"


def preview_key(tenant: str, upload: str) -> str:
    """Return the key of an uploaded adapter's preview image."""
    return f"loras/previews/{quote(tenant, safe='')}/{upload}"


def file_key(file_id: str) -> str:
    """Return the store key of an uploaded file, next to inputs, so that deposits cover it."""
    return input_key(file_id, "content")


def result_key(batch_id: str, line: int) -> str:
    """Return the key of the result of one line of a batch."""
    return f"batches/{batch_id}/{line}"


def ledger_key(first: str, last: str) -> str:
    """Return the key of the ledger file with these records, by the hour (UTC) of the first.

    The key contains both ids. A restored Redis may end a file earlier or later than before, and
    must not replace the stored one.
    """
    hour = datetime.fromtimestamp(int(first.partition("-")[0]) / 1000, UTC)
    return f"{LEDGER}/{hour:%Y/%m/%d/%H}/{first}-{last}.jsonl.gz"


def ledger_ids(key: str) -> tuple[str, str | None] | None:
    """Parse a ledger file's key into the ids of its first and last record; None: another key.

    The last id is None in keys of an earlier version, which lack it.
    """
    match = LEDGER_KEY.fullmatch(key)
    return (match["first"], match["last"]) if match else None


def job_folders(job_id: str) -> list[str]:
    """Return the folders with all files of a job, as `Store.delete` takes them."""
    return [f"{kind}/{job_id}/" for kind in ("inputs", "outputs", "snapshots")]


class Stat(NamedTuple):
    """Size and version of a stored file."""

    bytes: int
    version: str
    """Version that changes whenever the file is written again."""


class Store:
    """Store of files by key.

    Args:
        answer_s: timeout of one file operation.
        setting: name of the setting with the address, for messages.

    Raises: ConfigError: the address is invalid or incomplete.
    """

    def __init__(self, url: str, answer_s: float = ANSWER_S, setting: str = "store.url") -> None:
        self.url = url
        self._answer_s = answer_s
        self._setting = setting
        self._store = _open(url, setting)
        self._threads = ThreadPoolExecutor(THREADS, "store")

    async def put(self, key: str, data: bytes, content_type: str) -> None:
        """Store a file atomically: readers never read a part of it. Raises: StoreError."""
        typed = not isinstance(self._store, LocalStore)  # a folder cannot store it
        attributes = {"Content-Type": content_type} if typed else None
        async with self._explained("write", key):
            await obstore.put_async(self._store, key, data, attributes=attributes)

    async def put_file(self, key: str, file: BinaryIO, content_type: str) -> None:
        """Store a large file in the file store in parts, atomically. Raises: StoreError."""
        file.seek(0)
        typed = not isinstance(self._store, LocalStore)
        attributes = {"Content-Type": content_type} if typed else None
        slow_s = os.fstat(file.fileno()).st_size / SLOWEST_BYTES_PER_S
        async with self._explained("write", key, slow_s):
            await obstore.put_async(self._store, key, file, attributes=attributes)

    async def get(self, key: str) -> bytes:
        """Return a stored file's bytes.

        Raises: NotStored, StoreError.
        """
        async with self._explained("read", key):
            return bytes(await (await obstore.get_async(self._store, key)).bytes_async())

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return the bytes from `start` up to `end`, exclusive. Raises: NotStored, StoreError."""
        async with self._explained("read", key):
            return bytes(await obstore.get_range_async(self._store, key, start=start, end=end))

    async def stat(self, key: str) -> Stat:
        """Return a file's size and version.

        Raises: NotStored, StoreError.
        """
        async with self._explained("look up", key):
            meta = await self._head(key)
        return Stat(meta["size"], meta["e_tag"] or meta["last_modified"].isoformat())

    async def _head(self, key: str) -> ObjectMeta:
        """Return a stored file's metadata; distinguishes a missing file from a missing bucket."""
        try:
            # in a thread, for the same reason as in `below`
            return await self._in_thread(obstore.head, self._store, key)
        except (FileNotFoundError, NotFoundError):
            if not isinstance(self._store, LocalStore):  # a HEAD gives no error code
                await self._in_thread(obstore.get_range, self._store, key, start=0, end=1)
            raise

    async def _in_thread(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """Run a function that waits for the store. Raises: the function's error."""
        call = partial(function, *args, **options)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def exists(self, key: str) -> bool:
        """Return whether a file exists in the store.

        Raises: StoreError.
        """
        try:
            await self.stat(key)
        except NotStored:
            return False
        return True

    async def below(self, folder: str) -> list[str]:
        """Return the sorted store keys below a folder; empty without any. Raises: StoreError."""
        try:
            async with self._explained("list", folder):
                entries = obstore.list(self._store, prefix=folder)
                # in a thread: after obstore's own coroutine, a process that exits at once may abort
                objects = await self._in_thread(entries.collect)
        except NotStored:
            return []
        return sorted(entry["path"] for entry in objects)

    async def delete(self, keys: Iterable[str]) -> None:
        """Delete stored files; a key that ends in / stands for all files below it.

        Raises: StoreError.
        """
        limit = asyncio.Semaphore(MAX_PARALLEL)

        async def delete_key(key: str) -> None:
            async with limit:
                await (self._delete_below(key) if key.endswith("/") else self._delete_one(key))

        await asyncio.gather(*(delete_key(key) for key in keys))

    async def _delete_below(self, folder: str) -> None:
        if isinstance(self._store, LocalStore) and self._store.prefix:
            return await self._delete_folder(Path(self._store.prefix), folder)
        for key in await self.below(folder):
            await self._delete_one(key)

    async def _delete_folder(self, root: Path, folder: str) -> None:
        """Delete a local folder, including empty folders and partial files that lists omit."""
        with suppress(NotStored):
            async with self._explained("delete", folder):
                await self._in_thread(_remove_folder, root / folder)

    async def _delete_one(self, key: str) -> None:
        with suppress(NotStored):
            async with self._explained("delete", key):
                await obstore.delete_async(self._store, key)

    async def redirect_url(self, key: str, method: Method = "GET") -> str | None:
        """Return a signed URL of a file, valid for `REDIRECT_S`, or None for other stores.

        Args:
            method: the only HTTP method that the URL allows.

        Raises: StoreError.
        """
        if not isinstance(self._store, S3Store | GCSStore):
            return None
        async with self._explained("sign", key):
            return await obstore.sign_async(self._store, method, key, timedelta(seconds=REDIRECT_S))

    @asynccontextmanager
    async def _explained(self, act: str, key: str, more_s: float = 0.0) -> AsyncIterator[None]:
        """Limit a store operation to `answer_s` plus `more_s`, and convert its errors.

        Raises: StoreError, NotStored.
        """
        try:
            async with asyncio.timeout(self._answer_s + more_s):
                yield
        except TimeoutError as error:
            raise StoreError(
                f"cannot {act} {key!r} in {self.url}: no response in time; check that the store is"
                " reachable"
            ) from error
        except (FileNotFoundError, NotFoundError) as error:
            if act == "write" or NO_BUCKET in str(error):
                raise StoreError(
                    f"cannot {act} {key!r} in {self.url}: the folder or bucket does not exist;"
                    f" create it, or correct {self._setting}"
                ) from error
            raise NotStored(key) from error
        except (BaseError, OSError, ValueError) as error:
            raise StoreError(
                f"cannot {act} {key!r} in {self.url}: {_first_line(error)}; check that the store"
                " is reachable, has space and grants this"
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
            f"{setting}: cannot open {url!r}: {_first_line(error)}; set a folder, s3://bucket/path"
            " or gs://bucket/path"
        ) from error


def _remove_folder(folder: Path) -> None:
    """Remove a folder, and its parent if that is empty then. Raises: OSError."""
    shutil.rmtree(folder)
    with suppress(OSError):
        folder.parent.rmdir()


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
