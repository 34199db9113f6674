"""Files in an object store, read by ranges: never as a whole, and never a mixture of two versions.

A file is known by a small reference on the disk, in its place: who opens a file of weights
(`weight_file.py`) gets one that reads from the store. Each request names the version (ETag) that
was found first, so that an object which is replaced meanwhile is an error and no noise in images.
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

from models.checkpoint.direct_io import BLOCK, Memory, Take, once
from models.checkpoint.folder import CheckpointError

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import RetryConfig

T = TypeVar("T")

MAGIC = b"atelier object\n"
"""Beginning of a reference; read as the length of a safetensors header it is far too long."""
STRETCH = 8 << 20
"""Bytes of one request."""
CHUNK = 1 << 20
"""Bytes that are copied at a time, while the rest of the answer is on its way."""
PAUSES_S = (0.1, 0.3, 1.0, 3.0, 6.0)
"""Pauses before each further try where nothing came since the last one; each a little random."""
RETRIES: RetryConfig = {"max_retries": 2, "retry_timeout": timedelta(seconds=5)}
"""Retries of the store's own client, which would try for minutes. It gives up a request of 30 s:
of `STRETCH` below 280 KB/s."""
DENIED = ("403 Forbidden", "401 Unauthorized")
NO_BUCKET = "NoSuchBucket"
"""Signs of errors that the client has no kind of its own for, where a list is asked for."""


class StoreAway(Exception):
    """The object store does not answer, or not as it should: another try may find it well."""


@dataclass(frozen=True)
class ObjectReference:
    """Version of an object.

    Args:
        root: address of the store, up to where `key` begins.
        etag: of that version.
        size: bytes.
    """

    root: str
    key: str
    etag: str
    size: int

    @property
    def url(self) -> str:
        """Return its address, for messages."""
        return f"{self.root}/{self.key}"

    def write(self, path: Path) -> None:
        """Write the reference where the file would lie. Raises: OSError."""
        path.write_bytes(MAGIC + json.dumps(asdict(self)).encode())


def reference_of(path: Path) -> ObjectReference | None:
    """Return the reference that lies there; None: the file itself does. Raises: OSError."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            return None
        return ObjectReference(**json.loads(file.read()))


@lru_cache
def store_at(root: str) -> Any:
    """Return the store with that address; its connections are kept.

    Raises: CheckpointError: the address is none of a store, or lacks something.
    """
    try:
        return from_url(root, retry_config=RETRIES)
    except (BaseError, OSError, ValueError) as error:
        raise CheckpointError(
            f"{root}: cannot be opened ({_first_line(error)}); give s3://bucket/path or "
            "gs://bucket/path, and credentials in the environment"
        ) from error


class ObjectFile:
    """File in an object store, to be read from any thread."""

    readers = 32
    """Threads that should read it at a time: one connection gives a small share of what all do."""

    def __init__(self, reference: ObjectReference) -> None:
        """Raises: CheckpointError: the address is none of a store."""
        self._reference = reference
        self._store = store_at(reference.root)
        self.size = reference.size

    def close(self) -> None:
        """Do nothing: connections are the store's."""

    def read(self, start: int, stop: int, take: Take) -> Memory:
        """The bytes from `start` to `stop`, in memory of `take`.

        Raises: CheckpointError: they are not to be had; StoreAway: not now.
        """
        memory = take(_blocks(stop - start))[: stop - start]
        self._fill(memory, start)
        return memory

    def parts(self, start: int, stop: int, take: Take) -> list[Callable[[], Memory | None]]:
        """Return the same in stretches, as `DiskFile.parts`."""
        whole = once(lambda: take(_blocks(stop - start))[: stop - start])

        def part(begin: int, end: int) -> Memory | None:
            self._fill(whole()[begin - start : end - start], begin)
            return whole() if end == stop else None

        bounds = [*range(start, stop, STRETCH), stop]
        if start == stop:
            return [lambda: self.read(start, stop, take)]
        return [partial(part, begin, end) for begin, end in pairwise(bounds)]

    @contextmanager
    def outline(self, beginning: bytes) -> Iterator[Path]:
        """Yield a file of the same size that begins so and is a hole else, for who checks both."""
        with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
            file.write(beginning)
            file.truncate(self.size)
            file.flush()
            yield Path(file.name)

    def _fill(self, memory: Memory, start: int) -> None:
        for first in range(0, len(memory), STRETCH):
            self._fill_stretch(memory[first : first + STRETCH], start + first)

    def _fill_stretch(self, memory: Memory, start: int) -> None:
        """Fill memory, from where a connection was cut on where one was."""
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
                raise StoreAway(f"{self._reference.url}: ends at byte {start + done}")
            before = done
            tried(rest, self._reference.url, lambda: done)

    def _chunks(self, start: int, stop: int) -> Iterator[Any]:
        """Raises: CheckpointError: it is another version now; BaseError, OSError."""
        wanted = self._reference.etag
        options: GetOptions = {"range": (start, stop), "if_match": wanted}
        answer = obstore.get(self._store, self._reference.key, options=options)
        if answer.meta["e_tag"] != wanted:  # a store that knows no conditions
            raise PreconditionError(f"its ETag is {answer.meta['e_tag']}")
        return iter(answer.stream(min_chunk_size=CHUNK))


def tried(
    work: Callable[[], T],
    url: str,
    progress: Callable[[], int] = lambda: 0,
    pauses_s: Sequence[float] = PAUSES_S,
) -> T:
    """Do what asks a store, several times where that may help.

    Args:
        url: for messages.
        progress: grows where a try has got further, which is worth all tries anew.
        pauses_s: before each further try.

    Raises: CheckpointError: it is not there, may not be read, or has changed; StoreAway: the store
        gives no answer.
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
                raise StoreAway(
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
        f"{url}: the store does not let us read it ({_first_line(error)}); grant this identity "
        "reading and listing, or give other credentials in the environment"
    )


def _blocks(size: int) -> int:
    """Return a size in whole blocks, as `Take` has it."""
    return -(-size // BLOCK) * BLOCK


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
