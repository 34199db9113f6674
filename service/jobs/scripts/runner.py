"""The Lua scripts: one a transition, each sent behind the text that all of them share.

A script gets one key (the prefix that all keys share) and its arguments by name, as one JSON
object `args`; longer texts follow as plain strings (`texts`), which no script has to parse. Each
has a dataclass with these, and with its answer: in `producer` those that front ends run, in
`consumer` pools, in `maintenance` reapers, in `webhooks` senders of webhooks, in `batches`
drivers of batches.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import cache
from importlib.resources import files

from redis.asyncio import Redis
from redis.commands.core import AsyncScript

from service.jobs.redis.keys import PREFIX
from service.jobs.scripts.script import Answer, Common, Script

SHARED = ("common", "order", "quota", "life")
"""Sources prepended to every script, in this order."""
OF_TWO = {"delete": "forget", "reap": "forget", "claim_jobs": "next_job", "preempt": "next_job"}
"""Text prepended to these two each, after the shared ones."""
PREPENDED = {*SHARED, *OF_TWO.values()}
"""Files that are no scripts by themselves."""


def parts(name: str) -> tuple[str, ...]:
    """Files that a script is put together from, in their order."""
    besides = (OF_TWO[name],) if name in OF_TWO else ()
    return (*SHARED, *besides, name)


@cache
def source(name: str) -> str:
    """The whole text that the server runs."""
    folder = files(__package__)
    return "\n".join(folder.joinpath(f"{part}.lua").read_text() for part in parts(name))


class Scripts:
    """Runs scripts by their digest, and sends the text only to a server that lacks it."""

    def __init__(self, redis: Redis, common: Common) -> None:
        self._redis = redis
        self._common = asdict(common)
        self._known: dict[str, AsyncScript] = {}

    async def run(self, script: Script[Answer]) -> Answer:
        """Run a script, sent by its digest once the server knows it."""
        name = script.name()
        if name not in self._known:
            self._known[name] = self._redis.register_script(source(name))
        args = json.dumps(self._common | script.args(), default=asdict)
        return script.parse(await self._known[name](keys=[PREFIX], args=[args, *script.texts()]))
