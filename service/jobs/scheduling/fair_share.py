"""Order between tenants in a model's queue, from aggregate facts about each tenant.

The order is start-time fair queueing (`scripts/order.lua`). A tenant's jobs start in virtual time
at its tag, spaced by device-seconds over weight. All jobs of a tenant count with their mean cost;
ties are ordered by name, as in Redis.

Future arrivals are ignored. Jobs of a higher priority, jobs with a deadline, and tenants that were
idle for a while may overtake a job that already waits.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

MIN_S = 1e-9
"""Minimum of a job's mean device-seconds, since sums that Redis keeps are rounded."""


@dataclass(frozen=True)
class Tenant:
    """Queue state of a tenant: its tag, its number of queued jobs and their predicted cost."""

    name: str
    order: float
    """Tag, minus the advance for the priority of its first job."""
    tag: float
    """Start of its first job in virtual time."""
    seconds: float
    """Predicted device-seconds of its queued jobs."""
    weight: float
    jobs: int

    @property
    def mean_s(self) -> float:
        """Mean device-seconds of a job, above 0."""
        return max(self.seconds / self.jobs, MIN_S) if self.jobs else MIN_S

    @property
    def pace(self) -> float:
        """Virtual time between the starts of two consecutive jobs of the tenant."""
        return self.mean_s / self.weight

    def before(self, order: float, name: str) -> float:
        """Return how many of the tenant's jobs precede a position; fractional between two jobs."""
        if not self.jobs or (order, name) <= (self.order, self.name):
            return 0.0
        return min(self.jobs, 1 + max(0.0, (order - self.order) / self.pace - 0.5))


@dataclass(frozen=True)
class JobsAhead:
    """Number of jobs that precede a position in the queue, and their device-seconds."""

    jobs: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: JobsAhead) -> JobsAhead:
        return JobsAhead(self.jobs + other.jobs, self.seconds + other.seconds)

    def without(self, other: JobsAhead) -> JobsAhead:
        """Subtract another count of preceding jobs; both values are at least 0."""
        return JobsAhead(max(0.0, self.jobs - other.jobs), max(0.0, self.seconds - other.seconds))


class FairShares:
    """Sum of `Tenant.before` over any number of tenants, computed by a few bisections.

    Each tenant's count jumps at its first job and rises linearly from there to its last.
    """

    def __init__(self, tenants: Iterable[Tenant]) -> None:
        tenants = [tenant for tenant in tenants if tenant.jobs]
        firsts = sorted((tenant.order, tenant.name, tenant.mean_s) for tenant in tenants)
        self._firsts = [first[:2] for first in firsts]
        self._first_seconds = sums(first[2] for first in firsts)
        bends = sorted(bend for tenant in tenants for bend in _bends(tenant))
        self._bends = [bend[0] for bend in bends]
        self._rise = [sums(bend[column] for bend in bends) for column in range(1, 5)]

    def before(self, order: float, name: str) -> JobsAhead:
        """Return how many jobs of all tenants precede a position in the queue order."""
        first = bisect_left(self._firsts, (order, name))
        bend = bisect_right(self._bends, order)
        jobs, jobs_at_0, seconds, seconds_at_0 = (column[bend] for column in self._rise)
        return JobsAhead(
            first + jobs * order + jobs_at_0,
            self._first_seconds[first] + seconds * order + seconds_at_0,
        )


def _bends(tenant: Tenant) -> Iterable[tuple[float, float, float, float, float]]:
    """Yield the positions at which a tenant's count of preceding jobs changes its slope.

    Each is (order, change of the jobs' slope and of their intercept, the same for device-seconds).
    """
    if tenant.jobs < 2:
        return
    slope, mean_s = 1 / tenant.pace, tenant.mean_s
    for sign, job in ((1, 0.5), (-1, tenant.jobs - 0.5)):
        at = tenant.order + job * tenant.pace
        rise = sign * slope
        yield at, rise, -rise * at, rise * mean_s, -rise * at * mean_s


def sums(values: Iterable[float]) -> Sequence[float]:
    """Return the prefix sums of the values, starting with 0."""
    return [0.0, *accumulate(values)]
