"""Backup of all that an installation has in Redis: one point in time, as a file of commands.

The file holds a RESTORE for each key in the server's own protocol, which `valkey-cli --pipe` sends,
too. One script reads the keys, so that they belong together; meanwhile the server does nothing
else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from redis.asyncio import Redis
from redis.client import NEVER_DECODE
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from service.jobs.redis.connection import waiting_twin
from service.jobs.redis.keys import FRONT_PREFIX, HISTORY, PREFIX
from service.settings.section import ConfigError

PREFIXES = (PREFIX, FRONT_PREFIX)
AT_ONCE = 500
"""Keys that one round trip restores."""
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

Command = list[bytes]


class BackupError(ConfigError):
    """A backup cannot be made or restored; says what to do."""


async def read(redis: Redis) -> list[Command]:
    """Return the commands that make all keys anew: each prefix's as they were at one time."""
    commands = {}
    patient = waiting_twin(redis)
    try:
        for prefix in PREFIXES:
            digest = await patient.script_load(READ)
            options = {NEVER_DECODE: True}
            found = await patient.execute_command("EVALSHA", digest, 1, prefix, **options)
            for name, expires_ms, dump in found:
                expires = str(max(0, int(expires_ms))).encode()
                commands[name] = [b"RESTORE", name, expires, dump, b"ABSTTL"]
    finally:
        await patient.aclose()
    return list(commands.values())


async def is_empty(redis: Redis) -> bool:
    """Return whether nothing of an installation is there."""
    for prefix in PREFIXES:
        async for _ in redis.scan_iter(match=f"{prefix}*", count=1000):
            return False
    return True


async def restore(redis: Redis, commands: Sequence[Command]) -> None:
    """Make all keys anew.

    What has expired since stays away, and fences go on behind those that were given meanwhile.

    Raises: BackupError: something is there, or the server does not take them; nothing is left then.
    """
    if not await is_empty(redis):
        raise BackupError(
            "the Redis is not empty: stop front ends and pools, which write as soon as they run,"
            " and take an empty server or database (FLUSHDB deletes everything in one)"
        )
    try:
        for start in range(0, len(commands), AT_ONCE):
            await _send(redis, commands[start : start + AT_ONCE])
        now_s, _ = await redis.time()
        await redis.set(HISTORY, f"0 {now_s}")
    except (RedisError, OSError) as error:
        with suppress(RedisError, OSError):
            await redis.delete(*(command[1] for command in commands))
        raise BackupError(f"the Redis does not take it: {_reason(error)}") from error


async def _send(redis: Redis, commands: Sequence[Command]) -> None:
    async with redis.pipeline(transaction=False) as pipe:
        for command in commands:
            pipe.execute_command(*command)
        for answer in await pipe.execute(raise_on_error=False):
            if isinstance(answer, Exception):
                raise answer


def _reason(error: Exception) -> str:
    if isinstance(error, NoPermissionError):
        return "its user needs +restore, which is for restoring alone"
    if isinstance(error, ResponseError) and "version or checksum" in str(error):
        return "it is older than the one that the backup is of; take one of its version or later"
    return str(error)


def packed(commands: Iterable[Command]) -> Iterator[bytes]:
    """Yield the commands as they are sent."""
    for command in commands:
        parts = (b"$%d\r\n%s\r\n" % (len(part), part) for part in command)
        yield b"*%d\r\n%s" % (len(command), b"".join(parts))


def unpacked(data: bytes) -> Iterator[Command]:
    """Yield the commands of a file."""
    at = 0

    def number() -> int:
        nonlocal at
        end = data.index(b"\r\n", at)
        found = int(data[at + 1 : end])
        at = end + 2
        return found

    while at < len(data):
        command = []
        for _ in range(number()):
            length = number()
            command.append(data[at : at + length])
            at += length + 2
        yield command
