"""Shares of tenants that all have queued jobs: `python -m lab.load shares`.

Tenants of weights 1 to 4 have jobs in proportion to their weight, of three costs and many shapes,
and 1,000 simulated pools. Each tenant's share is compared with its weight; while all have queued
jobs, they should match.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from redis.asyncio import Redis

from lab.load.backlog import MODEL, POOLS, REQUEST, SHAPES, TENANTS, put_all
from lab.load.sleepers import Sleepers
from service.jobs.model.job import Job, new_job_id
from service.jobs.queue import Claim, Queue
from service.settings.queue import QueueSettings

COSTS = (0.5, 3.0, 20.0)
"""Device-seconds of a job."""
WEIGHTS = (1, 2, 3, 4)
SPEED = 5.0


@dataclass
class Shares:
    """Device-seconds and weight of each tenant."""

    got: Counter[str]
    weights: dict[str, int]
    jobs: int = 0

    @property
    def worst(self) -> float:
        """Largest deviation of a tenant's share from its due, relative to the due."""
        return max((self._gap({tenant}) for tenant in self.weights), key=abs)

    @property
    def worst_s(self) -> float:
        """Largest deviation of a tenant's share from its due, in device-seconds."""
        return max((self.got[tenant] - self._due({tenant}) for tenant in self.weights), key=abs)

    def of_weight(self, weight: int) -> float:
        """Relative deviation of all tenants of a weight together."""
        return self._gap(
            {tenant for tenant, tenant_weight in self.weights.items() if tenant_weight == weight}
        )

    def _gap(self, tenants: set[str]) -> float:
        return sum(self.got[tenant] for tenant in tenants) / self._due(tenants) - 1

    def _due(self, tenants: set[str]) -> float:
        weight = sum(self.weights[tenant] for tenant in tenants)
        return self.got.total() * weight / sum(self.weights.values())


def jobs_of(weights: dict[str, int], count: int) -> list[Job]:
    """Make jobs in proportion to the tenants' weights."""
    rng, total_weight = random.Random(5), sum(weights.values())
    jobs = [
        Job(
            id=new_job_id(), model=MODEL, bucket=f"shape-{rng.randrange(SHAPES)}", tenant=tenant,
            weight=weight, cost=rng.choice(COSTS), request=REQUEST, steps=28,
        )
        for tenant, weight in weights.items()
        for _ in range(round(count * weight / total_weight))
    ]  # fmt: skip
    rng.shuffle(jobs)
    return jobs


PATIENCE_S = 120
"""Time-out for the first job on a busy machine."""


async def measure(url: str, tenants: int, jobs: int, seconds: float) -> Shares:
    weights = {f"tenant-{n}": WEIGHTS[n % len(WEIGHTS)] for n in range(tenants)}
    shares = Shares(Counter(), weights)

    def done(claim: Claim, claimed: float) -> None:
        shares.got[claim.job.tenant] += claim.job.cost
        shares.jobs += 1
        first_done.set()

    first_done = asyncio.Event()
    async with Redis.from_url(url) as redis:
        await redis.flushall()
    queue = await Queue.connect(url, QueueSettings(max_queued=10**9, lease_s=600))
    await put_all(queue, jobs_of(weights, jobs))
    async with Sleepers(queue, MODEL, POOLS, SPEED, done).at_work():
        await asyncio.sleep(seconds)
        await asyncio.wait_for(first_done.wait(), PATIENCE_S)
    await queue.close()
    return shares


def table(url: str, jobs: int, seconds: float) -> Iterator[str]:
    by_weight = " | ".join(f"all of weight {weight}" for weight in WEIGHTS)
    yield f"| tenants | jobs of each done | worst tenant | in its largest jobs | {by_weight} |"
    yield "|---|---|---|---|" + "---|" * len(WEIGHTS)
    for tenants in (40, 400, TENANTS):
        shares = asyncio.run(measure(url, tenants, jobs, seconds))
        gaps = " | ".join(f"{shares.of_weight(weight):+.1%}" for weight in WEIGHTS)
        yield (
            f"| {tenants:,} | {shares.jobs / tenants:.0f} | {shares.worst:+.1%} "
            f"| {shares.worst_s / max(COSTS):+.2f} | {gaps} |"
        )
