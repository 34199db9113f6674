"""Object store: round trips, atomic writes, and errors in plain words."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable
from pathlib import Path

import pytest

from service.jobs.storage.errors import NotStored, StoreError
from service.jobs.storage.object_store import Store, input_key, output_key
from service.settings.section import ConfigError
from tests.service.eventually import DEADLINE_S, eventually

KEY = output_key("job_1", 2, 0, "image/png")
URLS: dict[str, Callable[[Path], str]] = {
    "folder": lambda path: str(path / "a folder" / "ü"),
    "file": lambda path: f"file://{path}",
    "memory": lambda path: "memory://",
}


@pytest.fixture(params=URLS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(URLS[request.param](tmp_path))


def test_object_keys_have_documented_names() -> None:
    assert KEY == "outputs/job_1/2-0.png"
    assert output_key("job_1", 1, 3, "video/mp4") == "outputs/job_1/1-3.mp4"
    assert output_key("job_1", 1, 3, "image/webp") == "outputs/job_1/1-3.webp"
    assert input_key("job_1", "mask_image") == "inputs/job_1/mask_image"


async def test_round_trip(store: Store) -> None:
    data = os.urandom(100_000)
    assert not await store.exists(KEY)
    await store.put(KEY, data, "image/png")
    assert await store.exists(KEY)
    assert await store.get(KEY) == data
    assert await store.get_range(KEY, 10, 20) == data[10:20]
    await store.put(KEY, b"", "image/png")
    assert await store.get(KEY) == b""


async def test_missing_file(store: Store) -> None:
    with pytest.raises(NotStored, match=KEY):
        await store.get(KEY)
    with pytest.raises(NotStored, match=KEY):
        await store.get_range(KEY, 0, 1)


async def test_delete(store: Store) -> None:
    keys = [input_key("job_1", "image"), KEY, output_key("job_1", 3, 0, "image/png")]
    other = output_key("job_10", 1, 0, "image/png")
    for key in [*keys, other]:
        await store.put(key, b"x", "image/png")
    await store.delete([KEY, "inputs/job_1/", "outputs/job_1/", "outputs/never/", "never"])
    assert [await store.exists(key) for key in [*keys, other]] == [False, False, False, True]


async def test_no_empty_folders_stay(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    await store.put(KEY, b"x", "image/png")
    await store.delete(["outputs/job_1/"])
    assert list((tmp_path / "store").rglob("*")) == []


async def test_no_reader_meets_half_a_file(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    versions = [bytes([i]) * 2**20 for i in range(8)]
    await store.put(KEY, versions[0], "image/png")

    async def write() -> None:
        for data in versions:
            await store.put(KEY, data, "image/png")

    writing = asyncio.create_task(write())
    reads = 0
    while not writing.done():
        assert await store.get(KEY) in versions
        reads += 1
    await writing
    assert reads > 0
    assert [path.name for path in (tmp_path / "outputs" / "job_1").iterdir()] == ["2-0.png"]


WRITER = """
import asyncio, sys
from service.jobs.storage.object_store import Store

async def main():
    store = Store(sys.argv[1])
    for number in range(1, 256):
        await store.put("snapshots/job_1/1-0-1", bytes([number]) * 2**26, "x/y")

asyncio.run(main())
"""


async def test_killed_write_leaves_the_previous_file_intact(tmp_path: Path) -> None:
    """A file has a temporary name until it is complete."""
    store = Store(str(tmp_path))
    await store.put("snapshots/job_1/1-0-1", b"", "x/y")
    folder = tmp_path / "snapshots/job_1"

    def halves() -> list[Path]:
        return [file for file in folder.iterdir() if "#" in file.name]

    writer = await asyncio.create_subprocess_exec(sys.executable, "-c", WRITER, str(tmp_path))
    while not await asyncio.to_thread(halves):
        assert writer.returncode is None
    writer.kill()
    await writer.wait()
    assert await asyncio.to_thread(halves), "it was killed while it wrote"
    data = await store.get("snapshots/job_1/1-0-1")
    assert len(data) in (0, 2**26) and len(set(data)) <= 1
    await store.delete(["snapshots/job_1/"])
    assert not folder.exists()


async def test_files_of_a_folder_are_served_here(store: Store) -> None:
    await store.put(KEY, b"x", "image/png")
    assert await store.redirect_url(KEY) is None


async def test_object_stores_serve_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    url = await Store("s3://bucket/atelier").redirect_url(KEY)
    assert url is not None
    assert url.startswith(f"https://s3.eu-north-1.amazonaws.com/bucket/atelier/{KEY}?")
    assert "X-Amz-Expires=3600" in url


async def test_unwritable_store_is_reported(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    (tmp_path / "outputs").write_text("in the way")
    with pytest.raises(StoreError, match=r"cannot write 'outputs/job_1/.*check that the store"):
        await store.put(KEY, b"x", "image/png")


async def test_keys_do_not_lead_out_of_the_store(store: Store) -> None:
    for key in ("../secret", "a/../../secret"):
        with pytest.raises(StoreError):
            await store.get(key)


@pytest.mark.parametrize("url", ["ftp://host/path", "s3://", "/proc/none"])
def test_no_store(url: str) -> None:
    with pytest.raises(ConfigError, match=r"store\.url: cannot open"):
        Store(url)


async def test_empty_folders_are_deleted(tmp_path: Path) -> None:
    """Deletes the partial file and the empty folder of a process that crashed while it wrote."""
    store = Store(str(tmp_path))
    await store.put("outputs/job_1/1-0.png", b"whole", "image/png")
    await store.put("outputs/job_2/1-0.png", b"another's", "image/png")
    (tmp_path / "outputs/job_1/1-1.png#1").write_bytes(b"half")
    (tmp_path / "snapshots/job_1").mkdir(parents=True)
    await store.delete(["outputs/job_1/", "snapshots/job_1/", "inputs/job_1/"])
    left = await asyncio.to_thread(lambda: [str(path) for path in tmp_path.glob("*/*")])
    assert left == [str(tmp_path / "outputs/job_2")]
    assert await store.get("outputs/job_2/1-0.png") == b"another's"


async def test_a_store_that_hangs_has_failed(tmp_path: Path) -> None:
    pipe = tmp_path / "outputs"
    os.mkfifo(pipe)  # opening blocks until a writer opens it
    store = Store(str(tmp_path), answer_s=0.1)
    try:
        with pytest.raises(StoreError, match="no response in time"):
            await store.get("outputs")
    finally:
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))


async def test_hanging_lookups_leave_other_threads_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each download from an object store looks up the file's size first."""
    opened: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: opened.append(writer), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"AWS_{name}", "none")
    monkeypatch.setenv("AWS_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    store = Store("s3://bucket/path")
    shared = min(32, (os.cpu_count() or 1) + 4)  # threads of asyncio's default executor

    async def are_held() -> bool:
        return len(opened) >= shared

    lookups = [asyncio.create_task(store.stat(f"outputs/{n}")) for n in range(2 * shared)]
    try:
        await eventually(are_held)
        async with asyncio.timeout(DEADLINE_S):
            assert await asyncio.to_thread(lambda: "free") == "free"
    finally:
        server.close()
        for writer in opened:
            writer.transport.abort()
        await asyncio.gather(*lookups, return_exceptions=True)


async def test_an_object_store_s_client_does_not_try_for_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No server responds at that address; the caller decides how long to retry."""
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"AWS_{name}", "none")
    monkeypatch.setenv("AWS_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    with pytest.raises(StoreError, match="after 2 retries"):
        await Store("s3://bucket/path").put(KEY, b"data", "image/png")


ENDING = """
import asyncio, sys
from service.jobs.storage.object_store import Store
print(asyncio.run(Store(sys.argv[1]).below("a")))
"""


async def test_command_exits_cleanly_after_a_list(tmp_path: Path) -> None:
    """Regression: a thread of the store that outlived the interpreter aborted some processes."""
    await Store(str(tmp_path)).put("a/b", b"x", "text/plain")
    command = (sys.executable, "-c", ENDING, str(tmp_path))
    commands = [await asyncio.create_subprocess_exec(*command, stdout=PIPE) for _ in range(12)]
    outputs = await asyncio.gather(*(process.communicate() for process in commands))
    assert {out for out, _ in outputs} == {b"['a/b']\n"}
    assert {process.returncode for process in commands} == {0}
