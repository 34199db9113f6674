"""Simulation of a model's slots: when queued jobs start and end."""

from __future__ import annotations

import heapq

import pytest

from service.jobs.scheduling.slot_simulation import (
    ONE_BY_ONE,
    Load,
    Pool,
    RunningJob,
    SlotSimulation,
    Takes,
    remaining_s,
)

ONE, FOUR = Pool("one", slots=1), Pool("four", slots=4)
SHORT = Load(device_seconds=2.0, alone_s=2.0)


def started(servers: SlotSimulation, jobs: float, mean_s: float = 2.0) -> float:
    result = servers.start(jobs, mean_s)
    assert result is not None
    return result[0]


def test_nothing_starts_without_a_pool() -> None:
    assert SlotSimulation([], [], is_crowded=False).start(0, 1.0) is None


def test_free_slots_first() -> None:
    servers = SlotSimulation([ONE, FOUR], [], is_crowded=False)
    assert [started(servers, ahead) for ahead in range(5)] == [0.0] * 5
    assert started(servers, 5) == 2.0, "the single slot, after one job of 2 s"


def test_single_slot_is_sequential() -> None:
    running = [RunningJob("one", SHORT, done=0.25)]
    servers = SlotSimulation([ONE], running, is_crowded=True)
    assert [started(servers, ahead) for ahead in range(3)] == [1.5, 3.5, 5.5]


def test_offloaded_model_starts_after_it_is_loaded() -> None:
    away = Pool("away", slots=1, away_s=7.0)
    assert started(SlotSimulation([away], [], is_crowded=True), 1) == 9.0
    assert started(SlotSimulation([away, ONE], [], is_crowded=False), 0) == 0.0


def test_a_slow_pool_takes_longer() -> None:
    servers = SlotSimulation(
        [Pool("slow", 1, slowness=3.0)], [RunningJob("slow", SHORT, 0.5)], False
    )
    assert [started(servers, ahead) for ahead in range(2)] == [3.0, 9.0]


def test_drain_wait_until_few_images_remain() -> None:
    running = [RunningJob("four", Load(2.0, 2.0), done) for done in (0.0, 0.25, 0.5, 0.75)]
    servers = SlotSimulation([FOUR], running, is_crowded=True)
    assert [servers.drain_wait_s(0, 0.0, left) for left in range(5)] == [8.0, 6.0, 4.0, 2.0, 0.0]
    assert [servers.drain_wait_s(2, 1.0, left) for left in range(3)] == [8.0, 8.0, 6.0]
    many = ONE_BY_ONE + 400
    # Exact up to one job, which takes 4 s in a full batch:
    assert servers.drain_wait_s(many, 1.0, 0) == pytest.approx(5.0 + many, abs=4.0)


def test_job_is_assigned_to_a_pool_that_accepts_it() -> None:
    """A slow worker is free at once, but leaves jobs that it cannot end in 40 s to the fast one."""
    pools = [Pool("fast", 1), Pool("slow", 1, slowness=10.0, layout="slow")]
    servers = SlotSimulation(pools, [RunningJob("fast", Load(20.0, 20.0), 0.75)], is_crowded=True)

    def within(seconds: float) -> Takes:
        return lambda at, layout: at + (200.0 if layout == "slow" else 20.0) <= seconds

    def start(ahead: float, seconds: float) -> tuple[float, float]:
        at, server = servers.start(ahead, 2.0, within(seconds)) or (-1.0, None)
        return at, server.slowness if server else 0.0

    assert start(0, 300.0) == (0.0, 10.0)
    assert start(0, 40.0) == (5.0, 1.0)
    assert start(2, 40.0) == (7.0, 1.0), "a job of 2 s takes 20 s on the slow worker"
    assert start(0, 10.0) == (0.0, 10.0), "no worker is fast enough"


def test_video_does_not_block_other_slots() -> None:
    clip = RunningJob("four", Load(150.0, 200.0), done=0.0)
    servers = SlotSimulation([FOUR], [clip], is_crowded=True)
    assert [started(servers, ahead) for ahead in range(4)] == [0.0, 0.0, 0.0, 8.0]
    assert started(servers, 30, 2.0) == 80.0, "three slots for 30 jobs of 8 s in a full batch"


def test_jobs_claimed_beyond_the_slots_follow() -> None:
    running = [RunningJob("one", SHORT, done) for done in (0.0, 0.5, 0.0)]
    servers = SlotSimulation([ONE], running, is_crowded=False)
    assert started(servers, 0) == 1.0 + 2.0 + 2.0


def test_very_many_are_poured() -> None:
    """Evenly spread work gives the same start as individual assignment, up to one job."""
    ends = [3.0, 90.0, 1e6, 0.0, 40.0]
    pools = [Pool(f"p{i}", 1, slowness=1 + i % 2) for i in range(len(ends))]
    running = [
        RunningJob(pool.name, Load(end / pool.slowness, end / pool.slowness), 0.0)
        for pool, end in zip(pools, ends, strict=True)
    ]
    count, mean_s = ONE_BY_ONE + 500, 2.0
    heap = [(end, pool.slowness) for end, pool in zip(ends, pools, strict=True)]
    heapq.heapify(heap)
    for _ in range(count):
        end, slowness = heap[0]
        heapq.heapreplace(heap, (end + mean_s * slowness, slowness))
    servers = SlotSimulation(pools, running, is_crowded=True)
    assert started(servers, count) == pytest.approx(heap[0][0], abs=2 * mean_s)


@pytest.mark.parametrize(
    ("load", "rows", "seconds"),
    [
        (Load(3.0, 5.0), 1, 5.0),  # alone: not in the batch that pays
        (Load(3.0, 5.0), 4, 12.0),  # a quarter of the slice each
        (Load(3.0, 5.0), 9, 12.0),  # the others have no slot yet
        (Load(3.0, 3.0), 2, 6.0),  # batches gain nothing: half of it
        (Load(6.0, 10.0, images=2), 2, 10.0),
        (Load(6.0, 10.0, images=2), 4, 12.0),
        (Load(24.0, 26.0, images=8), 8, 26.0),  # more images than slots
        (Load(3.0, None), 1, 12.0),
    ],
)
def test_job_takes_longer_in_a_full_batch(load: Load, rows: int, seconds: float) -> None:
    assert load.duration_s(4, rows) == pytest.approx(seconds)


def test_remaining_time_of_a_running_job() -> None:
    load = Load(3.0, 5.0)
    assert remaining_s(load, 0.0, 1.0, FOUR, {"four": 1}) == 5.0
    assert remaining_s(load, 0.5, 1.0, FOUR, {"four": 1}) == 3.0
    assert remaining_s(load, 1.0, 1.0, FOUR, {"four": 1}) == 1.0, "it is being decoded"
    assert remaining_s(load, 0.0, 0.0, FOUR, {"four": 4}) == 12.0
    assert remaining_s(load, 0.0, 0.0, FOUR, {"four": 8}) == 24.0, "it waits in the pool"
