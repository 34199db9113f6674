"""A network that loses answers, without the wait: every script is sent twice."""

from __future__ import annotations

from typing import Any

from redis.asyncio import Redis


class Repeating(Redis):
    """Gives the second answer, as to a client whose first one got lost with its connection."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        if args[0] == "EVALSHA":
            await super().execute_command(*args, **options)
        return await super().execute_command(*args, **options)
