"""The simulator: pools take the planner's times, scripts use its clock, and the queue keeps its
guarantees. Figures are in docs/performance/fleets.md."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from deploy.bench.serving.timed_request import shape_of
from deploy.local.embedded_redis import embedded
from lab.load.simulator.clock import EPOCH_S, Clock, fresh_queue
from lab.load.simulator.fleet import Fleet, Outcome
from lab.load.simulator.pool import Pool, SimulatedRequest
from lab.load.simulator.report import (
    MIX,
    Summary,
    World,
    line,
    pools_of,
    published_mix,
    requests_of,
    run,
)
from lab.load.simulator.schedulers import SETTINGS, Ordered, RealQueue, baselines
from lab.load.simulator.times import SHAPES, Times, known
from service.jobs.model.job import Job

PICTURE = Times(steps=10, encode_s=0.5, decode_s=0.5, step_s=(0.1, 0.15))
VIDEO = Times(steps=50, encode_s=1.0, decode_s=4.0, step_s=(1.0, 2.0))


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with embedded(tmp_path) as url:
        yield url


def arrival(number: int, at_s: float, times: Times, scale: float = 3.0) -> SimulatedRequest:
    return SimulatedRequest(
        number, at_s, "any", f"steps={times.steps}", times, "a", 1.0, scale * times.alone_s,
        times is VIDEO,
    )  # fmt: skip


def order(name: str) -> Ordered:
    (scheduler,) = (baseline for baseline in baselines() if baseline.name == name)
    return scheduler


async def served(
    by: Ordered, requests: Sequence[SimulatedRequest], slots: int = 1
) -> list[Outcome]:
    return await Fleet([Pool("pool", "any", slots)], by, Clock()).run(requests)


async def test_single_requests_take_the_planned_time() -> None:
    requests = [arrival(0, 0.0, PICTURE), arrival(1, 100.0, VIDEO)]
    outcomes = await served(order("first come"), requests)
    assert [outcome.ended_at for outcome in outcomes] == pytest.approx([2.0, 155.0])


async def test_rows_of_one_shape_step_together() -> None:
    """Rows encode and decode one by one; ten steps of two rows take 0.15 s each."""
    outcomes = await served(
        order("first come"), [arrival(n, 0.0, PICTURE) for n in range(2)], slots=2
    )
    assert max(outcome.ended_at or math.inf for outcome in outcomes) == pytest.approx(
        1.0 + 1.5 + 1.0, abs=0.2
    )


async def test_image_preempts_a_video_at_its_next_step() -> None:
    """The video resumes from its progress, after a second encoding."""
    video, picture = await served(
        order("images preempt videos"), [arrival(0, 0.0, VIDEO), arrival(1, 10.5, PICTURE)]
    )
    assert (picture.began_at, picture.ended_at) == pytest.approx((11.0, 13.0), abs=2.1)
    assert (video.preemptions, video.ended_at) == (1, pytest.approx(55.0 + 2.0 + 1.0))


def test_the_mix_has_times_and_its_load_is_what_pools_could_do() -> None:
    times, mix = known(), published_mix()
    assert {shape_of(shape) for shape in SHAPES} == times.keys()
    world = World(pools=20, load=0.9, seconds=20_000)
    requests = requests_of(world, mix, times)
    work_s = sum(request.times.device_s(world.slots) for request in requests)
    assert work_s / (world.pools * world.seconds) == pytest.approx(0.9, rel=0.1)
    assert requests == requests_of(world, mix, times), "one trace for all orders"
    separate = World(pools=20, load=0.9, seconds=1.0, is_shared=False)
    assert {pool.queue for pool in pools_of(separate, mix, times)} == {"pictures", "videos"}


async def test_scripts_go_by_the_simulated_clock(url: str) -> None:
    queue = await fresh_queue(url, SETTINGS)
    try:
        queue.clock.now = EPOCH_S + 12.25
        job, _ = await queue.put(Job(id="job", model="any", bucket="b"))
        assert job.created_at == EPOCH_S + 12.25
    finally:
        await queue.close()


async def test_the_queue_keeps_in_virtual_time_what_it_admits(url: str) -> None:
    """A video yields to an image that it would make late, and both meet their deadlines; a second
    video that cannot meet its deadline is refused."""
    queue = await fresh_queue(url, SETTINGS)
    requests = [
        arrival(0, 0.0, VIDEO, scale=6.0), arrival(1, 20.2, PICTURE, scale=4.0),
        arrival(2, 25.0, VIDEO, scale=1.1),
    ]  # fmt: skip
    try:
        fleet = Fleet([Pool("pool", "any", 1)], RealQueue(queue, SETTINGS), queue.clock)
        video, picture, second = await fleet.run(requests)
    finally:
        await queue.close()
    assert video.preemptions == 1 and video.in_time
    assert picture.in_time and not second.is_admitted
    summary = Summary([video, picture, second])
    assert (summary.in_time(False), summary.kept()) == (1.0, 1.0)


async def test_a_table_of_all_orders(url: str) -> None:
    world, mix = World(pools=2, load=1.0, seconds=120), published_mix()
    for order_ in (order("earliest deadline"), 300.0):
        summary = Summary(await run(url, world, order_, mix))
        assert len(summary.outcomes) > 0
        assert line(world, "x", summary).startswith("| 2 | 1.0 | x |")


@pytest.mark.parametrize("path", sorted(MIX.parent.glob("*.toml")), ids=lambda path: path.stem)
def test_the_examples_are_mixes(path: Path) -> None:
    shapes = published_mix(path).shapes
    assert sum(shape.share for shape in shapes if "num_frames" in shape.request) == 50
