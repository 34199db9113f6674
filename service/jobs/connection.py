"""Connections to Redis: one client for commands, one that may wait for messages without end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.exceptions import RedisError

from service.settings import ConfigError

MIN_REDIS = (7, 0)
MIN_VALKEY = (8, 0)
POLICY = "noeviction"
MAX_CONNECTIONS = 64
COMMAND_TIMEOUT_S = 5.0
POOL_TIMEOUT_S = 30.0
RETRIES = 5


async def connect(url: str) -> Redis:
    """A client for commands: each is sent again after a lost connection.

    Raises: ConfigError: nothing answers there, or it is too old, or it may evict keys.
    """
    redis = client(url)
    try:
        check_server(await redis.info(), shown(url))
    except ConfigError:
        await redis.aclose()
        raise
    except RedisError as error:
        await redis.aclose()
        raise ConfigError(
            f"redis.url: no Redis answers at {shown(url)} ({error}); "
            "start one there or correct the address"
        ) from error
    return redis


def client(url: str) -> Redis:
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            timeout=POOL_TIMEOUT_S,
            decode_responses=True,
            protocol=2,
            socket_timeout=COMMAND_TIMEOUT_S,
            socket_connect_timeout=COMMAND_TIMEOUT_S,
            retry=Retry(ExponentialBackoff(cap=1.0, base=0.02), RETRIES),
        )
    except ValueError as error:
        raise ConfigError(f"redis.url: {shown(url)} is no address of a Redis: {error}") from error
    return Redis.from_pool(pool)


def waiting_twin(redis: Redis) -> Redis:
    """A client of the same server whose reads wait as long as it takes, and are never repeated."""
    pool = redis.connection_pool
    kwargs = {**pool.connection_kwargs, "socket_timeout": None, "retry": Retry(NoBackoff(), 0)}
    return Redis.from_pool(ConnectionPool(connection_class=pool.connection_class, **kwargs))


def check_server(info: Mapping[str, Any], where: str) -> None:
    """Raises: ConfigError: the server that says this of itself cannot carry the queue."""
    name, text, floor = "Redis", str(info["redis_version"]), MIN_REDIS
    if "valkey_version" in info:
        name, text, floor = "Valkey", str(info["valkey_version"]), MIN_VALKEY
    if version(text) < floor:
        raise ConfigError(
            f"redis.url: {where} is {name} {text}; take Redis 7.0, Valkey 8.0 or later"
        )
    policy = info.get("maxmemory_policy", POLICY)
    if policy != POLICY:
        raise ConfigError(
            f"redis.url: {where} may evict jobs (maxmemory-policy is {policy}); "
            f"run CONFIG SET maxmemory-policy {POLICY} there"
        )


def version(text: str) -> tuple[int, int]:
    """'7.0.15' → (7, 0)."""
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def shown(url: str) -> str:
    """The address without its password."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    return parts._replace(netloc=f"***@{parts.netloc.rpartition('@')[2]}").geturl()
