"""Checkpoints in an object store: bytes and fingerprint of the folder, and a clear error per
fault.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from models.checkpoint.direct_io import aligned
from models.checkpoint.fingerprint import fingerprint
from models.checkpoint.folder import CheckpointError
from models.checkpoint.hub import resolve, resolve_file, single_file
from models.checkpoint.object_file import (
    CHUNK,
    STRETCH,
    StoreUnavailable,
    reference_of,
    with_retries,
)
from models.checkpoint.object_folder import object_folder
from models.checkpoint.weight_file import open_weights
from tests.models import object_store
from tests.models.object_store import cut, failing, once_each, put, upload
from tests.service.jobs import object_stores
from tests.service.jobs.object_stores import BUCKET, Server

DEMO = Path("models/demo/flux")
SIZE = STRETCH + 2 * CHUNK + 12_345
DATA = np.random.default_rng(0).integers(0, 256, SIZE, np.uint8).tobytes()
URL = f"s3://{BUCKET}/one/weights.safetensors"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with object_store.store_server(monkeypatch) as server:
        yield server


@pytest.fixture
def stored(server: Server) -> Path:
    """Local reference to an object that contains `DATA`."""
    put(server, "one/weights.safetensors", DATA)
    file = single_file(URL)
    assert file is not None
    return file


def read(path: Path, start: int = 0, stop: int = SIZE) -> bytes:
    return bytes(open_weights(path).read(start, stop, aligned))


@pytest.mark.parametrize("kind", ["s3", "gs"])
def test_configs_are_fetched_and_weights_stay(server: Server, kind: str) -> None:
    upload(server, DEMO, "demos/flux")
    put(server, "demos/flux/transformer/old.bin", b"a pickle")
    folder = resolve(f"{kind}://{BUCKET}/demos/flux/")
    assert resolve(f"{kind}://{BUCKET}/demos/flux/") == folder
    for file in (path for path in DEMO.rglob("*") if path.is_file()):
        local = folder / file.relative_to(DEMO)
        if file.suffix == ".safetensors":
            reference = reference_of(local)
            assert reference is not None and reference.size == file.stat().st_size
        else:
            assert local.read_bytes() == file.read_bytes()
    assert (folder / "transformer/old.bin").read_bytes() == b"", "a pickle was downloaded"
    assert fingerprint(folder) == fingerprint(DEMO), "programs and snapshots must fit both copies"


@pytest.mark.parametrize("bounds", [(0, SIZE), (5, 6), (STRETCH - 1, STRETCH + 1), (7, 7)])
def test_any_range_is_the_objects(stored: Path, bounds: tuple[int, int]) -> None:
    assert read(stored, *bounds) == DATA[slice(*bounds)]
    *before, last = open_weights(stored).parts(*bounds, aligned)
    assert not any(part() is not None for part in before)
    content = last()
    assert content is not None and bytes(content) == DATA[slice(*bounds)]


def test_requests_have_a_maximum_size(server: Server, stored: Path) -> None:
    ranges = []

    def note(environ: dict[str, str], start: object) -> None:
        ranges.append(object_store.bounds(environ, SIZE))
        assert environ["HTTP_IF_MATCH"]

    server.fault = note
    assert read(stored) == DATA
    assert ranges == [(0, STRETCH), (STRETCH, SIZE)]


def test_cut_connection_is_resumed(server: Server, stored: Path) -> None:
    reference = reference_of(stored)
    assert reference is not None
    ranges: list[str] = []

    def halves(environ: dict[str, str], start: object) -> object:
        ranges.append(environ["HTTP_RANGE"])
        first, stop = object_store.bounds(environ, SIZE)
        if stop - first < 2 * CHUNK:
            return None
        start("206 Partial Content", object_store.headers(reference.etag, first, stop, SIZE))
        return [DATA[first : (first + stop) // 2]]

    server.fault = halves
    assert read(stored) == DATA
    assert len(ranges) > 4 and len({*ranges}) > 2, "received bytes were requested again"


def test_overloaded_server_is_retried(server: Server, stored: Path) -> None:
    server.fault = once_each(failing)
    assert read(stored) == DATA


def test_replaced_object_raises(server: Server, stored: Path) -> None:
    read(stored, 0, 10)
    put(server, "one/weights.safetensors", DATA[::-1])
    with pytest.raises(CheckpointError, match=rf"{URL}: has changed since"):
        read(stored, 10, 20)


def test_store_that_ignores_conditions_is_detected(server: Server, stored: Path) -> None:
    server.fault = cut('"another"', SIZE)
    with pytest.raises(CheckpointError, match="has changed since"):
        read(stored, 0, 100)


def test_an_object_that_was_deleted_is_named(server: Server, stored: Path) -> None:
    httpx.delete(f"{server.url}/{BUCKET}/one/weights.safetensors").raise_for_status()
    with pytest.raises(CheckpointError, match=rf"{URL}: the store has no such object"):
        read(stored)


def test_missing_object_is_named(server: Server) -> None:
    with pytest.raises(CheckpointError, match=r"s3://bucket/none: no objects have this prefix"):
        resolve("s3://bucket/none")
    with pytest.raises(CheckpointError, match=r"s3://bucket/none\.safetensors: the store has no"):
        single_file("s3://bucket/none.safetensors")
    with pytest.raises(CheckpointError, match=r"s3://nowhere/x: there is no such bucket"):
        resolve("s3://nowhere/x")
    with pytest.raises(CheckpointError, match=r"ftp://a/b: cannot be opened"):
        resolve("ftp://a/b")


def test_denied_access_is_reported(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    put(server, "one/weights.safetensors", DATA)
    object_stores.use_s3(monkeypatch, server, key_id="AKIDWRONG")
    object_store.forget()
    for call in (lambda: resolve(f"s3://{BUCKET}/one"), lambda: single_file(URL)):
        with pytest.raises(CheckpointError, match=r"denies access.*grant this identity"):
            call()


def test_unreachable_store_is_not_a_checkpoint_error() -> None:
    tries = []

    def refused() -> None:
        tries.append(1)
        raise ConnectionRefusedError("connection refused")

    with pytest.raises(
        StoreUnavailable, match=r"s3://x/y: cannot be read now \(connection refused"
    ):
        with_retries(refused, "s3://x/y", pauses_s=(0.0, 0.0))
    assert len(tries) == 3


def test_file_read_by_other_libraries_is_downloaded(server: Server, stored: Path) -> None:
    path = resolve_file(URL, whole=True)
    assert path.read_bytes() == DATA
    assert resolve_file(f"s3://{BUCKET}/one").name == "weights.safetensors"


def test_the_config_of_a_peft_adapter_is_downloaded_with_it(server: Server) -> None:
    put(server, "peft/adapter_model.safetensors", DATA)
    put(server, "peft/adapter_config.json", b"{}")
    put(server, "alone/adapter_model.safetensors", DATA)
    for folder, has_config in (("peft", True), ("alone", False)):
        path = resolve_file(f"s3://{BUCKET}/{folder}/adapter_model.safetensors", whole=True)
        assert path.read_bytes() == DATA
        assert (path.parent / "adapter_config.json").exists() == has_config
    path = resolve_file(f"s3://{BUCKET}/peft/", whole=True)
    assert path.read_bytes() == DATA
    assert (path.parent / "adapter_config.json").read_bytes() == b"{}"


def test_a_checkpoint_of_a_process_is_one_version(server: Server) -> None:
    put(server, "a/model_index.json", b"{}")
    put(server, "a/unet/model.safetensors", os.urandom(100))
    folder = object_folder(f"s3://{BUCKET}/a")
    put(server, "a/unet/model.safetensors", os.urandom(100))
    assert object_folder(f"s3://{BUCKET}/a") == folder
    with pytest.raises(CheckpointError, match="has changed"):
        fingerprint(folder)
