"""Wait estimates, computed from one snapshot of a model's queue.

An estimate: jobs count with their tenant's mean cost, batches are taken to be as large as pays,
warm shapes to go in turn, and nobody is foreseen who has not come yet. That others are put aside is
foreseen for deadlines alone.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from service.jobs.model.job import PRIORITIES, Job
from service.jobs.scheduling.cost_model import Cost, CostTable
from service.jobs.scheduling.fair_share import Ahead, FairShares, Tenant
from service.jobs.scheduling.queue_snapshot import QueueSnapshot, Urgent
from service.jobs.scheduling.slot_simulation import (
    Load,
    Pool,
    Running,
    SlotSimulation,
    Takes,
    remaining_s,
)

ASKED_EVERY_S = 1.0
"""Interval at which a full pool asks whom to put aside (`workers/pool/preemption.py`)."""


OVERDUE = 0.25
"""Further share of the past compile time expected when compiling is overdue."""


@dataclass(frozen=True)
class Rules:
    """Rules of the order, in device-seconds."""

    advance_s: float
    """Worth of a level of priority between tenants."""
    credit_s: float
    """Credit, for each pool, by which deadlines may bring a tenant ahead of its share."""


@dataclass(frozen=True)
class Place:
    """Place of a job in the queue, in jobs and in seconds."""

    position: int
    """Jobs that start before it."""
    starts_s: float | None
    """Seconds until it starts; None: no pool is ready, or nothing is known of its costs."""
    ends_s: float | None
    is_credited: bool = False
    """True where its tenant has credit for its deadline, beside those credited before: the queue
    lets it go by that."""
    is_guaranteed: bool = False
    """True where what its tenant has waiting by deadlines is less than its credit: the queue lets
    it go by its deadline, once those that came before have had their turns."""

    def given_to(self, job: Job) -> Job:
        """Return the job, accepted for this place."""
        marks = {"credited": self.is_credited or None, "guaranteed": self.is_guaranteed or None}
        return job.model_copy(update=marks)


class WaitEstimator:
    """Estimator of all jobs' waits after one read. Costs little a job, however many are queued."""

    def __init__(self, look: QueueSnapshot, table: CostTable, rules: Rules) -> None:
        self.look = look
        self._table = table
        self._rules = rules
        self._tenants = dict(look.tenants)
        self._urgent = list(look.urgent)
        self._since: Counter[str] = Counter()
        """Jobs by tenant, which has others, that were accepted since the look."""
        self._servers_of: dict[frozenset[str], SlotSimulation] = {}
        """Simulations by the layouts of their pools."""
        self._slowness: dict[str, Mapping[str, float]] = {}
        """Slowness by bucket and layout."""

    def queued(self, job: Job, rank: int) -> Place:
        """Estimate the place of a job that is queued, or arrives now.

        Args:
            rank: how many of its tenant's jobs go before it.
        """
        ahead, is_urgent = self._ahead(job, rank)
        position, load = round(ahead.jobs), self._load(job, job.step)
        mean_s = ahead.seconds / ahead.jobs if ahead.jobs else 0.0
        if load is None:
            return Place(position, None, None)
        takes = self._takes(job, load)

        def place(servers: SlotSimulation) -> Place:
            start = servers.start(ahead.jobs * self.look.seen, mean_s, takes)
            if start is None:
                return Place(position, None, None)
            starts_s, server = start
            waiting = max(self._waiting, ahead.jobs + load.images) * self.look.seen
            slowness = self._slowness_in(job.bucket)[server.layout]
            lasts_s = load.lasts(server.slots, servers.rows(waiting)) * slowness
            buckets = {bucket for bucket, _ in job.passes()}
            compile_s = sum(map(self._table.compile_s, buckets))
            return Place(position, starts_s, starts_s + compile_s + lasts_s)

        if takes is None or not is_urgent:
            return place(self._servers)
        found = place(self._within_reach(takes))
        is_late = found.ends_s and self.look.now + found.ends_s > (job.deadline_at or math.inf)
        preempting = self._preempting(job.bucket, load) if is_late else None
        return (
            min(found, place(preempting), key=lambda one: one.ends_s or 0) if preempting else found
        )

    def newcomer(self, job: Job) -> Place:
        """Estimate the place of a job put now: behind all of its tenant.

        A deadline that could only be met at the expense of another one that waits has its place
        behind all of these.
        """
        tenant = self._tenants.get(job.tenant)
        place = self.queued(job, tenant.jobs + self._since[job.tenant] if tenant else 0)
        if self._makes_late(job):
            place = self._behind_deadlines(job, place)
        has_credit = self._has_credit(job)
        is_guaranteed = not has_credit and self._is_guaranteed(job)
        return replace(place, is_credited=has_credit, is_guaranteed=is_guaranteed)

    def thinned_s(self, job: Job, within_s: float) -> float | None:
        """Return the seconds until a newcomer lasts no longer than that beside what is left.

        If no more come; None: nobody knows.
        """
        load, pools = self._load(job, 0), self._seen_pools
        if load is None or not pools:
            return None
        fastest = min(pools, key=lambda pool: self._slowness_in(job.bucket)[pool.layout])
        slowness = self._slowness_in(job.bucket)[fastest.layout]
        fitting = [
            rows
            for rows in range(load.images, fastest.slots + 1)
            if load.lasts(fastest.slots, rows) * slowness <= within_s
        ]
        left = max(0, max(fitting, default=0) * len(pools) - load.images)
        return self._servers.thinned_s(self._waiting * self.look.seen, self._mean_s, left)

    def accepted(self, job: Job) -> None:
        """A job with a deadline was put after the look: those that come now have to know of it."""
        if job.deadline_at is None:
            return
        latest = job.deadline_at - (job.run_s or 0.0)
        credited = bool(job.credited or job.guaranteed)
        urgent = Urgent(latest, job.tenant, job.cost, job.id, credited)
        self._urgent.append(urgent)
        self.__dict__.pop("_urgent_of", None)
        if job.tenant in self._tenants:
            self._since[job.tenant] += 1
        else:
            tag = self._tag(job)
            self._tenants[job.tenant] = Tenant(job.tenant, tag, tag, job.cost, job.weight, 1)

    def slot_free_s(self, max_queued: int) -> float | None:
        """Seconds until fewer jobs than that wait, if no more come; None: no pool is ready."""
        leaving = max(0, self._waiting - max_queued) * self.look.seen
        found = self._servers.start(leaving, self._mean_s)
        return found[0] if found else None

    def running_s(self, job: Job) -> float | None:
        """Seconds until a running job ends; None: its pool or its costs are not known."""
        load, found = self._load(job, 0), self._pools.get(job.pool or "")
        if load is None or found is None:
            return None
        cost, done = self._cost(job, 0), self._done(job)
        decode_s = cost.decode_s if cost else 0.0
        left_s = remaining_s(load, done, decode_s, found, self._servers.busy)
        return compiling_s(job, self.look.now) + left_s

    def _takes(self, job: Job, load: Load) -> Takes | None:
        """Mirror `claim_jobs.lua`: a pool too slow for a deadline leaves the job to others."""
        if job.deadline_at is None or load.alone_s is None:
            return None
        left_s, alone_s = job.deadline_at - self.look.now, load.alone_s
        slowness = self._slowness_in(job.bucket)

        def takes(at: float, layout: str) -> bool:
            return slowness[layout] <= 1 or at + alone_s * slowness[layout] <= left_s

        return takes

    def _preempting(self, bucket: str, load: Load) -> SlotSimulation | None:
        """Simulate pools that preempt jobs for one that would be late; None: none does."""
        slowness = self._slowness_in(bucket)

        def left(one: Running) -> Running:
            pool = self._pools.get(one.pool)
            takes_s = (load.alone_s or math.inf) * (slowness[pool.layout] if pool else 1.0)
            if pool is None or takes_s > one.yields_to_s or load.images > one.load.images:
                return one
            seconds = (ASKED_EVERY_S + one.step_s) / pool.slowness
            return Running(one.pool, Load(0.0, seconds, one.load.images), 0.0)

        running = [left(one) for one in self.look.running]
        if running == list(self.look.running):
            return None
        return SlotSimulation(self._seen_pools, running, self._waiting > 0)

    def _slowness_in(self, bucket: str) -> Mapping[str, float]:
        """Slowness by layout, relative to the fastest for a job of that bucket."""
        if bucket not in self._slowness:
            self._slowness[bucket] = {
                pool.layout: self._by_bucket[pool.layout].get(bucket, pool.slowness)
                for pool in self._pools.values()
            }
        return self._slowness[bucket]

    @cached_property
    def _by_bucket(self) -> Mapping[str, Mapping[str, float]]:
        layouts = {pool.layout for pool in self._table.pools.values()}
        return {layout: self._table.slowness_by_bucket(layout) for layout in layouts}

    def _within_reach(self, takes: Takes) -> SlotSimulation:
        """Simulate only the pools that take it now: those take what goes before it, too."""
        layouts = frozenset(layout for layout in self._layouts if takes(0.0, layout))
        if layouts not in self._servers_of:
            pools = [pool for pool in self._seen_pools if pool.layout in layouts]
            self._servers_of[layouts] = SlotSimulation(pools, self.look.running, self._waiting > 0)
        return self._servers_of[layouts] if layouts else self._servers

    def _ahead(self, job: Job, rank: int) -> tuple[Ahead, bool]:
        """Return what is ahead of a job, of all tenants.

        By turns or, with a deadline and credit, by the latest start; and whether it was the latter.
        """
        tenant = self._tenants.get(job.tenant)
        tag = tenant.tag if tenant else self._tag(job)
        pace = tenant.pace if tenant else job.cost / job.weight
        level = job.priority - PRIORITIES["normal"]
        order = tag + rank * pace - level * self._rules.advance_s
        if job.deadline_at is None:
            return self._by_turns(job, order, rank), False
        latest = job.deadline_at - (job.run_s or 0.0)
        first = [one for one in self._urgent if one.latest <= latest and one.id != job.id]
        mine = [one.seconds for one in first if one.tenant == job.tenant]
        near = tag + (sum(mine) - self._credit_s) / job.weight
        if near <= self.look.virtual or job.credited or job.guaranteed:
            return self._by_deadline(first, self.look.virtual), True
        return self._by_turns(job, min(order, near), len(mine) if near < order else rank), False

    def _makes_late(self, job: Job) -> bool:
        """Return whether a job with a deadline, of those that can start in time, could not then."""
        if job.deadline_at is None:
            return False
        mine = Urgent(job.deadline_at - (job.run_s or 0.0), job.tenant, job.cost, job.id)
        if all(one.latest <= mine.latest for one in self._urgent):
            return False
        return bool(self._late([*self._urgent, mine]) - self._late(self._urgent) - {job.id})

    def _late(self, urgent: Sequence[Urgent]) -> set[str]:
        """Return which jobs start too late where all of these go by their latest starts."""
        ordered = sorted(urgent, key=lambda one: one.latest)
        starts = self._servers.starts(one.seconds for one in ordered)
        return {
            one.id
            for one, start in zip(ordered, starts, strict=False)
            if self.look.now + start > one.latest
        }

    def _behind_deadlines(self, job: Job, place: Place) -> Place:
        """Return a job's place behind all deadlines that wait."""
        if place.starts_s is None or place.ends_s is None:
            return place
        *_, starts_s = self._servers.starts([*(one.seconds for one in self._urgent), job.cost])
        delay_s = max(0.0, starts_s - place.starts_s)
        return replace(place, starts_s=place.starts_s + delay_s, ends_s=place.ends_s + delay_s)

    @property
    def _credit_s(self) -> float:
        """A tenant's credit with the pools that are there, as `next_job.lua` has it."""
        return self._rules.credit_s * max(1, len(self._table.pools))

    def _has_credit(self, job: Job) -> bool:
        """Return whether its tenant's credit is enough for it and for all that was credited."""
        if job.deadline_at is None:
            return False
        tenant = self._tenants.get(job.tenant)
        tag = tenant.tag if tenant else self._tag(job)
        return tag + self._beyond_credit_s(job) / job.weight <= self.look.virtual

    def _is_guaranteed(self, job: Job) -> bool:
        """Return whether what waits by its tenant's deadlines is less than credit, with it.

        How much the tenant has been served counts in its turn, by which it is admitted.
        """
        return job.deadline_at is not None and self._beyond_credit_s(job) <= 0

    def _beyond_credit_s(self, job: Job) -> float:
        """Return the device-seconds by deadlines, it included, less its tenant's credit."""
        return self._credited_of.get(job.tenant, 0.0) + job.cost - self._credit_s

    @property
    def _credited_of(self) -> Mapping[str, float]:
        """Device-seconds that wait on credit, by tenant."""
        total: defaultdict[str, float] = defaultdict(float)
        for one in self._urgent:
            if one.is_credited:
                total[one.tenant] += one.seconds
        return total

    def _tag(self, job: Job) -> float:
        return max(self.look.virtual, self.look.idle.get(job.tenant, 0.0))

    def _by_turns(self, job: Job, order: float, rank: int) -> Ahead:
        tenant = self._tenants.get(job.tenant)
        all_of_them = self._turns.before(order, job.tenant)
        own = Ahead(rank, rank * (tenant.mean_s if tenant else job.cost))
        if tenant:
            counted = tenant.before(order, job.tenant)
            all_of_them = all_of_them.without(Ahead(counted, counted * tenant.mean_s))
        return all_of_them + own + self._urgent_besides(job, order)

    def _urgent_besides(self, job: Job, order: float) -> Ahead:
        """Jobs with deadlines that go before that place although their turn comes after it."""
        total = Ahead()
        for name, theirs in self._urgent_of.items():
            tenant = self._tenants.get(name)
            if tenant and name != job.tenant:
                by_turn = tenant.before(order, job.tenant)
                by_deadline = self._within_credit(tenant, theirs, max(self.look.virtual, order))
                jobs = max(0.0, by_deadline - by_turn)
                total += Ahead(jobs, jobs * theirs.seconds / theirs.jobs)
        return total

    def _by_deadline(self, first: Sequence[Urgent], virtual: float) -> Ahead:
        total = Ahead()
        for name, theirs in _by_tenant(first).items():
            if tenant := self._tenants.get(name):
                jobs = self._within_credit(tenant, theirs, virtual)
                total += Ahead(jobs, jobs * theirs.seconds / theirs.jobs)
        return total

    def _within_credit(self, tenant: Tenant, urgent: Ahead, virtual: float) -> float:
        """Number of these jobs that may go out of turn before virtual time is that far."""
        credit_s = (virtual - tenant.tag) * tenant.weight + self._credit_s
        mean_s = max(urgent.seconds, 1e-9) / max(urgent.jobs, 1e-9)
        credited = self._credited_of.get(tenant.name, 0.0) / mean_s
        by_credit = credit_s / mean_s + 0.5 if credit_s >= 0 else 0.0
        return min(urgent.jobs, max(by_credit, credited))

    def _cost(self, job: Job, done: int) -> Cost | None:
        cost = self._table.predict_passes(job.passes(done), job.images)
        return cost and cost.longer(job.tail_s)

    def _done(self, job: Job) -> float:
        """Return the share of a job's steps that is done, by the time that they take."""
        share = min(1.0, job.step / max(1, job.steps))
        if job.second_pass is None or job.step > job.steps:
            return share
        costs = [self._cost(job, done) for done in (0, job.step, job.steps)]
        whole, left, none = (cost.seconds if cost else 0.0 for cost in costs)
        return (whole - left) / (whole - none) if whole > none else share

    def _load(self, job: Job, done: int) -> Load | None:
        """Load of a job after so many steps, by what is known now, or was known when it was put."""
        if cost := self._cost(job, done):
            return Load(cost.device_seconds, cost.seconds, job.images)
        if job.run_s is None:
            return None
        left = 1 - min(1.0, done / max(1, job.steps))
        device_seconds = max(0.0, job.cost - job.compile_s)
        return Load(device_seconds * left, job.run_s * left, job.images)

    @cached_property
    def _turns(self) -> FairShares:
        return FairShares(self.look.tenants.values())

    @cached_property
    def _urgent_of(self) -> Mapping[str, Ahead]:
        return _by_tenant(self._urgent)

    @cached_property
    def _waiting(self) -> int:
        return sum(tenant.jobs for tenant in self.look.tenants.values())

    @cached_property
    def _mean_s(self) -> float:
        """Device-seconds of one that waits."""
        seconds = sum(tenant.seconds for tenant in self.look.tenants.values())
        return seconds / max(1, self._waiting)

    @cached_property
    def _pools(self) -> Mapping[str, Pool]:
        pools = self._table.pools
        layouts = {pool.layout for pool in pools.values()}
        slowness = {layout: self._table.slowness(layout) for layout in layouts}
        return {
            name: Pool(name, pool.slots, slowness[pool.layout], pool.layout, pool.away_s)
            for name, pool in pools.items()
        }

    @cached_property
    def _seen_pools(self) -> Sequence[Pool]:
        """Return the pools that serve the share of the queue that was seen.

        Where only a share of what runs was seen, as many pools, those that were seen first.
        """
        busy = {one.pool for one in self.look.running}
        pools = sorted(self._pools.values(), key=lambda pool: pool.name not in busy)
        return pools[: math.ceil(len(pools) * self.look.seen)]

    @cached_property
    def _layouts(self) -> frozenset[str]:
        return frozenset(pool.layout for pool in self._seen_pools)

    @cached_property
    def _servers(self) -> SlotSimulation:
        return SlotSimulation(self._seen_pools, self.look.running, self._waiting > 0)


def compiling_s(job: Job, now: float) -> float:
    """Remaining time of compiling a running job's programs.

    What has taken longer than expected is expected to take a while yet.
    """
    if job.detail is None:
        return job.compile_s if job.step == 0 else 0.0
    if job.detail.stage != "compiling":
        return 0.0
    past_s = max(0.0, now - job.detail.since)
    expected_s = job.compile_s if job.detail.expected_s is None else job.detail.expected_s
    return max(expected_s - past_s, OVERDUE * past_s)


def _by_tenant(urgent: Sequence[Urgent]) -> Mapping[str, Ahead]:
    total: defaultdict[str, Ahead] = defaultdict(Ahead)
    for one in urgent:
        total[one.tenant] += Ahead(1, one.seconds)
    return dict(total)
