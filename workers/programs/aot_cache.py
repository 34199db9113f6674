"""Compiled programs in files: a warm start loads them without tracing.

JAX's own compile cache avoids compiling, but only after a program is traced and lowered. The key
here consists of the inputs of tracing (aot_key.py). Facts that also need tracing are stored too:
the shape of a row, and the leaves that a step changes.

Each file is one object, written atomically, so several workers and machines may share a folder. It
starts with the full key, which is compared, and a digest of the content, which is verified. The
content is pickled and contains machine code. Anyone with write access can run code in the workers,
as with JAX's own cache. Therefore files and folders writable by others are not read.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pickle
import secrets
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

import jax
from jax.stages import Compiled

from models.parallel import jax_internals
from service.jobs.storage.private_folders import check_owner
from workers import metrics
from workers.programs.bucket_programs import Program
from workers.programs.xla_cache import answers

log = logging.getLogger(__name__)
T = TypeVar("T")

Key = Mapping[str, Any]
"""JSON object of all that a program or fact depends on."""

MAGIC = b"atelier executable 1\n"
MAX_BYTES = 32 << 30
"""Size limit of a folder; the least recently used files are evicted. A TPU program has up to 0.13
GB (a decoder), and a worker has a few dozen: this suffices for ten models and chips."""


class Executables(Protocol):
    """Protocol for a cache of compiled programs and facts about them."""

    def program(
        self,
        key: Callable[[], Key],
        devices: Sequence[jax.Device],
        build: Callable[[], Compiled],
    ) -> Program:
        """Return a key's compiled program for these devices; `build` compiles it if missing."""
        ...

    def fact(self, key: Callable[[], Key], find: Callable[[], T]) -> T:
        """Return the stored Python value (fact) of a key; `find` computes it if missing."""
        ...

    def recall(self, key: Callable[[], Key]) -> Any:
        """Return the stored fact of a key, or None."""
        ...


class ModelExecutables(Protocol):
    """Protocol for the executables of each model that a process serves."""

    def of_model(self, model: Key) -> Executables:
        """Return the executables of a model; `model` is the key from `aot_key.of_model`."""
        ...


class NoExecutables:
    """Cache that stores nothing: each program is compiled on request."""

    def program(
        self,
        key: Callable[[], Key],
        devices: Sequence[jax.Device],
        build: Callable[[], Compiled],
    ) -> Program:
        """Compile the program with `build`."""
        return build()

    def fact(self, key: Callable[[], Key], find: Callable[[], T]) -> T:
        """Compute the fact with `find`, without storing it."""
        return find()

    def recall(self, key: Callable[[], Key]) -> Any:
        """Return None, because this cache stores no facts."""
        return None


class ExecutableFiles:
    """Cache of executables in files of one folder. Methods may run in any thread.

    Args:
        folder: created if missing.
        common: part common to all keys: process and model.
        max_bytes: size limit of all files in the folder.
        awaited: called with a file's name before it is read; returns once the file has been fetched
            from elsewhere, or will not be.
    """

    def __init__(
        self,
        folder: Path,
        common: Key,
        max_bytes: int = MAX_BYTES,
        awaited: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._folder = folder
        self._awaited = awaited
        self._common = common
        self._max_bytes = max_bytes
        self._logged: set[tuple[str, int | None]] = set()

    def program(
        self,
        key: Callable[[], Key],
        devices: Sequence[jax.Device],
        build: Callable[[], Compiled],
    ) -> Program:
        """Load the executable from its file, or compile and store it."""
        full_key = {**self._common, **key()}
        started = time.perf_counter()
        content = self._read(full_key)
        if content is not None:
            try:
                text, inputs, outputs = content
                load = jax_internals.deserialize_and_load
                program: Program = load(text, inputs, outputs, execution_devices=devices)
            except Exception as error:  # runtimes raise various errors
                self._refuse(full_key, f"cannot be loaded: {error}")
            else:
                metrics.read_executable(time.perf_counter() - started)
                return program
        metrics.executables.labels("miss").inc()
        with answers() as lookups:
            compiled = build()
        if is_copied(devices, lookups):
            log.debug("%s came from JAX's compile cache and is not stored", full_key.get("program"))
        else:
            self._keep(full_key, lambda: jax_internals.serialize(compiled))
        return compiled

    def fact(self, key: Callable[[], Key], find: Callable[[], T]) -> T:
        """Read the fact from its file, or compute and store it."""
        full_key = {**self._common, **key()}
        content: T | None = self._read(full_key)
        if content is None:
            content = find()
            self._keep(full_key, lambda: content)
        return content

    def recall(self, key: Callable[[], Key]) -> Any:
        """Read the fact from its file; None: not stored."""
        return self._read({**self._common, **key()})

    def _read(self, key: Key) -> Any:
        """Read and verify an entry of the executable cache; None: missing or unusable."""
        path = self._path(key)
        self._awaited(path.name)
        try:
            text = read_own(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._log_once("cannot be read; compiling it", error)
            metrics.executables.labels("refused").inc()
            return None
        try:
            content = unpacked(text, key)
        except Exception as error:  # pickle raises various errors
            self._refuse(key, f"is damaged: {error}")
            return None
        _touch(path)
        return content

    def _keep(self, key: Key, content: Callable[[], Any]) -> None:
        """Write an entry of the executable cache. A failure is harmless: the next start builds."""
        path = self._path(key)
        try:
            text = packed(content(), key)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(path, text)
            evict_oldest(path.parent, self._max_bytes)
        except OSError as error:
            self._log_once("cannot be written; the next start compiles it again", error)
            metrics.executables.labels("unkept").inc()
        except Exception as error:  # programs with host callbacks cannot be serialized
            log.info("%s is not stored: %s", key.get("program"), error)
            metrics.executables.labels("unkept").inc()

    def _log_once(self, what: str, error: OSError) -> None:
        """Log a folder's error once, since a start reads dozens of programs."""
        if (what, error.errno) not in self._logged:
            self._logged.add((what, error.errno))
            log.warning("a program stored in %s %s: %s", self._folder, what, error)

    def _refuse(self, key: Key, why: str) -> None:
        log.warning("%s is not used, it %s", self._path(key), why)
        metrics.executables.labels("refused").inc()

    def _path(self, key: Key) -> Path:
        return self._folder / file_name(key)


def file_name(key: Key) -> str:
    """Return the file name of an executable, in folders and stores."""
    return digest(json.dumps(key, sort_keys=True).encode())[:32]


def is_copied(devices: Sequence[jax.Device], lookups: Sequence[str]) -> bool:
    """Return whether a program was loaded from a cache and cannot be serialized again.

    XLA's CPU programs loaded from a file then lack the machine code of some functions (jax 0.10.2),
    which fails only when they are called.
    """
    return "hit" in lookups and any(device.platform == "cpu" for device in devices)


def packed(content: Any, key: Key) -> bytes:
    """Serialize the file of an executable: key, digest and content."""
    body = pickle.dumps(content)
    head = json.dumps({"key": key, "sha256": digest(body)}, sort_keys=True).encode()
    return MAGIC + head + b"\n" + body


def unpacked(text: bytes, key: Key) -> Any:
    """Parse an executable file, and return its content.

    Raises: ValueError: damaged or of another key; errors of pickle.
    """
    magic, rest = text[: len(MAGIC)], text[len(MAGIC) :]
    head, newline, body = rest.partition(b"\n")
    if magic != MAGIC or not newline:
        raise ValueError("its header is invalid")
    header = json.loads(head)
    if header["key"] != json.loads(json.dumps(key)):
        raise ValueError("its key differs")
    if header["sha256"] != digest(body):
        raise ValueError("its digest differs")
    return pickle.loads(body)  # verified above, and from this user's folder


def read_own(path: Path) -> bytes:
    """Read a file that only this user and root can have written.

    Raises: OSError: missing, or the file or its folder is writable by others.
    """
    check_owner(path.parent.stat(), path.parent)
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        check_owner(os.fstat(file.fileno()), path)
        return file.read()


def write_atomically(path: Path, text: bytes) -> None:
    """Write a file atomically: concurrent readers see the previous state or the complete file."""
    other = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(other, "xb", opener=_open_private) as file:
            file.write(text)
        other.replace(path)
    finally:
        other.unlink(missing_ok=True)


def _open_private(path: str, flags: int) -> int:
    """Open a file with mode 0600, so that `check_owner` accepts it."""
    return os.open(path, flags, 0o600)


def evict_oldest(folder: Path, max_bytes: int) -> None:
    """Delete the oldest executables until the folder is small enough."""
    files = []
    for path in folder.iterdir():
        try:
            status = path.stat()
        except FileNotFoundError:  # another worker evicts too
            continue
        if stat.S_ISREG(status.st_mode):
            files.append((status.st_mtime, status.st_size, path))
    left = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if left <= max_bytes:
            return
        path.unlink(missing_ok=True)
        left -= size


def digest(text: bytes) -> str:
    """Return the SHA-256 digest in hex."""
    return hashlib.sha256(text).hexdigest()


def _touch(path: Path) -> None:
    with suppress(OSError):  # some buckets have no times; then eviction is by time written
        os.utime(path)
