"""Worker of one model: claims the model's jobs and runs them concurrently.

A drain lets jobs finish. Jobs that would take too long are suspended and released to other workers.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from models.interface.pipeline import Fields
from models.spec.model_spec import Batching, Sizes
from service.jobs.model.ledger import Origin
from service.jobs.queue import ClaimList, Queue, WorkerState
from service.jobs.redis.tasks import cancel
from service.jobs.scheduling.cost_model import CostRow
from service.jobs.storage.object_store import Store
from service.settings.pools import PoolSettings
from workers import metrics as worker_metrics
from workers.engine.backend import Backend
from workers.health.liveness import Liveness
from workers.media.input_videos import InputVideos
from workers.media.outputs import PLAIN_MARKING, Marking
from workers.pool import metrics
from workers.pool.capacity import Capacity
from workers.pool.cost_reporting import CostReporter
from workers.pool.idle_work import IdleWork
from workers.pool.job_context import OutputCheck, WorkerContext, no_check
from workers.pool.preemption import Preemption
from workers.pool.quality_samples import QualitySamples
from workers.pool.registration import Registration
from workers.pool.running_jobs import SUSPENDING, RunningJobs
from workers.pool.time_sharing import ResidentModels
from workers.pool.trials import Trials, closeness
from workers.profiling.recorder import Profiler
from workers.retry import QUEUE_ERRORS, Patience, until_reached

ANY_SIZE = Sizes()
CLAIM_WAIT_S = 5.0
"""Seconds that one claim waits for a job."""
ENDING = 0.5
"""Share of the drain time in which jobs may finish; the others are suspended afterwards."""
SHUTDOWN_TIMEOUT_S = 5.0
"""Seconds that a leaving worker tries to reach Redis; otherwise its leases lapse soon after."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerParts:
    """Engine, queue connection and file store that a worker uses and its process closes."""

    engine: Backend
    queue: Queue
    store: Store


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Parts of a worker that it can do without: those of its process and of its model."""

    liveness: Liveness = field(default_factory=Liveness)
    time_sharing: ResidentModels = field(default_factory=ResidentModels)
    """Time sharing with other models on the same devices."""
    videos: InputVideos = field(default_factory=InputVideos)
    marking: Marking = PLAIN_MARKING
    check: OutputCheck = no_check
    sizes: Sizes = ANY_SIZE
    """Sizes that its registration lists."""
    origin: Origin = field(default_factory=Origin)
    """Origin of its outputs."""


class Worker:
    """Worker of one model, with one engine and one queue connection."""

    def __init__(
        self,
        name: str,
        parts: WorkerParts,
        settings: PoolSettings,
        lease_s: float,
        options: WorkerOptions | None = None,
    ) -> None:
        engine, queue, store = parts.engine, parts.queue, parts.store
        options = options or WorkerOptions()
        self.name = f"{name}-{secrets.token_hex(3)}"
        self.engine = engine
        self._queue = queue
        self._settings = settings
        self._capacity = Capacity(engine.slots)
        self._cost_reporter = CostReporter(engine, queue, name)
        self._quality_samples = QualitySamples(engine, settings.receipts)
        self._idle = IdleWork()
        shared = WorkerContext(
            *(engine, queue, store, Patience(settings.store_patience_s)),
            *(options.marking, options.check, self._quality_samples),
            *(engine.place.made_by, options.videos),
        )
        self._running = RunningJobs(shared, self._capacity, lease_s, settings)
        self._preemption = Preemption(
            self.name, self._running, self._capacity, self._cost_reporter, settings
        )
        self._profiler = Profiler(self.name, engine, queue, store)
        self.liveness = options.liveness
        self._time_sharing = options.time_sharing
        batching = Batching(mode=engine.batching.mode)
        update = {"batching": batching, "sizes": options.sizes}
        self._registration = Registration(
            *(self.name, engine.pipeline.spec.model_copy(update=update), queue, self._running),
            *(self._cost_reporter, self._time_sharing, lease_s, self._takes_jobs),
        )
        self._origin = options.origin
        self._drain = asyncio.Event()
        self._leave = asyncio.Event()
        self._stop_requested = False

    @property
    def model(self) -> str:
        """Name of the model that the worker serves."""
        return self._registration.spec.name

    @property
    def is_ready(self) -> bool:
        """Return whether the worker accepts jobs, when it is its model's turn."""
        return self._registration.is_ready

    @property
    def jobs(self) -> int:
        """Number of jobs this worker is running."""
        return self._running.jobs

    def stop(self) -> None:
        """Drain the worker on the first call; exit at once on the second."""
        (self._leave if self._stop_requested else self._drain).set()
        self._stop_requested = True

    def drain(self) -> None:
        """Drain the worker. Idempotent, and not counted as a call of `stop`."""
        self._drain.set()

    def expect(self, estimated: Mapping[str, CostRow]) -> None:
        """Report these costs by bucket, until they are measured."""
        self._cost_reporter.estimated = estimated

    def stop_now(self) -> None:
        """Stop the worker without finishing running jobs."""
        self._drain.set()
        self._leave.set()

    async def run(self, warmup: Sequence[Fields], expected_s: Sequence[float] = ()) -> int:
        """Serve jobs until stopped (returns 0), or until the engine fails (returns 1).

        Args:
            warmup: requests whose programs are compiled and measured before the first claim.
            expected_s: estimated trial seconds of each request; empty: 0.

        Raises: errors of compiling the model.
        """
        self.liveness.warms_up()
        helpers = spawn(
            self.liveness.beat(),
            self._registration.run(),
            self._running.leases.run(),
            self._watch_cancels(),
            self._cost_reporter.run(),
            self._profiler.run(),
        )
        preempting = self._preemption.run(self._queue)
        trials = Trials(self.engine, warmup, expected_s or [0.0] * len(warmup))
        main = spawn(self._serve(warmup, trials), self._drain.wait(), preempting)
        try:
            await asyncio.wait(
                [*helpers, *main, self.engine.failure], return_when=asyncio.FIRST_COMPLETED
            )
            raise_failures([*helpers, *main])
            self._time_sharing.stop()
            self.liveness.drains()
            metrics.ready.labels(self.model).set(0)
            await cancel(*main)
            await self._end_jobs()
        finally:
            await self._unregister([*helpers, *main])
        return 1 if self.engine.failure.done() else 0

    async def _serve(self, warmup: Sequence[Fields], trials: Trials) -> None:
        async with self._time_sharing.warming:
            await self._time_sharing.ensure_present(self.model)
            began, models = time.time(), (self.model,)
            await self.engine.readiness.warm_up(warmup)
            began = worker_metrics.started(models, "warm_up", began)
            broken = await trials.run_alone()
            worker_metrics.started(models, "measure", began)
        if broken:
            await self._stay_not_ready(broken)
        await self._cost_reporter.report()
        self._registration.is_ready = True
        await until_reached(self._registration.renew)
        log.info("pool %s is ready", self.name)
        metrics.ready.labels(self.model).set(1)
        self.liveness.serves()
        self._idle = IdleWork(
            partial(self._measure_in_background, warmup, trials), self._quality_samples.run
        )
        try:
            while True:
                await self._capacity.wait()
                async with self._time_sharing.claiming(self.model):
                    await self._take_jobs()
                self.liveness.rests()
        finally:
            await self.interrupt()

    async def _take_jobs(self) -> None:
        """Claim and start jobs until stopped; do background work while none can be claimed."""
        if not self.jobs and self._time_sharing.is_idle:
            self._idle.begin()
        claims = await until_reached(self._claim, self._capacity.free)
        self._running.hold(claims)
        try:
            if claims or not self._time_sharing.is_present(self.model):
                await self.interrupt()
        finally:
            for claim in claims:
                self._running.start(claim)
        if claims:
            await self._time_sharing.interrupt()

    async def _measure_in_background(self, warmup: Sequence[Fields], trials: Trials) -> None:
        """Measure in the background what readiness did not wait for."""
        async with self._time_sharing.warming:
            pass  # other models' warm-up goes first
        await trials.run_batches(await self._cost_reporter.recent_measurements())
        if not self.engine.batching.is_exact:
            batching = await closeness(self.engine, warmup)
            spec = self._registration.spec.model_copy(update={"batching": batching})
            self._registration.spec = spec

    async def _stay_not_ready(self, reason: str) -> None:
        """Stay unready until stopped, since a restart would load the same weights."""
        log.error("pool %s takes no jobs: %s", self.name, reason)
        self.liveness.refuses(reason)
        await asyncio.Event().wait()

    async def _claim(self, images: int) -> ClaimList:
        """Claim jobs for at most this many images. Raises: as `Queue.claim`."""
        self.liveness.claims()
        state = WorkerState(
            warm=self._cost_reporter.warm,
            adapters=self.engine.adapters.digests,
            slowness=self._cost_reporter.slowness,
            slowness_in=self._cost_reporter.slowness_in,
            origin=self._origin,
            busy=lambda: self.jobs > 0,
            may_compile=lambda: self._running.compiling < self._settings.max_compiling,
            has_room=lambda: (
                self._capacity.free >= images and self._time_sharing.is_present(self.model)
            ),
        )
        return await self._queue.claim(self.name, self.model, images, state, wait_s=CLAIM_WAIT_S)

    async def _end_jobs(self) -> None:
        """Finish or suspend running jobs. After an engine failure, they end by themselves."""
        log.info("pool %s drains", self.name)
        self._registration.is_ready = False  # schedulers must not count on it
        metrics.ready.labels(self.model).set(0)
        limit_s = SHUTDOWN_TIMEOUT_S if self.engine.failure.done() else self._settings.drain_s
        clearing = self._running.clear(ENDING * limit_s, SUSPENDING * limit_s)
        ends, announcing = spawn(clearing, self._leave.wait()), spawn(self._registration.announce())
        await asyncio.wait(
            ends,
            timeout=(ENDING + SUSPENDING) * limit_s,
            return_when=asyncio.FIRST_COMPLETED,
        )
        await cancel(*ends, *announcing)

    async def _unregister(self, tasks: list[asyncio.Task[Any]]) -> None:
        """Release remaining jobs, and unregister the worker."""
        try:
            async with asyncio.timeout(SHUTDOWN_TIMEOUT_S):
                await self._running.release_all()
                await cancel(*tasks)  # a late heartbeat would register it again
                await self._registration.end()
        except (TimeoutError, *QUEUE_ERRORS) as error:
            log.warning("Redis is unreachable: the worker exits, and its leases expire: %s", error)
        await cancel(*tasks)

    async def waiting_s(self) -> float | None:
        """Seconds since the oldest queued job of the model was submitted; None: none, or paused.

        Raises: QUEUE_ERRORS.
        """
        waiting_s = await self._queue.oldest_s(self.model)
        if waiting_s is None or await self._queue.pause_of(self.name, self.model):
            return None
        return waiting_s

    async def _takes_jobs(self) -> bool:
        """Check that a worker with free slots claims the jobs that wait. Raises: QUEUE_ERRORS."""
        is_present = self._time_sharing.is_present(self.model)
        free_slots = self._running.free_slots if is_present else 0
        await self.liveness.check_claims(free_slots, self.waiting_s)
        return not self.liveness.leaves_jobs_waiting

    def end_waiting_claim(self) -> None:
        """End a waiting claim call if no job may be taken any more."""
        self._queue.wake_claims(self.model)

    async def clear_jobs(self) -> None:
        """Let jobs finish that end soon, suspend the others, and return when none is left."""
        await self._running.clear(self._settings.quantum_s)
        await self._running.emptied()

    async def offload_weights(self) -> None:
        """Move the model's weights off the devices."""
        await self.engine.offload_weights()

    async def reload_weights(self, keep_copies: bool) -> None:
        """Load the weights again. Args: keep_copies: retain host copies for the next time."""
        await self.engine.reload_weights(keep_copies)

    async def interrupt(self) -> None:
        """Cancel the worker's background work, and return when it has stopped."""
        await self._idle.interrupt()

    async def announce(self) -> None:
        """Report to the queue how soon the model's jobs can begin, once the worker is ready."""
        if self.is_ready:
            await self._registration.announce()

    async def _watch_cancels(self) -> None:
        async for job_id in self._queue.canceled():
            self._running.drop_job(job_id)


def spawn(*coroutines: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    """Start an asyncio task for each coroutine."""
    return [asyncio.create_task(coroutine) for coroutine in coroutines]


def raise_failures(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Raise the error of a finished task, if any."""
    for task in tasks:
        if task.done():
            task.result()
