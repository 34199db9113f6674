"""Per-client state of compatible endpoints whose clients expect a server of their own.

Clients of these endpoints choose a model once, and ask what is running. Uses plain commands: a
caller that loses a race repeats its request.
"""

from __future__ import annotations

from typing import cast

from service.jobs.redis import keys
from service.jobs.scripts.client import QueueClient

CHOICE_S = 90 * 86400
"""Lifetime of a chosen model since it was last chosen."""
WAITING_JOBS_S = 86400
"""Lifetime of a sender's list of jobs, which a crashed front end does not clear."""
MAX_WAITING_JOBS = 64
"""Maximum number of jobs kept per sender."""


class EndpointState(QueueClient):
    """Part of a `Queue` that front ends use for compatible endpoints.

    A sender is an API key or, without keys, an address. All clients of a sender share its model.
    """

    async def choose_model(self, sender: str, model: str) -> None:
        """Set the model for a sender's requests that name none."""
        await self._redis.set(keys.chosen_model(sender), model, ex=CHOICE_S)

    async def chosen_model(self, sender: str) -> str | None:
        """Return the model that a sender chose, or None."""
        return cast(str | None, await self._redis.get(keys.chosen_model(sender)))

    async def add_waiting_job(self, sender: str, job_id: str) -> None:
        """Record that a sender waits for a job."""
        name = keys.waiting_jobs(sender)
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.lrem(name, 0, job_id)
            pipe.rpush(name, job_id)
            pipe.ltrim(name, -MAX_WAITING_JOBS, -1)
            pipe.expire(name, WAITING_JOBS_S)
            await pipe.execute()

    async def remove_waiting_job(self, sender: str, job_id: str) -> None:
        """Record that a sender no longer waits for a job."""
        await self._redis.lrem(keys.waiting_jobs(sender), 0, job_id)

    async def waiting_jobs(self, sender: str) -> list[str]:
        """Return the ids of the jobs that a sender waits for, oldest first."""
        return cast(list[str], await self._redis.lrange(keys.waiting_jobs(sender), 0, -1))
