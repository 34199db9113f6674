"""Accuracy of predicted waits: `python -m lab.load.waits [--jobs 400]`.

Jobs of several tenants arrive at random at an embedded Redis, and simulated pools serve them in
virtual time, so the run takes seconds. Each job's position and end are predicted on arrival and
compared with the actual ones. Predictions ignore future arrivals: a light tenant's jobs end as
predicted, a heavy tenant's later, increasingly with the load.
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
from lab.load.fleet import MODEL, STEPS, Fleet, SimulatedPool
from service.jobs.model.job import Job, new_job_id
from service.jobs.queue import Queue
from service.jobs.scheduling.cost_model import CostTable
from service.jobs.scheduling.wait_estimator import Rules, WaitEstimate, WaitEstimator
from service.settings.queue import QueueSettings

PICTURE, CLIP = "width=512,height=512", "width=512,height=512,num_frames=17"
COSTS = {PICTURE: (2.0, 6.0), CLIP: (40.0, 100.0)}
CLIPS = 0.05
"""Share of videos."""
TENANTS = {"heavy": (20, 1.0), "double": (10, 2.0), "light": (1, 1.0)}
"""Relative rate and weight of each tenant."""


@dataclass
class Prediction:
    job: Job
    at: float
    place: WaitEstimate


async def arrive(
    fleet: Fleet, queue: Queue, load: float, count: int, slots: int
) -> list[Prediction]:
    rng, rules = random.Random(3), Rules(QueueSettings().priority_advance_s, 300.0)
    table = await queue.costs(MODEL)
    mean_s = sum(
        share * COSTS[bucket][1] / slots for bucket, share in ((PICTURE, 1 - CLIPS), (CLIP, CLIPS))
    )
    predictions = []
    for _ in range(count):
        await fleet.run(fleet.now + rng.expovariate(load * len(fleet.pools) / mean_s))
        await fleet.report()
        predictions.append(await ask(queue, table, rules, rng, fleet.now))
    await fleet.run()
    return predictions


async def ask(
    queue: Queue, table: CostTable, rules: Rules, rng: random.Random, now: float
) -> Prediction:
    """Predict a job's wait like the front end, then submit it."""
    names = list(TENANTS)
    tenant = rng.choices(names, [TENANTS[name][0] for name in names])[0]
    bucket = CLIP if rng.random() < CLIPS else PICTURE
    cost = table.predict(bucket, STEPS, 1)
    assert cost is not None
    job = Job(
        id=new_job_id(), model=MODEL, bucket=bucket, tenant=tenant, steps=STEPS,
        weight=TENANTS[tenant][1], cost=cost.device_seconds, run_s=cost.seconds,
    )  # fmt: skip
    place = WaitEstimator(await queue.queue_snapshot(MODEL), table, rules).new_job_estimate(job)
    return Prediction((await queue.put(job))[0], now, place)


def report(load: float, fleet: Fleet, predictions: list[Prediction]) -> None:
    for tenant in TENANTS:
        jobs = [entry for entry in predictions if entry.job.tenant == tenant]
        predicted_s = [entry.place.ends_s or 0.0 for entry in jobs]
        real = [fleet.ended[entry.job.id] - entry.at for entry in jobs]
        ratios = sorted(
            actual / predicted for actual, predicted in zip(real, predicted_s, strict=True)
        )
        low, middle, high = (ratios[round(q * (len(ratios) - 1))] for q in (0.1, 0.5, 0.9))
        print(
            f"load {load:.1f}  {tenant:7} {len(jobs):4} jobs  took {statistics.mean(real):7.1f} s, "
            f"predicted {statistics.mean(predicted_s):7.1f} s  "
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
