"""Checkpoints in a local object store, and faults that the server can inject."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from models.checkpoint import object_file, object_folder
from tests.service.jobs import object_stores
from tests.service.jobs.object_stores import BUCKET, Fault, Server

Start = Callable[..., Any]


def forget() -> None:
    """Clear the caches of stores and versions, as in a new process."""
    for cached in (
        object_file.store_at,
        object_folder.object_folder,
        object_folder.object_file,
        object_folder.copy_of,
    ):
        cached.cache_clear()


@contextmanager
def store_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Serve S3 and GCS with an empty bucket, and set the environment to use them."""
    forget()
    with object_stores.serving() as server:
        object_stores.use_s3(monkeypatch, server)
        object_stores.use_gcs(monkeypatch, server)
        httpx.put(f"{server.url}/{BUCKET}").raise_for_status()
        yield server
    forget()


def put(server: Server, key: str, data: bytes) -> None:
    httpx.put(f"{server.url}/{BUCKET}/{key}", content=data).raise_for_status()


def upload(server: Server, folder: Path, prefix: str) -> None:
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        put(server, f"{prefix}/{file.relative_to(folder).as_posix()}", file.read_bytes())


def is_read(environ: dict[str, Any]) -> bool:
    """Return whether a request reads a range of weights."""
    return environ["REQUEST_METHOD"] == "GET" and environ["PATH_INFO"].endswith(".safetensors")


def once_each(answer: Fault) -> Fault:
    """Give the first request of each range this answer; let the server answer repetitions."""
    answered = set()

    def fault(environ: dict[str, Any], start: Start) -> Iterable[bytes] | None:
        key = (environ["PATH_INFO"], environ.get("HTTP_RANGE"))
        if not is_read(environ) or key in answered:
            return None
        answered.add(key)
        return answer(environ, start)

    return fault


def failing(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """Answer of an overloaded server."""
    start("500 Internal Server Error", [("Content-Type", "text/plain")])
    return [b"later"]


def cut(etag: str, size: int) -> Fault:
    """Partial answer of zeros whose connection closes after half of the bytes."""

    def fault(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        first, stop = bounds(environ, size)
        start("206 Partial Content", headers(etag, first, stop, size))
        return [b"\0" * ((stop - first) // 2)]

    return fault


def serving_file(path: Path, etag: str = '"whole"') -> Fault:
    """Answer requests for an object from a file, however large."""

    def fault(environ: dict[str, Any], start: Start) -> Iterable[bytes] | None:
        if not environ["PATH_INFO"].endswith(path.name):
            return None
        size = path.stat().st_size
        if environ["REQUEST_METHOD"] == "HEAD":
            start("200 OK", [("Content-Length", str(size)), *headers(etag)])
            return []
        first, stop = bounds(environ, size)
        start("206 Partial Content", headers(etag, first, stop, size))
        return pieces(path, first, stop)

    return fault


def pieces(path: Path, first: int, stop: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(first)
        while first < stop:
            piece = file.read(min(1 << 20, stop - first))
            first += len(piece)
            yield piece


def bounds(environ: dict[str, Any], size: int) -> tuple[int, int]:
    first, _, last = environ["HTTP_RANGE"].removeprefix("bytes=").partition("-")
    return int(first), min(int(last) + 1, size)


def headers(etag: str, first: int = 0, stop: int = 0, size: int = 0) -> list[tuple[str, str]]:
    fields = [("ETag", etag), ("Last-Modified", "Sat, 28 Nov 2026 00:00:00 GMT")]
    if stop:
        fields += [
            ("Content-Length", str(stop - first)),
            ("Content-Range", f"bytes {first}-{stop - 1}/{size}"),
        ]
    return fields
