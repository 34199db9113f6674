"""Weight files in an object store, read by ranges from a single pinned version.

A small reference file on disk represents the object. `weight_file.py` opens it as a file that reads
from the store. Each request names the ETag that was recorded first. Replacing the object therefore
causes an error instead of mixed weights.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import obstore
from obstore.exceptions import (
    BaseError,
    NotFoundError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import from_url

from models.checkpoint.direct_io import BLOCK, Memory, Take, memoized
from models.checkpoint.folder import CheckpointError

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import RetryConfig

T = TypeVar("T")

MAGIC = b"atelier object\n"
"""First bytes of a reference; as the header length of a safetensors file they are far too large."""
STRETCH = 8 << 20
"""Bytes per request."""
CHUNK = 1 << 20
"""Bytes copied at a time while the rest of the response arrives."""
PAUSES_S = (0.1, 0.3, 1.0, 3.0, 6.0)
"""Pauses before retries without progress; each is randomized."""
RETRIES: RetryConfig = {"max_retries": 2, "retry_timeout": timedelta(seconds=5)}
"""Retries of the store's client, which would retry for minutes by default. The client aborts a
request after 30 s, that is for `STRETCH` below 280 KB/s."""
DENIED = ("403 Forbidden", "401 Unauthorized")
NO_BUCKET = "NoSuchBucket"
"""Texts in list errors for which the client has no exception class."""


class StoreUnavailable(Exception):
    """The object store is unavailable or returns errors; a retry may succeed."""


@dataclass(frozen=True)
class ObjectReference:
    """Reference to one version of an object in an object store.

    Args:
        root: URL of the store, up to the beginning of `key`.
        etag: of that version.
        size: bytes.
    """

    root: str
    key: str
    etag: str
    size: int

    @property
    def url(self) -> str:
        """URL of the object, for messages."""
        return f"{self.root}/{self.key}"

    def write(self, path: Path) -> None:
        """Write a reference file in place of the weight file. Raises: OSError."""
        path.write_bytes(MAGIC + json.dumps(asdict(self)).encode())


def reference_of(path: Path) -> ObjectReference | None:
    """Read a reference file; None: the path contains the weights themselves. Raises: OSError."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            return None
        return ObjectReference(**json.loads(file.read()))


@lru_cache
def store_at(root: str) -> Any:
    """Return the store with that URL, with a cached connection pool.

    Raises: CheckpointError: the URL is not a valid store URL.
    """
    try:
        return from_url(root, retry_config=RETRIES)
    except (BaseError, OSError, ValueError) as error:
        raise CheckpointError(
            f"{root}: cannot be opened ({_first_line(error)}); give s3://bucket/path or "
            "gs://bucket/path, and credentials in the environment"
        ) from error


class ObjectFile:
    """Weight file in an object store; thread-safe."""

    readers = 32
    """Recommended number of concurrent threads: a single connection gets a small share of the
    bandwidth."""

    def __init__(self, reference: ObjectReference) -> None:
        """Connect to the object store. Raises: CheckpointError: invalid URL."""
        self._reference = reference
        self._store = store_at(reference.root)
        self.size = reference.size

    def close(self) -> None:
        """Do nothing: the store owns the connections."""

    def read(self, start: int, stop: int, take: Take) -> Memory:
        """Read the bytes from `start` to `stop` into a buffer that `take` allocates.

        Raises: CheckpointError: missing or changed; StoreUnavailable: the store is unavailable.
        """
        memory = take(_blocks(stop - start))[: stop - start]
        self._fill(memory, start)
        return memory

    def parts(self, start: int, stop: int, take: Take) -> list[Callable[[], Memory | None]]:
        """Split the read of a byte range into functions for threads, as `DiskFile.parts`."""
        memory = memoized(lambda: take(_blocks(stop - start))[: stop - start])

        def part(begin: int, end: int) -> Memory | None:
            self._fill(memory()[begin - start : end - start], begin)
            return memory() if end == stop else None

        bounds = [*range(start, stop, STRETCH), stop]
        if start == stop:
            return [lambda: self.read(start, stop, take)]
        return [partial(part, begin, end) for begin, end in pairwise(bounds)]

    @contextmanager
    def outline(self, beginning: bytes) -> Iterator[Path]:
        """Yield a sparse file of the same size with this beginning, for header validation."""
        with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
            file.write(beginning)
            file.truncate(self.size)
            file.flush()
            yield Path(file.name)

    def _fill(self, memory: Memory, start: int) -> None:
        for first in range(0, len(memory), STRETCH):
            self._fill_stretch(memory[first : first + STRETCH], start + first)

    def _fill_stretch(self, memory: Memory, start: int) -> None:
        """Fill a buffer with an object's bytes, resuming after interrupted connections."""
        done = 0

        def rest() -> None:
            nonlocal done
            for chunk in self._chunks(start + done, start + len(memory)):
                piece = np.frombuffer(chunk, np.uint8)
                memory[done : done + len(piece)] = piece
                done += len(piece)

        before = -1
        while done < len(memory):
            if done == before:
                raise StoreUnavailable(f"{self._reference.url}: ends at byte {start + done}")
            before = done
            with_retries(rest, self._reference.url, lambda: done)

    def _chunks(self, start: int, stop: int) -> Iterator[Any]:
        """Yield the chunks of a byte range of the pinned version of an object.

        Raises: CheckpointError: the version has changed; BaseError, OSError.
        """
        etag = self._reference.etag
        options: GetOptions = {"range": (start, stop), "if_match": etag}
        response = obstore.get(self._store, self._reference.key, options=options)
        if response.meta["e_tag"] != etag:  # the store ignores conditions
            raise PreconditionError(f"its ETag is {response.meta['e_tag']}")
        return iter(response.stream(min_chunk_size=CHUNK))


def with_retries(
    work: Callable[[], T],
    url: str,
    progress: Callable[[], int] = lambda: 0,
    pauses_s: Sequence[float] = PAUSES_S,
) -> T:
    """Run an operation on the store, with retries for transient errors.

    Args:
        url: for messages.
        progress: increases if an attempt made progress, which resets the retries.
        pauses_s: before each retry.

    Raises: CheckpointError: missing, forbidden or changed; StoreUnavailable: the store is
    unavailable.
    """
    pauses, reached = iter(pauses_s), progress()
    while True:
        try:
            return work()
        except (FileNotFoundError, NotFoundError) as error:
            raise CheckpointError(f"{url}: {_missing(error)}") from error
        except PreconditionError as error:
            raise CheckpointError(
                f"{url}: has changed since it was first read; write a new checkpoint under a new "
                "prefix, or start again when all of it is there"
            ) from error
        except (PermissionDeniedError, UnauthenticatedError, PermissionError) as error:
            raise _denied(url, error) from error
        except (BaseError, OSError) as error:
            if any(sign in str(error) for sign in DENIED):
                raise _denied(url, error) from error
            if NO_BUCKET in str(error):
                raise CheckpointError(f"{url}: {_missing(error)}") from error
            if progress() > reached:
                pauses, reached = iter(pauses_s), progress()
            pause = next(pauses, None)
            if pause is None:
                raise StoreUnavailable(
                    f"{url}: cannot be read now ({_first_line(error)}); check that the store is "
                    "there"
                ) from error
            time.sleep(pause * random.uniform(0.5, 1))


def _missing(error: Exception) -> str:
    if NO_BUCKET in str(error):
        return "there is no such bucket; correct the name"
    return "the store has no such object; correct the name, or upload it"


def _denied(url: str, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"{url}: the store denies access ({_first_line(error)}); grant this identity "
        "read and list permission, or give other credentials in the environment"
    )


def _blocks(size: int) -> int:
    """Round a size up to whole blocks, as `Take` requires."""
    return -(-size // BLOCK) * BLOCK


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
