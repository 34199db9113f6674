"""Connections to Redis: one client for commands, one that may wait for messages without end."""

from __future__ import annotations

import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

from service.settings import ConfigError, RedisSettings

MIN_REDIS = (7, 0)
MIN_VALKEY = (8, 0)
POLICY = "noeviction"
MAX_CONNECTIONS = 64
COMMAND_TIMEOUT_S = 5.0
POOL_TIMEOUT_S = 30.0
RETRIES = 5

T = TypeVar("T")


async def connect(settings: RedisSettings) -> Redis:
    """A client for commands: each is sent again after a lost connection.

    Raises: ConfigError: nothing answers there, or it does not let us in, is too old, or may evict
        keys.
    """
    redis = client(settings)
    where = shown(str(settings.url))
    try:
        check_server(await redis.info(), where)
    except ConfigError:
        await redis.aclose()
        raise
    except RedisError as error:
        await redis.aclose()
        raise _refused(where, error) from error
    return redis


def _refused(where: str, error: RedisError) -> ConfigError:
    if isinstance(error, AuthenticationError | NoPermissionError):
        return ConfigError(
            f"redis.username, redis.password: the Redis at {where} does not let us in ({error}); "
            "correct them, or what its ACL grants"
        )
    return ConfigError(
        f"redis.url: no Redis answers at {where} ({error}); start one there or correct the address"
    )


def client(settings: RedisSettings) -> Redis:
    """A client that has not connected yet. Raises: ConfigError: it has no address."""
    if settings.url is None:
        raise ConfigError("redis.url: name the server (ATELIER_REDIS__URL=redis://…)")
    url = settings.url
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            timeout=POOL_TIMEOUT_S,
            decode_responses=True,
            protocol=2,
            socket_timeout=COMMAND_TIMEOUT_S,
            socket_connect_timeout=COMMAND_TIMEOUT_S,
            retry=BriefRetry(ExponentialBackoff(cap=1.0, base=0.02), RETRIES),
            **_credentials(settings),
            **(_tls(settings) if url.startswith("rediss:") else {}),
        )
    except ValueError as error:
        raise ConfigError(f"redis.url: {shown(url)} is no address of a Redis: {error}") from error
    return Redis.from_pool(pool)


class BriefRetry(Retry):
    """Ends with the first failure after `COMMAND_TIMEOUT_S`: a server that stands still is asked
    once. redis-py retries a command whose connection it retries, which takes minutes there."""

    async def call_with_retry(
        self, do: Callable[[], Awaitable[T]], fail: Callable[..., Any], *args: Any, **rest: Any
    ) -> T:
        until = time.monotonic() + COMMAND_TIMEOUT_S

        async def fail_in_time(error: Exception, *count: int) -> None:
            await fail(error, *count)
            if time.monotonic() >= until:
                raise error

        return await super().call_with_retry(do, fail_in_time, *args, **rest)


class PasswordFile(CredentialProvider):
    """Reads the password for each connection, so that it may change while we run."""

    def __init__(self, username: str | None, file: Path) -> None:
        self._username = username
        self._file = file

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        password = self._file.read_text().strip()
        return (self._username, password) if self._username else (password,)


def _credentials(settings: RedisSettings) -> dict[str, Any]:
    if settings.password_file:
        return {"credential_provider": PasswordFile(settings.username, settings.password_file)}
    password = settings.password.get_secret_value() if settings.password else None
    given = {"username": settings.username, "password": password}
    return {name: value for name, value in given.items() if value is not None}


def _tls(settings: RedisSettings) -> dict[str, Any]:
    """The server has to prove its name."""
    files = {
        "ssl_ca_certs": settings.ca_file,
        "ssl_certfile": settings.cert_file,
        "ssl_keyfile": settings.key_file,
    }
    return {
        "ssl_cert_reqs": "required",
        "ssl_check_hostname": True,
        "ssl_min_version": ssl.TLSVersion.TLSv1_2,
        **{name: str(file) for name, file in files.items() if file},
    }


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
    """The address without its password, which may stand in its query, too."""
    address, mark, query = url.partition("?")
    if mark and "password=" in query:
        query = "***"
    parts = urlsplit(address)
    if parts.password is not None:
        address = parts._replace(netloc=f"***@{parts.netloc.rpartition('@')[2]}").geturl()
    return address + mark + query
