"""Object store over S3 and GCS, by the real clients against a local server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from service.jobs.storage.errors import NotStored, StoreError
from service.jobs.storage.object_store import Store, ledger_key, output_key
from tests.service.jobs import object_stores
from tests.service.jobs.object_stores import BUCKET, Server

KEY = output_key("job_1", 2, 0, "image/png")
DATA = os.urandom(200_000)
KINDS: dict[str, Callable[..., None]] = {
    "s3": object_stores.use_s3,
    "gs": object_stores.use_gcs,
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with object_stores.serving() as server:
        httpx.put(f"{server.url}/{BUCKET}").raise_for_status()
        yield server


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(kind: str, server: Server, monkeypatch: pytest.MonkeyPatch) -> Store:
    KINDS[kind](monkeypatch, server)
    return Store(f"{kind}://{BUCKET}/atelier")


async def test_round_trip(store: Store, server: Server) -> None:
    await store.put(KEY, DATA, "image/png")
    assert f"PUT /{BUCKET}/atelier/{KEY}" in server.received
    assert await store.get(KEY) == DATA
    assert await store.get_range(KEY, 10, 20) == DATA[10:20]
    first = await store.stat(KEY)
    await store.put(KEY, DATA[::-1], "image/png")
    second = await store.stat(KEY)
    assert first.bytes == second.bytes == len(DATA)
    assert first.version != second.version


async def test_listing_below_a_prefix(store: Store) -> None:
    assert await store.below("ledger") == []
    keys = [ledger_key(f"{hour * 3_600_000}-0", f"{hour * 3_600_000}-9") for hour in range(3)]
    for key in (*reversed(keys), "ledgers/other"):
        await store.put(key, b"x", "application/gzip")
    assert await store.below("ledger") == keys
    await store.delete(["ledger/", "ledgers/"])
    assert await store.below("ledger") == []


async def test_deleted_job_leaves_no_files(store: Store) -> None:
    own_keys = [output_key("job_1", 1, index, "image/png") for index in range(3)]
    other = output_key("job_10", 1, 0, "image/png")
    for key in (*own_keys, other):
        await store.put(key, b"x", "image/png")
    await store.delete(["outputs/job_1/", "inputs/never/", "never"])
    assert [await store.exists(key) for key in (*own_keys, other)] == [False, False, False, True]
    with pytest.raises(NotStored, match=own_keys[0]):
        await store.get(own_keys[0])
    with pytest.raises(NotStored, match=own_keys[0]):
        await store.get_range(own_keys[0], 0, 1)


async def test_missing_bucket_is_distinguished_from_a_missing_file(store: Store, kind: str) -> None:
    """A missing file may be given up; a wrong address must be corrected and retried."""
    missing = Store(f"{kind}://missing/atelier")
    for call in (missing.put(KEY, b"x", "image/png"), missing.get(KEY), missing.exists(KEY)):
        with pytest.raises(StoreError, match=r"bucket does not exist.*store\.url") as refused:
            await call
        assert not isinstance(refused.value, NotStored)


async def test_wrong_credentials_are_reported(
    kind: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    KINDS[kind](monkeypatch, server, "wrong")
    unauthorized = Store(f"{kind}://{BUCKET}/atelier")
    for call in (
        unauthorized.put(KEY, b"x", "image/png"),
        unauthorized.get(KEY),
        unauthorized.stat(KEY),
    ):
        with pytest.raises(StoreError, match=r"cannot .* 403 .*grants this") as refused:
            await call
        assert not isinstance(refused.value, NotStored)


async def test_a_server_that_was_away(store: Store, server: Server) -> None:
    await store.put(KEY, DATA, "image/png")
    await asyncio.to_thread(server.stop)
    try:
        for call in (store.put(KEY, b"x", "image/png"), store.get(KEY), store.exists(KEY)):
            with pytest.raises(StoreError, match="after 2 retries") as refused:
                await call
            assert not isinstance(refused.value, NotStored)
    finally:
        server.start()
    assert await store.get(KEY) == DATA


async def test_s3_signed_url_needs_no_key(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    object_stores.use_s3(monkeypatch, server)
    store = Store(f"s3://{BUCKET}/atelier")
    await store.put(KEY, DATA, "image/png")
    url = await store.redirect_url(KEY)
    assert url is not None
    async with httpx.AsyncClient(trust_env=False) as http:
        response = await http.get(url)
        part = await http.get(url, headers={"Range": "bytes=10-19"})
    assert (response.content, response.headers["content-type"]) == (DATA, "image/png")
    assert (part.status_code, part.content) == (206, DATA[10:20])


async def test_gcs_url_is_signed_with_the_account_key(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    account = object_stores.account(tmp_path, server)
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(account))
    url = await Store(f"gs://{BUCKET}/atelier").redirect_url(KEY)
    assert url is not None
    assert f"/{BUCKET}/atelier/{KEY}" in url and "X-Goog-Expires=3600" in url
