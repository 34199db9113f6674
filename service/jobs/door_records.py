"""Records of doors whose clients expect a server of their own: the model they chose, what runs.

Plain commands: whoever loses a race here asks again.
"""

from __future__ import annotations

from typing import cast

from service.jobs.redis import keys
from service.jobs.scripts.client import Calls

CHOICE_S = 90 * 86400
"""Time that a choice is kept without being made again."""
AT_WORK_S = 86400
"""Time after which a front end that died has forgotten its clients' jobs."""
MOST_AT_WORK = 64
"""Maximum number of a sender's jobs that are looked at."""


class DoorRecords(Calls):
    """Part of a `Queue` that front ends use at doors.

    A sender is whoever shares a choice: a key or, where there are none, an address.
    """

    async def choose_model(self, sender: str, model: str) -> None:
        """Record the model that a sender's requests mean which name none."""
        await self._redis.set(keys.chosen_model(sender), model, ex=CHOICE_S)

    async def chosen_model(self, sender: str) -> str | None:
        """Return the model that a sender chose; None: it chose none."""
        return cast(str | None, await self._redis.get(keys.chosen_model(sender)))

    async def begin_at_door(self, sender: str, job_id: str) -> None:
        """Record that a sender waits for a job."""
        name = keys.at_door(sender)
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.lrem(name, 0, job_id)
            pipe.rpush(name, job_id)
            pipe.ltrim(name, -MOST_AT_WORK, -1)
            pipe.expire(name, AT_WORK_S)
            await pipe.execute()

    async def end_at_door(self, sender: str, job_id: str) -> None:
        """Record that it waits no longer."""
        await self._redis.lrem(keys.at_door(sender), 0, job_id)

    async def at_door(self, sender: str) -> list[str]:
        """Return the ids of the jobs that a sender waits for, oldest first."""
        return cast(list[str], await self._redis.lrange(keys.at_door(sender), 0, -1))
