"""Requests for profiles of running workers, and their answers, both in Redis.

`atelier profile` stores a request; the worker stores its progress and result.
"""

from __future__ import annotations

import json
import math
import secrets
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from service.jobs.redis import keys
from service.jobs.scripts.client import QueueClient

ANSWER_TTL_S = 600
"""Lifetime of an answer."""
MARGIN_S = 120.0
"""Extra time for a worker to read a request and to parse its recording."""
MAX_STEPS, MAX_S = 100, 300
"""Limits of one recording. A worker keeps it in memory and then in /tmp, where gigabytes would
exhaust both."""


@dataclass(frozen=True)
class ProfileRequest:
    """Request for a profile of one worker's denoising steps."""

    steps: int
    """Number of steps to record. The recording ends after them, or after `seconds`."""
    seconds: float
    wait_s: float = 0.0
    """Time to wait for a job to run."""
    raw: bool = False
    """Whether to store the raw recording, too."""
    id: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def expires_s(self) -> float:
        """Seconds after which the profile request expires."""
        return self.wait_s + self.seconds + MARGIN_S


class Profiles(QueueClient):
    """Part of a `Queue` that `atelier profile` and workers use.

    Uses plain commands: a caller that loses a race repeats its request.
    """

    async def request_profile(self, pool: str, request: ProfileRequest) -> float | None:
        """Store a request for a profile of a worker.

        Returns: None on success; otherwise the maximum seconds until the worker's current request
        expires.
        """
        name, text = keys.profile(pool), json.dumps(asdict(request))
        if await self._redis.set(name, text, nx=True, ex=math.ceil(request.expires_s)):
            return None
        return max(1.0, float(await self._redis.pttl(name)) / 1000)

    async def profile_answer(self, request: ProfileRequest) -> dict[str, Any] | None:
        """Return the worker's latest answer to a request, or None if there is none yet."""
        text = await self._redis.get(keys.profiled(request.id))
        return None if text is None else dict(json.loads(text))

    async def drop_profile(self, pool: str, request: ProfileRequest) -> None:
        """Remove a request that was answered or is no longer needed."""
        text = await self._redis.get(keys.profile(pool))
        if text is not None and json.loads(text)["id"] == request.id:
            await self._redis.delete(keys.profile(pool))

    async def requested_profile(self, pool: str) -> ProfileRequest | None:
        """Return the profile request of a worker; fields of a newer command are ignored."""
        text = await self._redis.get(keys.profile(pool))
        if text is None:
            return None
        names = {item.name for item in fields(ProfileRequest)}
        return ProfileRequest(
            **{name: value for name, value in json.loads(text).items() if name in names}
        )

    async def answer_profile(self, request: ProfileRequest, answer: dict[str, Any]) -> None:
        """Store a worker's answer to a profile request."""
        await self._redis.set(keys.profiled(request.id), json.dumps(answer), ex=ANSWER_TTL_S)
