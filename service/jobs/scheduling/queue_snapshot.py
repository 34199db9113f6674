"""Point-in-time copy of a model's queue, as read by `scripts/read_queue.lua`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from service.jobs.scheduling.fair_share import Tenant
from service.jobs.scheduling.slot_simulation import Load, RunningJob


@dataclass(frozen=True)
class UrgentJob:
    """Queued job with a deadline."""

    latest: float
    """Latest start, in seconds since the epoch."""
    tenant: str
    seconds: float
    """Predicted device-seconds."""
    id: str
    is_credited: bool = False
    """True if it is ordered by its deadline (credited or guaranteed), regardless of its tenant's
    usage."""


@dataclass(frozen=True)
class QueueSnapshot:
    """Tenants, deadlines and running jobs of a model's queue at one time."""

    now: float = 0.0
    virtual: float = 0.0
    """Virtual time of the fair queue."""
    tenants: Mapping[str, Tenant] = field(default_factory=dict)
    idle: Mapping[str, float] = field(default_factory=dict)
    """Tags of tenants without queued jobs."""
    urgent: Sequence[UrgentJob] = ()
    """Jobs with deadlines by latest start; if there are very many, the first ones."""
    running: Sequence[RunningJob] = ()
    coverage: float = 1.0
    """Share of the running jobs that was read; below 1 if there are very many."""

    @classmethod
    def parse(cls, answer: Sequence[Any]) -> QueueSnapshot:
        """Parse the answer of `read_queue.lua`."""
        (
            now,
            virtual,
            orders,
            jobs,
            tags,
            backlogs,
            weights,
            idle,
            urgent,
            done,
            running,
            coverage,
        ) = answer
        left = _without(_numbers(backlogs), done)
        return cls(
            now=float(now),
            virtual=float(virtual),
            tenants=_tenants(orders, jobs, _numbers(tags), left, _numbers(weights)),
            idle=_numbers(idle),
            urgent=[
                UrgentJob(float(latest), tenant, float(seconds), job_id, credited == "1")
                for job_id, latest, tenant, seconds, credited in _rows(urgent, 5)
            ],
            running=[_running(*row) for row in _rows(running, 7)],
            coverage=float(coverage),
        )


def _tenants(
    orders: Sequence[str],
    jobs: Sequence[int],
    tags: Mapping[str, float],
    backlogs: Mapping[str, float],
    weights: Mapping[str, float],
) -> dict[str, Tenant]:
    return {
        name: Tenant(
            name,
            float(order),
            tags.get(name, 0.0),
            backlogs.get(name, 0.0),
            weights.get(name, 1.0),
            count,
        )
        for (name, order), count in zip(_rows(orders, 2), jobs, strict=True)
    }


def _without(backlogs: Mapping[str, float], done: Sequence[str]) -> dict[str, float]:
    """Subtract completed work from the tenants' backlogs."""
    left = dict(backlogs)
    for tenant, seconds in _rows(done, 2):
        left[tenant] = max(0.0, left.get(tenant, 0.0) - float(seconds))
    return left


def _running(
    pool: str, cost: str, run_s: str, step: str, steps: str, images: str, yields_to_s: str
) -> RunningJob:
    load = Load(float(cost), float(run_s) if run_s else None, int(images))
    done, step_s = int(step) / max(1, int(steps)), float(run_s or 0) / max(1, int(steps))
    return RunningJob(pool, load, min(1.0, done), step_s * load.images, float(yields_to_s))


def _rows(flat: Sequence[str], width: int) -> Iterator[tuple[str, ...]]:
    return zip(*(flat[column::width] for column in range(width)), strict=True)


def _numbers(flat: Sequence[str]) -> dict[str, float]:
    return {name: float(number) for name, number in _rows(flat, 2)}
