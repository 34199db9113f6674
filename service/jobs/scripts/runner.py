"""The Lua scripts: one a transition, each sent behind the shared functions that it reaches.

A script gets one key (the prefix that all keys share) and its arguments by name, as one JSON
object `args`; longer texts follow as plain strings (`texts`), which no script has to parse. Each
has a dataclass with these, and with its answer: in `producer` those that front ends run, in
`consumer` pools, in `maintenance` reapers, in `webhooks` senders of webhooks, in `batches`
drivers of batches, in `ledger` what moves the ledger.
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
"""Sources that every script may use, in this order."""
OF_TWO = {"delete": "forget", "reap": "forget", "claim_jobs": "next_job", "preempt": "next_job"}
"""Source that these may use besides, after the shared ones."""
_ARGS = json.JSONEncoder(default=asdict)
PREPENDED = {*SHARED, *OF_TWO.values()}
"""Files that are no scripts by themselves."""


def parts(name: str) -> tuple[str, ...]:
    """Files that a script is put together from, in their order."""
    besides = (OF_TWO[name],) if name in OF_TWO else ()
    return (*SHARED, *besides, name)


@cache
def source(name: str) -> str:
    """Return the text that the server runs: the script behind what it reaches of shared sources."""
    folder = files(__package__)
    *shared, own = (folder.joinpath(f"{part}.lua").read_text() for part in parts(name))
    return composed(shared, own)


class Unconfirmed(RedisError):
    """Too few replicas have what a script wrote: a failover may lose it."""


class Scripts:
    """Runs scripts by their digest, and sends the text only to a server that lacks it."""

    def __init__(self, redis: Redis, common: Common) -> None:
        self._redis = redis
        self._common = asdict(common)
        self._known: dict[str, AsyncScript] = {}

    async def run(self, script: Script[Answer]) -> Answer:
        """Run a script, sent by its digest once the server knows it."""
        known, args = self._registered(script), self._args(script)
        try:
            answer = await self._redis.execute_command("EVALSHA", known.sha, 1, PREFIX, *args)
        except NoScriptError:
            await self._redis.script_load(known.script)
            answer = await self._redis.execute_command("EVALSHA", known.sha, 1, PREFIX, *args)
        return script.parse(answer)

    async def run_confirmed(self, script: Script[Answer], replicas: int, wait_s: float) -> Answer:
        """Run a script, and wait until so many replicas have all that was written until then.

        Raises: Unconfirmed: they did not say so in time; the script was carried out.
        """
        known = self._registered(script)
        try:
            answer, confirmed = await self._confirmed(known, script, wait_s, replicas)
        except NoScriptError:
            await self._redis.script_load(known.script)
            answer, confirmed = await self._confirmed(known, script, wait_s, replicas)
        if confirmed < replicas:
            raise Unconfirmed(f"{confirmed} of {replicas} replicas confirmed {script.name()}")
        return script.parse(answer)

    async def _confirmed(
        self, known: AsyncScript, script: Script[Answer], wait_s: float, replicas: int
    ) -> tuple[Any, int]:
        """Return a script's answer, and how many replicas have what it wrote.

        WAIT is about what its own connection has written. So the three go together, and are
        repeated together; and there is always a write, though a repeated script makes none.
        """
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.evalsha(known.sha, 1, PREFIX, *self._args(script))
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
        if name not in self._known:
            self._known[name] = self._redis.register_script(source(name))
        return self._known[name]

    def _args(self, script: Script[Answer]) -> list[str]:
        return [_ARGS.encode(self._common | script.args()), *script.texts()]
