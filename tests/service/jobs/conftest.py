"""Fixtures of queues with arbitrary settings on one empty Redis server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from redis.asyncio import Redis

from models.spec.model_spec import Limits, ModelSpec
from service.jobs.queue import Queue
from service.settings.queue import QueueSettings
from tests.service.jobs.examples import MODEL

Connect = Callable[..., Awaitable[Queue]]

for name in ("audit", "history", "life_model", "lives", "queue_model"):
    pytest.register_assert_rewrite(f"tests.service.jobs.{name}")


@pytest.fixture
async def connect(redis_url: str, empty_redis: Redis) -> AsyncIterator[Connect]:
    """Factory of further queues on the same server; accepts fields of QueueSettings, and `url`."""
    async with AsyncExitStack() as stack:

        async def connect(url: str = redis_url, **settings: Any) -> Queue:
            queue = await Queue.connect(url, QueueSettings(**settings))
            stack.push_async_callback(queue.close)
            return queue

        yield connect


@pytest.fixture
async def hasty(connect: Connect) -> Queue:
    """Queue whose leases and retention last a microsecond. Its claims lapse at once, and its `reap`
    deletes ended jobs. It tolerates long pauses between reaps."""
    return await connect(lease_s=1e-6, retention_s=1e-6, reap_every_s=1000)


@pytest.fixture
def a_spec() -> ModelSpec:
    return ModelSpec(
        name=MODEL,
        family="flux",
        tasks=("text-to-image",),
        fields=frozenset({"prompt", "width", "height"}),
        defaults={"width": 96, "height": 96},
        limits=Limits(
            size_multiple_px=16,
            min_side_px=16,
            max_side_px=128,
            max_pixels=128 * 128,
            max_steps=50,
            max_images=4,
            max_sequence_length=64,
        ),
        bucket_fields=("width", "height"),
        fingerprint="0123",
    )


async def subscribers(redis: Redis) -> list[str]:
    """Ids of the Redis connections that subscribe to wake-ups; waits for the first."""
    async with asyncio.timeout(10):
        while not (clients := await redis.client_list(_type="pubsub")):
            pass  # each iteration is a round trip
    return [client["id"] for client in clients]
