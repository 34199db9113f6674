"""Worker process: from the settings to the end of its workers.

Each model has its own worker, engine and queue connection. They share the devices and the process's
shutdown.

SIGTERM drains: the process claims no more jobs, and finishes those that run. Jobs that would take
too long are suspended and released to other workers. SIGINT, or a second SIGTERM, releases all jobs
at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
from prometheus_client import REGISTRY

from models.adapters.adaptable_layers import names_of
from models.adapters.files.name_table import Names, packed
from models.interface.pipeline import Fields
from models.parallel.axis_rules import Layout
from models.spec.model_spec import Aim
from service.jobs.queue import Queue
from service.jobs.redis import connection
from service.jobs.redis.tasks import cancel
from service.jobs.scheduling.cost_model import CostRow
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
from workers.engine.backend import Backend, Costs, HasSpec
from workers.engine.engine import Engine
from workers.health import http
from workers.health.liveness import Liveness
from workers.loading import hires_defaults, pool_models
from workers.loading import model as loading
from workers.loading.derived import derived_loras, derived_models
from workers.loading.layout import restrict_visible_devices, slice_devices
from workers.loading.loras import configured_loras
from workers.loading.pool_models import DiffusersModel, LoadedModel, PoolModel, ServedModel
from workers.loading.trial_times import EstimatedTimes
from workers.loading.upscalers import UpscalerCache, load_upscalers, upscaler_bytes
from workers.media.input_videos import InputVideos
from workers.media.outputs import Marking
from workers.multihost.exits import exit_within
from workers.multihost.follower import Follower
from workers.multihost.handshake import Handshake, settings_of
from workers.multihost.leader import Leader
from workers.multihost.leader_link import LeaderLink
from workers.multihost.session import agree, join_slice
from workers.pool import listed_sizes, metrics
from workers.pool.job_context import no_check
from workers.pool.lora_files import StoredLoras
from workers.pool.origin import origin_of, show
from workers.pool.output_files import OutputChecks
from workers.pool.time_sharing import ResidentModels, TimeSharedModels
from workers.pool.worker import Worker, WorkerOptions, WorkerParts, raise_failures
from workers.programs import batch_sizes, warmup
from workers.programs.aot_cache import Executables, NoExecutables
from workers.programs.batch_sizes import BatchSizes
from workers.programs.launcher import Launcher, OneHost
from workers.programs.program_folder import ProgramFolder
from workers.programs.xla_cache import use_compile_cache
from workers.retry import Patience

OpenEngine = Callable[[Any, Store], Awaitable[Backend]]
"""Creator of the engine of a `ServedModel`."""
NO_REDIS = "redis.url: a pool needs the address of the queue"
SERVICE = "atelier-pool"
"""Service name of workers in traces and metrics."""
EXIT_SHARE = 0.98
"""Share of the drain time after which the process exits unconditionally."""
THREAD_GRACE_S = 1.0
"""Seconds granted to remaining threads after the last report."""


@dataclass(frozen=True)
class PoolContext:
    """Parts of a pool's process that its workers share."""

    settings: Settings
    pool_name: str
    closing: AsyncExitStack
    open_engine: OpenEngine
    options: WorkerOptions
    """Options of its workers, without those of their models."""

    async def open_worker(self, loaded: ServedModel, liveness: Liveness) -> Worker:
        """Create a model's queue connection, engine and worker."""
        settings = self.settings
        queue = await Queue.open_when_reached(settings, liveness.waits)
        self.closing.push_async_callback(queue.close)
        queue.job_metrics = metrics.job_metrics
        store = Store(settings.store_url)
        engine = await self.open_engine(loaded, store)
        self.closing.callback(engine.close)
        origin = origin_of(engine.place, settings.usage)
        show(loaded.pool.model, engine.place, origin, len(settings.pools[self.pool_name].models))
        worker = Worker(
            self.pool_name,
            WorkerParts(engine, queue, store),
            loaded.pool,
            settings.queue.lease_s,
            replace(
                self.options, liveness=liveness, sizes=engine.pipeline.spec.sizes, origin=origin
            ),
        )
        worker.expect(costs_of(engine.costs, warm_ups(loaded), loaded.estimated))
        return worker


def run_pool(settings: Settings, pool_name: str, devices: range | None = None) -> int:
    """Load the pool's models onto its mesh slice, serve until a signal, and return the exit code.

    Configures JAX, so nothing may have used it before.

    Args:
        devices: devices of this machine; None: all.

    Raises:
        ConfigError: settings are missing or do not fit the devices.
        models.checkpoint.folder.CheckpointError, ValueError: the model cannot be loaded.
    """
    if served := pool_models.diffusers_model(settings, pool_name):
        return _run_diffusers(settings, pool_name, served, devices)
    models = pool_models.from_settings(settings, pool_name)
    pool, model = models[0].pool, models[0].model
    names = [entry.pool.model for entry in models]
    began = worker_metrics.started(names, "import", worker_metrics.process_began())
    if settings.redis.url is None:
        raise ConfigError(NO_REDIS)
    marking = Marking.of_settings(settings.output)  # fails before the weights are loaded
    loading.set_up(pool, model, devices, {entry.pool.model: entry.model for entry in models[1:]})
    use_compile_cache(settings.compile_folder)
    liveness, present = Liveness(), list[jax.Device]()
    memory = partial(step_metrics.report_memory, present)
    with (
        spans.exporting(settings.tracing, SERVICE, {"atelier.model": pool.model}),
        push.pushing(settings.metrics, REGISTRY, SERVICE, {"atelier.model": pool.model}, memory),
        http.health_server(pool_name, pool.metrics_port, liveness) as page,
        wait_for_redis(settings, liveness),
        join_slice(pool.hosts, settings.queue.lease_s) as link,
    ):
        if not isinstance(link, LeaderLink):  # in a slice, the first process reports
            for entry in models:
                classes = classes_of(settings.tenants.values())
                metrics.expect(entry.pool.model, classes, entry.model.objective_s)
        if link:
            agree(link, settings_of(pool, model))
        began = worker_metrics.started(names, "wait", began)
        extra_bytes = upscaler_bytes(settings, models)
        local_devices = slice_devices(devices)
        folder = ProgramFolder(settings.compile_folder, local_devices, settings.executables)
        by_turns = settings.pools[pool_name].by_turns
        load = pool_models.load_one_by_one if by_turns else pool_models.load
        loaded = load(pool_name, models, local_devices, folder, extra_bytes)
        began = worker_metrics.started(names, "load", began)
        present += jax.local_devices()
        if page:
            page.refresh = memory
        launcher: Launcher = OneHost()
        if link:
            (only,) = loaded
            layout, batching = only.opened.layout, _batching(only)
            terms = Handshake.of(only.pipeline, layout, batching.sizes, batching.elastic)
            if isinstance(link, LeaderLink):
                liveness.serves()
                follower = Follower(only.pipeline, layout, terms, only.opened.executables)
                link.follow(follower)
                return 0
            launcher = Leader(link, terms)
        return asyncio.run(serve(settings, pool_name, loaded, launcher, liveness, marking, began))


def _run_diffusers(
    settings: Settings, pool_name: str, served: PoolModel, devices: range | None
) -> int:
    """Serve a pool's model by diffusers. Returns, raises: as `run_pool`."""
    pool, model = served.pool, served.model
    began = worker_metrics.started([pool.model], "import", worker_metrics.process_began())
    if settings.redis.url is None:
        raise ConfigError(NO_REDIS)
    marking = Marking.of_settings(settings.output)
    restrict_visible_devices(devices)
    jax.config.update("jax_platforms", "cpu")  # the devices are torch's
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it warns of packages not needed here
    from workers.diffusers.adapters import names_of
    from workers.diffusers.engine import DiffusersEngine
    from workers.diffusers.load import load

    async def open_engine(loaded: ServedModel, store: Store) -> Backend:
        names = partial(names_of, loaded.pipeline.default)
        loras = await prepared_loras(settings, pool, loaded.pipeline, names, NoExecutables(), store)
        with_aim_and_sizes(loaded)
        return DiffusersEngine(loaded.pipeline, loras.find)

    liveness = Liveness()
    attributes = {"atelier.model": pool.model}
    with (
        spans.exporting(settings.tracing, SERVICE, attributes),
        push.pushing(settings.metrics, REGISTRY, SERVICE, attributes),
        http.health_server(pool_name, pool.metrics_port, liveness),
        wait_for_redis(settings, liveness),
    ):
        metrics.expect(pool.model, classes_of(settings.tenants.values()), model.objective_s)
        began = worker_metrics.started([pool.model], "wait", began)
        loaded = DiffusersModel(pool, model, load(pool.model, model))
        began = worker_metrics.started([pool.model], "load", began)
        return asyncio.run(
            serve(settings, pool_name, [loaded], OneHost(), liveness, marking, began, open_engine)
        )


def _batching(loaded: LoadedModel) -> BatchSizes:
    chosen = loaded.opened.chosen
    return batch_sizes.of_settings(loaded.pool, loaded.model, loaded.opened.layout, chosen.slots)


@contextmanager
def wait_for_redis(settings: Settings, liveness: Liveness) -> Iterator[None]:
    """Enter once Redis is reachable, so that weights are not loaded in vain.

    Raises: ConfigError: Redis responds but is unsuitable.
    """
    asyncio.run(connection.wait_until_reached(settings.redis, liveness.waits))
    liveness.loads()
    yield


async def serve(
    settings: Settings,
    pool_name: str,
    loaded: Iterable[ServedModel],
    launcher: Launcher,
    liveness: Liveness,
    marking: Marking,
    loaded_at: float,
    open_engine: OpenEngine | None = None,
) -> int:
    """Serve loaded models until a signal, and return the exit code.

    Args:
        loaded: models in the pool's order; in time sharing, each is loaded after the previous one
            has left the devices.
        loaded_at: when they were loaded, as `time.time`.
        open_engine: creates a model's engine; None: that of native models.
    """
    async with AsyncExitStack() as closing:
        safety = safety_of(settings.safety)
        if safety:
            closing.push_async_callback(safety.close)
        check = OutputChecks(safety, settings.safety.max_frames) if safety else no_check
        pool = settings.pools[pool_name]
        several = len(pool.models) > 1
        side_by_side = bool(pool.also) or pool.hosts.count > 1
        time_sharing = (
            ResidentModels()
            if side_by_side
            else TimeSharedModels(pool.turn_s, is_single=not several)
        )
        videos = InputVideos(settings.limits)
        context = PoolContext(
            *(settings, pool_name, closing),
            open_engine or partial(native_engine, settings, launcher, UpscalerCache()),
            WorkerOptions(time_sharing=time_sharing, videos=videos, marking=marking, check=check),
        )
        parts = [liveness.part(name) if several else liveness for name in pool.models]
        workers, requests, trials = (  # per model
            list[Worker](),
            list[Sequence[Fields]](),
            list[Sequence[float]](),
        )
        for entry, part in zip(loaded, parts, strict=True):
            workers.append(await context.open_worker(entry, part))
            requests.append(warm_ups(entry))
            trials.append([times.trial_s for times in entry.estimated])
            await time_sharing.join(workers[-1])
        worker_metrics.started(pool.models, "open", loaded_at)
        if several:
            liveness.serves()  # each part reports its own state
        _handle_signals(workers, launcher, pool.drain_s)
        code = await run_all(workers, requests, trials, time_sharing)
        spans.flush()  # even if a thread is still busy
        push.end()
        if pool.hosts.count == 1:  # processes of a slice coordinate their exit
            exit_within(THREAD_GRACE_S, code)
        return code


def warm_ups(loaded: ServedModel) -> list[Fields]:
    """Return a model's warm-up requests, whose programs are compiled before it is ready."""
    return warmup.requests(loaded.pipeline.spec, loaded.model.warmup)


def costs_of(
    costs: Costs, requests: Sequence[Fields], estimated: Sequence[EstimatedTimes]
) -> dict[str, CostRow]:
    """Return the estimated costs of warm-up requests by the queue's buckets."""
    buckets = map(costs.bucket, requests)
    return {
        bucket: CostRow(
            step_s=times.step_s, encode_s=times.encode_s, decode_s=times.decode_s, samples=0
        )
        for bucket, times in zip(buckets, estimated, strict=False)
        if bucket is not None
    }


async def run_all(
    workers: Sequence[Worker],
    requests: Sequence[Sequence[Fields]],
    expected_s: Sequence[Sequence[float]],
    time_sharing: ResidentModels,
) -> int:
    """Run workers until all have ended; the first one to end drains the others.

    Args:
        requests: warm-up requests of each worker.
        expected_s: estimated trial seconds of each request, as for `Worker.run`.

    Raises: as `Worker.run` and `ResidentModels.run`.
    """
    swapping = asyncio.create_task(time_sharing.run())

    def stop(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            for worker in workers:
                worker.stop_now()

    swapping.add_done_callback(stop)

    async def run(worker: Worker, warmup: Sequence[Fields], expected_s: Sequence[float]) -> int:
        try:
            return await worker.run(warmup, expected_s)
        finally:
            for other in workers:
                other.drain()

    running = [run(*each) for each in zip(workers, requests, expected_s, strict=True)]
    ended = await asyncio.gather(*running, return_exceptions=True)
    raise_failures([swapping])
    await cancel(swapping)
    failures = [result for result in ended if isinstance(result, BaseException)]
    if failures:
        raise failures[0]
    return max(result for result in ended if isinstance(result, int))


async def native_engine(
    settings: Settings,
    launcher: Launcher,
    upscaler_cache: UpscalerCache,
    loaded: LoadedModel,
    store: Store,
) -> Engine:
    """Create the engine of a model loaded onto its slice, with its adapters and upscalers."""
    opened = loaded.opened
    step_metrics.rate(loaded.pool.model, opened.layout.mesh.devices.flat)
    names, facts = partial(names_of, loaded.pipeline), opened.executables
    loras = await prepared_loras(settings, loaded.pool, loaded.pipeline, names, facts, store)
    upscalers = load_upscalers(
        settings, loaded.pipeline, first_device(opened.layout), upscaler_cache
    )
    with_aim_and_sizes(loaded)
    hires_defaults.check(loaded.pipeline.spec)
    return Engine(
        *(loaded.pipeline, opened.layout, opened.chosen.slots, _batching(loaded), launcher),
        *(opened.executables, loras.find, upscalers, loaded.pool.prompt_cache_bytes),
    )


def with_aim_and_sizes(loaded: ServedModel) -> None:
    """Add the objectives and the listed sizes of the settings to a model's spec."""
    aim = Aim(objective_s=loaded.model.objective_s, cold_start_s=loaded.model.cold_start_s)
    loaded.pipeline.spec = loaded.pipeline.spec.model_copy(update={"aim": aim})
    served = listed_sizes.of_settings(loaded.model, loaded.pipeline.spec)
    loaded.pipeline.spec = loaded.pipeline.spec.model_copy(update={"sizes": served})


def _handle_signals(workers: Sequence[Worker], launcher: Launcher, drain_s: float) -> None:
    """Stop the workers on signals of this process, and of the slice's other processes."""
    loop = asyncio.get_running_loop()

    def in_time(stop: Callable[[Worker], None]) -> None:
        exit_within(EXIT_SHARE * drain_s, 0)
        for worker in workers:
            stop(worker)

    loop.add_signal_handler(signal.SIGTERM, in_time, Worker.stop)
    loop.add_signal_handler(signal.SIGINT, in_time, Worker.stop_now)
    launcher.on_stop(
        drain=partial(loop.call_soon_threadsafe, in_time, Worker.drain),
        stop_now=partial(loop.call_soon_threadsafe, in_time, Worker.stop_now),
    )


def first_device(layout: Layout) -> jax.Device:
    """Return the slice's first device that belongs to this process."""
    local: list[jax.Device] = [
        device for device in layout.mesh.devices.flat if device.process_index == jax.process_index()
    ]
    return local[0]


def safety_of(settings: SafetySettings) -> SafetyChecker | None:
    """Return the checker of outputs; None: outputs are not checked. Raises: ConfigError."""
    if not (settings.is_on and settings.after):
        return None
    return SafetyChecker(settings, metrics.safety)


async def prepared_loras(
    settings: Settings,
    pool: PoolSettings,
    pipeline: HasSpec,
    names_of: Callable[[], Names],
    facts: Executables,
    store: Store,
) -> StoredLoras:
    """Return the worker's adapter files; add the settings' adapters to the model's spec.

    Args:
        names_of: lists the names of the model's layers, if it accepts adapters.
        facts: store of facts from earlier starts.
    """
    spec = pipeline.spec
    patience, folder = Patience(pool.store_patience_s), settings.state_dir / "loras"
    if not (spec.lora_pages or spec.embedding_sizes):
        return StoredLoras({}, store, patience, folder, pool.lora_cache_bytes)
    names = names_of() if spec.lora_pages else Names((), spec.embedding_sizes)
    configured = await asyncio.to_thread(configured_loras, settings, spec, names, facts)
    others = await asyncio.to_thread(derived_loras, settings, spec, names, facts)
    files = [*configured.values(), *others.values()]
    stored_loras = StoredLoras(files, store, patience, folder, pool.lora_cache_bytes)
    pipeline.spec = spec.model_copy(
        update={
            "loras": await stored_loras.catalogue(configured.values()),
            "lora_layers": packed(names) if spec.lora_pages else "",
            "derived": derived_models(settings, others),
        }
    )
    return stored_loras
