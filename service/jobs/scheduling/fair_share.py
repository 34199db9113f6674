"""Order between tenants in a model's queue, computed from what is known of each tenant.

The order is start-time fair queueing (`scripts/order.lua`): a tenant's jobs start in virtual time
at its tag, and one job's device-seconds over its weight after each other. A tenant's jobs count
with their mean cost; ties go by name, as in Redis.

What comes later is not foreseen: jobs of a higher priority or with a deadline, and tenants that
have had nothing for a while, may go before a job that waits already.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

LEAST_S = 1e-9
"""A job's mean device-seconds at least: sums that Redis keeps are rounded."""


@dataclass(frozen=True)
class Tenant:
    """Tenant with queued jobs."""

    name: str
    order: float
    """Tag, less what the priority of its first job is worth."""
    tag: float
    """Start of its first job in virtual time."""
    seconds: float
    """Device-seconds of its queued jobs, as predicted."""
    weight: float
    jobs: int

    @property
    def mean_s(self) -> float:
        """Mean device-seconds of a job, above 0."""
        return max(self.seconds / self.jobs, LEAST_S) if self.jobs else LEAST_S

    @property
    def pace(self) -> float:
        """Virtual time from one of its jobs to the next."""
        return self.mean_s / self.weight

    def before(self, order: float, name: str) -> float:
        """Number of its jobs before that place in the order; fractional between two jobs."""
        if not self.jobs or (order, name) <= (self.order, self.name):
            return 0.0
        return min(self.jobs, 1 + max(0.0, (order - self.order) / self.pace - 0.5))


@dataclass(frozen=True)
class Ahead:
    """Jobs that come first, and their device-seconds."""

    jobs: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: Ahead) -> Ahead:
        return Ahead(self.jobs + other.jobs, self.seconds + other.seconds)

    def without(self, other: Ahead) -> Ahead:
        """Return what is left without the other's share."""
        return Ahead(max(0.0, self.jobs - other.jobs), max(0.0, self.seconds - other.seconds))


class FairShares:
    """`Tenant.before`, summed over any number of them in the time of a few bisections.

    Each tenant's count is a jump at its first job and a slope from there to its last.
    """

    def __init__(self, tenants: Iterable[Tenant]) -> None:
        tenants = [tenant for tenant in tenants if tenant.jobs]
        firsts = sorted((tenant.order, tenant.name, tenant.mean_s) for tenant in tenants)
        self._firsts = [first[:2] for first in firsts]
        self._first_seconds = sums(first[2] for first in firsts)
        bends = sorted(bend for tenant in tenants for bend in _bends(tenant))
        self._bends = [bend[0] for bend in bends]
        self._rise = [sums(bend[column] for bend in bends) for column in range(1, 5)]

    def before(self, order: float, name: str) -> Ahead:
        """Sum up the jobs of all tenants before that place in the order."""
        first = bisect_left(self._firsts, (order, name))
        bend = bisect_right(self._bends, order)
        jobs, jobs_at_0, seconds, seconds_at_0 = (column[bend] for column in self._rise)
        return Ahead(
            first + jobs * order + jobs_at_0,
            self._first_seconds[first] + seconds * order + seconds_at_0,
        )


def _bends(tenant: Tenant) -> Iterable[tuple[float, float, float, float, float]]:
    """Return where a tenant's slope begins and ends.

    (order, change of the jobs' slope and of their intercept, the same of device-seconds).
    """
    if tenant.jobs < 2:
        return
    slope, mean_s = 1 / tenant.pace, tenant.mean_s
    for sign, job in ((1, 0.5), (-1, tenant.jobs - 0.5)):
        at = tenant.order + job * tenant.pace
        rise = sign * slope
        yield at, rise, -rise * at, rise * mean_s, -rise * at * mean_s


def sums(values: Iterable[float]) -> Sequence[float]:
    """Return the sums of the first none, one, two and so on."""
    return [0.0, *accumulate(values)]
