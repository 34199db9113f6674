"""Estimates of waits, from one snapshot of a model's queue.

Jobs count with their tenant's mean cost, and batches are assumed to have the most efficient size.
Preference for warm buckets and future arrivals are ignored. Preemption is considered for deadlines
only.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from service.jobs.model.job import PRIORITIES, Job
from service.jobs.scheduling.cost_model import Cost, CostTable
from service.jobs.scheduling.fair_share import FairShares, JobsAhead, Tenant
from service.jobs.scheduling.queue_snapshot import QueueSnapshot, UrgentJob
from service.jobs.scheduling.slot_simulation import (
    Load,
    Pool,
    RunningJob,
    SlotSimulation,
    Takes,
    remaining_s,
)

PREEMPT_EVERY_S = 1.0
"""Interval at which a full worker checks for a job to preempt (`workers/pool/preemption.py`)."""


OVERDUE = 0.25
"""Expected remaining time of an overdue compilation, as a share of its time so far."""


@dataclass(frozen=True)
class Rules:
    """Parameters of the fair queue order, in device-seconds."""

    advance_s: float
    """Advance between tenants per level of priority."""
    credit_s: float
    """Credit per worker by which deadlines may bring a tenant ahead of its share."""


@dataclass(frozen=True)
class WaitEstimate:
    """Estimated position of a job in the queue, with its start and end."""

    position: int
    """Number of jobs that start before it."""
    starts_s: float | None
    """Seconds until it starts; None: no worker is ready, or costs are unknown."""
    ends_s: float | None
    """Seconds until it ends; None: as `starts_s`."""
    is_credited: bool = False
    """True if its tenant has credit for its deadline, in addition to those credited before. The
    queue then orders it by its deadline."""
    is_guaranteed: bool = False
    """True if its tenant's waiting deadlines are below its credit. The queue then orders it by its
    deadline, after the turns of jobs that arrived earlier."""

    def mark_job(self, job: Job) -> Job:
        """Return the job with the marks of this place, for acceptance."""
        marks = {"credited": self.is_credited or None, "guaranteed": self.is_guaranteed or None}
        return job.model_copy(update=marks)


class WaitEstimator:
    """Estimator of waits from one snapshot. An estimate is cheap, however long the queue is."""

    def __init__(self, snapshot: QueueSnapshot, table: CostTable, rules: Rules) -> None:
        self.snapshot = snapshot
        self._table = table
        self._rules = rules
        self._tenants = dict(snapshot.tenants)
        self._urgent = list(snapshot.urgent)
        self._since: Counter[str] = Counter()
        """Number of jobs accepted since the snapshot, by tenant that had queued jobs before."""
        self._simulations: dict[frozenset[str], SlotSimulation] = {}
        """Simulations by the layouts of their workers."""
        self._slowness: dict[str, Mapping[str, float]] = {}
        """Slowness by bucket and layout."""

    def estimate(self, job: Job, rank: int) -> WaitEstimate:
        """Estimate the place of a job that is queued, or arrives now.

        Args:
            rank: number of its tenant's jobs that go before it.
        """
        ahead, is_urgent = self._ahead(job, rank)
        position, load = round(ahead.jobs), self._load(job, job.step)
        mean_s = ahead.seconds / ahead.jobs if ahead.jobs else 0.0
        if load is None:
            return WaitEstimate(position, None, None)
        takes = self._takes(job, load)

        def place(servers: SlotSimulation) -> WaitEstimate:
            start = servers.start(ahead.jobs * self.snapshot.coverage, mean_s, takes)
            if start is None:
                return WaitEstimate(position, None, None)
            starts_s, slot = start
            waiting = max(self._waiting, ahead.jobs + load.images) * self.snapshot.coverage
            slowness = self._slowness_in(job.bucket)[slot.layout]
            lasts_s = load.duration_s(slot.slots, servers.rows(waiting)) * slowness
            buckets = {bucket for bucket, _ in job.passes()}
            compile_s = sum(map(self._table.compile_s, buckets))
            return WaitEstimate(position, starts_s, starts_s + compile_s + lasts_s)

        if takes is None or not is_urgent:
            return place(self._simulation)
        estimate = place(self._within_reach(takes))
        is_late = estimate.ends_s and self.snapshot.now + estimate.ends_s > (
            job.deadline_at or math.inf
        )
        preempting = self._preempting(job.bucket, load) if is_late else None
        return (
            min(estimate, place(preempting), key=lambda candidate: candidate.ends_s or 0)
            if preempting
            else estimate
        )

    def new_job_estimate(self, job: Job) -> WaitEstimate:
        """Estimate the place of a job that is put now, after all others of its tenant.

        If its deadline could only be met at the expense of another waiting deadline, its place is
        after all of these.
        """
        tenant = self._tenants.get(job.tenant)
        place = self.estimate(job, tenant.jobs + self._since[job.tenant] if tenant else 0)
        if self._makes_late(job):
            place = self._after_deadlines(job, place)
        has_credit = self._has_credit(job)
        is_guaranteed = not has_credit and self._is_guaranteed(job)
        return replace(place, is_credited=has_credit, is_guaranteed=is_guaranteed)

    def retry_wait_s(self, job: Job, within_s: float) -> float | None:
        """Return how long a new job must wait so that it then finishes within `within_s`.

        Assumes no further arrivals; None if unknown.
        """
        load, pools = self._load(job, 0), self._sampled_pools
        if load is None or not pools:
            return None
        fastest = min(pools, key=lambda pool: self._slowness_in(job.bucket)[pool.layout])
        slowness = self._slowness_in(job.bucket)[fastest.layout]
        fitting = [
            rows
            for rows in range(load.images, fastest.slots + 1)
            if load.duration_s(fastest.slots, rows) * slowness <= within_s
        ]
        left = max(0, max(fitting, default=0) * len(pools) - load.images)
        return self._simulation.drain_wait_s(
            self._waiting * self.snapshot.coverage, self._mean_s, left
        )

    def add_accepted(self, job: Job) -> None:
        """Add a job with a deadline that was accepted after the snapshot, for later estimates."""
        if job.deadline_at is None:
            return
        latest = job.deadline_at - (job.run_s or 0.0)
        credited = bool(job.credited or job.guaranteed)
        urgent = UrgentJob(latest, job.tenant, job.cost, job.id, credited)
        self._urgent.append(urgent)
        self.__dict__.pop("_urgent_of", None)
        if job.tenant in self._tenants:
            self._since[job.tenant] += 1
        else:
            tag = self._tag(job)
            self._tenants[job.tenant] = Tenant(job.tenant, tag, tag, job.cost, job.weight, 1)

    def slot_free_s(self, max_queued: int) -> float | None:
        """Return the seconds until fewer than `max_queued` jobs wait.

        Assumes no further arrivals; None: no worker is ready.
        """
        leaving = max(0, self._waiting - max_queued) * self.snapshot.coverage
        start = self._simulation.start(leaving, self._mean_s)
        return start[0] if start else None

    def running_s(self, job: Job) -> float | None:
        """Return the seconds until a running job ends; None: its worker or costs are unknown."""
        load, worker = self._load(job, 0), self._pools.get(job.pool or "")
        if load is None or worker is None:
            return None
        cost, done = self._cost(job, 0), self._done(job)
        decode_s = cost.decode_s if cost else 0.0
        left_s = remaining_s(load, done, decode_s, worker, self._simulation.busy)
        return compiling_s(job, self.snapshot.now) + left_s

    def _takes(self, job: Job, load: Load) -> Takes | None:
        """Return whether a worker may take a job: slow workers skip tight deadlines."""
        if job.deadline_at is None or load.alone_s is None:
            return None
        left_s, alone_s = job.deadline_at - self.snapshot.now, load.alone_s
        slowness = self._slowness_in(job.bucket)

        def takes(at: float, layout: str) -> bool:
            return slowness[layout] <= 1 or at + alone_s * slowness[layout] <= left_s

        return takes

    def _preempting(self, bucket: str, load: Load) -> SlotSimulation | None:
        """Simulate workers that preempt jobs for a job that would be late; None: none would."""
        slowness = self._slowness_in(bucket)

        def left(job: RunningJob) -> RunningJob:
            pool = self._pools.get(job.pool)
            takes_s = (load.alone_s or math.inf) * (slowness[pool.layout] if pool else 1.0)
            if pool is None or takes_s > job.yields_to_s or load.images > job.load.images:
                return job
            seconds = (PREEMPT_EVERY_S + job.step_s) / pool.slowness
            return RunningJob(job.pool, Load(0.0, seconds, job.load.images), 0.0)

        running = [left(job) for job in self.snapshot.running]
        if running == list(self.snapshot.running):
            return None
        return SlotSimulation(self._sampled_pools, running, self._waiting > 0)

    def _slowness_in(self, bucket: str) -> Mapping[str, float]:
        """Return each layout's slowness relative to the fastest for a bucket."""
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
        """Simulate only the workers that may take a job now; preceding jobs run there, too."""
        layouts = frozenset(layout for layout in self._layouts if takes(0.0, layout))
        if layouts not in self._simulations:
            pools = [pool for pool in self._sampled_pools if pool.layout in layouts]
            self._simulations[layouts] = SlotSimulation(
                pools, self.snapshot.running, self._waiting > 0
            )
        return self._simulations[layouts] if layouts else self._simulation

    def _ahead(self, job: Job, rank: int) -> tuple[JobsAhead, bool]:
        """Return the jobs of all tenants that precede a job, and whether its deadline orders it.

        A job with a deadline and credit is ordered by its latest start; otherwise by fair share.
        """
        tenant = self._tenants.get(job.tenant)
        tag = tenant.tag if tenant else self._tag(job)
        pace = tenant.pace if tenant else job.cost / job.weight
        level = job.priority - PRIORITIES["normal"]
        order = tag + rank * pace - level * self._rules.advance_s
        if job.deadline_at is None:
            return self._ahead_by_turn(job, order, rank), False
        latest = job.deadline_at - (job.run_s or 0.0)
        first = [
            urgent for urgent in self._urgent if urgent.latest <= latest and urgent.id != job.id
        ]
        mine = [urgent.seconds for urgent in first if urgent.tenant == job.tenant]
        near = tag + (sum(mine) - self._credit_s) / job.weight
        if near <= self.snapshot.virtual or job.credited or job.guaranteed:
            return self._ahead_by_deadline(first, self.snapshot.virtual), True
        return self._ahead_by_turn(
            job, min(order, near), len(mine) if near < order else rank
        ), False

    def _makes_late(self, job: Job) -> bool:
        """Return whether a job would make another one miss a deadline that it can meet."""
        if job.deadline_at is None:
            return False
        mine = UrgentJob(job.deadline_at - (job.run_s or 0.0), job.tenant, job.cost, job.id)
        if all(urgent.latest <= mine.latest for urgent in self._urgent):
            return False
        return bool(self._late([*self._urgent, mine]) - self._late(self._urgent) - {job.id})

    def _late(self, urgent: Sequence[UrgentJob]) -> set[str]:
        """Return the ids of jobs that start too late if these jobs run in order of latest start."""
        ordered = sorted(urgent, key=lambda job: job.latest)
        starts = self._simulation.starts(job.seconds for job in ordered)
        return {
            job.id
            for job, start in zip(ordered, starts, strict=False)
            if self.snapshot.now + start > job.latest
        }

    def _after_deadlines(self, job: Job, place: WaitEstimate) -> WaitEstimate:
        """Move the position of a job after all waiting jobs with deadlines."""
        if place.starts_s is None or place.ends_s is None:
            return place
        *_, starts_s = self._simulation.starts(
            [*(urgent.seconds for urgent in self._urgent), job.cost]
        )
        delay_s = max(0.0, starts_s - place.starts_s)
        return replace(place, starts_s=place.starts_s + delay_s, ends_s=place.ends_s + delay_s)

    @property
    def _credit_s(self) -> float:
        """Device-seconds of credit of a tenant with the ready workers, as in `next_job.lua`."""
        return self._rules.credit_s * max(1, len(self._table.pools))

    def _has_credit(self, job: Job) -> bool:
        """Return whether the tenant's credit covers the job and all its jobs credited before."""
        if job.deadline_at is None:
            return False
        tenant = self._tenants.get(job.tenant)
        tag = tenant.tag if tenant else self._tag(job)
        return tag + self._beyond_credit_s(job) / job.weight <= self.snapshot.virtual

    def _is_guaranteed(self, job: Job) -> bool:
        """Return whether the tenant's waiting deadlines and this job's are within its credit.

        The tenant's earlier usage determines its turn, which decides the job's admission.
        """
        return job.deadline_at is not None and self._beyond_credit_s(job) <= 0

    def _beyond_credit_s(self, job: Job) -> float:
        """Return by how many device-seconds the tenant's deadlines exceed its credit."""
        return self._credited_of.get(job.tenant, 0.0) + job.cost - self._credit_s

    @property
    def _credited_of(self) -> Mapping[str, float]:
        """Device-seconds of waiting credited or guaranteed jobs, by tenant."""
        total: defaultdict[str, float] = defaultdict(float)
        for job in self._urgent:
            if job.is_credited:
                total[job.tenant] += job.seconds
        return total

    def _tag(self, job: Job) -> float:
        return max(self.snapshot.virtual, self.snapshot.idle.get(job.tenant, 0.0))

    def _ahead_by_turn(self, job: Job, order: float, rank: int) -> JobsAhead:
        """Return the jobs that precede a position if the job is ordered by its tenant's turn."""
        tenant = self._tenants.get(job.tenant)
        all_of_them = self._turns.before(order, job.tenant)
        mine = JobsAhead(rank, rank * (tenant.mean_s if tenant else job.cost))
        if tenant:
            counted = tenant.before(order, job.tenant)
            all_of_them = all_of_them.without(JobsAhead(counted, counted * tenant.mean_s))
        return all_of_them + mine + self._urgent_out_of_turn(job, order)

    def _urgent_out_of_turn(self, job: Job, order: float) -> JobsAhead:
        """Return jobs with deadlines that precede a position although their turn comes later."""
        total = JobsAhead()
        for name, theirs in self._urgent_of.items():
            tenant = self._tenants.get(name)
            if tenant and name != job.tenant:
                by_turn = tenant.before(order, job.tenant)
                by_deadline = self._within_credit(tenant, theirs, max(self.snapshot.virtual, order))
                jobs = max(0.0, by_deadline - by_turn)
                total += JobsAhead(jobs, jobs * theirs.seconds / theirs.jobs)
        return total

    def _ahead_by_deadline(self, first: Sequence[UrgentJob], virtual: float) -> JobsAhead:
        """Return jobs with earlier deadlines that run first because of their tenants' credit."""
        total = JobsAhead()
        for name, theirs in _by_tenant(first).items():
            if tenant := self._tenants.get(name):
                jobs = self._within_credit(tenant, theirs, virtual)
                total += JobsAhead(jobs, jobs * theirs.seconds / theirs.jobs)
        return total

    def _within_credit(self, tenant: Tenant, urgent: JobsAhead, virtual: float) -> float:
        """Return how many urgent jobs a tenant may run out of turn until that virtual time."""
        credit_s = (virtual - tenant.tag) * tenant.weight + self._credit_s
        mean_s = max(urgent.seconds, 1e-9) / max(urgent.jobs, 1e-9)
        credited = self._credited_of.get(tenant.name, 0.0) / mean_s
        by_credit = credit_s / mean_s + 0.5 if credit_s >= 0 else 0.0
        return min(urgent.jobs, max(by_credit, credited))

    def _cost(self, job: Job, done: int) -> Cost | None:
        cost = self._table.predict_passes(job.passes(done), job.images)
        return cost and cost.with_tail(job.tail_s)

    def _done(self, job: Job) -> float:
        """Return the completed share of a job's steps, by their predicted time."""
        share = min(1.0, job.step / max(1, job.steps))
        if job.second_pass is None or job.step > job.steps:
            return share
        costs = [self._cost(job, done) for done in (0, job.step, job.steps)]
        total, left, none = (cost.seconds if cost else 0.0 for cost in costs)
        return (total - left) / (total - none) if total > none else share

    def _load(self, job: Job, done: int) -> Load | None:
        """Return a job's load after `done` steps, by current costs or those at its acceptance."""
        if cost := self._cost(job, done):
            return Load(cost.device_seconds, cost.seconds, job.images)
        if job.run_s is None:
            return None
        left = 1 - min(1.0, done / max(1, job.steps))
        device_seconds = max(0.0, job.cost - job.compile_s)
        return Load(device_seconds * left, job.run_s * left, job.images)

    @cached_property
    def _turns(self) -> FairShares:
        return FairShares(self.snapshot.tenants.values())

    @cached_property
    def _urgent_of(self) -> Mapping[str, JobsAhead]:
        return _by_tenant(self._urgent)

    @cached_property
    def _waiting(self) -> int:
        return sum(tenant.jobs for tenant in self.snapshot.tenants.values())

    @cached_property
    def _mean_s(self) -> float:
        """Mean predicted device-seconds of a waiting job."""
        seconds = sum(tenant.seconds for tenant in self.snapshot.tenants.values())
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
    def _sampled_pools(self) -> Sequence[Pool]:
        """Workers that serve the share of the queue that the snapshot contains.

        If it contains only a share of the running jobs, this is the same share of the workers,
        those in the snapshot first.
        """
        busy = {job.pool for job in self.snapshot.running}
        pools = sorted(self._pools.values(), key=lambda pool: pool.name not in busy)
        return pools[: math.ceil(len(pools) * self.snapshot.coverage)]

    @cached_property
    def _layouts(self) -> frozenset[str]:
        return frozenset(pool.layout for pool in self._sampled_pools)

    @cached_property
    def _simulation(self) -> SlotSimulation:
        return SlotSimulation(self._sampled_pools, self.snapshot.running, self._waiting > 0)


def compiling_s(job: Job, now: float) -> float:
    """Return the remaining time of compiling a running job's programs.

    An overdue compilation is expected to take a share of its time so far in addition.
    """
    if job.detail is None:
        return job.compile_s if job.step == 0 else 0.0
    if job.detail.stage != "compiling":
        return 0.0
    past_s = max(0.0, now - job.detail.since)
    expected_s = job.compile_s if job.detail.expected_s is None else job.detail.expected_s
    return max(expected_s - past_s, OVERDUE * past_s)


def _by_tenant(urgent: Sequence[UrgentJob]) -> Mapping[str, JobsAhead]:
    total: defaultdict[str, JobsAhead] = defaultdict(JobsAhead)
    for job in urgent:
        total[job.tenant] += JobsAhead(1, job.seconds)
    return dict(total)
