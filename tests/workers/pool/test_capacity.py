from __future__ import annotations

import asyncio

from tests.workers.polling import DEADLINE_S
from workers.pool.capacity import JOBS_A_SLOT, LEAVING_STEPS, Capacity


async def test_image_frees_its_slot_shortly_before_its_end() -> None:
    capacity = Capacity(slots=2)
    reservation = capacity.enter(2)
    assert capacity.free == 0
    reservation.step(0, LEAVING_STEPS + 1)
    assert capacity.free == 0
    reservation.step(0, LEAVING_STEPS)
    reservation.step(0, LEAVING_STEPS - 1)
    assert capacity.free == 1
    reservation.release()
    assert capacity.free == 2


async def test_oversized_job_takes_all_slots() -> None:
    capacity = Capacity(slots=2)
    reservation = capacity.enter(5)
    capacity.enter(1).release()
    waiting = asyncio.create_task(capacity.wait())
    for picture in range(4):
        reservation.step(picture, 1)
        assert capacity.free == picture - 2
    assert await asyncio.wait_for(waiting, DEADLINE_S) == 1


async def test_undeliverable_jobs_stop_claiming() -> None:
    capacity = Capacity(slots=1)
    undelivered = []
    for _ in range(JOBS_A_SLOT):
        undelivered.append(capacity.enter(1))
        undelivered[-1].step(0, 0)
    assert capacity.free == 0
    undelivered[0].release()
    assert capacity.free == 1


async def test_capacity_is_full_if_only_slots_prevent_a_claim() -> None:
    capacity = Capacity(slots=2)
    reservation = capacity.enter(2)
    assert (capacity.is_full, reservation.images_with_slot) == (True, 2)
    reservation.step(0, 1)
    assert (capacity.is_full, reservation.images_with_slot) == (False, 1)
    suspect = capacity.enter(1, is_suspect=True)
    assert not capacity.is_full, "nobody may come in, place or not"
    suspect.release()
    for _ in range(2 * JOBS_A_SLOT):
        capacity.enter(1)
    assert not capacity.is_full, "too many jobs, wherever they are"


async def test_suspect_blocks_further_claims() -> None:
    capacity = Capacity(slots=4)
    capacity.enter(1)
    suspect = capacity.enter(1, is_suspect=True)
    assert capacity.free == 0
    suspect.step(0, 0)
    assert capacity.free == 0
    suspect.release()
    assert capacity.free == 3


def test_ended_job_does_not_reacquire_a_slot() -> None:
    capacity = Capacity(2)
    reservation = capacity.enter(2)
    reservation.wait(0)
    reservation.release()
    reservation.reacquire(0)
    assert capacity.is_unused and capacity.free == 2
