"""Backup of an installation's Redis data: a consistent file of RESTORE commands.

The file contains one RESTORE per key in Redis's own protocol, so `valkey-cli --pipe` can send it,
too. One script reads all keys of a prefix, which makes them consistent. The server executes no
other command meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from redis.asyncio import Redis
from redis.client import NEVER_DECODE
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from service.jobs.redis.connection import blocking_client
from service.jobs.redis.keys import BACKED_UP, FRONT_PREFIX, HISTORY, PREFIX
from service.settings.section import ConfigError

PREFIXES = (PREFIX, FRONT_PREFIX)
AT_ONCE = 500
"""Number of keys restored per round trip."""
READ = """
local found, cursor = {}, '0'
repeat
  local page = redis.call('SCAN', cursor, 'MATCH', KEYS[1] .. '*', 'COUNT', 1000)
  cursor = page[1]
  for _, name in ipairs(page[2]) do
    found[#found + 1] = {name, redis.call('PEXPIRETIME', name), redis.call('DUMP', name)}
  end
until cursor == '0'
return found
"""
"""Lua script that returns the name, expiry and dump of every key with a prefix."""

Command = list[bytes]


class BackupError(ConfigError):
    """Failure to make or restore a backup. The message says what to do."""


async def read(redis: Redis) -> list[Command]:
    """Return Redis commands that restore all keys. Keys of a prefix are from one point in time."""
    commands = {}
    patient = blocking_client(redis)
    try:
        for prefix in PREFIXES:
            digest = await patient.script_load(READ)
            options = {NEVER_DECODE: True}
            rows = await patient.execute_command("EVALSHA", digest, 1, prefix, **options)
            for name, expires_ms, dump in rows:
                expires = str(max(0, int(expires_ms))).encode()
                commands[name] = [b"RESTORE", name, expires, dump, b"ABSTTL"]
    finally:
        await patient.aclose()
    return list(commands.values())


async def is_empty(redis: Redis) -> bool:
    """Return whether Redis has no keys of an installation."""
    for prefix in PREFIXES:
        async for _ in redis.scan_iter(match=f"{prefix}*", count=1000):
            return False
    return True


async def restore(redis: Redis, commands: Sequence[Command]) -> None:
    """Restore all keys from a backup.

    Keys that have expired since are skipped. Fences continue after those issued since the backup.

    Raises:
        BackupError: Redis is not empty, or the server rejects the commands; no restored key is left
            then.
    """
    if not await is_empty(redis):
        raise BackupError(
            "the Redis is not empty: stop front ends and pools, which write as soon as they run,"
            " and use an empty server or database (FLUSHDB deletes everything in one)"
        )
    try:
        for start in range(0, len(commands), AT_ONCE):
            await _send(redis, commands[start : start + AT_ONCE])
        now_s, _ = await redis.time()
        await redis.set(HISTORY, f"0 {now_s}")
    except (RedisError, OSError) as error:
        with suppress(RedisError, OSError):
            await redis.delete(*(command[1] for command in commands))
        raise BackupError(f"Redis rejects the backup: {_reason(error)}") from error


async def _send(redis: Redis, commands: Sequence[Command]) -> None:
    """Send Redis commands in one pipeline.

    Raises: redis.exceptions.RedisError: the first command that failed.
    """
    async with redis.pipeline(transaction=False) as pipe:
        for command in commands:
            pipe.execute_command(*command)
        for answer in await pipe.execute(raise_on_error=False):
            if isinstance(answer, Exception):
                raise answer


def _reason(error: Exception) -> str:
    if isinstance(error, NoPermissionError):
        return "its user needs +restore, a right that only restoring requires"
    if isinstance(error, ResponseError) and "version or checksum" in str(error):
        return (
            "it is older than the server that the backup was made from; use that version or later"
        )
    return str(error)


async def record(redis: Redis) -> None:
    """Record in Redis that a backup has just been made. Raises: redis.exceptions.RedisError."""
    now_s, _ = await redis.time()
    await redis.set(BACKED_UP, now_s)


async def age_s(redis: Redis) -> float | None:
    """Return the seconds since the last backup; None: none was recorded.

    Raises: redis.exceptions.RedisError.
    """
    made_at = await redis.get(BACKED_UP)
    now_s, _ = await redis.time()
    return None if made_at is None else float(now_s - int(made_at))


def packed(commands: Iterable[Command]) -> Iterator[bytes]:
    """Yield each command of a backup in the Redis protocol, as bytes."""
    for command in commands:
        parts = (b"$%d\r\n%s\r\n" % (len(part), part) for part in command)
        yield b"*%d\r\n%s" % (len(command), b"".join(parts))


def unpacked(data: bytes) -> Iterator[Command]:
    """Parse a backup file into its Redis commands."""
    offset = 0

    def number() -> int:
        nonlocal offset
        end = data.index(b"\r\n", offset)
        value = int(data[offset + 1 : end])
        offset = end + 2
        return value

    while offset < len(data):
        command = []
        for _ in range(number()):
            length = number()
            command.append(data[offset : offset + length])
            offset += length + 2
        yield command
