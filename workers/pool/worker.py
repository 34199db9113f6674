"""Worker of one model: it claims the model's jobs and works on them side by side.

A drain lets what runs end or, where that takes too long, keeps it as it is and gives it back, for
another worker to go on with.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from models.interface.pipeline import Fields
from models.spec.model_spec import Batching, Sizes
from service.jobs.model.ledger import Origin
from service.jobs.queue import Claims, Queue
from service.jobs.redis.tasks import cancel
from service.jobs.storage.object_store import Store
from service.jobs.tenants import Tenants
from service.settings.pools import PoolSettings
from workers import metrics as worker_metrics
from workers.engine.engine import Engine
from workers.health.liveness import Liveness
from workers.media.marking import Marking
from workers.media.sent_videos import SentVideos
from workers.pool import metrics
from workers.pool.capacity import Capacity
from workers.pool.cost_reporting import CostReporter
from workers.pool.idle_work import IdleWork
from workers.pool.measuring import Trials, closeness
from workers.pool.output_checks import OutputCheck
from workers.pool.preemption import Preemption
from workers.pool.receipts import Receipts
from workers.pool.running_jobs import RunningJobs
from workers.pool.turns import AllPresent
from workers.profiling.recorder import Profiler
from workers.retry import QUEUE_ERRORS, until_reached

ANY_SIZE = Sizes()
PLAIN_MARKING = Marking()
UNKNOWN = Origin()
CLAIM_WAIT_S = 5.0
"""Time that one claim waits for a job to come."""
HEARTBEATS = 3
"""Chances to be heard before a pool counts as gone."""
ENDING, PUTTING_ASIDE = 0.5, 0.3
"""Shares of a drain's time: for jobs to end, and to put aside those that do not."""
LAST_WORDS_S = 5.0
"""Time that a leaving pool tries to reach Redis; leases say the same a little later."""

log = logging.getLogger(__name__)


class Worker:
    """Worker with one engine and one queue.

    Args:
        turns: with the other models on the same devices.
        origin: of what it makes.
    """

    def __init__(
        self, name: str, engine: Engine, queue: Queue, store: Store, settings: PoolSettings,
        lease_s: float, liveness: Liveness | None = None, served: Sizes = ANY_SIZE,
        marking: Marking = PLAIN_MARKING, check: OutputCheck | None = None,
        turns: AllPresent | None = None, origin: Origin = UNKNOWN,
        videos: SentVideos | None = None,
    ) -> None:  # fmt: skip
        self.name = f"{name}-{secrets.token_hex(3)}"
        self.engine = engine
        self._queue = queue
        self._drain_s = settings.drain_s
        self._max_compiling = settings.max_compiling
        self._heartbeat_s = lease_s / HEARTBEATS
        self._tenants = Tenants({}, queue.redis, self._heartbeat_s)
        batching = Batching(mode=engine.batching.mode)
        update = {"batching": batching, "sizes": served}
        self._spec = engine.pipeline.spec.model_copy(update=update)
        self._capacity = Capacity(engine.slots)
        self._cost_reporter = CostReporter(engine, queue, name)
        self._receipts = Receipts(engine, settings.receipts)
        self._idle = IdleWork()
        self._running = RunningJobs(
            *(engine, queue, store, self._capacity, lease_s, settings, marking),
            *(self._receipts, check, videos),
        )
        self._preemption = Preemption(
            self.name, self._running, self._capacity, self._cost_reporter, settings
        )
        self._profiler = Profiler(self.name, engine, queue, store)
        self.liveness = liveness or Liveness()
        self._turns = turns or AllPresent()
        self._quantum_s = settings.quantum_s
        self._origin = origin
        self._is_ready = False
        self._drain = asyncio.Event()
        self._leave = asyncio.Event()
        self._clearing: asyncio.Task[None] | None = None
        """Puts aside what runs, for an operator who drains the pool while it stays."""
        self._was_asked = False

    @property
    def model(self) -> str:
        """Name of its model."""
        return self._spec.name

    @property
    def is_ready(self) -> bool:
        """Return whether it takes jobs, when it is its turn."""
        return self._is_ready

    @property
    def jobs(self) -> int:
        """Number of jobs this worker is running."""
        return self._running.jobs

    def stop(self) -> None:
        """The first call drains, the second leaves at once."""
        (self._leave if self._was_asked else self._drain).set()
        self._was_asked = True

    def drain(self) -> None:
        """However often it is called, and before or after `stop`."""
        self._drain.set()

    def stop_now(self) -> None:
        """Stop without finishing what runs."""
        self._drain.set()
        self._leave.set()

    async def run(self, warmup: Sequence[Fields], expected_s: Sequence[float] = ()) -> int:
        """Serve until stopped: 0. Until the engine dies: 1.

        Args:
            warmup: requests whose programs are compiled before the first claim, and measured.
            expected_s: of each one's trial, by estimate; none: they take no time.

        Raises: whatever keeps the model from being compiled.
        """
        self.liveness.warms_up()
        helpers = spawn(
            self.liveness.beat(),
            self._beat(),
            self._running.leases.run(),
            self._hear_cancels(),
            self._cost_reporter.run(),
            self._profiler.run(),
        )
        preempting = self._preemption.run(self._queue)
        trials = Trials(self.engine, warmup, expected_s or [0.0] * len(warmup))
        main = spawn(self._serve(warmup, trials), self._drain.wait(), preempting)
        try:
            await asyncio.wait(
                [*helpers, *main, self.engine.died], return_when=asyncio.FIRST_COMPLETED
            )
            raise_failures([*helpers, *main])
            self._turns.stop()
            self.liveness.drains()
            metrics.ready.labels(self._spec.name).set(0)
            await cancel(*main)
            await self._end_jobs()
        finally:
            await self._say_goodbye([*helpers, *main])
        return 1 if self.engine.died.done() else 0

    async def _serve(self, warmup: Sequence[Fields], trials: Trials) -> None:
        async with self._turns.warming:
            await self._turns.bring(self.model)
            began, mine = time.time(), (self._spec.name,)
            await self.engine.warm_up(warmup)
            began = worker_metrics.started(mine, "warm_up", began)
            broken = await trials.alone()
            worker_metrics.started(mine, "measure", began)
        if broken:
            await self._stay_unready(broken)
        await self._cost_reporter.tell()
        self._is_ready = True
        await until_reached(self._register)
        log.info("pool %s is ready", self.name)
        metrics.ready.labels(self._spec.name).set(1)
        self.liveness.serves()
        self._idle = IdleWork(partial(self._catch_up, warmup, trials), self._receipts.run)
        try:
            while True:
                await self._capacity.wait()
                async with self._turns.claiming(self.model):
                    await self._take_jobs()
                self.liveness.rests()
        finally:
            await self.give_way()

    async def _take_jobs(self) -> None:
        """Begin what can be claimed now; until something can, do what nobody waits for."""
        if not self.jobs and self._turns.is_idle:
            self._idle.begin()
        claims = await until_reached(self._claim, self._capacity.free)
        self._running.hold(claims)
        try:
            if claims or not self._turns.is_present(self.model):
                await self.give_way()
        finally:
            for claim in claims:
                self._running.take(claim)
        if claims:
            await self._turns.give_way()

    async def _catch_up(self, warmup: Sequence[Fields], trials: Trials) -> None:
        """Measure what readiness has not waited for."""
        async with self._turns.warming:
            pass  # models that still warm up go first
        await trials.batches(await self._cost_reporter.known())
        if not self.engine.batching.is_exact:
            batching = await closeness(self.engine, warmup)
            self._spec = self._spec.model_copy(update={"batching": batching})

    async def _stay_unready(self, reason: str) -> None:
        """Stay unready until stopped: started again, it would load the same weights."""
        log.error("pool %s takes no jobs: %s", self.name, reason)
        self.liveness.refuses(reason)
        await asyncio.Event().wait()

    async def _claim(self, pictures: int) -> Claims:
        """Raises: as `Queue.claim`."""
        self.liveness.claims()
        return await self._queue.claim(
            self.name,
            self._spec.name,
            pictures,
            wait_s=CLAIM_WAIT_S,
            warm=self._cost_reporter.warm,
            adapters=self.engine.adapters.digests,
            slowness=self._cost_reporter.slowness,
            slowness_in=self._cost_reporter.slowness_in,
            busy=lambda: self.jobs > 0,
            has_room=lambda: self._capacity.free >= pictures and self._turns.is_present(self.model),
            may_compile=lambda: self._running.compiling < self._max_compiling,
            origin=self._origin,
        )

    async def _end_jobs(self) -> None:
        """Let end what ends in time, put the rest aside. A dead engine's jobs end by themselves."""
        log.info("pool %s drains", self.name)
        self._is_ready = False  # nobody is to count on it for what comes now
        metrics.ready.labels(self._spec.name).set(0)
        limit_s = LAST_WORDS_S if self.engine.died.done() else self._drain_s
        clearing = self._running.clear(ENDING * limit_s, PUTTING_ASIDE * limit_s)
        ends, telling = spawn(clearing, self._leave.wait()), spawn(self._announce())
        await asyncio.wait(
            ends,
            timeout=(ENDING + PUTTING_ASIDE) * limit_s,
            return_when=asyncio.FIRST_COMPLETED,
        )
        await cancel(*ends, *telling)

    async def _say_goodbye(self, tasks: list[asyncio.Task[Any]]) -> None:
        """Give back what is left, and be forgotten."""
        try:
            async with asyncio.timeout(LAST_WORDS_S):
                await self._running.give_back()
                await cancel(*tasks)  # or a last heartbeat might come after it has left
                await self._queue.unregister(self.name, self._spec.name)
        except (TimeoutError, *QUEUE_ERRORS) as error:
            log.warning("left without a word to Redis, leases will tell: %s", error)
        await cancel(*tasks)

    async def _register(self) -> None:
        self._check_capacity()
        away_s, asleep = self._turns.away_s(self.model), self._turns.is_asleep
        facts = replace(self._cost_reporter.facts, away_s=away_s, asleep=asleep)
        await self._queue.register(self.name, self._spec, ready=self._is_ready, facts=facts)
        metrics.tally.expect([self._spec.name], await self._tenants.classes())

    def _check_capacity(self) -> None:
        """Raises: RuntimeError: slots are taken while no job runs; nothing would free them."""
        if self._is_ready and not self.jobs and not self._capacity.is_whole:
            raise RuntimeError("slots are taken while no job runs; the pool has to start again")

    async def _announce(self) -> None:
        try:
            await self._register()
            await self._heed_pause()
            self._turns.heed(self.model, await self._queue.sleep_of(self.name))
        except QUEUE_ERRORS as error:
            log.warning("the heartbeat was not heard: %s", error)

    async def _heed_pause(self) -> None:
        """Put aside what runs where an operator drains this pool, which claims nothing then."""
        pause = await self._queue.pause_of(self.name, self._spec.name)
        is_clearing = self._clearing and not self._clearing.done()
        if pause and pause.drains and self._running.jobs and not is_clearing:
            log.info("pool %s is drained by %s", self.name, pause.by)
            clearing = self._running.clear(0, PUTTING_ASIDE * self._drain_s)
            self._clearing = asyncio.create_task(clearing)

    async def waiting_s(self) -> float | None:
        """Seconds since the first queued job of its model came; None: there is none for it.

        Raises: QUEUE_ERRORS.
        """
        waiting_s = await self._queue.oldest_s(self.model)
        if waiting_s is None or await self._queue.pause_of(self.name, self.model):
            return None
        return waiting_s

    def look_again(self) -> None:
        """Let a claim that waits end, if it may take nothing any more."""
        self._queue.look_again(self.model)

    async def make_way(self) -> None:
        """Let jobs end that do so soon, put the others aside, and return when none is left."""
        await self._running.clear(self._quantum_s, PUTTING_ASIDE * self._drain_s)
        await self._running.emptied()

    async def leave_devices(self) -> None:
        """Take the weights off the devices."""
        await self.engine.leave_devices()

    async def return_to_devices(self, keep_copies: bool) -> None:
        """Bring the weights back. Args: keep_copies: in host memory, for the next time."""
        await self.engine.return_to_devices(keep_copies)

    async def give_way(self) -> None:
        """Drop what nobody waits for, and return when it has stopped."""
        await self._idle.give_way()

    async def announce(self) -> None:
        """Tell the queue how soon its jobs can begin, once it is known there."""
        if self._is_ready:
            await self._announce()

    async def _beat(self) -> None:
        while True:
            await self._announce()
            await asyncio.sleep(self._heartbeat_s)

    async def _hear_cancels(self) -> None:
        async for job_id in self._queue.canceled():
            self._running.drop_job(job_id)


def spawn(*coroutines: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    """Return tasks that run already."""
    return [asyncio.create_task(coroutine) for coroutine in coroutines]


def raise_failures(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Raise what ended one of the tasks."""
    for task in tasks:
        if task.done():
            task.result()
