"""Registration of models by workers, and its expiry."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from redis.asyncio import Redis

from models.spec.model_spec import ModelSpec
from models.spec.quality_presets import GuidanceInterval, Quality, StepCache
from service.jobs.queue import ModelStatus, Queue
from service.jobs.redis import keys
from service.jobs.scheduling.cost_model import CostKey, CostRow, PoolFacts
from tests.service.jobs.conftest import Connect
from tests.service.jobs.examples import a_job


async def test_no_models_before_a_pool_registers(queue: Queue) -> None:
    assert await queue.models() == {}


async def test_pools_of_a_model(queue: Queue, a_spec: ModelSpec) -> None:
    await queue.register("b", a_spec, ready=False)
    assert await queue.models() == {a_spec.name: ModelStatus(a_spec, ("b",), ready=False)}
    await queue.register("a", a_spec, ready=True)
    assert await queue.models() == {a_spec.name: ModelStatus(a_spec, ("a", "b"), ready=True)}
    other = a_spec.model_copy(update={"name": "another"})
    await queue.register("c", other, ready=True)
    assert list(await queue.models()) == ["another", a_spec.name]


async def test_spec_remains_after_the_pool_is_unregistered(queue: Queue, a_spec: ModelSpec) -> None:
    await queue.register("a", a_spec, ready=True)
    await queue.unregister("a", a_spec.name)
    assert await queue.models() == {a_spec.name: ModelStatus(a_spec, (), ready=False)}


def with_more(value: Any) -> Any:
    """Copy of a JSON value with an additional member in each object."""
    if isinstance(value, list):
        return [with_more(member) for member in value]
    if not isinstance(value, dict):
        return value
    return {name: with_more(member) for name, member in value.items()} | {"newest": None}


async def test_unknown_fields_of_a_newer_worker_are_ignored(
    queue: Queue, a_spec: ModelSpec, empty_redis: Redis
) -> None:
    cache = StepCache(kind="teacache", threshold=0.1)
    preset = Quality(guidance=GuidanceInterval(stop=0.5), step_cache=cache)
    spec = a_spec.model_copy(update={"qualities": {"fast": preset}})
    await queue.register("a", spec, ready=True)
    record = json.loads(await empty_redis.hget(keys.MODELS, spec.name))
    record |= {name: with_more(record[name]) for name in ("limits", "batching", "sizes", "aim")}
    record |= {"qualities": {"fast": with_more(record["qualities"]["fast"])}, "newest": {"a": 1}}
    await empty_redis.hset(keys.MODELS, spec.name, json.dumps(record))
    assert (await queue.models())[spec.name].spec == spec


async def test_unreadable_model_does_not_hide_others(
    queue: Queue, a_spec: ModelSpec, empty_redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    await queue.register("a", a_spec, ready=True)
    newer = json.loads(a_spec.model_dump_json()) | {"name": "newer", "tasks": ["text-to-smell"]}
    await empty_redis.hset(keys.MODELS, "newer", json.dumps(newer))
    for _ in range(3):
        assert list(await queue.models()) == [a_spec.name]
    assert [record.message.count("text-to-smell") for record in caplog.records] == [1]


@pytest.fixture
async def forgetful(connect: Connect) -> Queue:
    return await connect(model_retention_s=1e-6)


async def test_a_model_without_pools_is_forgotten_after_its_time(
    queue: Queue, forgetful: Queue, a_spec: ModelSpec, empty_redis: Redis
) -> None:
    await queue.register("a", a_spec, ready=True, facts=PoolFacts("layout", 1))
    row = CostRow(step_s=1, encode_s=0, decode_s=0)
    await queue.measured(a_spec.name, {CostKey("bucket", "layout", 1): row})
    await forgetful.reap()
    assert list(await queue.models()) == [a_spec.name], "a worker serves it"
    await queue.unregister("a", a_spec.name)
    await queue.reap()
    assert list(await queue.models()) == [a_spec.name], "too early"
    await forgetful.reap()
    assert await queue.models() == {}
    assert await empty_redis.keys() == ["{atelier}:reaped"]
    await queue.register("a", a_spec, ready=True)
    assert list(await queue.models()) == [a_spec.name]


async def test_unregistered_model_with_jobs_is_not_forgotten(
    queue: Queue, forgetful: Queue, a_spec: ModelSpec
) -> None:
    await queue.register("a", a_spec, ready=True)
    job, _ = await queue.put(a_job(model=a_spec.name))
    await queue.unregister("a", a_spec.name)
    await forgetful.reap()
    assert list(await queue.models()) == [a_spec.name]
    await queue.claim("a", a_spec.name, 1)
    await forgetful.reap()
    assert list(await queue.models()) == [a_spec.name]
    await queue.cancel(job.id)
    await forgetful.reap()
    assert await queue.models() == {}


async def test_queue_depths_by_model(queue: Queue, a_spec: ModelSpec) -> None:
    assert await queue.depths() == {}
    await queue.register("a", a_spec, ready=True)
    await queue.register("b", a_spec.model_copy(update={"name": "idle"}), ready=True)
    for _ in range(5):
        await queue.put(a_job(model=a_spec.name))
    claims = await queue.claim("a", a_spec.name, 3)
    await queue.cancel(claims[0].job.id)
    depths = await queue.depths()
    assert {name: (depth.queued, depth.running) for name, depth in depths.items()} == {
        a_spec.name: (2, 2),
        "idle": (0, 0),
    }


async def test_the_newest_spec_counts(queue: Queue, a_spec: ModelSpec) -> None:
    await queue.register("a", a_spec, ready=True)
    newer = a_spec.model_copy(update={"fingerprint": "4567"})
    await queue.register("a", newer, ready=True)
    assert (await queue.models())[a_spec.name].spec == newer


async def test_worker_without_heartbeat_is_removed(
    connect: Connect, a_spec: ModelSpec, empty_redis: Redis
) -> None:
    dies, lives, facts = await connect(lease_s=0.1), await connect(), PoolFacts("a", 4)
    await dies.register("dead", a_spec, ready=True, facts=facts)
    await lives.register("warming", a_spec, ready=False, facts=facts)
    status = (await lives.models())[a_spec.name]
    async with asyncio.timeout(10):
        while "dead" in status.pools:
            status = (await lives.models())[a_spec.name]
    assert status == ModelStatus(a_spec, ("warming",), ready=False)
    await lives.reap()
    for kind in ("pools", "layouts"):
        assert await empty_redis.hkeys(f"{keys.PREFIX}{kind}:{a_spec.name}") == ["warming"], kind
