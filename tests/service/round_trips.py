"""Commands that clients send to Redis, counted by MONITOR."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

from redis.asyncio import Redis

BEGIN, END = "round-trips-begin", "round-trips-end"
OF_SCRIPTS = "lua"
"""Client type of commands that a script runs."""


async def fewest_commands(url: str, times: int, call: Callable[[], Awaitable[object]]) -> list[str]:
    """Return the commands of the run that sent fewest, in order.

    Background commands of the process (chores, refreshed caches) count too, but not in every run.
    Commands that scripts run do not count.

    Args:
        call: sends the commands to count.
    """
    return min([await commands_of(url, call) for _ in range(times)], key=len)


async def commands_of(url: str, call: Callable[[], Awaitable[object]]) -> list[str]:
    """Return the commands that all clients send during one call of `call`, in order."""
    async with Redis.from_url(url, decode_responses=True) as redis, redis.monitor() as monitor:
        await redis.echo(BEGIN)
        await call()
        await redis.echo(END)
        lines = []
        while END not in (event := await monitor.next_command())["command"]:
            if event["client_type"] != OF_SCRIPTS:
                lines.append(event["command"])
    return list(_between(lines))


def _between(lines: list[str]) -> Iterator[str]:
    """Yield the names of the commands after the `BEGIN` marker."""
    start = next(number for number, line in enumerate(lines) if BEGIN in line)
    yield from (line.split(" ", 1)[0].lower() for line in lines[start + 1 :])
