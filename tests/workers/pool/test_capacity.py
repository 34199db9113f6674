from __future__ import annotations

import asyncio

from tests.workers.polling import DEADLINE_S
from workers.pool.capacity import JOBS_A_SLOT, LEAVING_STEPS, Capacity


async def test_a_picture_makes_room_shortly_before_its_end() -> None:
    room = Capacity(slots=2)
    places = room.enter(2)
    assert room.free == 0
    places.step(0, LEAVING_STEPS + 1)
    assert room.free == 0
    places.step(0, LEAVING_STEPS)
    places.step(0, LEAVING_STEPS - 1)
    assert room.free == 1
    places.leave()
    assert room.free == 2


async def test_a_job_of_more_pictures_than_slots_takes_all_the_room() -> None:
    room = Capacity(slots=2)
    places = room.enter(5)
    room.enter(1).leave()
    waiting = asyncio.create_task(room.wait())
    for picture in range(4):
        places.step(picture, 1)
        assert room.free == picture - 2
    assert await asyncio.wait_for(waiting, DEADLINE_S) == 1


async def test_jobs_that_cannot_be_delivered_stop_the_claims() -> None:
    room = Capacity(slots=1)
    undelivered = []
    for _ in range(JOBS_A_SLOT):
        undelivered.append(room.enter(1))
        undelivered[-1].step(0, 0)
    assert room.free == 0
    undelivered[0].leave()
    assert room.free == 1


async def test_it_is_full_where_a_place_less_would_make_room() -> None:
    room = Capacity(slots=2)
    places = room.enter(2)
    assert (room.is_full, places.pictures) == (True, 2)
    places.step(0, 1)
    assert (room.is_full, places.pictures) == (False, 1)
    suspect = room.enter(1, is_suspect=True)
    assert not room.is_full, "nobody may come in, place or not"
    suspect.leave()
    for _ in range(2 * JOBS_A_SLOT):
        room.enter(1)
    assert not room.is_full, "too many jobs, wherever they are"


async def test_nobody_comes_in_beside_a_suspect() -> None:
    room = Capacity(slots=4)
    room.enter(1)
    suspect = room.enter(1, is_suspect=True)
    assert room.free == 0
    suspect.step(0, 0)
    assert room.free == 0
    suspect.leave()
    assert room.free == 3


def test_a_job_that_has_left_takes_no_slot_again() -> None:
    capacity = Capacity(2)
    places = capacity.enter(2)
    places.wait(0)
    places.leave()
    places.come_back(0)
    assert capacity.is_whole and capacity.free == 2
