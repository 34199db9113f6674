"""Model of `claim`: start-time fair queueing over one model's queued jobs, on plain lists.

All costs and weights are sums of a few powers of two, so that tags are rounded to `INSTANT` only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from service.settings.queue import QueueSettings
from tests.service.jobs.job_model import Life

INSTANT = 1e-6
"""Distance in virtual time between tenants that arrive one after the other."""
Expire = Callable[[Life], bool]


def rounded(virtual: float) -> float:
    """Round virtual time as Redis stores it."""
    return round(virtual, 6)


@dataclass(frozen=True)
class Offer:
    """Parameters of a worker's claim."""

    slots: int
    warm: Sequence[str]
    slowness: float
    is_patient: bool
    """Whether warm buckets are preferred."""
    may_compile: bool | None = None
    """Whether the worker accepts one job of a bucket to compile; None: any number."""
    pool: str = ""
    """Name of the worker; empty: a name that no other claim has."""


@dataclass
class Order:
    settings: QueueSettings
    waiting: list[Life] = field(default_factory=list)
    tags: dict[str, float] = field(default_factory=dict)
    """Start of each tenant's next job in virtual time."""
    virtual: float = 0.0
    charged: set[str] = field(default_factory=set)
    """Ids of jobs claimed since the queue was last empty."""
    pools: int = 0
    """Number of the model's registered workers."""

    def of(self, tenant: str, bucket: str | None = None) -> list[Life]:
        """Return the tenant's queued jobs, optionally of one bucket, in order."""
        jobs = (
            life
            for life in self.waiting
            if life.job.tenant == tenant and bucket in (None, life.job.bucket)
        )
        return sorted(jobs, key=lambda life: (life.place, life.job.id))

    def tag(self, tenant: str) -> float:
        ahead = self.tags.get(tenant, 0.0)
        return ahead if self.of(tenant) else max(ahead, self.virtual)

    def stands(self, tenant: str) -> float:
        """Order key of a tenant: its tag, minus the advance of its first job's priority."""
        return rounded(self.tag(tenant) - self.worth(self.of(tenant)[0]))

    def worth(self, life: Life) -> float:
        return (life.job.priority - 1) * self.settings.priority_advance_s

    def tenants(self) -> list[tuple[float, str]]:
        """Tenants with queued jobs as (order key, name), in order."""
        names = {life.job.tenant for life in self.waiting}
        return sorted((self.stands(name), name) for name in names)

    @property
    def idle(self) -> dict[str, float]:
        """Tags of tenants without queued jobs that are ahead of virtual time."""
        ahead = {name: tag for name, tag in self.tags.items() if tag > self.virtual}
        return {name: tag for name, tag in ahead.items() if not self.of(name)}

    # changes of jobs
    def add(self, life: Life) -> None:
        tenant = life.job.tenant
        self.tags[tenant] = self.tag(tenant)
        if not self.of(tenant) and self.tags[tenant] <= self.virtual:
            self.virtual = rounded(self.virtual + INSTANT)
        self.waiting.append(life)

    def remove(self, life: Life, device_seconds: float = 0.0) -> None:
        tenant = life.job.tenant
        self.tags[tenant] = rounded(self.tag(tenant) + device_seconds / life.job.weight)
        self.waiting.remove(life)
        if not self.waiting:  # an empty queue forgets all tags
            self.tags, self.virtual, self.charged = {}, 0.0, set()

    def settle(self, life: Life, device_seconds: float) -> None:
        """Correct the tag at a claim's end; the tenant was charged the whole cost."""
        tenant, more = life.job.tenant, (device_seconds - life.own) / life.job.weight
        if life.job.id in self.charged:
            self.tags[tenant] = rounded(self.tag(tenant) + more)

    def charge_late(self, life: Life, device_seconds: float) -> None:
        """Charge device-seconds that were reported after the job's end."""
        is_charged = life.job.id in self.charged if life.is_started else bool(self.waiting)
        if is_charged and device_seconds:
            tenant = life.job.tenant
            self.tags[tenant] = rounded(self.tag(tenant) + device_seconds / life.job.weight)

    # choice of jobs to claim
    def claim(self, offer: Offer, now: float, expire: Expire, touched: Sequence[str]) -> list[Life]:
        """Return the jobs that a claim takes.

        Args:
            now: by Redis's clock.
            expire: expires a late job; returns whether it did.
            touched: ids of the jobs that Redis has expired or claimed, in its order. Between jobs
                with equal order keys the script may choose.
        """
        return _Claim(self, offer, now, expire, touched).run()


@dataclass
class _Claim:
    order: Order
    offer: Offer
    now: float
    expire: Expire
    touched: Sequence[str]
    taken: list[Life] = field(default_factory=list)

    def run(self) -> list[Life]:
        life, free = self.first(), self.offer.slots
        while life and (not self.taken or self.fits(life, free)):
            if not self.expire(life):
                if not self.suits(life) or (self.taken and self.compiles(life)):
                    break
                self.order.charged.add(life.job.id)
                self.order.remove(life, life.job.cost * life.undone)
                self.taken.append(life)
                is_alone = life.deaths or self.compiles(life)
                free = 0 if is_alone else free - life.job.images
            if free <= 0:
                break
            life = self.turn([self.taken[0].job.bucket], free)
        return self.taken

    def compiles(self, life: Life) -> bool:
        return self.offer.may_compile is not None and not self.is_compiled(life)

    def is_compiled(self, life: Life) -> bool:
        return all(bucket in self.offer.warm for bucket, _ in life.job.passes())

    def fits(self, life: Life, free: float) -> bool:
        return life.job.images <= free and not life.deaths

    def suits(self, life: Life) -> bool:
        is_left = life.job.avoid == self.offer.pool and self.order.pools > 1
        if is_left and self.offer.is_patient:
            return False
        if self.offer.may_compile is False and not self.is_compiled(life):
            return False
        deadline, run_s, slowness = life.job.deadline_at, life.job.run_s, self.offer.slowness
        if deadline is None or run_s is None or slowness <= 1:
            return True
        return self.now + run_s * life.undone * slowness <= deadline

    def first(self) -> Life | None:
        life = self.urgent()
        if life:
            return life
        life = self.first_compiled() or self.in_turn()
        if not life:
            return None
        tag = self.order.tag(life.job.tenant)
        virtual = rounded(min(tag, tag - self.order.worth(life)))
        self.order.virtual = max(self.order.virtual, virtual)
        return self.warm_instead(life)

    def first_compiled(self) -> Life | None:
        if self.offer.may_compile is not False:
            return None
        life = self.turn(self.offer.warm, math.inf)
        while life and self.expire(life):
            life = self.turn(self.offer.warm, math.inf)
        return life if life and self.suits(life) else None

    def urgent(self) -> Life | None:
        with_deadline = [life for life in self.order.waiting if life.latest is not None]
        credit_s = self.order.settings.deadline_credit_s * max(1, self.order.pools)
        now = self.order.virtual
        for life in sorted(with_deadline, key=lambda life: (life.latest, life.job.id)):
            is_near = self.order.tag(life.job.tenant) <= now + credit_s / life.job.weight
            if not self.expire(life) and is_near and self.suits(life):
                return life
        return None

    def in_turn(self) -> Life | None:
        for _, tenant in self.order.tenants():
            for life in self.order.of(tenant):
                if not self.expire(life) and self.suits(life):
                    return life
        return None

    def warm_instead(self, life: Life) -> Life:
        if self.is_compiled(life) or not self.offer.is_patient:
            return life
        best = self.turn(self.offer.warm, math.inf)
        is_there = best and not self.expire(best) and self.suits(best)
        return best if best and is_there else life

    def turn(self, buckets: Iterable[str], free: float) -> Life | None:
        """Return the next job of these buckets. Of tenants with equal order keys, the tenant whose
        job the script chose; if it chose none, a job that stops the claim."""
        heads = [
            jobs[0]
            for bucket in buckets
            for _, tenant in self.order.tenants()
            if (jobs := self.order.of(tenant, bucket))
        ]
        orders = [self.order.stands(life.job.tenant) for life in heads]
        tied = [
            life for life, order_key in zip(heads, orders, strict=True) if order_key == min(orders)
        ]

        def preference(life: Life) -> tuple[Any, ...]:
            is_touched = life.job.id in self.touched
            rank = self.touched.index(life.job.id) if is_touched else math.inf
            return rank, self.fits(life, free) and self.suits(life)

        return min(tied, key=preference, default=None)
