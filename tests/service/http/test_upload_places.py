"""Limited slots for uploads: a slow upload ends if another client waits for its slot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from service.errors.problems import Busy, Unavailable
from service.http.upload_slots import GRACE_S, SLOW_BYTES_PER_S, ActiveUpload, UploadSlots


class Clock:
    """Clock that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def places(clock: Clock) -> UploadSlots:
    return UploadSlots(4, 2, clock)


@pytest.fixture
async def four(places: UploadSlots) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Endless uploads of two clients, each a byte slower than the one before."""
    uploads: list[ActiveUpload] = []

    async def upload(client: str) -> None:
        with places.slot(client) as place:
            uploads.append(place)
            await asyncio.Event().wait()

    tasks = [asyncio.create_task(upload(client)) for client in ("a", "a", "b", "b")]
    await asyncio.sleep(0)
    for number, place in enumerate(uploads):
        place.arrived(int(GRACE_S * SLOW_BYTES_PER_S) - 1 - number)
    yield tasks
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def receive_fast(places: UploadSlots) -> None:
    for upload in places.uploads:
        upload.arrived(4)


async def test_clients_with_several_uploads_yield_to_one_without(
    places: UploadSlots, clock: Clock, four: list[asyncio.Task[None]]
) -> None:
    """Clients with several uploads yield to a client without one, although all uploads are fast,
    until each client has one."""
    clock.now = GRACE_S
    receive_fast(places)
    with places.slot("c"), places.slot("d"):
        await asyncio.wait(four, return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises(Unavailable, match="was not your only one"):
            await four[3]
        with pytest.raises(Unavailable, match="was not your only one"):
            await four[1]
        assert [upload.client for upload in places.uploads] == ["a", "b", "c", "d"]
        with pytest.raises(Unavailable, match="too many files"), places.slot("e"):
            pass


async def test_the_slowest_ends(
    places: UploadSlots, clock: Clock, four: list[asyncio.Task[None]]
) -> None:
    clock.now = GRACE_S
    with places.slot("c"):
        with pytest.raises(Unavailable, match="less than 1 MiB/s") as ended:
            await four[3]
        assert ended.value.code == "upload_too_slow"
        with places.slot("c"):
            with pytest.raises(Unavailable):
                await four[2]
            assert not four[0].done() and not four[1].done()
            with pytest.raises(Busy, match="2 files at the same time"), places.slot("c"):
                pass


@pytest.mark.parametrize("reason", ["new", "received"])
async def test_active_uploads_keep_their_slots(
    places: UploadSlots, clock: Clock, four: list[asyncio.Task[None]], reason: str
) -> None:
    clock.now = GRACE_S if reason != "new" else GRACE_S - 1
    for upload in places.uploads:
        upload.is_received = reason == "received"
    with pytest.raises(Unavailable) as refused, places.slot("c"):
        pass
    assert refused.value.code == "too_many_uploads"
    assert not any(task.done() for task in four)


async def test_disconnected_client_releases_its_upload_slot(
    places: UploadSlots, four: list[asyncio.Task[None]]
) -> None:
    four[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await four[0]
    with places.slot("c"):
        assert len(places.uploads) == 4
