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
"""How long an answer is kept."""
MARGIN_S = 120.0
"""For a pool to see a request, and to read what it has recorded."""
MOST_STEPS, MOST_S = 100, 300
"""Of one recording: the pool has it in its memory, then in its /tmp, and gigabytes there would be
the pool's end."""


@dataclass(frozen=True)
class ProfileRequest:
    """For a profile of one pool."""

    steps: int
    """To record; the profile ends with them, or with its time."""
    seconds: float
    wait_s: float = 0.0
    """How long to wait for something to run."""
    raw: bool = False
    """Whether the recording itself is to be stored."""
    id: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def at_most_s(self) -> float:
        """Seconds after which nobody waits for the profile any more."""
        return self.wait_s + self.seconds + MARGIN_S


class Profiles(Calls):
    """Fulfils what `atelier profile` and pools ask of a `Queue`.

    Plain commands: whoever loses a race here asks again.
    """

    async def ask_profile(self, pool: str, wish: ProfileRequest) -> float | None:
        """None: it is asked; or else how many seconds at most the pool is busy with another one."""
        name, text = keys.profile(pool), json.dumps(asdict(wish))
        if await self._redis.set(name, text, nx=True, ex=math.ceil(wish.at_most_s)):
            return None
        return max(1.0, float(await self._redis.pttl(name)) / 1000)

    async def profile_answer(self, wish: ProfileRequest) -> dict[str, Any] | None:
        """The last thing that the pool said; None: nothing yet."""
        text = await self._redis.get(keys.profiled(wish.id))
        return None if text is None else dict(json.loads(text))

    async def drop_profile(self, pool: str, wish: ProfileRequest) -> None:
        """It is not wanted any more, or it has been answered."""
        text = await self._redis.get(keys.profile(pool))
        if text is not None and json.loads(text)["id"] == wish.id:
            await self._redis.delete(keys.profile(pool))

    async def wanted_profile(self, pool: str) -> ProfileRequest | None:
        """What is asked of that pool; of a newer command what is known here."""
        text = await self._redis.get(keys.profile(pool))
        if text is None:
            return None
        known = {one.name for one in fields(ProfileRequest)}
        return ProfileRequest(
            **{name: value for name, value in json.loads(text).items() if name in known}
        )

    async def answer_profile(self, wish: ProfileRequest, answer: dict[str, Any]) -> None:
        """Answer whoever waits for the profile."""
        await self._redis.set(keys.profiled(wish.id), json.dumps(answer), ex=KEPT_S)
