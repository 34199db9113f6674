"""Redis client with few connections: commands of any size wait for a connection; none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest
import uvloop
from redis.asyncio import Redis
from redis.exceptions import ConnectionError, DataError

from service.jobs.redis import connection
from service.jobs.redis.connection_pool import AT_ONCE_BYTES
from service.settings.redis import RedisSettings

PATIENCE_S = 60
Connect = Callable[[int], Redis]


@pytest.fixture
async def connect(redis_url: str) -> AsyncIterator[Connect]:
    """Redis client with at most `most` connections, configured as in production."""
    async with AsyncExitStack() as stack:

        def connect(most: int) -> Redis:
            settings = RedisSettings(url=f"{redis_url}&max_connections={most}")
            redis = connection.client(settings)
            stack.push_async_callback(redis.aclose)
            return redis

        yield connect


@pytest.mark.parametrize("most", [1, 3])
async def test_commands_wait_for_a_free_connection(connect: Connect, most: int) -> None:
    redis = connect(most)

    async def query(number: int) -> tuple[str, int]:
        return await redis.echo(str(number)), await redis.client_id()

    async with asyncio.timeout(PATIENCE_S):
        answers = await asyncio.gather(*(query(number) for number in range(100)))
    assert [text for text, _ in answers] == [str(number) for number in range(100)]
    assert len({client for _, client in answers}) <= most


@pytest.mark.parametrize("size", [0, AT_ONCE_BYTES, 2**22], ids=["empty", "at once", "large"])
async def test_a_command_of_any_size_arrives(connect: Connect, size: int) -> None:
    redis = connect(1)
    assert await redis.echo("é" * size) == "é" * size
    assert await redis.ping()


async def test_invalid_argument_is_rejected(connect: Connect) -> None:
    redis = connect(1)
    with pytest.raises(DataError):
        await redis.execute_command("ECHO", [1])
    assert await redis.ping(), "the connection still works"


async def test_idle_closed_connection_is_reopened(connect: Connect, empty_redis: Redis) -> None:
    redis = connect(1)
    client_id = await redis.client_id()
    await empty_redis.client_kill_filter(_id=str(client_id))
    assert await redis.ping()
    assert await redis.client_id() != client_id


def test_sending_over_a_closed_connection_is_a_lost_connection(redis_url: str) -> None:
    """uvloop raises a RuntimeError there: it ended requests with status 500 in the chaos test."""

    async def send() -> None:
        redis = connection.client(RedisSettings(url=redis_url))
        opened = await redis.connection_pool.get_connection()
        opened._writer.transport.abort()
        await asyncio.sleep(0)
        try:
            with pytest.raises(ConnectionError, match="closed"):
                await opened.send_packed_command(opened.pack_command("PING"))
        finally:
            await redis.connection_pool.release(opened)
            await redis.aclose()

    uvloop.run(send())
