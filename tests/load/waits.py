"""How good the predicted waits are: `python -m tests.load.waits [--jobs 400]`.

Jobs of several tenants come at random to an embedded Redis and are served by simulated pools in a
time of their own, so it takes seconds whatever the waits are. Each job's position and end are
predicted when it comes, and held against what becomes of them. Nobody foresees who comes later:
so a light tenant's jobs end as predicted and a heavy one's later, the more the fuller it is.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

from deploy.local.embedded_redis import embedded
from service.jobs.model.job import Job, new_job_id
from service.jobs.queue import Queue
from service.jobs.scheduling.cost_model import CostTable
from service.jobs.scheduling.wait_estimator import Place, Rules, WaitEstimator
from service.settings.queue import QueueSettings
from tests.load.fleet import MODEL, STEPS, Fleet, SimulatedPool

PICTURE, CLIP = "width=512,height=512", "width=512,height=512,num_frames=17"
COSTS = {PICTURE: (2.0, 6.0), CLIP: (40.0, 100.0)}
CLIPS = 0.05
"""Of all jobs."""
TENANTS = {"heavy": (20, 1.0), "double": (10, 2.0), "light": (1, 1.0)}
"""How often each comes, and its weight."""


@dataclass
class Asked:
    job: Job
    at: float
    place: Place


async def arrive(fleet: Fleet, queue: Queue, load: float, count: int, slots: int) -> list[Asked]:
    rng, rules = random.Random(3), Rules(QueueSettings().priority_advance_s, 300.0)
    table = await queue.costs(MODEL)
    mean_s = sum(
        share * COSTS[bucket][1] / slots for bucket, share in ((PICTURE, 1 - CLIPS), (CLIP, CLIPS))
    )
    asked = []
    for _ in range(count):
        await fleet.run(fleet.now + rng.expovariate(load * len(fleet.pools) / mean_s))
        await fleet.tell()
        asked.append(await ask(queue, table, rules, rng, fleet.now))
    await fleet.run()
    return asked


async def ask(
    queue: Queue, table: CostTable, rules: Rules, rng: random.Random, now: float
) -> Asked:
    """One job: predicted as the front end does, then put."""
    names = list(TENANTS)
    tenant = rng.choices(names, [TENANTS[name][0] for name in names])[0]
    bucket = CLIP if rng.random() < CLIPS else PICTURE
    cost = table.predict(bucket, STEPS, 1)
    assert cost is not None
    job = Job(
        id=new_job_id(), model=MODEL, bucket=bucket, tenant=tenant, steps=STEPS,
        weight=TENANTS[tenant][1], cost=cost.device_seconds, run_s=cost.seconds,
    )  # fmt: skip
    place = WaitEstimator(await queue.queue_snapshot(MODEL), table, rules).newcomer(job)
    return Asked((await queue.put(job))[0], now, place)


def report(load: float, fleet: Fleet, asked: list[Asked]) -> None:
    for tenant in TENANTS:
        mine = [one for one in asked if one.job.tenant == tenant]
        told = [one.place.ends_s or 0.0 for one in mine]
        took = [fleet.ended[one.job.id] - one.at for one in mine]
        ratios = sorted(real / said for real, said in zip(took, told, strict=True))
        low, middle, high = (ratios[round(q * (len(ratios) - 1))] for q in (0.1, 0.5, 0.9))
        print(
            f"load {load:.1f}  {tenant:7} {len(mine):4} jobs  took {statistics.mean(took):7.1f} s, "
            f"predicted {statistics.mean(told):7.1f} s  "
            f"took/predicted p10 {low:.2f}  p50 {middle:.2f}  p90 {high:.2f}"
        )


async def measure(url: str, load: float, count: int) -> None:
    queue = await Queue.connect(url, QueueSettings(affinity_s=0))
    pools = [SimulatedPool("a", 4), SimulatedPool("b", 4)]
    fleet = Fleet(queue, pools)
    await fleet.announce(COSTS)
    report(load, fleet, await arrive(fleet, queue, load, count, pools[0].slots))
    await queue.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--load", type=float, nargs="+", default=[0.5, 0.9, 1.5])
    options = parser.parse_args()
    for load in options.load:
        with tempfile.TemporaryDirectory() as folder, embedded(Path(folder)) as url:
            asyncio.run(measure(url, load, options.jobs))


if __name__ == "__main__":
    main()
