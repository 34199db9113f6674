"""Schedulers of a simulated fleet: the real queue, and orders to compare with."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from lab.load.simulator.clock import ClockedQueue
from lab.load.simulator.pool import Pool, Row, SimulatedRequest
from models.spec.model_spec import ModelSpec
from service.front_end.cost_cache import ESTIMATOR_AGE_S
from service.jobs.model.job import Job, Snapshot, Usage, new_job_id
from service.jobs.model.preemption import FullPool, Preemptible
from service.jobs.queue import Claim, WorkerState
from service.jobs.scheduling.cost_model import CostKey, CostRow, CostTable, PoolFacts
from service.jobs.scheduling.wait_estimator import Rules, WaitEstimator
from service.settings.pools import PoolSettings
from service.settings.queue import QueueSettings
from tests.service.standin import SPEC

LEASE_S = 1e6
"""Longer than any simulation, so that leases need no renewal."""
SETTINGS = QueueSettings(lease_s=LEASE_S, max_queued=10**9)
SUSPEND_S = 30.0
QUIET_S = 3.5
"""Interval in which a full pool asks for preemption with an empty queue; its report to the queue is
valid for 5 s."""


class Scheduler(Protocol):
    """Interface of a scheduler under test."""

    name: str

    async def begin(self, pools: Sequence[Pool], shapes: Iterable[SimulatedRequest]) -> None:
        """Prepare for pools that serve requests of these shapes."""

    async def put(self, arrival: SimulatedRequest) -> bool:
        """Submit a request; returns whether it is admitted."""

    async def claim(self, pool: Pool) -> list[Row]:
        """Return the rows that a pool takes into its free slots."""

    async def make_room(self, pool: Pool) -> Row | None:
        """Return a row of a full pool to preempt, or None; called every second."""

    async def make_room_for(self, arrival: SimulatedRequest, pools: Sequence[Pool]) -> Row | None:
        """Return a row of all pools to preempt for a new request, or None."""

    async def requeue(self, row: Row) -> None:
        """Requeue a preempted row with its progress."""

    async def finish(self, row: Row) -> None:
        """Record that a row is done."""

    async def is_expired(self, row: Row) -> bool:
        """Return whether a running row ends because its deadline has passed."""

    async def tick(self, now: float) -> None:
        """Do periodic work, every two seconds."""


class RealQueue:
    """The real queue, called like front ends and pools call it.

    Args:
        quantum_s: setting of the pools.
    """

    name = "ours"

    def __init__(
        self, queue: ClockedQueue, settings: QueueSettings, quantum_s: float | None = None
    ) -> None:
        pool = PoolSettings(model="any")
        self._queue = queue
        self._epoch_s = queue.clock.now
        self._quantum_s = pool.quantum_s if quantum_s is None else quantum_s
        self._ratio = pool.preemption_ratio
        self._rules = Rules(settings.priority_advance_s, settings.deadline_credit_s)
        self._tables: dict[str, CostTable] = {}
        self._outlooks: dict[str, tuple[WaitEstimator, float]] = {}
        self._requests: dict[str, SimulatedRequest] = {}
        self._warm: dict[str, tuple[str, ...]] = {}
        self._waiting: defaultdict[str, dict[str, float]] = defaultdict(dict)
        """Latest useful start of queued jobs, by queue; only saves calls of the queue."""
        self._requested_at: dict[str, float] = {}

    async def begin(self, pools: Sequence[Pool], shapes: Iterable[SimulatedRequest]) -> None:
        requests_by_shape: defaultdict[str, dict[str, SimulatedRequest]] = defaultdict(dict)
        for arrival in shapes:
            requests_by_shape[arrival.queue][arrival.shape] = arrival
        for pool in pools:
            warm = tuple(requests_by_shape[pool.queue])
            facts = PoolFacts("slice", pool.slots, warm)
            await self._queue.register(pool.name, _spec(pool.queue), ready=True, facts=facts)
            self._warm[pool.queue] = warm
        slots = {pool.queue: pool.slots for pool in pools}
        for queue, requests in requests_by_shape.items():
            await self._queue.measured(queue, _measured(requests, slots[queue]))
            self._tables[queue] = await self._queue.costs(queue)

    async def put(self, arrival: SimulatedRequest) -> bool:
        table = self._tables[arrival.queue]
        cost = table.predict(arrival.shape, arrival.times.steps, 1)
        assert cost is not None
        job = Job(
            id=new_job_id(), model=arrival.queue, bucket=arrival.shape, tenant=arrival.tenant,
            weight=arrival.weight, steps=arrival.times.steps, cost=cost.device_seconds,
            run_s=cost.seconds,
            deadline_at=self._queue.clock.now + arrival.deadline_s,
            request={"deadline_s": arrival.deadline_s},
        )  # fmt: skip
        estimator = await self._outlook(arrival.queue)
        estimate_ = estimator.new_job_estimate(job)
        if (estimate_.ends_s or cost.seconds) > arrival.deadline_s:
            return False
        stored, _ = await self._queue.put(estimate_.mark_job(job))
        estimator.add_accepted(stored)
        self._requests[stored.id] = arrival
        self._waiting[arrival.queue][stored.id] = (job.deadline_at or math.inf) - cost.seconds
        return True

    async def _outlook(self, queue: str) -> WaitEstimator:
        now = self._queue.clock.now
        outlook, until = self._outlooks.get(queue, (None, 0.0))
        if outlook is None or now >= until:
            look = await self._queue.queue_snapshot(queue)
            outlook = WaitEstimator(look, self._tables[queue], self._rules)
            self._outlooks[queue] = outlook, now + ESTIMATOR_AGE_S
        return outlook

    async def claim(self, pool: Pool) -> list[Row]:
        worker = WorkerState(warm=self._warm[pool.queue], busy=lambda: bool(pool.rows))
        claims = await self._queue.claim(pool.name, pool.queue, pool.free, worker)
        return [self._row(claim) for claim in claims]

    def _row(self, claim: Claim) -> Row:
        self._waiting[claim.job.model].pop(claim.job.id, None)
        done = sum(snapshot.step for snapshot in claim.job.snapshots)
        return Row(self._requests[claim.job.id], claim, done=done, reported=done)

    async def make_room(self, pool: Pool) -> Row | None:
        """Preempt like `workers.pool.preemption`; with an empty queue only every QUIET_S."""
        now = self._queue.clock.now - self._epoch_s
        if (
            not self._waiting[pool.queue]
            and now < self._requested_at.get(pool.name, -math.inf) + QUIET_S
        ):
            return None
        self._requested_at[pool.name] = now
        active = [row for row in pool.rows if row.has_slot]
        rows = {
            row.hold.job.id: row
            for row in active
            if now - row.began_at >= self._quantum_s and not row.yields
        }
        if not rows:
            return None
        for row in active:
            await self._report(row)
        row_count = len(pool.rows)
        full = FullPool(
            pool=pool.name,
            model=pool.queue,
            slots=pool.slots,
            free=pool.free,
            soonest_s=min(row.left_s * row_count for row in active),
            held=[
                Preemptible(id_, row.hold.fence, row.left_s * row_count, 1)
                for id_, row in rows.items()
            ],
            warm=self._warm[pool.queue],
        )
        pair = await self._queue.preempt(full, self._ratio, SUSPEND_S)
        return rows[pair[0]] if pair else None

    async def make_room_for(self, arrival: SimulatedRequest, pools: Sequence[Pool]) -> Row | None:
        return None

    async def _report(self, row: Row) -> None:
        if row.reported != row.done:
            row.reported = row.done
            await self._queue.progress(row.hold, row.done, row.request.times.steps)

    async def requeue(self, row: Row) -> None:
        await self._report(row)
        snapshot = Snapshot(index=0, step=row.done, fence=row.hold.fence, key="state")
        await self._queue.snapshot(row.hold, [snapshot])
        await self._queue.release(row.hold, preempted=True)
        deadline_at = row.hold.job.deadline_at or math.inf
        self._waiting[row.request.queue][row.hold.job.id] = deadline_at - row.rest_s

    async def finish(self, row: Row) -> None:
        cost = row.hold.job.cost
        await self._queue.finish(row.hold, [], Usage(device_seconds=cost))

    async def is_expired(self, row: Row) -> bool:
        return not await self._queue.progress(row.hold, row.done, row.request.times.steps)

    async def tick(self, now: float) -> None:
        await self._queue.reap()
        for waiting in self._waiting.values():
            late = [id_ for id_, until in waiting.items() if self._queue.clock.now > until]
            for id_ in late:
                del waiting[id_]


def _spec(queue: str) -> ModelSpec:
    return SPEC.model_copy(update={"name": queue})


def _measured(requests: Mapping[str, SimulatedRequest], slots: int) -> dict[CostKey, CostRow]:
    return {
        CostKey(shape, "slice", rows): CostRow(
            step_s=seconds, encode_s=arrival.times.encode_s, decode_s=arrival.times.decode_s
        )
        for shape, arrival in requests.items()
        for rows, seconds in enumerate(arrival.times.step_s[:slots], 1)
    }


Key = Callable[[Row, float], object]
"""Sort key of a waiting row at a time; the least goes first."""


class Ordered:
    """All waiting rows in one order, without admission; late rows are still served.

    Args:
        key: sort key of the order.
        preempts: whether an image without a slot preempts the video with the most slack.
    """

    def __init__(self, name: str, key: Key, preempts: bool = False) -> None:
        self.name = name
        self._key = key
        self._preempts = preempts
        self._waiting: defaultdict[str, list[Row]] = defaultdict(list)
        self._now = 0.0

    def forget(self) -> None:
        """Reset the state."""
        self._waiting.clear()
        self._now = 0.0

    async def begin(self, pools: Sequence[Pool], shapes: Iterable[SimulatedRequest]) -> None:
        pass

    async def put(self, arrival: SimulatedRequest) -> bool:
        self._waiting[arrival.queue].append(Row(arrival))
        self._now = arrival.at_s
        return True

    async def claim(self, pool: Pool) -> list[Row]:
        waiting = self._waiting[pool.queue]
        claimed: list[Row] = []
        while waiting and len(claimed) < pool.free:
            row = min(waiting, key=lambda candidate: self._key(candidate, self._now))
            waiting.remove(row)
            claimed.append(row)
        return claimed

    async def make_room(self, pool: Pool) -> Row | None:
        return None

    async def make_room_for(self, arrival: SimulatedRequest, pools: Sequence[Pool]) -> Row | None:
        if not self._preempts or arrival.is_video:
            return None
        videos = [
            row
            for pool in pools
            for row in pool.rows
            if pool.queue == arrival.queue
            and row.request.is_video
            and row.has_slot
            and not row.yields
        ]
        return max(videos, key=lambda row: slack_s(row, self._now), default=None)

    async def requeue(self, row: Row) -> None:
        row.yields, row.stage = False, "encode"
        self._waiting[row.request.queue].append(row)

    async def finish(self, row: Row) -> None:
        pass

    async def is_expired(self, row: Row) -> bool:
        return False

    async def tick(self, now: float) -> None:
        self._now = now


def slack_s(row: Row, now: float) -> float:
    """Seconds that remain until the deadline if the row ran from now on."""
    return row.request.deadline_at - now - row.rest_s


def _pictures_first(row: Row, now: float) -> object:
    """Order by class, then whether the deadline can still be met, then by slack."""
    slack = slack_s(row, now)
    return row.request.is_video, slack < 0, slack


def baselines() -> list[Ordered]:
    """Orders of other schedulers."""
    return [
        Ordered("first come", lambda row, _: row.request.number),
        Ordered("shortest first", lambda row, _: (row.rest_s, row.request.number)),
        Ordered("earliest deadline", lambda row, _: row.request.deadline_at),
        Ordered("images preempt videos", _pictures_first, preempts=True),
    ]
