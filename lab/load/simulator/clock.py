"""The real queue with a simulated clock: scripts get the time as an argument instead of the
server's.

Nothing else differs. TTLs in Redis (of stored responses, for example) use the server's clock and
are longer than a simulation runs.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import cache
from typing import Any

from redis.asyncio import Redis

from service.jobs.queue import Queue
from service.jobs.redis import connection
from service.jobs.scripts.composition import source
from service.jobs.scripts.script import Script
from service.settings.queue import QueueSettings
from service.settings.redis import RedisSettings

TIME_CALL, CLOCK_ARGUMENT = "redis.call('TIME')", "args.clock"
EPOCH_S = 1_800_000_000.0
"""Start time of simulations; scripts store microseconds as decimals of this size."""


@dataclass
class Clock:
    """Simulated time in seconds."""

    now: float = EPOCH_S


class ClockedQueue(Queue):
    """Queue whose scripts use the simulated clock's time instead of the server's."""

    def __init__(self, redis: Redis, settings: QueueSettings, clock: Clock) -> None:
        super().__init__(redis, settings)
        self.clock = clock

    def _text(self, script: Script[Any]) -> str:
        return _clocked(script.name())

    def _arguments(self, script: Script[Any]) -> list[str]:
        whole_s = int(self.clock.now)
        micros = round((self.clock.now - whole_s) * 1_000_000)
        self._common["clock"] = [whole_s, min(micros, 999_999)]
        return super()._arguments(script)


@cache
def _clocked(name: str) -> str:
    """Return a script's text with the time as an argument."""
    text = source(name)
    if text.count(TIME_CALL) != 1:
        raise AssertionError(f"{name}.lua asks for the time in {text.count(TIME_CALL)} places")
    return text.replace(TIME_CALL, CLOCK_ARGUMENT)


async def fresh_queue(url: str, settings: QueueSettings) -> ClockedQueue:
    """Return an empty queue whose time starts now."""
    redis = await connection.connect(RedisSettings(url=url))
    await redis.flushall()
    await asyncio.sleep(0)
    return ClockedQueue(redis, settings, Clock())
