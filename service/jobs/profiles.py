"""Profiles of running pools: `atelier profile` asks, the pool answers, both in Redis."""

from __future__ import annotations

import json
import math
import secrets
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from service.jobs.redis import keys
from service.jobs.scripts.client import Calls

KEPT_S = 600
"""Lifetime of an answer."""
MARGIN_S = 120.0
"""Margin for a pool to see a request, and to read what it has recorded."""
MOST_STEPS, MOST_S = 100, 300
"""Limits of one recording: the pool has it in memory, then in /tmp, where gigabytes would end
it."""


@dataclass(frozen=True)
class ProfileRequest:
    """Request for a profile of one pool."""

    steps: int
    """Steps to record; the profile ends with them, or with its time."""
    seconds: float
    wait_s: float = 0.0
    """Time to wait for something to run."""
    raw: bool = False
    """Whether to store the recording itself."""
    id: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def at_most_s(self) -> float:
        """Seconds after which nobody waits for the profile any more."""
        return self.wait_s + self.seconds + MARGIN_S


class Profiles(Calls):
    """Part of a `Queue` that `atelier profile` and pools use.

    Plain commands: whoever loses a race here asks again.
    """

    async def ask_profile(self, pool: str, request: ProfileRequest) -> float | None:
        """Request a profile; None, or the most seconds for which another one is recorded."""
        name, text = keys.profile(pool), json.dumps(asdict(request))
        if await self._redis.set(name, text, nx=True, ex=math.ceil(request.at_most_s)):
            return None
        return max(1.0, float(await self._redis.pttl(name)) / 1000)

    async def profile_answer(self, request: ProfileRequest) -> dict[str, Any] | None:
        """The last thing that the pool said; None: nothing yet."""
        text = await self._redis.get(keys.profiled(request.id))
        return None if text is None else dict(json.loads(text))

    async def drop_profile(self, pool: str, request: ProfileRequest) -> None:
        """Drop a request that is not wanted any more or has been answered."""
        text = await self._redis.get(keys.profile(pool))
        if text is not None and json.loads(text)["id"] == request.id:
            await self._redis.delete(keys.profile(pool))

    async def wanted_profile(self, pool: str) -> ProfileRequest | None:
        """Read the profile requested of that pool; fields of a newer command are ignored."""
        text = await self._redis.get(keys.profile(pool))
        if text is None:
            return None
        known = {one.name for one in fields(ProfileRequest)}
        return ProfileRequest(
            **{name: value for name, value in json.loads(text).items() if name in known}
        )

    async def answer_profile(self, request: ProfileRequest, answer: dict[str, Any]) -> None:
        """Answer whoever waits for the profile."""
        await self._redis.set(keys.profiled(request.id), json.dumps(answer), ex=KEPT_S)
