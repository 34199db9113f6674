"""The Lua scripts: one a transition, each sent behind the text that all of them share.

A script gets one key (the prefix that all keys share) and its arguments by name, as one JSON
object `args`; longer texts follow as plain strings (`texts`), which no script has to parse.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from redis.asyncio import Redis
from redis.commands.core import AsyncScript

from service.jobs.keys import PREFIX

SHARED = ("common", "order", "quota", "life")
"""What goes before every script, in this order."""
FORGETTING = frozenset({"delete", "reap"})
"""Scripts that remove jobs: `forget.lua` goes before them."""


@cache
def source(name: str) -> str:
    """The whole text that the server runs."""
    folder = files(__package__)
    parts = (*SHARED, *(("forget",) if name in FORGETTING else ()), name)
    return "\n".join(folder.joinpath(f"{part}.lua").read_text() for part in parts)


class Scripts:
    """Runs scripts by their digest, and sends the text only to a server that lacks it."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._known: dict[str, AsyncScript] = {}

    async def run(self, script: str, *texts: str, **args: Any) -> Any:
        if script not in self._known:
            self._known[script] = self._redis.register_script(source(script))
        given = json.dumps({name: value for name, value in args.items() if value is not None})
        return await self._known[script](keys=[PREFIX], args=[given, *texts])
