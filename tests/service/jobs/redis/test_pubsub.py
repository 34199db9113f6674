"""Event streams, claims and commands continue after a lost Redis connection."""

from __future__ import annotations

import asyncio

from redis.asyncio import Redis

from service.jobs.queue import Queue
from tests.service.jobs.conftest import Connect, subscribers
from tests.service.jobs.examples import MODEL, USAGE, a_job


async def cut(redis: Redis) -> None:
    for client in await subscribers(redis):
        await redis.client_kill_filter(_id=client)


async def test_events_continue_after_a_lost_connection(
    connect: Connect, empty_redis: Redis
) -> None:
    front, pool = await connect(), await connect()
    job, _ = await front.put(a_job())
    events = front.events(job.id)
    names = [(await anext(events)).name]
    waiting = asyncio.ensure_future(anext(events))
    await cut(empty_redis)
    (claim,) = await pool.claim("pool", MODEL, 1)  # without a notification: they poll
    names.append((await asyncio.wait_for(waiting, 10)).name)
    await cut(empty_redis)
    await pool.finish(claim, [], USAGE)
    async with asyncio.timeout(10):
        names += [event.name async for event in events]
    assert names == ["queued", "running", "succeeded"]


async def test_waiting_claim_survives_a_lost_connection(
    connect: Connect, empty_redis: Redis
) -> None:
    front, pool = await connect(), await connect()
    waiting = asyncio.create_task(pool.claim("pool", MODEL, 1, wait_s=60))
    await cut(empty_redis)
    job, _ = await front.put(a_job())
    (claim,) = await asyncio.wait_for(waiting, 10)
    assert claim.job.id == job.id


async def test_commands_survive_a_lost_connection(queue: Queue, empty_redis: Redis) -> None:
    job, _ = await queue.put(a_job())
    own_id = await empty_redis.client_id()
    for client in await empty_redis.client_list():
        if int(client["id"]) != own_id:
            await empty_redis.client_kill_filter(_id=client["id"])
    assert await queue.get(job.id) == job


async def test_no_subscription_is_left(connect: Connect, empty_redis: Redis) -> None:
    queue = await connect()
    job, _ = await queue.put(a_job())
    events = queue.events(job.id)
    await anext(events)
    assert len(await subscribers(empty_redis)) == 1
    await events.aclose()
    await queue.close()
    async with asyncio.timeout(10):
        while await empty_redis.client_list(_type="pubsub"):
            pass  # each iteration is a round trip
