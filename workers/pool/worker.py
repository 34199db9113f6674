"""Pool: one process that claims jobs of a model and works on them side by side.

Of several models each has a worker, an engine and a queue of its own; devices, and what ends the
process, they share.

SIGTERM drains: nothing more is claimed, and what runs is finished or, where that takes too long,
kept as it is and given back, for another pool to go on with. SIGINT, or a second SIGTERM, gives
everything back at once.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from typing import Any

import jax

from models.adapters.files.names import packed
from models.adapters.names_of import names_of
from models.interface.pipeline import Fields, Pipeline
from models.parallel.axis_rules import Layout
from models.spec.model_spec import Batching, Sizes
from service.jobs.queue import Claims, Queue
from service.jobs.redis import connection
from service.jobs.redis.tasks import cancel
from service.jobs.storage.object_store import Store
from service.safety.checker import SafetyChecker
from service.settings.pools import PoolSettings
from service.settings.safety import SafetySettings
from service.settings.section import ConfigError
from service.settings.settings import Settings
from service.tracing import spans
from workers.engine import step_metrics
from workers.engine.engine import Engine
from workers.health import http
from workers.health.liveness import Liveness
from workers.loading import model as loading
from workers.loading import together
from workers.loading.derived import derived_loras, derived_models
from workers.loading.layout import own
from workers.loading.loras import configured_loras
from workers.loading.model import MeshSlice
from workers.loading.together import Loaded
from workers.loading.upscalers import Held, load_upscalers, upscaler_bytes
from workers.media.marking import Marking
from workers.multihost.exits import leave_within
from workers.multihost.follower import Follower
from workers.multihost.handshake import Handshake, settings_of
from workers.multihost.leader import Leader
from workers.multihost.leader_link import LeaderLink
from workers.multihost.session import agree, join_slice
from workers.pool import listed_sizes, metrics
from workers.pool.capacity import Capacity
from workers.pool.cost_reporting import CostReporter, closeness, measure
from workers.pool.lora_files import StoredLoras
from workers.pool.output_checks import OutputCheck, OutputChecks
from workers.pool.preemption import Preemption
from workers.pool.running_jobs import RunningJobs
from workers.profiling.recorder import Profiler
from workers.programs import batch_sizes, warmup
from workers.programs.batch_sizes import BatchSizes
from workers.programs.launcher import Launcher, OneHost
from workers.programs.xla_cache import use_compile_cache
from workers.retry import QUEUE_ERRORS, Patience, until_reached

ANY_SIZE = Sizes()
PLAIN_MARKING = Marking()
CLAIM_WAIT_S = 5.0
"""Time that one claim waits for a job to come."""
HEARTBEATS = 3
"""Chances to be heard before a pool counts as gone."""
ENDING, PUTTING_ASIDE = 0.5, 0.3
"""Shares of a drain's time: for jobs to end, and to put aside those that do not."""
LAST_WORDS_S = 5.0
"""Time that a leaving pool tries to reach Redis; leases say the same a little later."""
DRAINED = 0.98
"""Share of a drain's time after which the process ends whatever it is doing."""
TIDY_S = 1.0
"""Time for the threads of a pool that has reported all it had to."""

log = logging.getLogger(__name__)


class Worker:
    """Worker with one engine and one queue.

    Args:
        turn: held while it warms up, by one of several on the same devices.
    """

    def __init__(
        self, name: str, engine: Engine, queue: Queue, store: Store, settings: PoolSettings,
        lease_s: float, liveness: Liveness | None = None, served: Sizes = ANY_SIZE,
        marking: Marking = PLAIN_MARKING, check: OutputCheck | None = None,
        turn: asyncio.Lock | None = None,
    ) -> None:  # fmt: skip
        self.name = f"{name}-{secrets.token_hex(3)}"
        self.engine = engine
        self._queue = queue
        self._drain_s = settings.drain_s
        self._max_compiling = settings.max_compiling
        self._heartbeat_s = lease_s / HEARTBEATS
        batching = Batching(mode=engine.batching.mode)
        update = {"batching": batching, "sizes": served}
        self._spec = engine.pipeline.spec.model_copy(update=update)
        self._capacity = Capacity(engine.slots)
        self._cost_reporter = CostReporter(engine, queue, name)
        self._running = RunningJobs(
            engine, queue, store, self._capacity, lease_s, settings, marking, check
        )
        self._preemption = Preemption(
            self.name, self._running, self._capacity, self._cost_reporter, settings
        )
        self._profiler = Profiler(self.name, engine, queue, store)
        self.liveness = liveness or Liveness()
        self._turn = turn or asyncio.Lock()
        self._is_ready = False
        self._drain = asyncio.Event()
        self._leave = asyncio.Event()
        self._was_asked = False

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

    async def run(self, warmup: Sequence[Fields]) -> int:
        """Serve until stopped: 0. Until the engine dies: 1.

        Args:
            warmup: requests whose programs are compiled, and measured, before the first claim.

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
        main = spawn(self._serve(warmup), self._drain.wait(), preempting)
        try:
            await asyncio.wait(
                [*helpers, *main, self.engine.died], return_when=asyncio.FIRST_COMPLETED
            )
            raise_failures([*helpers, *main])
            self.liveness.drains()
            metrics.ready.labels(self._spec.name).set(0)
            await cancel(*main)
            await self._end_jobs()
        finally:
            await self._say_goodbye([*helpers, *main])
        return 1 if self.engine.died.done() else 0

    async def _serve(self, warmup: Sequence[Fields]) -> None:
        async with self._turn:
            await self.engine.warm_up(warmup)
            broken = await measure(self.engine, warmup, await self._cost_reporter.known())
            if not broken and not self.engine.batching.is_exact:
                batching = await closeness(self.engine, warmup)
                self._spec = self._spec.model_copy(update={"batching": batching})
        if broken:
            await self._stay_unready(broken)
        async with self._turn:  # behind those that wait for theirs, whom jobs would disturb
            await self._cost_reporter.tell()
        self._is_ready = True
        await until_reached(self._register)
        log.info("pool %s is ready", self.name)
        metrics.ready.labels(self._spec.name).set(1)
        self.liveness.serves()
        while True:
            pictures = await self._capacity.wait()
            for claim in await until_reached(self._claim, pictures):
                self._running.take(claim)
            self.liveness.rests()

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
            has_room=lambda: self._capacity.free >= pictures,
            may_compile=lambda: self._running.compiling < self._max_compiling,
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
        facts = self._cost_reporter.facts
        await self._queue.register(self.name, self._spec, ready=self._is_ready, facts=facts)

    async def _announce(self) -> None:
        try:
            await self._register()
        except QUEUE_ERRORS as error:
            log.warning("the heartbeat was not heard: %s", error)

    async def _beat(self) -> None:
        while True:
            await self._announce()
            await asyncio.sleep(self._heartbeat_s)

    async def _hear_cancels(self) -> None:
        async for job_id in self._queue.canceled():
            self._running.drop_job(job_id)


def run_pool(settings: Settings, pool_name: str, devices: range | None = None) -> int:
    """Load the pool's models onto its mesh slice and serve until a signal; the exit code.

    Sets JAX up, so nothing may have used it before.

    Args:
        devices: of this machine; None: all of them.

    Raises:
        ConfigError: the settings do not name what is needed, or do not fit the devices.
        models.checkpoint.folder.CheckpointError, ValueError: the model cannot be loaded; says why.
    """
    models = together.wanted(settings, pool_name)
    pool, model = models[0].pool, models[0].model
    if settings.redis.url is None:
        raise ConfigError("redis.url: a pool needs the address of the queue")
    marking = Marking.of_settings(settings.output)  # fails before the weights are loaded
    loading.set_up(pool, model, devices)
    use_compile_cache(settings.compile_folder)
    liveness = Liveness()
    with (
        spans.exporting(settings.tracing, "atelier-pool", {"atelier.model": pool.model}),
        http.shown(pool_name, pool.metrics_port, liveness) as shown,
        reached(settings, liveness),
        join_slice(pool.hosts, settings.queue.lease_s) as company,
    ):
        if not isinstance(company, LeaderLink):  # of a slice the first process tells
            for one in models:
                metrics.expect(one.pool.model, settings.tenant_classes)
        if company:
            agree(company, settings_of(pool, model))
        beside = upscaler_bytes(settings, models)
        loaded = together.load(pool_name, models, own(devices), settings.compile_folder, beside)
        if shown:
            shown.refresh = partial(step_metrics.report_memory, jax.local_devices())
        launcher: Launcher = OneHost()
        if company:
            (only,) = loaded
            layout, batching = only.opened.layout, _batching(only)
            terms = Handshake.of(only.pipeline, layout, batching.sizes, batching.elastic)
            if isinstance(company, LeaderLink):
                liveness.serves()
                follower = Follower(only.pipeline, layout, terms, only.opened.executables)
                company.follow(follower)
                return 0
            launcher = Leader(company, terms)
        for there in loaded:
            step_metrics.rate(there.pool.model, there.opened.layout.mesh.devices.flat)
        return asyncio.run(serve(settings, pool_name, loaded, launcher, liveness, marking))


def _batching(one: Loaded) -> BatchSizes:
    chosen = one.opened.chosen
    return batch_sizes.of_settings(one.pool, one.model, one.opened.layout, chosen.slots)


@contextmanager
def reached(settings: Settings, liveness: Liveness) -> Iterator[None]:
    """Enter when Redis answers: weights that nobody may ask for are not loaded.

    Raises: ConfigError: it answers, and is none for us.
    """
    asyncio.run(connection.wait_until_reached(settings.redis, liveness.waits))
    liveness.loads()
    yield


async def serve(
    settings: Settings,
    pool_name: str,
    loaded: Sequence[Loaded],
    launcher: Launcher,
    liveness: Liveness,
    marking: Marking,
) -> int:
    """Serve loaded models until a signal; the exit code."""
    async with AsyncExitStack() as closing:
        safety = safety_of(settings.safety)
        if safety:
            closing.push_async_callback(safety.close)
        check = OutputChecks(safety, settings.safety.max_frames) if safety else None
        held: Held = {}
        open_one = partial(_worker, closing, settings, pool_name, launcher, marking, check, held)
        turn, several = asyncio.Lock(), len(loaded) > 1
        parts = [liveness.part(one.pool.model) if several else liveness for one in loaded]
        workers = [await open_one(one, part, turn) for one, part in zip(loaded, parts, strict=True)]
        if several:
            liveness.serves()  # as its parts do
        pool = settings.pools[pool_name]
        _hear_signals(workers, launcher, pool.drain_s)
        code = await run_all(workers, [warm_ups(one) for one in loaded])
        spans.flush()  # whatever a thread may still be in the midst of
        if pool.hosts.count == 1:  # those of a slice see to it that all end together
            leave_within(TIDY_S, code)
        return code


def warm_ups(one: Loaded) -> list[Fields]:
    """Return the requests that a model's programs are compiled for before it is ready."""
    return warmup.requests(one.pipeline.spec, one.model.warmup)


async def run_all(workers: Sequence[Worker], requests: Sequence[Sequence[Fields]]) -> int:
    """Run workers until all have ended; the first that ends drains the others.

    Raises: as `Worker.run`.
    """

    async def run(worker: Worker, warmup: Sequence[Fields]) -> int:
        try:
            return await worker.run(warmup)
        finally:
            for other in workers:
                other.drain()

    ended = await asyncio.gather(*map(run, workers, requests), return_exceptions=True)
    failures = [one for one in ended if isinstance(one, BaseException)]
    if failures:
        raise failures[0]
    return max(one for one in ended if isinstance(one, int))


async def _worker(
    closing: AsyncExitStack,
    settings: Settings,
    pool_name: str,
    launcher: Launcher,
    marking: Marking,
    check: OutputCheck | None,
    held: Held,
    one: Loaded,
    liveness: Liveness,
    turn: asyncio.Lock,
) -> Worker:
    """Open a model's queue, engine and worker."""
    queue = await Queue.open_when_reached(settings, liveness.waits)
    closing.push_async_callback(queue.close)
    queue.tally = metrics.tally
    store, opened = Store(settings.store_url), one.opened
    loras = await prepared_loras(settings, one.pool, one.pipeline, opened, store)
    upscalers = load_upscalers(settings, one.pipeline, first_device(opened.layout), held)
    engine = Engine(
        *(one.pipeline, opened.layout, opened.chosen.slots, _batching(one), launcher),
        *(opened.executables, loras.find, upscalers),
    )
    closing.callback(engine.close)
    served = listed_sizes.of_settings(one.model, one.pipeline.spec)
    return Worker(
        *(pool_name, engine, queue, store, one.pool, settings.queue.lease_s, liveness),
        *(served, marking, check, turn),
    )


def _hear_signals(workers: Sequence[Worker], launcher: Launcher, drain_s: float) -> None:
    """Let signals, of this process and of the slice's others, stop the workers."""
    loop = asyncio.get_running_loop()

    def in_time(stop: Callable[[Worker], None]) -> None:
        leave_within(DRAINED * drain_s, 0)
        for worker in workers:
            stop(worker)

    loop.add_signal_handler(signal.SIGTERM, in_time, Worker.stop)
    loop.add_signal_handler(signal.SIGINT, in_time, Worker.stop_now)
    launcher.on_stop(
        drain=partial(loop.call_soon_threadsafe, in_time, Worker.drain),
        stop_now=partial(loop.call_soon_threadsafe, in_time, Worker.stop_now),
    )


def first_device(layout: Layout) -> jax.Device:
    """Return the first of a slice's devices that is this process's own."""
    own: list[jax.Device] = [
        one for one in layout.mesh.devices.flat if one.process_index == jax.process_index()
    ]
    return own[0]


def safety_of(settings: SafetySettings) -> SafetyChecker | None:
    """Return the checker of outputs; None: nobody is asked about them. Raises: ConfigError."""
    if not (settings.is_on and settings.after):
        return None
    return SafetyChecker(settings, metrics.safety)


async def prepared_loras(
    settings: Settings,
    pool: PoolSettings,
    pipeline: Pipeline,
    mesh_slice: MeshSlice,
    store: Store,
) -> StoredLoras:
    """Return where this pool finds adapters; those of the settings are in its model's spec then."""
    spec, facts = pipeline.spec, mesh_slice.executables
    patience, folder = Patience(pool.store_patience_s), settings.state_dir / "loras"
    if not spec.lora_pages:
        return StoredLoras({}, store, patience, folder, pool.lora_cache_bytes)
    names = names_of(pipeline)
    own, others = await asyncio.gather(
        asyncio.to_thread(configured_loras, settings, spec, names, facts),
        asyncio.to_thread(derived_loras, settings, spec, names, facts),
    )
    files = [*own.values(), *others.values()]
    found = StoredLoras(files, store, patience, folder, pool.lora_cache_bytes)
    pipeline.spec = spec.model_copy(
        update={
            "loras": await found.show(own.values()),
            "lora_layers": packed(names),
            "derived": derived_models(settings, others),
        }
    )
    return found


def spawn(*coroutines: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    """Return tasks that run already."""
    return [asyncio.create_task(coroutine) for coroutine in coroutines]


def raise_failures(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Raise what ended one of the tasks."""
    for task in tasks:
        if task.done():
            task.result()
