"""The real queue by a simulated clock: its scripts are told the time instead of asking the server.

Nothing else of the queue differs. Lifetimes that Redis itself counts (of kept answers, say) go by
the server's clock and are longer than a simulation takes.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.commands.core import AsyncScript

from service.jobs.queue import Queue
from service.jobs.redis import connection
from service.jobs.scripts.runner import Scripts, source
from service.jobs.scripts.script import Common, Script
from service.settings.queue import QueueSettings
from service.settings.redis import RedisSettings

ASKS, IS_TOLD = "redis.call('TIME')", "args.clock"
EPOCH_S = 1_800_000_000.0
"""Time at which simulations begin: scripts keep microseconds in decimals of this size."""


@dataclass
class Clock:
    """Simulated time, in seconds."""

    now: float = EPOCH_S


class ToldScripts(Scripts):
    """The scripts, with the clock's time in place of the server's."""

    def __init__(self, redis: Redis, common: Common, clock: Clock) -> None:
        super().__init__(redis, common)
        self._clock = clock

    def _registered(self, script: Script[Any]) -> AsyncScript:
        name = script.name()
        if name not in self._known:
            text = source(name)
            if text.count(ASKS) != 1:
                raise AssertionError(f"{name}.lua asks for the time in {text.count(ASKS)} places")
            self._known[name] = self._redis.register_script(text.replace(ASKS, IS_TOLD))
        return self._known[name]

    def _args(self, script: Script[Any]) -> list[str]:
        whole_s = int(self._clock.now)
        micros = round((self._clock.now - whole_s) * 1_000_000)
        self._common["clock"] = [whole_s, min(micros, 999_999)]
        return super()._args(script)


class ToldQueue(Queue):
    """The queue by a simulated clock."""

    def __init__(self, redis: Redis, settings: QueueSettings, clock: Clock) -> None:
        super().__init__(redis, settings)
        common = Common(settings.max_events, settings.priority_advance_s)
        self._scripts = ToldScripts(redis, common, clock)
        self.clock = clock


async def fresh_queue(url: str, settings: QueueSettings) -> ToldQueue:
    """Return an empty queue whose time begins now."""
    redis = await connection.connect(RedisSettings(url=url))
    await redis.flushall()
    await asyncio.sleep(0)
    return ToldQueue(redis, settings, Clock())
