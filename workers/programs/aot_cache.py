"""Compiled programs as files: a warm start reads them, and traces nothing.

JAX's own compile cache spares compiling, but the program has to be traced and lowered before it
can be looked up. Here the key is made of what tracing starts from (aot_key.py), and what tracing is
needed for beside the program (what a row looks like, which leaves a step changes) is kept with it.

A file is one object, written as a whole: several pools and machines may share a folder. It begins
with its whole key, which is compared, and the digest of what follows, which is checked. What
follows is pickled, and holds machine code: whoever may write to the folder can run code in the
pools, as with JAX's own cache. So a folder or file that others may write to is not read.
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
from service.jobs.storage.private_folders import check_own
from workers import metrics
from workers.programs.bucket_programs import Program
from workers.programs.xla_cache import answers

log = logging.getLogger(__name__)
T = TypeVar("T")

Key = Mapping[str, Any]
"""Key as JSON: all that a program or a fact depends on."""

MAGIC = b"atelier executable 1\n"
MOST_BYTES = 32 << 30
"""Size limit of a folder; the least recently used leaves. A TPU's program is up to 0.13 GB (a
decoder), and a pool has a few dozen: this holds those of ten models and chips."""


class Executables(Protocol):
    """Source of compiled programs, and of facts about them."""

    def program(
        self,
        key: Callable[[], Key],
        devices: Sequence[jax.Device],
        build: Callable[[], Compiled],
    ) -> Program:
        """The program of this key, which runs on these devices. `build` compiles it."""
        ...

    def fact(self, key: Callable[[], Key], find: Callable[[], T]) -> T:
        """Return what `find` gives for this key, of plain Python values."""
        ...

    def recall(self, key: Callable[[], Key]) -> Any:
        """The fact of this key, if it is kept; or None."""
        ...


class ModelExecutables(Protocol):
    """Executables of each model that a process serves."""

    def of_model(self, model: Key) -> Executables:
        """Return the executables of a model, whose key is `aot_key.of_model`'s."""
        ...


class NoExecutables:
    """Source that compiles each program when it is asked for."""

    def program(
        self,
        key: Callable[[], Key],
        devices: Sequence[jax.Device],
        build: Callable[[], Compiled],
    ) -> Program:
        """Compile the program."""
        return build()

    def fact(self, key: Callable[[], Key], find: Callable[[], T]) -> T:
        """Find the fact."""
        return find()

    def recall(self, key: Callable[[], Key]) -> Any:
        """Return None: nothing is kept."""
        return None


class ExecutableFiles:
    """Executables in a folder, to be used from any thread.

    Args:
        folder: made where it is not there.
        common: of all keys: what this process and its model are.
        most_bytes: of all files in the folder.
        awaited: called with a file's name before the file is read; returns when it has arrived from
            elsewhere, or will not.
    """

    def __init__(
        self,
        folder: Path,
        common: Key,
        most_bytes: int = MOST_BYTES,
        awaited: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._folder = folder
        self._awaited = awaited
        self._common = common
        self._most_bytes = most_bytes
        self._logged: set[tuple[str, int | None]] = set()

    def program(
        self,
        key: Callable[[], Key],
        devices: Sequence[jax.Device],
        build: Callable[[], Compiled],
    ) -> Program:
        """Return the program out of its file, or compile and keep it."""
        whole = {**self._common, **key()}
        started = time.perf_counter()
        content = self._read(whole)
        if content is not None:
            try:
                text, inputs, outputs = content
                load = jax_internals.deserialize_and_load
                program = load(text, inputs, outputs, execution_devices=devices)
            except Exception as error:  # whatever a runtime says of what it cannot load
                self._refuse(whole, f"cannot be loaded: {error}")
            else:
                metrics.read_executable(time.perf_counter() - started)
                return program
        metrics.executables.labels("miss").inc()
        with answers() as heard:
            compiled = build()
        if is_copied(devices, heard):
            log.debug("%s came from JAX's compile cache and is not kept", whole.get("program"))
        else:
            self._keep(whole, lambda: jax_internals.serialize(compiled))
        return compiled

    def fact(self, key: Callable[[], Key], find: Callable[[], T]) -> T:
        """Return the fact out of its file, or find and keep it."""
        whole = {**self._common, **key()}
        content: T | None = self._read(whole)
        if content is None:
            content = find()
            self._keep(whole, lambda: content)
        return content

    def recall(self, key: Callable[[], Key]) -> Any:
        """Return the fact out of its file; None: there is none."""
        return self._read({**self._common, **key()})

    def _read(self, key: Key) -> Any:
        """Read an entry; None: there is none that can be used."""
        path = self._path(key)
        self._awaited(path.name)
        try:
            text = read_own(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._tell("cannot be read, and so it is compiled", error)
            metrics.executables.labels("refused").inc()
            return None
        try:
            content = unpacked(text, key)
        except Exception as error:  # pickle raises what it likes
            self._refuse(key, f"is damaged: {error}")
            return None
        _touch(path)
        return content

    def _keep(self, key: Key, content: Callable[[], Any]) -> None:
        """Write an entry. Nothing is lost where this fails: it is compiled again next time."""
        path = self._path(key)
        try:
            text = packed(content(), key)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(path, text)
            evict_oldest(path.parent, self._most_bytes)
        except OSError as error:
            self._tell("cannot be written, and is compiled anew by the next start", error)
            metrics.executables.labels("unkept").inc()
        except Exception as error:  # some programs call the host, and cannot be kept
            log.info("%s is not kept: %s", key.get("program"), error)
            metrics.executables.labels("unkept").inc()

    def _tell(self, what: str, error: OSError) -> None:
        """Once, what is the folder's fault: a start asks it for dozens of programs."""
        if (what, error.errno) not in self._logged:
            self._logged.add((what, error.errno))
            log.warning("a program kept in %s %s: %s", self._folder, what, error)

    def _refuse(self, key: Key, why: str) -> None:
        log.warning("%s is not used, it %s", self._path(key), why)
        metrics.executables.labels("refused").inc()

    def _path(self, key: Key) -> Path:
        return self._folder / file_name(key)


def file_name(key: Key) -> str:
    """Return the name of an entry's file, in folders and stores."""
    return digest(json.dumps(key, sort_keys=True).encode())[:32]


def is_copied(devices: Sequence[jax.Device], heard: Sequence[str]) -> bool:
    """Return whether a program cannot be written down again.

    XLA's CPU programs that came out of a file lack the machine code of some of their functions then
    (jax 0.10.2), and say so only when they are called.
    """
    return "hit" in heard and any(device.platform == "cpu" for device in devices)


def packed(content: Any, key: Key) -> bytes:
    """Return a file's bytes: key, digest and content."""
    body = pickle.dumps(content)
    head = json.dumps({"key": key, "sha256": digest(body)}, sort_keys=True).encode()
    return MAGIC + head + b"\n" + body


def unpacked(text: bytes, key: Key) -> Any:
    """Return what a file holds.

    Raises: ValueError: of another key or damaged, and whatever pickle raises.
    """
    magic, rest = text[: len(MAGIC)], text[len(MAGIC) :]
    head, newline, body = rest.partition(b"\n")
    if magic != MAGIC or not newline:
        raise ValueError("it does not begin as it should")
    header = json.loads(head)
    if header["key"] != json.loads(json.dumps(key)):
        raise ValueError("it is of another key")
    if header["sha256"] != digest(body):
        raise ValueError("its digest is another")
    return pickle.loads(body)  # after all that: from a folder that is ours


def read_own(path: Path) -> bytes:
    """A file that none but this user and root can have written.

    Raises: OSError: it is not there, or others may write to it or to its folder.
    """
    check_own(path.parent.stat(), path.parent)
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        check_own(os.fstat(file.fileno()), path)
        return file.read()


def write_whole(path: Path, text: bytes) -> None:
    """Write a file at once: concurrent readers see what was there before, or nothing."""
    other = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(other, "xb", opener=_own) as file:
            file.write(text)
        other.replace(path)
    finally:
        other.unlink(missing_ok=True)


def _own(path: str, flags: int) -> int:
    """Opened so that `check_own` takes it, whatever the umask is."""
    return os.open(path, flags, 0o600)


def evict_oldest(folder: Path, most_bytes: int) -> None:
    """The oldest files go until the rest is small enough."""
    found = []
    for path in folder.iterdir():
        try:
            status = path.stat()
        except FileNotFoundError:  # another pool makes room too
            continue
        if stat.S_ISREG(status.st_mode):
            found.append((status.st_mtime, status.st_size, path))
    left = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if left <= most_bytes:
            return
        path.unlink(missing_ok=True)
        left -= size


def digest(text: bytes) -> str:
    """Return SHA-256, in hex."""
    return hashlib.sha256(text).hexdigest()


def _touch(path: Path) -> None:
    with suppress(OSError):  # some buckets have no times: the oldest written goes first there
        os.utime(path)
