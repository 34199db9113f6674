"""Check of the Redis server: supported versions and settings, and errors for others."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from service.jobs.queue import Queue
from service.jobs.redis.connection import (
    RedisUnreachable,
    check_server,
    connect,
    missing_protections,
    redacted,
)
from service.settings.queue import QueueSettings
from service.settings.redis import RedisSettings, sentinel_address
from service.settings.section import ConfigError
from service.settings.settings import load_settings

GOOD = [
    {"redis_version": "7.0.0"},
    {"redis_version": "8.2.1", "maxmemory_policy": "noeviction"},
    {"redis_version": "7.2.4", "valkey_version": "8.0.0", "maxmemory_policy": "noeviction"},
]
BAD = [
    ({"redis_version": "6.2.14"}, "Redis 6.2.14"),
    ({"redis_version": "7.2.4", "valkey_version": "7.2.5"}, "Valkey 7.2.5"),
    ({"redis_version": "7.4.0", "maxmemory_policy": "allkeys-lru"}, "allkeys-lru"),
]


@pytest.mark.parametrize("info", GOOD)
def test_good_servers(info: dict[str, str]) -> None:
    check_server(info, "here")


@pytest.mark.parametrize(("info", "named"), BAD)
def test_unsuitable_servers_are_rejected(info: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=rf"redis\.url.*{named}"):
        check_server(info, "here")


@pytest.fixture
async def evicting_redis(empty_redis: Redis) -> AsyncIterator[None]:
    await empty_redis.config_set("maxmemory-policy", "allkeys-lru")
    yield
    await empty_redis.config_set("maxmemory-policy", "noeviction")


@pytest.mark.usefixtures("evicting_redis")
async def test_a_server_that_may_evict(redis_url: str) -> None:
    with pytest.raises(ConfigError, match="CONFIG SET maxmemory-policy noeviction"):
        await Queue.connect(redis_url, QueueSettings())


async def test_no_server(tmp_path: Path) -> None:
    with pytest.raises(RedisUnreachable, match=r"no Redis answers at unix://"):
        await Queue.connect(f"unix://{tmp_path}/none.sock", QueueSettings())


async def test_unresolvable_host_may_be_retried() -> None:
    with pytest.raises(RedisUnreachable, match=r"no Redis answers at redis://nowhere\.invalid"):
        await Queue.connect("redis://nowhere.invalid", QueueSettings())


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (b"$16\r\n# x\r\nloading:1\r\n\r\n", RedisUnreachable, "still loading its data"),
        (b"-LOADING Redis is loading\r\n", RedisUnreachable, "still loading its data"),
        (b"-NOAUTH Authentication required.\r\n", ConfigError, "denies access"),
        (b"-NOPERM no permissions\r\n", ConfigError, "denies access"),
        (b"-ERR unknown command\r\n", ConfigError, "is not a suitable Redis"),
    ],
)
async def test_temporary_and_configuration_errors_are_distinguished(
    answer: bytes, kind: type[ConfigError], words: str
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while request := await reader.read(4096):
            for command in re.findall(rb"\*\d+\r\n\$\d+\r\n(\w+)", request):
                writer.write(answer if command == b"INFO" else b"+OK\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ConfigError, match=words) as error:
            await Queue.connect(f"redis://127.0.0.1:{port}", QueueSettings())
    assert type(error.value) is kind


async def test_no_address() -> None:
    with pytest.raises(ConfigError, match="not a Redis address"):
        await Queue.connect("http://redis", QueueSettings())


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://host:6379/1", "redis://host:6379/1"),
        ("redis://user:p%40ss@host:6379/1", "redis://***@host:6379/1"),
        ("rediss://:secret@host", "rediss://***@host"),
        ("unix:///a/b.sock?db=1", "unix:///a/b.sock?db=1"),
        ("redis://host?db=1&password=secret", "redis://host?***"),
        ("redis+sentinel://:secret@a:1,b:2/name", "redis+sentinel://***@a:1,b:2/name"),
        ("redis://user:a/b?c#d@e@host:6379", "redis://***@host:6379"),
    ],
)
def test_passwords_are_redacted(url: str, said: str) -> None:
    assert redacted(url) == said


@pytest.mark.parametrize("sign", [*"/?#[", "\u2100"])
async def test_password_with_special_characters_is_redacted(
    monkeypatch: pytest.MonkeyPatch, sign: str
) -> None:
    """Some of these characters make the URL invalid. No server listens on port 1."""
    monkeypatch.setenv("ATELIER_REDIS__URL", f"redis://user:qwert{sign}asdfg@127.0.0.1:1")
    with pytest.raises(ConfigError, match="redis") as error:
        await Queue.open(load_settings())
    assert "qwert" not in str(error.value) and "asdfg" not in str(error.value)


@pytest.mark.parametrize("fields", [{"password": "wrong"}, {"password_file": __file__}])
async def test_wrong_password_at_a_unix_socket_is_reported(
    redis_url: str, empty_redis: Redis, fields: dict[str, str]
) -> None:
    with pytest.raises(ConfigError, match=r"redis\.username, redis\.password"):
        await connect(RedisSettings(url=redis_url, username="nobody", **fields))


def test_addresses_of_sentinels() -> None:
    url = "rediss+sentinel://user:p%40ss@[2001:db8::1]:26380,other/the%20name?db=2"
    address = sentinel_address(url)
    assert address is not None
    assert address.sentinels == [("2001:db8::1", 26380), ("other", 26379)]
    assert address[1:] == ("the name", 2, "user", "p@ss", True)
    assert sentinel_address("redis://host/1") is None


@pytest.mark.parametrize(
    ("fields", "lacking"),
    [
        ({"url": "unix:///a/b.sock"}, ""),
        ({"url": "redis://127.0.0.1:6379"}, ""),
        ({"url": "redis://localhost"}, ""),
        ({"url": "redis://192.0.2.1"}, "TLS (rediss://) and a password (redis.password)"),
        ({"url": "redis://192.0.2.1", "password": "p"}, "TLS (rediss://)"),
        ({"url": "rediss://192.0.2.1"}, "a password (redis.password)"),
        ({"url": "rediss://:p@192.0.2.1"}, ""),
        ({"url": "redis+sentinel://192.0.2.1,192.0.2.2/n", "password": "p"}, "TLS (rediss://)"),
        ({"url": "rediss+sentinel://:p@192.0.2.1/n"}, ""),
        ({"url": "rediss://192.0.2.1", "cert_file": __file__, "key_file": __file__}, ""),
    ],
)
def test_missing_protections_of_a_remote_server(fields: dict[str, str], lacking: str) -> None:
    assert missing_protections(RedisSettings.model_validate(fields)) == lacking
