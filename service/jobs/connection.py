"""Connections to Redis: one client for commands, one that may wait for messages without end."""

from __future__ import annotations

import logging
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

from service.jobs.loopback import is_local
from service.settings import ConfigError, RedisSettings

MIN_REDIS = (7, 0)
MIN_VALKEY = (8, 0)
POLICY = "noeviction"
MAX_CONNECTIONS = 64
COMMAND_TIMEOUT_S = 5.0
POOL_TIMEOUT_S = 30.0
RETRIES = 5
WANTED = (
    "take redis://, rediss:// or unix://, a port that is a number, and in a password %2F for /,"
    " %3F for ?, %23 for #, %40 for @"
)

T = TypeVar("T")

log = logging.getLogger(__name__)


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
    if lacking := lacks(settings):
        log.warning("redis.url: %s is reached over a network without %s", where, lacking)
    return redis


def lacks(settings: RedisSettings) -> str:
    """What should guard a server that not this machine alone reaches, and does not."""
    parts = urlsplit(settings.url or "")
    if not parts.hostname or is_local(parts.hostname):
        return ""
    knows_us = settings.password or settings.password_file or settings.cert_file or parts.password
    guards = {
        "TLS (rediss://)": parts.scheme == "rediss",
        "a password (redis.password)": knows_us or "password=" in parts.query.lower(),
    }
    return " and ".join(name for name, is_there in guards.items() if not is_there)


def _refused(where: str, error: RedisError) -> ConfigError:
    causes = error, error.__cause__  # redis-py wraps what it is told at a socket in a folder
    if any(isinstance(one, AuthenticationError | NoPermissionError) for one in causes):
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
    except ValueError:  # which may quote a part of the password
        raise ConfigError(f"redis.url: {shown(url)} is no address of a Redis: {WANTED}") from None
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
        """Raises: AuthenticationError: nothing can be read there, for the moment or for good."""
        try:
            password = self._file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
            raise AuthenticationError(f"cannot read {self._file}: {reason}") from None
        return (self._username, password) if self._username else (password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """redis-py's own does the same, with a warning each time."""
        return self.get_credentials()


def _credentials(settings: RedisSettings) -> dict[str, Any]:
    if settings.password_file:
        return {"credential_provider": PasswordFile(settings.username, settings.password_file)}
    password = settings.password.get_secret_value() if settings.password else None
    given = {"username": settings.username, "password": password}
    return {name: value for name, value in given.items() if value is not None}


def _tls(settings: RedisSettings) -> dict[str, Any]:
    """The server has to prove its name, unless its authority vouches for nobody else."""
    files = {
        "ssl_ca_certs": settings.ca_file,
        "ssl_certfile": settings.cert_file,
        "ssl_keyfile": settings.key_file,
    }
    return {
        "ssl_cert_reqs": "required",
        "ssl_check_hostname": settings.check_name,
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
    """The address without its user and password, which may stand in its query, too; whatever a
    password has in it, it ends before the last @."""
    scheme, mark, rest = url.partition("://")
    secret, at, place = rest.rpartition("@")
    address, question, query = place.partition("?")
    if "password=" in query.lower():
        query = "***"
    return f"{scheme}{mark}{'***' if secret else ''}{at}{address}{question}{query}"
