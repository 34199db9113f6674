"""The benchmark's trace on simulated fleets, and its table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.bench.serving.mix import Mix, mix_of, plan, read_mix
from deploy.bench.serving.timed_request import shape_of
from lab.load.simulator.clock import Clock, fresh_queue
from lab.load.simulator.fleet import Fleet, Outcome
from lab.load.simulator.pool import Pool, SimulatedRequest
from lab.load.simulator.schedulers import SETTINGS, Ordered, RealQueue
from lab.load.simulator.times import Times, known

MIX = Path("examples/bench/images-and-videos.toml")
TOGETHER = "any"
"""Queue of pools that serve all shapes."""
SPARE = 1.5
"""Capacity of dedicated image pools relative to their mean work, because images arrive in
bursts."""


@dataclass(frozen=True)
class World:
    """A fleet and its load.

    Args:
        load: requested device-seconds per second and slice, with efficient batches.
        is_shared: whether each pool serves all shapes, or images and videos have their own pools.
    """

    pools: int
    load: float
    seconds: float
    is_shared: bool = True
    slots: int = 1
    seed: int = 0

    def queue_of(self, is_video: bool) -> str:
        if self.is_shared:
            return TOGETHER
        return "videos" if is_video else "pictures"


def requests_of(world: World, mix: Mix, times: Mapping[str, Times]) -> list[SimulatedRequest]:
    """Return the requests of a mix at the rate of the world's load."""
    rate_per_s = world.load * world.pools / _mean_s(world, mix, times)
    mix = mix.model_copy(
        update={"rate_per_s": rate_per_s, "seconds": world.seconds, "seed": world.seed}
    )
    weights = {tenant.name: tenant.weight for tenant in mix.tenants}
    requests = []
    for number, timed in enumerate(plan(mix)):
        request = {name: value for name, value in timed.request.items() if name != "prompt"}
        name = shape_of(request)
        is_video = "num_frames" in request
        deadline_s = timed.deadline_s(times[name].alone_s)
        requests.append(
            SimulatedRequest(
                number, timed.at_s, world.queue_of(is_video), name, times[name], timed.tenant,
                weights[timed.tenant], math.inf if deadline_s is None else deadline_s, is_video,
            )
        )  # fmt: skip
    return requests


def _mean_s(world: World, mix: Mix, times: Mapping[str, Times], videos: bool = True) -> float:
    """Mean device-seconds of a request; without `videos`, of images only."""
    shares = sum(shape.share for shape in mix.shapes)
    return sum(
        shape.share / shares * times[shape_of(shape.request)].device_s(world.slots)
        for shape in mix.shapes
        if videos or "num_frames" not in shape.request
    )


def pools_of(world: World, mix: Mix, times: Mapping[str, Times]) -> list[Pool]:
    """Return the pools; dedicated image pools get their share of the work."""
    share = _mean_s(world, mix, times, videos=False) / _mean_s(world, mix, times)
    image_pools = min(world.pools - 1, max(1, round(SPARE * share * world.pools)))
    return [
        Pool(f"pool-{number}", world.queue_of(number >= image_pools), world.slots)
        for number in range(world.pools)
    ]


async def run(url: str, world: World, order: Ordered | float, mix: Mix) -> list[Outcome]:
    """Serve a world's trace.

    Args:
        order: a baseline, or the deadline credit of our queue.
    """
    times = known()
    requests, pools = requests_of(world, mix, times), pools_of(world, mix, times)
    if isinstance(order, Ordered):
        order.forget()
        return await Fleet(pools, order, Clock()).run(requests)
    settings = SETTINGS.model_copy(update={"deadline_credit_s": order})
    queue = await fresh_queue(url, settings)
    try:
        return await Fleet(pools, RealQueue(queue, settings), queue.clock).run(requests)
    finally:
        await queue.close()


def published_mix(path: Path = MIX) -> Mix:
    """Return the benchmark's mix."""
    return mix_of(read_mix(path))


@dataclass(frozen=True)
class Summary:
    """Outcomes of a trace."""

    outcomes: Sequence[Outcome]

    def in_time(self, is_video: bool | None = None) -> float:
        """Share of all requests that met their deadline."""
        return _mean([outcome.in_time for outcome in self._of(is_video)])

    def admitted(self, is_video: bool | None = None) -> float:
        """Share of all requests that were admitted."""
        return _mean([outcome.is_admitted for outcome in self._of(is_video)])

    def kept(self, is_video: bool | None = None) -> float:
        """Share of admitted requests that met their deadline."""
        return _mean([outcome.in_time for outcome in self._of(is_video) if outcome.is_admitted])

    def goodput(self) -> float:
        """Share of the requested device-seconds in requests that met their deadline."""
        work_s = [outcome.request.times.alone_s for outcome in self.outcomes]
        good_s = [outcome.request.times.alone_s for outcome in self.outcomes if outcome.in_time]
        return sum(good_s) / sum(work_s)

    def wait_s(self, percent: int) -> float:
        """Percentile of the seconds until the first start, of started requests."""
        waits = [
            outcome.began_at - outcome.request.at_s
            for outcome in self.outcomes
            if outcome.began_at is not None
        ]
        return statistics.quantiles(waits, n=100)[percent - 1] if len(waits) > 1 else math.nan

    def _of(self, is_video: bool | None) -> list[Outcome]:
        return [
            outcome for outcome in self.outcomes if is_video in (None, outcome.request.is_video)
        ]


def _mean(values: Sequence[bool]) -> float:
    return statistics.fmean(values) if values else math.nan


HEAD = (
    "| pools | load | order | asked | images in time | videos in time | admitted | of these kept"
    " | goodput | wait p50 | p99 |"
)


def head() -> Iterator[str]:
    yield HEAD
    yield "|---" * HEAD.count(" | ") + "|---|"


def line(world: World, name: str, summary: Summary) -> str:
    """Return a row of the table."""
    cells = [
        f"{world.pools:,}", f"{world.load:.1f}", name, f"{len(summary.outcomes):,}",
        *(f"{summary.in_time(is_video):.1%}" for is_video in (False, True)),
        f"{summary.admitted():.1%}", f"{summary.kept():.2%}", f"{summary.goodput():.1%}",
        *(f"{summary.wait_s(percent):.1f} s" for percent in (50, 99)),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"
