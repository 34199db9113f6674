"""Process of a pool: from its settings to the end of its workers.

Of several models each has a worker, an engine and a queue of its own; devices, and what ends the
process, they share.

SIGTERM drains: nothing more is claimed, and what runs is finished or, where that takes too long,
kept as it is and given back, for another pool to go on with. SIGINT, or a second SIGTERM, gives
everything back at once.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from functools import partial

import jax
from prometheus_client import REGISTRY

from models.adapters.files.names import packed
from models.adapters.names_of import names_of
from models.interface.pipeline import Fields, Pipeline
from models.parallel.axis_rules import Layout
from models.spec.model_spec import Aim
from service.jobs.queue import Queue
from service.jobs.redis import connection
from service.jobs.redis.tasks import cancel
from service.jobs.storage.object_store import Store
from service.metrics import push
from service.safety.checker import SafetyChecker
from service.settings.pools import PoolSettings
from service.settings.safety import SafetySettings
from service.settings.section import ConfigError
from service.settings.settings import Settings
from service.settings.tenants import classes_of
from service.tracing import spans
from workers import metrics as worker_metrics
from workers.engine import step_metrics
from workers.engine.engine import Engine
from workers.health import http
from workers.health.liveness import Liveness
from workers.loading import hires_defaults, together
from workers.loading import model as loading
from workers.loading.derived import derived_loras, derived_models
from workers.loading.layout import own
from workers.loading.loras import configured_loras
from workers.loading.model import MeshSlice
from workers.loading.together import Loaded
from workers.loading.upscalers import Held, load_upscalers, upscaler_bytes
from workers.media.marking import Marking
from workers.media.sent_videos import SentVideos
from workers.multihost.exits import leave_within
from workers.multihost.follower import Follower
from workers.multihost.handshake import Handshake, settings_of
from workers.multihost.leader import Leader
from workers.multihost.leader_link import LeaderLink
from workers.multihost.session import agree, join_slice
from workers.pool import listed_sizes, metrics
from workers.pool.lora_files import StoredLoras
from workers.pool.origin import origin_of, show
from workers.pool.output_checks import OutputCheck, OutputChecks
from workers.pool.turns import AllPresent, ModelTurns
from workers.pool.worker import Worker, raise_failures
from workers.programs import batch_sizes, warmup
from workers.programs.batch_sizes import BatchSizes
from workers.programs.launcher import Launcher, OneHost
from workers.programs.program_folder import ProgramFolder
from workers.programs.xla_cache import use_compile_cache
from workers.retry import Patience

SERVICE = "atelier-pool"
"""Name of pools in traces and metrics."""
DRAINED = 0.98
"""Share of a drain's time after which the process ends whatever it is doing."""
TIDY_S = 1.0
"""Time for the threads of a pool that has reported all it had to."""


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
    names = [one.pool.model for one in models]
    began = worker_metrics.started(names, "import", worker_metrics.process_began())
    if settings.redis.url is None:
        raise ConfigError("redis.url: a pool needs the address of the queue")
    marking = Marking.of_settings(settings.output)  # fails before the weights are loaded
    loading.set_up(pool, model, devices, {one.pool.model: one.model for one in models[1:]})
    use_compile_cache(settings.compile_folder)
    liveness, present = Liveness(), list[jax.Device]()
    memory = partial(step_metrics.report_memory, present)
    with (
        spans.exporting(settings.tracing, SERVICE, {"atelier.model": pool.model}),
        push.pushing(settings.metrics, REGISTRY, SERVICE, {"atelier.model": pool.model}, memory),
        http.shown(pool_name, pool.metrics_port, liveness) as shown,
        reached(settings, liveness),
        join_slice(pool.hosts, settings.queue.lease_s) as company,
    ):
        if not isinstance(company, LeaderLink):  # of a slice the first process tells
            for one in models:
                classes = classes_of(settings.tenants.values())
                metrics.expect(one.pool.model, classes, one.model.objective_s)
        if company:
            agree(company, settings_of(pool, model))
        began = worker_metrics.started(names, "wait", began)
        beside = upscaler_bytes(settings, models)
        here = own(devices)
        folder = ProgramFolder(settings.compile_folder, here, settings.executables)
        load = together.by_turns if settings.pools[pool_name].by_turns else together.load
        loaded = load(pool_name, models, here, folder, beside)
        began = worker_metrics.started(names, "load", began)
        present += jax.local_devices()
        if shown:
            shown.refresh = memory
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
        return asyncio.run(serve(settings, pool_name, loaded, launcher, liveness, marking, began))


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
    loaded: Iterable[Loaded],
    launcher: Launcher,
    liveness: Liveness,
    marking: Marking,
    loaded_at: float,
) -> int:
    """Serve loaded models until a signal; the exit code.

    Args:
        loaded: in the pool's order. By turns each is loaded when the one before has left.
        loaded_at: when they were, as `time.time`.
    """
    async with AsyncExitStack() as closing:
        safety = safety_of(settings.safety)
        if safety:
            closing.push_async_callback(safety.close)
        check = OutputChecks(safety, settings.safety.max_frames) if safety else None
        held: Held = {}
        pool = settings.pools[pool_name]
        several = len(pool.models) > 1
        side_by_side = bool(pool.also) or pool.hosts.count > 1
        turns = AllPresent() if side_by_side else ModelTurns(pool.turn_s, is_single=not several)
        open_one = partial(
            _worker, closing, settings, pool_name, launcher, marking, check, held, turns
        )
        parts = [liveness.part(name) if several else liveness for name in pool.models]
        workers, requests, trials = (  # of each model
            list[Worker](),
            list[Sequence[Fields]](),
            list[Sequence[float]](),
        )
        for one, part in zip(loaded, parts, strict=True):
            workers.append(await open_one(one, part))
            requests.append(warm_ups(one))
            trials.append(one.opened.trial_s)
            await turns.join(workers[-1])
        worker_metrics.started(pool.models, "open", loaded_at)
        if several:
            liveness.serves()  # as its parts do
        _hear_signals(workers, launcher, pool.drain_s)
        code = await run_all(workers, requests, trials, turns)
        spans.flush()  # whatever a thread may still be in the midst of
        push.end()
        if pool.hosts.count == 1:  # those of a slice see to it that all end together
            leave_within(TIDY_S, code)
        return code


def warm_ups(one: Loaded) -> list[Fields]:
    """Return the requests that a model's programs are compiled for before it is ready."""
    return warmup.requests(one.pipeline.spec, one.model.warmup)


async def run_all(
    workers: Sequence[Worker],
    requests: Sequence[Sequence[Fields]],
    expected_s: Sequence[Sequence[float]],
    turns: AllPresent,
) -> int:
    """Run workers until all have ended; the first that ends drains the others.

    Args:
        requests: each one's warm-up requests.
        expected_s: of each of those, as `Worker.run` has it.

    Raises: as `Worker.run` and `AllPresent.run`.
    """
    turning = asyncio.create_task(turns.run())

    def stop(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            for worker in workers:
                worker.stop_now()

    turning.add_done_callback(stop)

    async def run(worker: Worker, warmup: Sequence[Fields], expected_s: Sequence[float]) -> int:
        try:
            return await worker.run(warmup, expected_s)
        finally:
            for other in workers:
                other.drain()

    running = [run(*each) for each in zip(workers, requests, expected_s, strict=True)]
    ended = await asyncio.gather(*running, return_exceptions=True)
    raise_failures([turning])
    await cancel(turning)
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
    turns: AllPresent,
    one: Loaded,
    liveness: Liveness,
) -> Worker:
    """Open a model's queue, engine and worker."""
    step_metrics.rate(one.pool.model, one.opened.layout.mesh.devices.flat)
    queue = await Queue.open_when_reached(settings, liveness.waits)
    closing.push_async_callback(queue.close)
    queue.tally = metrics.tally
    store, opened = Store(settings.store_url), one.opened
    loras = await prepared_loras(settings, one.pool, one.pipeline, opened, store)
    upscalers = load_upscalers(settings, one.pipeline, first_device(opened.layout), held)
    aim = Aim(objective_s=one.model.objective_s, cold_start_s=one.model.cold_start_s)
    one.pipeline.spec = one.pipeline.spec.model_copy(update={"aim": aim})
    served = listed_sizes.of_settings(one.model, one.pipeline.spec)
    one.pipeline.spec = one.pipeline.spec.model_copy(update={"sizes": served})
    hires_defaults.check(one.pipeline.spec)
    engine = Engine(
        *(one.pipeline, opened.layout, opened.chosen.slots, _batching(one), launcher),
        *(opened.executables, loras.find, upscalers),
    )
    closing.callback(engine.close)
    origin = origin_of(one.pipeline.spec, opened.layout, settings.usage)
    show(one.pool.model, opened.layout, origin, len(settings.pools[pool_name].models))
    return Worker(
        *(pool_name, engine, queue, store, one.pool, settings.queue.lease_s, liveness),
        *(served, marking, check, turns, origin, SentVideos(settings.limits)),
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
