"""Places for uploads: a slow one ends where another client waits for its place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from service.errors.problems import Busy, Unavailable
from service.http.upload_places import GRACE_S, SLOW_BYTES_PER_S, UploadPlace, UploadPlaces


class Clock:
    """Seconds that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def places(clock: Clock) -> UploadPlaces:
    return UploadPlaces(4, 2, clock)


@pytest.fixture
async def four(places: UploadPlaces) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Uploads of two clients that never end, each a byte slower than the one before."""
    uploads: list[UploadPlace] = []

    async def upload(client: str) -> None:
        with places.place(client) as place:
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


async def test_the_slowest_ends(
    places: UploadPlaces, clock: Clock, four: list[asyncio.Task[None]]
) -> None:
    clock.now = GRACE_S
    with places.place("c"):
        with pytest.raises(Unavailable, match="less than 1 MiB/s") as ended:
            await four[3]
        assert ended.value.code == "upload_too_slow"
        with places.place("c"):
            with pytest.raises(Unavailable):
                await four[2]
            assert not four[0].done() and not four[1].done()
            with pytest.raises(Busy, match="2 files at the same time"), places.place("c"):
                pass


@pytest.mark.parametrize("reason", ["new", "fast", "received"])
async def test_uploads_that_go_on_keep_their_places(
    places: UploadPlaces, clock: Clock, four: list[asyncio.Task[None]], reason: str
) -> None:
    clock.now = GRACE_S if reason != "new" else GRACE_S - 1
    for upload in places.uploads:
        upload.arrived(4 if reason == "fast" else 0)
        upload.is_received = reason == "received"
    with pytest.raises(Unavailable) as refused, places.place("c"):
        pass
    assert refused.value.code == "too_many_uploads"
    assert not any(task.done() for task in four)


async def test_a_client_that_leaves_gives_its_place_back(
    places: UploadPlaces, four: list[asyncio.Task[None]]
) -> None:
    four[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await four[0]
    with places.place("c"):
        assert len(places.uploads) == 4
