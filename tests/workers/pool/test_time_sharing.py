"""Two models that take turns on the same devices: which model is next, and what happens to running
jobs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import jax
import pytest
from prometheus_client import REGISTRY

from models.interface.pipeline import generate
from models.parallel.axis_rules import Layout
from service.jobs.model.job import Job, JobState
from service.jobs.operations import Pause, Sleep
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.pools import PoolSettings
from tests.workers.jobs import ended, pixels, toy_job
from tests.workers.polling import DEADLINE_S, until
from tests.workers.running_worker import has_step
from tests.workers.toy import ToyPipeline
from workers.engine.engine import Engine
from workers.pool.process import run_all
from workers.pool.time_sharing import CHECK_EVERY_S, ResidentModels, TimeSharedModels, next_model
from workers.pool.worker import Worker, WorkerOptions, WorkerParts

ENDLESS = 200_000
"""Number of steps of a job that does not end within a test."""
NAMES = ("one", "other")
LEASE_S = 0.6
"""Interval of heartbeats, which deliver operators' requests to a worker."""
LONG = 10 * CHECK_EVERY_S


@pytest.mark.parametrize(
    ("present", "left_s", "waiting", "expected"),
    [
        (None, 0.0, {}, None),
        (None, 0.0, {"a": LONG}, "a"),
        ("a", 0.0, {"b": LONG}, "b"),
        ("a", 0.0, {"a": 9 * LONG}, None),
        ("a", 5.0, {"b": 9 * LONG}, None),
        ("a", -1.0, {"a": 9 * LONG, "b": LONG}, "b"),
        ("a", 0.0, {"b": LONG, "c": 2 * LONG}, "c"),
        ("a", 0.0, {"b": CHECK_EVERY_S / 2}, None),
    ],
)
def test_next_model_is_chosen_by_waiting_work(
    present: str | None, left_s: float, waiting: dict[str, float], expected: str | None
) -> None:
    assert next_model(present, left_s, waiting) == expected


class Named(ToyPipeline):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.spec = self.spec.model_copy(update={"name": name})
        self.weights = jax.tree.map(lambda leaf: leaf * (1 + NAMES.index(name)), self.weights)


def job(model: str, **fields: Any) -> Job:
    return toy_job(**fields).model_copy(update={"model": model})


@asynccontextmanager
async def by_turns(
    layout: Layout,
    queue: Queue,
    store: Store,
    turn_s: float = 0.5,
    names: Sequence[str] = NAMES,
    **settings: Any,
) -> AsyncIterator[dict[str, Worker]]:
    """Yield the ready workers of a pool of toy models that take turns."""
    time_sharing, workers = TimeSharedModels(turn_s, is_single=len(names) == 1), dict[str, Worker]()
    defaults = {"slots": 2, "preview_every_s": 0, "quantum_s": 0.2, "snapshot_share": 0.5}
    for name in names:
        pool = PoolSettings(model=name, **{**defaults, **settings})
        engine = Engine(Named(name), layout, pool.slots or 1)
        parts, options = WorkerParts(engine, queue, store), WorkerOptions(time_sharing=time_sharing)
        workers[name] = Worker("toys", parts, pool, LEASE_S, options)
        await time_sharing.join(workers[name])
    task = asyncio.create_task(
        run_all([*workers.values()], [[{}]] * len(names), [[]] * len(names), time_sharing)
    )
    try:
        await until(lambda: task.done() or all(member.is_ready for member in workers.values()))
        yield workers
        for worker in workers.values():
            worker.stop_now()
        assert await asyncio.wait_for(task, DEADLINE_S) == 0
    finally:
        task.cancel()
        for worker in workers.values():
            worker.engine.close()


def present(workers: dict[str, Worker]) -> list[str]:
    """Return the models whose weights are on the devices."""
    return [name for name, worker in workers.items() if not worker.engine.weights.is_offloaded]  # type: ignore[attr-defined]


async def test_time_shared_models_match_separate_ones(
    layout: Layout, queue: Queue, store: Store
) -> None:
    swaps = {name: swapped(name) for name in NAMES}
    async with by_turns(layout, queue, store) as workers:
        assert len(present(workers)) == 1
        submitted = [job(name, seed=seed) for seed in range(3) for name in NAMES]
        for item in submitted:
            await queue.put(item)
        for item in submitted:
            (image,) = await pixels(store, await ended(queue, item))
            alone = Named(item.model)
            fields = {**alone.spec.defaults, **item.request}
            assert (image == generate(alone, fields, {})).all()
            assert len(present(workers)) <= 1
    assert all(swapped(name) > before for name, before in swaps.items())


def swapped(model: str) -> float:
    return REGISTRY.get_sample_value("atelier_model_swaps_total", {"model": model}) or 0.0


async def test_long_job_is_suspended_and_resumes(
    layout: Layout, queue: Queue, store: Store
) -> None:
    async with by_turns(layout, queue, store) as workers:
        long = job("one", num_inference_steps=ENDLESS)
        await queue.put(long)
        await until(lambda: has_step(queue, long.id, 3))
        short = job("other")
        await queue.put(short)
        assert (await ended(queue, short)).state is JobState.SUCCEEDED
        suspended = await queue.get(long.id)
        assert (
            suspended is not None
            and suspended.step >= 3
            and suspended.attempts <= 1
            and not suspended.deaths
        )
        await until(lambda: has_step(queue, long.id, suspended.step + 1))
        again = await queue.get(long.id)
        assert again is not None and again.attempts == 1, "an attempt that made way is not counted"
        assert present(workers) == ["one"]
        await queue.cancel(long.id)


async def test_registration_reports_seconds_until_the_other_model_can_begin(
    layout: Layout, queue: Queue, store: Store
) -> None:
    async with by_turns(layout, queue, store, turn_s=100) as workers:
        (resident,) = present(workers)
        (absent,) = {*NAMES} - {resident}
        await queue.put(long := job(resident, num_inference_steps=ENDLESS))
        await until(lambda: has_step(queue, long.id, 1))
        await workers[absent].announce()
        facts = {name: (await queue.costs(name)).pools for name in NAMES}
        ((current,), (later,)) = (facts[name].values() for name in (resident, absent))
        assert current.away_s == 0 and 10 < later.away_s < 101
        await queue.put(waiting := job(absent))
        await queue.cancel(long.id)  # the present model has no work, so its turn ends at once
        assert (await ended(queue, waiting)).state is JobState.SUCCEEDED


async def test_paused_model_is_not_swapped_in(layout: Layout, queue: Queue, store: Store) -> None:
    async with by_turns(layout, queue, store) as workers:
        (resident,) = present(workers)
        (absent,) = {*NAMES} - {resident}
        await queue.pause("model", absent, Pause(by="op", at=1.0))
        await queue.put(paused := job(absent))
        running = [job(resident) for _ in range(3)]
        for item in running:
            await queue.put(item)
        for item in running:
            await ended(queue, item)
        assert (await workers[absent].waiting_s()) is None and present(workers) == [resident]
        await queue.resume("model", absent)
        await ended(queue, paused)
        assert present(workers) == [absent]


async def test_weights_that_cannot_load_end_the_process(
    layout: Layout, queue: Queue, store: Store
) -> None:
    with pytest.raises(RuntimeError, match="no room"):
        async with by_turns(layout, queue, store) as workers:
            (resident,) = present(workers)
            (absent,) = {*NAMES} - {resident}

            tried = threading.Event()

            def broken(keep_copies: bool = True) -> float:
                tried.set()
                raise RuntimeError("no room")

            workers[absent].engine.weights.reload = broken  # type: ignore[attr-defined]
            await queue.put(waiting := job(absent))
            await until(tried.is_set)
            assert workers[resident].engine.weights.is_offloaded  # type: ignore[attr-defined]
            current = await queue.get(waiting.id)
            assert current is not None and current.state is JobState.QUEUED


@pytest.mark.parametrize("names", [NAMES, NAMES[:1]], ids=["take turns", "single"])
async def test_idle_worker_sleeps_until_a_job_arrives(
    layout: Layout, queue: Queue, store: Store, names: tuple[str, ...]
) -> None:
    async with by_turns(layout, queue, store, names=names) as workers:
        (resident,) = present(workers)
        await queue.put(long := job(resident, num_inference_steps=ENDLESS))
        await until(lambda: has_step(queue, long.id, 1))
        await queue.put_to_sleep("toys", Sleep(by="op", at=1.0))
        step = (await queue.get(long.id)).step
        await until(lambda: has_step(queue, long.id, step + 10**3))
        assert present(workers) == [resident], "not while it has work"
        await queue.cancel(long.id)
        await until(lambda: asleep(queue, resident))
        assert present(workers) == [] and workers[resident].is_ready
        status = (await queue.models())[resident]
        assert status.pools and status.ready, "clients find it as before"

        await queue.put(waking := job(resident))
        finished = await ended(queue, waking)
        (image,) = await pixels(store, finished)
        alone = Named(resident)
        assert (image == generate(alone, {**alone.spec.defaults, **waking.request}, {})).all()
        await until(lambda: awake(queue, resident))
        assert present(workers) == [resident], "a request that was served once is not served again"


@pytest.mark.parametrize("names", [NAMES, NAMES[:1]], ids=["take turns", "single"])
async def test_an_operator_wakes_it(
    layout: Layout, queue: Queue, store: Store, names: tuple[str, ...]
) -> None:
    async with by_turns(layout, queue, store, names=names) as workers:
        (resident,) = present(workers)
        await queue.put_to_sleep(workers["one"].name, Sleep(by="op", at=1.0))
        await until(lambda: asleep(queue, resident))
        assert await queue.wake(workers["one"].name) and not await queue.sleeps()
        await until(lambda: awake(queue, resident))
        assert present(workers) == [resident]
        await queue.put_to_sleep("toys", Sleep(by="op", at=2.0))
        await until(lambda: asleep(queue, resident))


class Idle:
    """Member without a network. A test sets how long jobs of its model have waited."""

    is_ready, jobs = True, 0

    def __init__(self, model: str) -> None:
        self.model = model
        self.waits_s: float | None = None
        self.looks = 0

    async def waiting_s(self) -> float | None:
        self.looks += 1
        return self.waits_s

    def end_waiting_claim(self) -> None:
        pass

    async def offload_weights(self) -> None:
        pass

    async def reload_weights(self, keep_copies: bool) -> None:
        pass

    clear_jobs = announce = interrupt = offload_weights


async def test_sleep_request_applies_once_to_one_worker() -> None:
    """Each model has its own worker. Only one of them gets the request to sleep."""
    time_sharing, first = TimeSharedModels(0.0), Idle("one")

    def beat(sleep: Sleep | None) -> None:
        for model in ("other", "one", "other"):
            time_sharing.apply_sleep(model, sleep if model == "one" else None)

    for member in (first, Idle("other")):
        await time_sharing.join(member)
    await time_sharing.ensure_present("one")
    running = asyncio.create_task(time_sharing.run())
    beat(request := Sleep(by="op", at=1.0))
    await until(lambda: time_sharing.is_asleep)
    first.waits_s = LONG
    await until(lambda: time_sharing.is_present("one"))
    first.waits_s = None
    looks = first.looks
    while first.looks < looks + 3:
        beat(request)
        assert time_sharing.is_present("one"), "it was put to sleep again"
        await asyncio.sleep(CHECK_EVERY_S / 10)
    beat(Sleep(by="op", at=2.0))
    await until(lambda: time_sharing.is_asleep)
    beat(None)
    await until(lambda: time_sharing.is_present("one"))
    running.cancel()


def test_unsupported_sleep_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    time_sharing = ResidentModels()
    for _ in range(3):
        time_sharing.apply_sleep("one", Sleep(by="op", at=1.0))
        time_sharing.apply_sleep("other", None)
    assert caplog.text.count("cannot sleep") == 1


async def asleep(queue: Queue, model: str) -> bool:
    return all(facts.asleep for facts in (await queue.costs(model)).pools.values())


async def awake(queue: Queue, model: str) -> bool:
    return not await asleep(queue, model)


async def test_drain_lets_running_jobs_finish(layout: Layout, queue: Queue, store: Store) -> None:
    async with by_turns(layout, queue, store, drain_s=600) as workers:
        (resident,) = present(workers)
        await queue.put(running := job(resident, num_inference_steps=4_000))
        await until(lambda: has_step(queue, running.id, 1))
        for worker in workers.values():
            worker.stop()
        assert (await ended(queue, running)).state is JobState.SUCCEEDED
