"""Scripts reach a server that does not know them."""

from __future__ import annotations

from redis.asyncio import Redis

from service.jobs.queue import Queue
from tests.service.jobs.examples import a_job


async def test_a_server_that_forgot_the_scripts(queue: Queue, empty_redis: Redis) -> None:
    await queue.put(a_job())
    await empty_redis.script_flush()
    job, new = await queue.put(a_job())
    assert new
    assert await queue.get(job.id) == job
