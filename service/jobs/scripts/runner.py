"""Execution of Lua scripts, each preceded by the shared functions that it reaches.

A script gets one key, the prefix of all keys. Its arguments are one JSON object `args` by name.
Longer texts follow as plain strings (`texts`), which no script has to parse. Each script has a
dataclass with its arguments and its answer: in `producer` for front ends, `consumer` for workers,
`maintenance` for reapers, `webhooks` for senders of webhooks, `batches` for drivers of batches, and
`ledger` for the ledger.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from typing import Any

from redis.asyncio import Redis
from redis.commands.core import AsyncScript
from redis.exceptions import NoScriptError, RedisError

from service.jobs.redis.keys import CONFIRMED, PREFIX
from service.jobs.scripts.composition import composed
from service.jobs.scripts.script import Answer, Common, Script

SHARED = ("common", "order", "quota", "ledger", "life")
"""Source files that every script may use, in this order."""
EXTRA_SOURCES = {
    "delete": "forget",
    "reap": "forget",
    "claim_jobs": "next_job",
    "preempt": "next_job",
}
"""Additional source file of these scripts, after the shared ones."""
_ARGS = json.JSONEncoder(default=asdict)
PREPENDED = {*SHARED, *EXTRA_SOURCES.values()}
"""Source files that are not scripts themselves."""


def parts(name: str) -> tuple[str, ...]:
    """Return the names of a script's source files, in their order."""
    besides = (EXTRA_SOURCES[name],) if name in EXTRA_SOURCES else ()
    return (*SHARED, *besides, name)


@cache
def source(name: str) -> str:
    """Return the text that the server runs: the script after the shared functions it uses."""
    folder = files(__package__)
    *shared, text = (folder.joinpath(f"{part}.lua").read_text() for part in parts(name))
    return composed(shared, text)


class Unconfirmed(RedisError):
    """Error: too few replicas have confirmed a script's writes, so a failover may lose them."""


class Scripts:
    """Runner that calls scripts by digest, and sends the text only to a server that lacks it."""

    def __init__(self, redis: Redis, common: Common) -> None:
        self._redis = redis
        self._common = asdict(common)
        self._loaded: dict[str, AsyncScript] = {}

    async def run(self, script: Script[Answer]) -> Answer:
        """Run a script by its digest; load it first if the server lacks it."""
        registered, args = self._registered(script), self._args(script)
        try:
            answer = await self._redis.execute_command("EVALSHA", registered.sha, 1, PREFIX, *args)
        except NoScriptError:
            await self._redis.script_load(registered.script)
            answer = await self._redis.execute_command("EVALSHA", registered.sha, 1, PREFIX, *args)
        return script.parse(answer)

    async def run_confirmed(self, script: Script[Answer], replicas: int, wait_s: float) -> Answer:
        """Run a script, and wait until enough replicas have everything written so far.

        Raises: Unconfirmed: they did not confirm in time; the script was executed.
        """
        registered = self._registered(script)
        try:
            answer, confirmed = await self._confirmed(registered, script, wait_s, replicas)
        except NoScriptError:
            await self._redis.script_load(registered.script)
            answer, confirmed = await self._confirmed(registered, script, wait_s, replicas)
        if confirmed < replicas:
            raise Unconfirmed(f"{confirmed} of {replicas} replicas confirmed {script.name()}")
        return script.parse(answer)

    async def _confirmed(
        self, registered: AsyncScript, script: Script[Answer], wait_s: float, replicas: int
    ) -> tuple[Any, int]:
        """Return a script's answer, and how many replicas have its writes.

        WAIT covers the writes of its own connection. So script, write and WAIT are sent and
        repeated together. The extra write is needed because a repeated script may write nothing.
        """
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.evalsha(registered.sha, 1, PREFIX, *self._args(script))
            pipe.set(CONFIRMED, "")
            pipe.wait(replicas, round(wait_s * 1000))
            answers = await pipe.execute(raise_on_error=False)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        answer, _, confirmed = answers
        return answer, confirmed

    def _registered(self, script: Script[Answer]) -> AsyncScript:
        name = script.name()
        if name not in self._loaded:
            self._loaded[name] = self._redis.register_script(source(name))
        return self._loaded[name]

    def _args(self, script: Script[Answer]) -> list[str]:
        return [_ARGS.encode(self._common | script.args()), *script.texts()]
