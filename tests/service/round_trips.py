"""Commands that clients send to Redis, counted by the server itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

from redis.asyncio import Redis

BEGIN, END = "round-trips-begin", "round-trips-end"
OF_SCRIPTS = "lua"
"""Kind of client that calls from inside a script."""


async def fewest_commands(url: str, times: int, ask: Callable[[], Awaitable[object]]) -> list[str]:
    """Return the commands of the shortest of several askings, in their order.

    What a process sends on its own meanwhile (chores, copies that have become old) counts, too,
    but not with each of them. What scripts call inside the server is no round trip.

    Args:
        ask: has the commands sent that are counted.
    """
    return min([await commands_of(url, ask) for _ in range(times)], key=len)


async def commands_of(url: str, ask: Callable[[], Awaitable[object]]) -> list[str]:
    """Return the commands that all clients have sent during one asking, in their order."""
    async with Redis.from_url(url, decode_responses=True) as redis, redis.monitor() as monitor:
        await redis.echo(BEGIN)
        await ask()
        await redis.echo(END)
        lines = []
        while END not in (told := await monitor.next_command())["command"]:
            if told["client_type"] != OF_SCRIPTS:
                lines.append(told["command"])
    return list(_between(lines))


def _between(lines: list[str]) -> Iterator[str]:
    """Yield the names of the commands after the beginning."""
    start = next(number for number, line in enumerate(lines) if BEGIN in line)
    yield from (line.split(" ", 1)[0].lower() for line in lines[start + 1 :])
