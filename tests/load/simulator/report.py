"""The benchmark's trace in simulated fleets, and its table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.bench.serving.ask import shape_of
from deploy.bench.serving.mix import Mix, mix_of, plan, read_mix
from tests.load.simulator.clock import Clock, fresh_queue
from tests.load.simulator.fleet import Fleet, Outcome
from tests.load.simulator.pool import Ask, Pool
from tests.load.simulator.schedulers import SETTINGS, Ordered, Ours
from tests.load.simulator.times import Times, known

MIX = Path("examples/bench/pictures-and-videos.toml")
TOGETHER = "any"
"""Queue of pools that serve all shapes."""
SPARE = 1.5
"""Times the mean work of pictures, that pools of their own have: they come in bursts."""


@dataclass(frozen=True)
class World:
    """A fleet and the load on it.

    Args:
        load: device-seconds that are asked for a second and slice, in batches as large as pay.
        is_shared: each pool serves all shapes; or pictures and videos have pools of their own.
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


def asks_of(world: World, mix: Mix, times: Mapping[str, Times]) -> list[Ask]:
    """Return the requests of a mix at the rate that is the world's load."""
    rate_per_s = world.load * world.pools / _mean_s(world, mix, times)
    mix = mix.model_copy(
        update={"rate_per_s": rate_per_s, "seconds": world.seconds, "seed": world.seed}
    )
    weights = {tenant.name: tenant.weight for tenant in mix.tenants}
    asks = []
    for number, one in enumerate(plan(mix)):
        request = {name: value for name, value in one.request.items() if name != "prompt"}
        name = shape_of(request)
        is_video = "num_frames" in request
        deadline_s = one.deadline_s(times[name].alone_s)
        asks.append(
            Ask(
                number, one.at_s, world.queue_of(is_video), name, times[name], one.tenant,
                weights[one.tenant], math.inf if deadline_s is None else deadline_s, is_video,
            )
        )  # fmt: skip
    return asks


def _mean_s(world: World, mix: Mix, times: Mapping[str, Times], videos: bool = True) -> float:
    """Device-seconds of a request in the mean; of pictures alone without `videos`."""
    shares = sum(shape.share for shape in mix.shapes)
    return sum(
        shape.share / shares * times[shape_of(shape.request)].device_s(world.slots)
        for shape in mix.shapes
        if videos or "num_frames" not in shape.request
    )


def pools_of(world: World, mix: Mix, times: Mapping[str, Times]) -> list[Pool]:
    """Return the pools; of pictures, where they have some, by their share of the work."""
    share = _mean_s(world, mix, times, videos=False) / _mean_s(world, mix, times)
    pictures = min(world.pools - 1, max(1, round(SPARE * share * world.pools)))
    return [
        Pool(f"pool-{number}", world.queue_of(number >= pictures), world.slots)
        for number in range(world.pools)
    ]


async def run(url: str, world: World, order: Ordered | float, mix: Mix) -> list[Outcome]:
    """Serve a world's trace.

    Args:
        order: a baseline; or the credit of deadlines in ours.
    """
    times = known()
    asks, pools = asks_of(world, mix, times), pools_of(world, mix, times)
    if isinstance(order, Ordered):
        order.forget()
        return await Fleet(pools, order, Clock()).run(asks)
    settings = SETTINGS.model_copy(update={"deadline_credit_s": order})
    queue = await fresh_queue(url, settings)
    try:
        return await Fleet(pools, Ours(queue, settings), queue.clock).run(asks)
    finally:
        await queue.close()


def published_mix(path: Path = MIX) -> Mix:
    """Return the benchmark's mix."""
    return mix_of(read_mix(path))


@dataclass(frozen=True)
class Summary:
    """Outcome of a trace."""

    outcomes: Sequence[Outcome]

    def in_time(self, is_video: bool | None = None) -> float:
        """Part of all asked whose deadline was met."""
        return _mean([one.in_time for one in self._of(is_video)])

    def admitted(self, is_video: bool | None = None) -> float:
        """Part of all asked that was accepted."""
        return _mean([one.is_admitted for one in self._of(is_video)])

    def kept(self, is_video: bool | None = None) -> float:
        """Part of what was accepted whose deadline was met."""
        return _mean([one.in_time for one in self._of(is_video) if one.is_admitted])

    def goodput(self) -> float:
        """Part of the device-seconds asked for that were of requests in time."""
        work_s = [one.ask.times.alone_s for one in self.outcomes]
        good_s = [one.ask.times.alone_s for one in self.outcomes if one.in_time]
        return sum(good_s) / sum(work_s)

    def wait_s(self, percent: int) -> float:
        """Seconds until the first start, of those that were started."""
        waits = [one.began_at - one.ask.at_s for one in self.outcomes if one.began_at is not None]
        return statistics.quantiles(waits, n=100)[percent - 1] if len(waits) > 1 else math.nan

    def _of(self, is_video: bool | None) -> list[Outcome]:
        return [one for one in self.outcomes if is_video in (None, one.ask.is_video)]


def _mean(values: Sequence[bool]) -> float:
    return statistics.fmean(values) if values else math.nan


HEAD = (
    "| pools | load | order | asked | pictures in time | videos in time | admitted | of these kept"
    " | goodput | wait p50 | p99 |"
)


def head() -> Iterator[str]:
    yield HEAD
    yield "|---" * HEAD.count(" | ") + "|---|"


def line(world: World, name: str, found: Summary) -> str:
    """Return a row of the table."""
    cells = [
        f"{world.pools:,}", f"{world.load:.1f}", name, f"{len(found.outcomes):,}",
        *(f"{found.in_time(is_video):.1%}" for is_video in (False, True)),
        f"{found.admitted():.1%}", f"{found.kept():.2%}", f"{found.goodput():.1%}",
        *(f"{found.wait_s(percent):.1f} s" for percent in (50, 99)),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"
