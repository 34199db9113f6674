"""Clients of Redis: one for commands with brief timeouts, one that blocks for messages."""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection, Connection, parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ConnectionError,
    NoPermissionError,
    RedisError,
    TimeoutError,
)

from service.jobs.redis.connection_pool import KINDS, CommandPool, Passwords
from service.jobs.redis.sentinels import primary_pool
from service.settings.loopback import is_local
from service.settings.redis import RedisSettings, sentinel_address
from service.settings.section import ConfigError

MIN_REDIS = (7, 0)
MIN_VALKEY = (8, 0)
POLICY = "noeviction"
MAX_CONNECTIONS = 64
COMMAND_TIMEOUT_S = 5.0
POOL_TIMEOUT_S = 30.0
RETRIES = 5
FAILOVER_RETRIES = 12
"""Number of retries with Sentinels: as many as fit into `COMMAND_TIMEOUT_S`. Within it they have
often promoted a replica."""
ADDRESS_ADVICE = (
    "use redis://, rediss://, unix:// or redis+sentinel://, a numeric port, and in a password %2F"
    " for /, %3F for ?, %23 for #, %40 for @"
)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
"""First and longest pause between attempts to reach a server for the first time."""
REMIND_EVERY_S = 30.0
"""Seconds between log lines about a server that still does not answer."""

T = TypeVar("T")

log = logging.getLogger(__name__)


class RedisUnreachable(ConfigError):
    """Error for a server that may become usable later: not answering, still loading, or a replica.

    Servers wait for it; commands exit.
    """


async def connect(settings: RedisSettings) -> Redis:
    """Return a client for commands, which repeats commands after a lost connection.

    Raises: RedisUnreachable, ConfigError: as `check`.
    """
    redis = client(settings)
    try:
        await check(redis, settings)
    except ConfigError:
        await redis.aclose()
        raise
    return redis


async def check(redis: Redis, settings: RedisSettings) -> None:
    """Check that a server answers, is a primary, and is suitable for the queue.

    Raises:
        RedisUnreachable: it does not answer, is loading or is a replica, and may be usable later.
        ConfigError: it denies access, is too old, or may evict keys.
    """
    where = redacted(str(settings.url))
    try:
        info = await redis.info()
        if info.get("loading"):
            raise BusyLoadingError(f"{where} is loading")
        if info.get("role") == "slave":
            raise RedisUnreachable(
                f"redis.url: the Redis at {where} is a replica, which accepts no writes; promote"
                " it, or set the address of its primary"
            )
        check_server(info, where)
    except (RedisError, OSError) as error:
        raise config_error(settings, error) from error
    if lacking := missing_protections(settings):
        log.warning("redis.url: %s is reached over a network without %s", where, lacking)


async def check_when_reached(
    redis: Redis, settings: RedisSettings, note: Callable[[str], None] = lambda _: None
) -> None:
    """Repeat `check` until the Redis server answers.

    Args:
        note: called with the reason why the server cannot be used yet.

    Raises: ConfigError: as `check`.
    """
    pause_s, logged_at = FIRST_PAUSE_S, -math.inf
    while True:
        try:
            return await check(redis, settings)
        except RedisUnreachable as error:
            note(str(error))
            if time.monotonic() - logged_at >= REMIND_EVERY_S:
                logged_at = time.monotonic()
                log.warning("waiting for Redis: %s", error)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


async def wait_until_reached(settings: RedisSettings, note: Callable[[str], None]) -> None:
    """Run `check_when_reached` with a temporary Redis client. Raises: ConfigError: as `check`."""
    redis = client(settings)
    try:
        await check_when_reached(redis, settings, note)
    finally:
        await redis.aclose()


def missing_protections(settings: RedisSettings) -> str:
    """Return the protections that a Redis server on another machine should have but lacks."""
    parts = urlsplit(settings.url or "")
    if not parts.hostname or is_local(parts.hostname):
        return ""
    is_authenticated = (
        settings.password or settings.password_file or settings.cert_file or parts.password
    )
    guards = {
        "TLS (rediss://)": parts.scheme.startswith("rediss"),
        "a password (redis.password)": is_authenticated or "password=" in parts.query.lower(),
    }
    return " and ".join(name for name, is_present in guards.items() if not is_present)


def config_error(settings: RedisSettings, error: Exception) -> ConfigError:
    """Convert redis-py's error of a check into a `ConfigError` with advice."""
    where = redacted(str(settings.url))
    causes = list(_causes(error))
    if any(isinstance(cause, AuthenticationError | NoPermissionError) for cause in causes):
        return ConfigError(
            f"redis.username, redis.password: the Redis at {where} denies access ({error});"
            " correct them, or the rights in its ACL"
        )
    if any(isinstance(cause, BusyLoadingError) for cause in causes):
        return RedisUnreachable(f"redis.url: the Redis at {where} is still loading its data")
    if any(_is_of_tls(cause) for cause in causes):
        return ConfigError(
            f"redis.url: TLS with {where} fails ({error}); correct redis.ca_file, redis.cert_file,"
            " redis.key_file or redis.check_name, or use redis:// if the server uses no TLS"
        )
    if any(isinstance(cause, MasterNotFoundError) for cause in causes):
        return RedisUnreachable(
            f"redis.url: no Sentinel at {where} reports a primary ({error}); start them, or"
            " correct the addresses, the name at the end, or redis.sentinel_password"
        )
    if any(isinstance(cause, ConnectionError | TimeoutError | OSError) for cause in causes):
        other = (
            "redis:// if it uses no TLS" if _wants_tls(where) else ("rediss:// if it requires TLS")
        )
        return RedisUnreachable(
            f"redis.url: no Redis answers at {where} ({error}); start one there, or correct the"
            f" address ({other})"
        )
    return ConfigError(f"redis.url: the server at {where} is not a suitable Redis ({error})")


def _wants_tls(where: str) -> bool:
    return where.startswith("rediss://")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield a Redis error and its causes: redis-py wraps the errors of connecting."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_of_tls(error: BaseException) -> bool:
    """Return whether a connection failed as certificates or protocols do not match.

    Returns False for an aborted handshake.
    """
    broken_off = ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError
    return isinstance(error, ssl.SSLError) and not isinstance(error, broken_off)


def client(settings: RedisSettings) -> Redis:
    """Return a Redis client that has not connected yet. Raises: ConfigError: no valid address."""
    if settings.url is None:
        raise ConfigError("redis.url: name the server (ATELIER_REDIS__URL=redis://…)")
    url = settings.url
    try:
        pool = _pool(settings, url)
    except ValueError:  # its message may contain a part of the password
        raise ConfigError(
            f"redis.url: {redacted(url)} is not a Redis address: {ADDRESS_ADVICE}"
        ) from None
    return Redis.from_pool(pool)


class BriefRetry(Retry):
    """Retry policy that stops at the first failure after `COMMAND_TIMEOUT_S`.

    redis-py retries both a command and its connection. With a hanging server that takes minutes.
    """

    async def call_with_retry(
        self, do: Callable[[], Awaitable[T]], fail: Callable[..., Any], *args: Any, **rest: Any
    ) -> T:
        """Retry a call to Redis within the total time of one command."""
        until = time.monotonic() + COMMAND_TIMEOUT_S

        async def fail_in_time(error: Exception, *count: int) -> None:
            await fail(error, *count)
            if time.monotonic() >= until:
                raise error

        return await super().call_with_retry(do, fail_in_time, *args, **rest)


def _pool(settings: RedisSettings, url: str) -> ConnectionPool:
    """Create a pool of Redis connections. Raises: ValueError: the address is invalid."""
    primary = sentinel_address(url)
    tls = _tls(settings) if url.startswith("rediss") else {}
    retries = FAILOVER_RETRIES if primary else RETRIES
    options: dict[str, Any] = {
        "max_connections": MAX_CONNECTIONS,
        "timeout": POOL_TIMEOUT_S,
        "decode_responses": True,
        "protocol": 2,
        "socket_timeout": COMMAND_TIMEOUT_S,
        "socket_connect_timeout": COMMAND_TIMEOUT_S,
        "retry": BriefRetry(ExponentialBackoff(cap=1.0, base=0.02), retries),
    }
    if primary:
        login = {"username": primary.username, "password": primary.password}
        options |= _credentials(settings, login)
        file, secret = settings.sentinel_password_file, settings.sentinel_password
        of_sentinels = Passwords.of(settings.sentinel_username, file, secret)
        return primary_pool(primary, tls, of_sentinels, **options)
    parts = dict(parse_url(url))
    kind = KINDS[cast(type[AbstractConnection], parts.pop("connection_class", Connection))]
    options |= tls | _credentials(settings, parts) | parts
    return CommandPool(connection_class=kind, **options)


def _credentials(settings: RedisSettings, given: dict[str, Any]) -> dict[str, Any]:
    """Return a Redis connection's login options; remove those of the address from `given`."""
    username = settings.username or given.pop("username", None)
    secrets = (settings.password, settings.next_password)
    if passwords := Passwords.of(username, settings.password_file, *secrets):
        return {"credential_provider": passwords}
    login = {"username": username, "password": given.pop("password", None)}
    return {name: value for name, value in login.items() if value is not None}


def _tls(settings: RedisSettings) -> dict[str, Any]:
    """Return Redis's TLS options: the server proves its name unless `redis.check_name` is false."""
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


def blocking_client(redis: Redis) -> Redis:
    """Return a client of the same server whose reads have no timeout and are never retried."""
    pool = redis.connection_pool
    kwargs = {**pool.connection_kwargs, "socket_timeout": None, "retry": Retry(NoBackoff(), 0)}
    return Redis.from_pool(ConnectionPool(connection_class=pool.connection_class, **kwargs))


def check_server(info: Mapping[str, Any], where: str) -> None:
    """Check a Redis server's version, mode and eviction policy.

    Raises: ConfigError: the server is unsuitable for the queue.
    """
    name, text, floor = "Redis", str(info["redis_version"]), MIN_REDIS
    if "valkey_version" in info:
        name, text, floor = "Valkey", str(info["valkey_version"]), MIN_VALKEY
    if version(text) < floor:
        raise ConfigError(
            f"redis.url: {where} is {name} {text}; use Redis 7.0, Valkey 8.0 or later"
        )
    policy = info.get("maxmemory_policy", POLICY)
    if policy != POLICY:
        raise ConfigError(
            f"redis.url: {where} may evict jobs (maxmemory-policy is {policy}); "
            f"run CONFIG SET maxmemory-policy {POLICY} there"
        )


@dataclass(frozen=True)
class Memory:
    """Memory of a Redis server in bytes."""

    used: int
    """Bytes that count against the limit: without buffers of replicas and the append-only file."""
    limit: int | None
    """`maxmemory`; None: no limit."""

    @property
    def is_full(self) -> bool:
        """True if the Redis server refuses writes that need memory, as `noeviction` says."""
        return self.limit is not None and self.used > self.limit


async def memory(redis: Redis) -> Memory:
    """Read a Redis server's memory usage and limit.

    Raises: redis.exceptions.RedisError: it does not answer.
    Source: `INFO memory`; the server compares the same difference with its limit.
    """
    info = await redis.info("memory")
    uncounted = info.get("mem_not_counted_for_evict", 0)
    return Memory(info["used_memory"] - uncounted, info.get("maxmemory") or None)


def version(text: str) -> tuple[int, int]:
    """Parse a version of Redis: '7.0.15' → (7, 0)."""
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def redacted(url: str) -> str:
    """Return Redis's address without its user and password, for messages.

    The password may also be in the query. Whatever characters it contains, it ends before the last
    @.
    """
    scheme, mark, rest = url.partition("://")
    secret, at, place = rest.rpartition("@")
    address, question, query = place.partition("?")
    if "password=" in query.lower():
        query = "***"
    return f"{scheme}{mark}{'***' if secret else ''}{at}{address}{question}{query}"
