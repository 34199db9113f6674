"""Fair-share position by the fluid approximation, against an explicit list of all jobs."""

from __future__ import annotations

import random

import pytest

from service.jobs.scheduling.fair_share import FairShares, Tenant


def some_tenants(rng: random.Random, count: int, max_jobs: int) -> list[Tenant]:
    tenants = []
    for number in range(count):
        jobs, weight = rng.randint(1, max_jobs), rng.choice([0.5, 1.0, 4.0])
        tag = rng.choice([100.0, rng.uniform(100, 200)])
        seconds = jobs * rng.choice([0.5, 3.0, 60.0])
        order = tag - rng.choice([0.0, 30.0])
        tenants.append(Tenant(f"tenant-{number:03}", order, tag, seconds, weight, jobs))
    return tenants


def starts(tenants: list[Tenant]) -> list[tuple[float, str, float]]:
    """(start, tenant, mean device-seconds) of every job."""
    return [
        (tenant.order + number * tenant.pace, tenant.name, tenant.mean_s)
        for tenant in tenants
        for number in range(tenant.jobs)
    ]


@pytest.mark.parametrize("max_jobs", [1, 2, 50])
def test_against_the_list_of_all_jobs(max_jobs: int) -> None:
    """Exact for tenants with one job, ties included; off by half a job per tenant with several."""
    rng = random.Random(max_jobs)
    tenants = some_tenants(rng, 60, max_jobs)
    turns, jobs = FairShares(tenants), starts(tenants)
    within = sum(0.5 for tenant in tenants if tenant.jobs > 1) + 1e-6
    within_s = sum(tenant.mean_s / 2 for tenant in tenants if tenant.jobs > 1) + 1e-6
    for order, name, _ in rng.sample(jobs, min(len(jobs), 40)):
        before = [job for job in jobs if job[:2] < (order, name)]
        ahead = turns.before(order, name)
        assert ahead.jobs == pytest.approx(len(before), abs=within)
        assert ahead.seconds == pytest.approx(sum(job[2] for job in before), abs=within_s)


def test_the_sum_is_that_of_the_tenants() -> None:
    rng = random.Random(1)
    tenants = some_tenants(rng, 40, 20)
    turns = FairShares(tenants)
    for order in (0.0, 90.0, 100.0, 150.0, 1e4):
        ahead = turns.before(order, "tenant-020")
        counts = [tenant.before(order, "tenant-020") for tenant in tenants]
        assert ahead.jobs == pytest.approx(sum(counts), abs=1e-6)  # float64, at tags of 1e4
        seconds = [n * t.mean_s for n, t in zip(counts, tenants, strict=True)]
        assert ahead.seconds == pytest.approx(sum(seconds), abs=1e-6)


def test_no_tenants() -> None:
    assert FairShares([]).before(5.0, "a").jobs == 0
    empty = Tenant("empty", 0.0, 0.0, 0.0, 1.0, 0)
    assert FairShares([empty]).before(5.0, "z").jobs == 0


def test_rounding_error_of_a_backlog_is_harmless() -> None:
    worn = Tenant("worn", 0.0, 0.0, -1e-6, 1.0, 3)
    assert FairShares([worn]).before(5.0, "z").jobs == pytest.approx(3)
